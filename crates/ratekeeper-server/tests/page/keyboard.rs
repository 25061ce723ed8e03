//! The page with the keyboard alone.

use crate::{ask, open, serve};
use serde_json::json;

#[test]
fn a_ban_with_the_keyboard_alone() {
    let server = serve("");
    let mut page = open(&server, "overview");
    // The first stop skips the menu.
    page.press("Tab");
    assert_eq!(page.text(":focus"), "Skip to content");
    page.tab_to("e.hash === '#overrides'");
    page.press("Enter");
    page.until("!document.getElementById('view-overrides').hidden");
    page.until("document.activeElement.id === 'main'");
    page.tab_to("e.dataset.act === 'ban'");
    let ring = "getComputedStyle(document.activeElement).outlineStyle";
    assert_eq!(page.eval(ring), json!("solid"), "the focus is visible");
    page.press("Enter");
    page.until("document.getElementById('act').open");
    page.until("document.activeElement.dataset.name === 'ip'");
    page.write("203.0.113.7");
    page.tab_to("e.dataset.name === 'reason'");
    page.write("by the keyboard");
    page.tab_to("e.id === 'act-submit'");
    page.press("Enter");
    page.until_text("#overrides tr", "by the keyboard");
    assert!(!ask(&server, "203.0.113.7", "", "/login"));
    assert_eq!(
        page.eval("document.activeElement.dataset.act"),
        json!("ban"),
        "the focus returns"
    );
    // The list is updated about every second, and the focus stays.
    page.tab_to("e.textContent === 'Lift…'");
    page.until("document.getElementById('uptime').title !== ''");
    let uptime = page.text("#uptime");
    page.until(&format!(
        "document.getElementById('uptime').innerText !== {}",
        json!(uptime)
    ));
    assert_eq!(page.text(":focus"), "Lift…");
    page.press("Enter");
    page.tab_to("e.id === 'act-submit'");
    page.press("Enter");
    page.until("!document.getElementById('no-overrides').hidden");
    assert!(ask(&server, "203.0.113.7", "", "/login"));
    page.no_problems();
}
