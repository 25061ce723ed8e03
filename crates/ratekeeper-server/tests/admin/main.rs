//! The admin API and `ratekeeper admin`, on the real binary: authorization, output, and effects on
//! other nodes.

mod cli;
mod fingerprints;
mod fleet;
mod guide;
mod reads;
#[path = "../support/mod.rs"]
mod support;
mod terminal;
mod writes;

use serde_json::{Value, json};
use support::{Answer, Server};

pub(crate) const TOKEN: &str = "a token of sixteen and more";

/// A node with a policy of five a day for each user, with more settings before and after it.
pub(crate) fn serve(server: &str, more: &str) -> Server {
    Server::with_config(&format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n{server}\n\
         [[policy]]\nname = \"user\"\nkey = \"user\"\nlimit = \"5/d\"\n{more}\n"
    ))
}

pub(crate) fn check(node: &Server, user: &str) -> Answer {
    node.check(&json!({"subject": {"user": user}}).to_string())
}

/// Posts to the admin listener with additional header lines, each ending in CRLF.
pub(crate) fn post_with(node: &Server, path: &str, head: &str, body: &str) -> Answer {
    let mut connection = Server::connect_to(node.admin);
    let length = body.len();
    connection.write(&format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {length}\r\n\r\n{body}"
    ));
    connection.answer()
}

pub(crate) fn post(node: &Server, path: &str, body: &Value) -> Answer {
    post_with(node, path, "", &body.to_string())
}

pub(crate) fn get(node: &Server, path: &str) -> Value {
    let answer = node.admin("GET", path);
    assert_eq!(answer.status(), 200, "{answer:?}");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    answer.json()
}

/// A ban of a user.
pub(crate) fn ban(user: &str, duration: &str) -> Value {
    json!({"policy": "user", "subject": {"user": user}, "for": duration, "reason": "scraping"})
}

pub(crate) fn about(user: &str) -> Value {
    json!({"policy": "user", "subject": {"user": user}})
}

/// Action and outcome of audit entries, newest first.
pub(crate) fn audit(node: &Server) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let entries = get(node, "/admin/audit");
    entries
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (text(&entry["action"]), text(&entry["outcome"])))
        .collect()
}

pub(crate) fn entry(action: &str, outcome: &str) -> (String, String) {
    (action.to_owned(), outcome.to_owned())
}
