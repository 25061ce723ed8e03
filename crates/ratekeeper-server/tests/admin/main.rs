//! The admin API and `ratekeeper admin`, on the real binary: who may change what, what it says, and
//! what other nodes hear of it.

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

/// A node that counts users, five a day each, with more in front of and behind the policy.
pub(crate) fn serve(server: &str, more: &str) -> Server {
    Server::with_config(&format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n{server}\n\
         [[policy]]\nname = \"user\"\nkey = \"user\"\nlimit = \"5/d\"\n{more}\n"
    ))
}

pub(crate) fn check(node: &Server, user: &str) -> Answer {
    node.check(&json!({"subject": {"user": user}}).to_string())
}

/// On the admin listener, with more lines in the head, each of which ends.
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
pub(crate) fn ban(user: &str, lasts: &str) -> Value {
    json!({"policy": "user", "subject": {"user": user}, "for": lasts, "reason": "scraping"})
}

pub(crate) fn about(user: &str) -> Value {
    json!({"policy": "user", "subject": {"user": user}})
}

/// What operators did, as action and outcome, the newest first.
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
