//! The fuzz target of the configuration of the service, which contains that of `ratekeeper-policy`.

#[allow(dead_code, unused_imports)]
#[path = "../../crates/ratekeeper-server/src/config/mod.rs"]
mod service;

use ratekeeper_policy::config::{Configuration, Location};
use service::Config;

/// Loads any text as a file: diagnostics have positions in it, and a valid configuration prints as
/// a file that loads to the same.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let loaded = Config::parse("ratekeeper.toml", text, []);
    assert_eq!(loaded.config.is_none(), loaded.has_errors());
    for diagnostic in &loaded.diagnostics {
        assert!(!diagnostic.message.contains('\n'), "one line: {diagnostic}");
        if let Location::File { line, column, .. } = diagnostic.location {
            let there = text.split('\n').nth(line - 1).expect("a line of the file");
            assert!(
                (1..=there.chars().count() + 1).contains(&column),
                "{diagnostic}"
            );
        }
    }
    if let Some(config) = &loaded.config {
        let shown = config.to_toml();
        let again = Config::parse("shown.toml", &shown, []);
        assert_eq!(
            again.config.as_ref(),
            Some(config),
            "{shown}\n{:?}",
            again.diagnostics
        );
        assert!(
            loaded
                .show()
                .is_some_and(|text| Config::parse("shown.toml", &text, []).config.is_some())
        );
        assert!(!config.to_markdown().is_empty());
    }
}
