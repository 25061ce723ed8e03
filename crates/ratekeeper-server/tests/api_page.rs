//! docs/api.md: every command is run, and prints what the page says.

mod support;

use std::process::Command;
use support::Server;

const PAGE: &str = include_str!("../../../docs/api.md");

/// Matches any text.
const ANYTHING: &str = "…";

/// Stands for the last id.
const ID: &str = "AReF…";

/// Whether a text matches a pattern in which dots match anything.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split(ANYTHING);
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn every_command_prints_what_the_page_says() {
    let (_, toml) = PAGE.split_once("```toml\n").unwrap();
    let node = Server::with_config(&format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n{}",
        toml.split_once("```").unwrap().0
    ));
    let mut lines = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .peekable();
    let (mut id, mut commands) = (String::new(), 0);
    while let Some(line) = lines.next() {
        let command = line
            .strip_prefix("$ ")
            .unwrap_or_else(|| panic!("{line} is not a command"));
        let expected = lines.next().unwrap().replace(ID, ANYTHING);
        let command = command
            .replace("127.0.0.1:8080", &node.address.to_string())
            .replace(ID, &id);
        let output = Command::new("sh").arg("-c").arg(&command).output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(
            matches(&expected, printed.trim_end()),
            "{command}\n{printed}\nis not\n{expected}"
        );
        if let Some((_, rest)) = printed.split_once("\"id\":\"") {
            id = rest.split_once('"').unwrap().0.to_owned();
        }
        commands += 1;
    }
    assert!(commands >= 9, "{commands} lines");
}
