//! Tests of the configuration: valid and invalid files with their exact messages, variables,
//! `config show`.

/// Compares text with its snapshot in `snapshots`, without the expression, which is no help there.
macro_rules! snapshot {
    ($text:expr) => {
        insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!($text) })
    };
}

mod bad;
mod env;
mod gateway;
mod good;
mod markdown;
mod overload;
mod schema;
mod show;
mod simple_env;
mod store;

#[allow(dead_code, unused_imports)]
#[path = "../../src/config/mod.rs"]
mod config;

use config::{Config, LoadedConfig};

/// The first file of docs/policies.md.
const EXAMPLE: &str = include_str!("example.toml");

/// Loads a file with variables.
fn load(text: &str, env: &[(&str, &str)]) -> LoadedConfig {
    Config::parse(
        "ratekeeper.toml",
        text,
        env.iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    )
}

/// The diagnostics of a file, one per line.
fn diagnostics(text: &str, env: &[(&str, &str)]) -> String {
    load(text, env)
        .diagnostics
        .iter()
        .map(|one| format!("{one}\n"))
        .collect()
}

/// The configuration of a file that must have no diagnostics.
#[track_caller]
fn clean(text: &str, env: &[(&str, &str)]) -> Config {
    assert_eq!(diagnostics(text, env), "");
    load(text, env).config.expect("nothing is wrong")
}
