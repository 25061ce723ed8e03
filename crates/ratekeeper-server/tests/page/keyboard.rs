//! All of it with the keyboard alone.

use crate::{ask, open, serve};
use serde_json::json;

#[test]
fn a_ban_is_reached_and_done_with_the_keyboard_alone() {
    let server = serve("");
    let mut page = open(&server, "overview");
    // The first stop leads past the menu.
    page.press("Tab");
    assert_eq!(page.text(":focus"), "Skip to the figures");
    page.tab_to("e.hash === '#holds'");
    page.press("Enter");
    page.until("!document.getElementById('view-holds').hidden");
    page.until("document.activeElement.id === 'main'");
    page.tab_to("e.dataset.act === 'ban'");
    let ring = "getComputedStyle(document.activeElement).outlineStyle";
    assert_eq!(
        page.eval(ring),
        json!("solid"),
        "who has the focus can be seen"
    );
    page.press("Enter");
    page.until("document.getElementById('act').open");
    page.until("document.activeElement.dataset.name === 'ip'");
    page.write("203.0.113.7");
    page.tab_to("e.dataset.name === 'reason'");
    page.write("by the keyboard");
    page.tab_to("e.id === 'act-do'");
    page.press("Enter");
    page.until_text("#holds tr", "by the keyboard");
    assert!(!ask(&server, "203.0.113.7", "", "/login"));
    assert_eq!(
        page.eval("document.activeElement.dataset.act"),
        json!("ban"),
        "back where it began"
    );
    // The list is made anew every second or so, and the focus stays.
    page.tab_to("e.textContent === 'Lift…'");
    page.until("document.getElementById('uptime').title !== ''");
    let uptime = page.text("#uptime");
    page.until(&format!(
        "document.getElementById('uptime').innerText !== {}",
        json!(uptime)
    ));
    assert_eq!(page.text(":focus"), "Lift…");
    page.press("Enter");
    page.tab_to("e.id === 'act-do'");
    page.press("Enter");
    page.until("!document.getElementById('no-holds').hidden");
    assert!(ask(&server, "203.0.113.7", "", "/login"));
    page.no_complaints();
}
