//! The fuzz targets of `ratekeeper-policy`.

use ratekeeper_policy::config::{Config, Location};
use ratekeeper_policy::matching::PathPattern;

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

/// Matches any pattern with any path after a line break: a pattern matches its own text, and all
/// spellings of a path give the same result.
pub fn path(data: &[u8]) {
    let (pattern, path) = match data.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, data),
    };
    let Ok(text) = std::str::from_utf8(pattern) else {
        return;
    };
    let Ok(pattern) = text.parse::<PathPattern>() else {
        return;
    };
    assert!(
        pattern.matches_path(text.replace("**", "x/y").replace('*', "x")),
        "{text:?}"
    );
    assert_eq!(
        pattern.to_string().parse::<PathPattern>().as_ref(),
        Ok(&pattern)
    );
    let matches = pattern.matches_path(path);
    let doubled = path.iter().flat_map(|byte| {
        if *byte == b'/' {
            vec![b'/', b'/']
        } else {
            vec![*byte]
        }
    });
    assert_eq!(
        pattern.matches_path(doubled.collect::<Vec<_>>()),
        matches,
        "{text:?} {path:?}"
    );
    // A path with dots has another reading, in which they are segments.
    if matches && !path.iter().any(|byte| matches!(byte, b'.' | b'%')) {
        assert!(
            pattern.matches_path([b"/./", path, b"/"].concat()),
            "{text:?} {path:?}"
        );
    }
    // Escapes would be escaped twice; an escaped semicolon begins no parameters.
    if !path.iter().any(|byte| matches!(byte, b'%' | b';')) {
        let escaped = path.iter().map(|byte| match byte {
            b'/' => "/".to_owned(),
            byte => format!("%{byte:02x}"),
        });
        assert_eq!(
            pattern.matches_path(escaped.collect::<String>()),
            matches,
            "{text:?} {path:?}"
        );
    }
}
