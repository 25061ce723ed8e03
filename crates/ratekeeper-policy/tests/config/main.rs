//! The configuration: good and bad files with their exact messages, the environment, showing,
//! reloading.

/// What a text must be, kept in `snapshots`; without the expression, which says nothing to who
/// reads it.
macro_rules! snapshot {
    ($text:expr) => {
        insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!($text) })
    };
}

mod bad;
mod docs;
mod env;
mod gateway;
mod good;
mod plain;
mod pressure;
mod schema;
mod show;
mod store;
mod watch;

use ratekeeper_policy::config::{Config, Loaded};

/// The file of the issue that asked for all this.
const EXAMPLE: &str = include_str!("example.toml");

/// Loads a text with variables.
fn load(text: &str, env: &[(&str, &str)]) -> Loaded {
    Config::parse(
        "ratekeeper.toml",
        text,
        env.iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    )
}

/// What is said of a text, one finding a line.
fn said(text: &str, env: &[(&str, &str)]) -> String {
    load(text, env)
        .diagnostics
        .iter()
        .map(|one| format!("{one}\n"))
        .collect()
}

/// The configuration, of which nothing is said.
#[track_caller]
fn clean(text: &str, env: &[(&str, &str)]) -> Config {
    assert_eq!(said(text, env), "");
    load(text, env).config.expect("nothing is wrong")
}
