//! Light and dark, wide and narrow.

use crate::support::Server;
use crate::{POLICIES, ask, open, serve};
use serde_json::json;

#[test]
fn the_theme_follows_the_system_or_the_button() {
    let server = serve("");
    let mut page = open(&server, "overview");
    let background = "getComputedStyle(document.documentElement).backgroundColor";
    page.prefers(&[("color-scheme", "light")]);
    let light = page.eval(background);
    page.prefers(&[("color-scheme", "dark")]);
    let dark = page.eval(background);
    assert_ne!(light, dark);
    assert_eq!(page.text("#theme"), "Theme: system");
    page.click("#theme");
    assert_eq!(
        (page.text("#theme"), page.eval(background)),
        ("Theme: light".to_owned(), light)
    );
    page.click("#theme");
    page.prefers(&[("color-scheme", "light")]);
    assert_eq!(
        (page.text("#theme"), page.eval(background)),
        ("Theme: dark".to_owned(), dark.clone())
    );
    // It is remembered.
    page.call("Page.reload", json!({}));
    page.until("document.getElementById('link')?.dataset.is === 'live'");
    assert_eq!(
        (page.text("#theme"), page.eval(background)),
        ("Theme: dark".to_owned(), dark)
    );
    page.no_problems();
}

#[test]
fn on_a_narrow_screen_only_tables_scroll_sideways() {
    let server = serve("");
    let mut page = open(&server, "overview");
    page.size(390, 800);
    for view in [
        "overview",
        "policies",
        "keys",
        "shadow",
        "try",
        "overrides",
        "audit",
        "playground",
    ] {
        page.click(&format!("nav a[href='#{view}']"));
        page.until(&format!("!document.getElementById('view-{view}').hidden"));
        let wide = page.eval("document.documentElement.scrollWidth");
        assert!(wide.as_u64().unwrap() <= 390, "{view} is {wide} wide");
    }
    page.no_problems();
}

#[test]
fn reduced_motion_is_honoured() {
    let server = serve("");
    let mut page = open(&server, "policies");
    let moves = "getComputedStyle(document.querySelector('#policies .fill')).transitionDuration";
    page.until("document.querySelector('#policies .fill')");
    page.prefers(&[("reduced-motion", "no-preference")]);
    assert_eq!(page.eval(moves), json!("0.4s"));
    page.prefers(&[("reduced-motion", "reduce")]);
    assert_eq!(page.eval(moves), json!("0s"));
    page.no_problems();
}

/// Realistic policies: long names, several limits, a key of two parts, a tag.
const LONG_POLICIES: &str = r#"
[[policy]]
name = "authenticated-requests"
key = ["user", "endpoint"]
limits = ["1000000/d sliding_window", "6000/min burst 1000", "100 concurrent"]
action = "shadow"
[[policy]]
name = "password-reset-by-address"
key = ["ip"]
limits = ["5/15m sliding_log"]
penalty = { denials = 10, within = "10m", ban = "1h" }
rollout = 12.5
"#;

#[test]
fn the_table_of_policies_fits_at_1280_pixels() {
    let server = Server::with_config(&format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n{POLICIES}{LONG_POLICIES}"
    ));
    for _ in 0..20 {
        ask(&server, "203.0.113.7", "ann", "/login");
    }
    let mut page = open(&server, "policies");
    page.size(1280, 800);
    page.until("document.querySelectorAll('#policies tr').length === 6");
    // The widest numbers.
    let wide = "document.querySelectorAll('#policies td.n').forEach((cell) => { cell.textContent = '99,999'; })";
    page.eval(wide);
    let hidden = "(() => { const at = document.querySelector('#policies').closest('.scroll'); \
                  return at.scrollWidth - at.clientWidth; })()";
    assert_eq!(page.eval(hidden), json!(0));
    let row = "document.querySelector('#policies tr').getBoundingClientRect().height";
    assert!(
        page.eval(row).as_f64().unwrap() < 60.0,
        "a short policy takes one line, and one for its key"
    );
    page.no_problems();
}
