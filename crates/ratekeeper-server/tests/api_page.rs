//! docs/api.md: every line to type is typed, and answers what the page says.

mod support;

use std::process::Command;
use support::Server;

const PAGE: &str = include_str!("../../../docs/api.md");

/// Stands for whatever is there.
const ANYTHING: &str = "…";

/// Stands for the id that was told last.
const ID: &str = "AReF…";

/// Whether a text is as it is written, where dots stand for anything.
fn is_as(written: &str, text: &str) -> bool {
    let mut parts = written.split(ANYTHING);
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
fn every_line_answers_what_the_page_says() {
    let (_, toml) = PAGE.split_once("```toml\n").unwrap();
    let node = Server::with_config(&format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n{}",
        toml.split_once("```").unwrap().0
    ));
    let mut lines = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .peekable();
    let (mut id, mut typed) = (String::new(), 0);
    while let Some(line) = lines.next() {
        let command = line
            .strip_prefix("$ ")
            .unwrap_or_else(|| panic!("{line} is no line to type"));
        let expected = lines.next().unwrap().replace(ID, ANYTHING);
        let command = command
            .replace("127.0.0.1:8080", &node.address.to_string())
            .replace(ID, &id);
        let output = Command::new("sh").arg("-c").arg(&command).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(
            is_as(&expected, told.trim_end()),
            "{command}\n{told}\nis not\n{expected}"
        );
        if let Some((_, rest)) = told.split_once("\"id\":\"") {
            id = rest.split_once('"').unwrap().0.to_owned();
        }
        typed += 1;
    }
    assert!(typed >= 9, "{typed} lines");
}
