//! The live page in a real Chromium: every view, with the mouse and with the keyboard alone.

mod accessibility;
mod browser;
mod keyboard;
mod link;
mod looks;
mod pictures;
mod playground;
#[path = "../support/mod.rs"]
mod support;
mod views;
mod writes;

use browser::Browser;
use serde_json::json;
use support::Server;

/// One policy of each kind that the page shows differently.
const POLICIES: &str = r#"
[stats]
keys = "plain"
[[policy]]
name = "login"
match = { path = "/login" }
key = ["ip"]
limit = "3/d"
[[policy]]
name = "api"
match = { path = "/api/**" }
key = ["user"]
limits = ["1000/d", "100/min burst 50"]
[[policy]]
name = "search"
match = { path = "/search" }
key = ["ip"]
limit = "1/d"
action = "shadow"
[[policy]]
name = "everyone"
limit = "1000/w"
"#;

/// A service with these lines under `[server]`.
fn serve(server: &str) -> Server {
    Server::with_config(&format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n{server}{POLICIES}"
    ))
}

/// Sends a check with an address, user and path. Returns whether it was allowed.
fn ask(server: &Server, ip: &str, user: &str, path: &str) -> bool {
    let subject = json!({"ip": ip, "user": user, "method": "GET", "path": path});
    server
        .check(&json!({"subject": subject}).to_string())
        .json()["allowed"]
        == json!(true)
}

/// A browser on a view of the page, connected to the server.
fn open(server: &Server, view: &str) -> Browser {
    let mut browser = Browser::start();
    browser.open(&format!("http://{}/#{view}", server.admin));
    browser.until("document.getElementById('link').dataset.is === 'live'");
    browser
}
