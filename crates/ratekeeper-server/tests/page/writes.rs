//! Changes from the page: bans, overrides, grants, resets, lifts, reloads; and the token.

use crate::browser::Browser;
use crate::support::Server;
use crate::{ask, open, serve};
use serde_json::json;

const TOKEN: &str = "a token of more than sixteen bytes";

/// Fills the fields of the dialog and submits it.
fn confirm(page: &mut Browser, fields: &[(&str, &str)]) {
    page.until("document.getElementById('act').open");
    for (name, value) in fields {
        page.fill(&format!("#act-fields [data-name='{name}']"), value);
    }
    page.click("#act-submit");
}

fn choose(page: &mut Browser, policy: &str) {
    page.until("document.getElementById('act').open");
    let choose = "const s = document.getElementById('act-policy'); s.value = ";
    page.eval(&format!(
        "{{ {choose}{}; s.dispatchEvent(new Event('change', {{bubbles: true}})) }}",
        json!(policy)
    ));
}

#[test]
fn a_key_is_banned_after_confirmation_and_lifted() {
    let server = serve("");
    let mut page = open(&server, "overrides");
    page.until("!document.getElementById('no-overrides').hidden");
    page.click("#view-overrides [data-act=ban]");
    page.until_text(
        "#act-preview",
        "All requests of ip=… under login are denied for 1h.",
    );
    page.press("Escape");
    page.until("!document.getElementById('act').open");
    assert!(
        ask(&server, "203.0.113.7", "", "/login"),
        "nothing was done"
    );

    let reason = "scraping <b>all</b> night";
    page.click("#view-overrides [data-act=ban]");
    confirm(
        &mut page,
        &[("ip", "203.0.113.7"), ("for", "2h"), ("reason", reason)],
    );
    page.until_text("#toasts", "Banned ip=203.0.113.7 under login.");
    page.until_text("#overrides tr", "ip=203.0.113.7");
    page.until_text("#overrides tr", reason);
    page.until_text("#overrides tr", "in 1 h 59 min");
    page.until_text("#nav-overrides", "1");
    assert!(!ask(&server, "203.0.113.7", "", "/login"));
    assert!(ask(&server, "203.0.113.8", "", "/login"), "another key");

    page.click("#overrides .button");
    page.until_text(
        "#act-preview",
        "Ends the ban or override of ip=203.0.113.7 under login now.",
    );
    page.click("#act-submit");
    page.until("!document.getElementById('no-overrides').hidden");
    assert!(ask(&server, "203.0.113.7", "", "/login"));

    page.click("nav a[href='#audit']");
    page.until("document.querySelectorAll('#audit tr').length === 2");
    let newest = page.text("#audit tr:first-child");
    assert!(
        newest.contains("lift") && newest.contains("done"),
        "{newest}"
    );
    let first = page.text("#audit tr:last-child");
    assert!(
        first.contains("ban") && first.contains("for 2h") && first.contains(reason),
        "{first}"
    );
    assert_eq!(
        page.eval("document.querySelectorAll('main b').length"),
        json!(0)
    );
    page.no_problems();
}

#[test]
fn a_tried_key_gets_a_grant_an_override_and_a_reset() {
    let server = serve("");
    let allowed = || {
        (0..50)
            .take_while(|_| ask(&server, "203.0.113.7", "", "/login"))
            .count()
    };
    assert_eq!(allowed(), 3);
    let mut page = open(&server, "try");
    page.fill("#try-fields [data-name=ip]", "203.0.113.7");
    page.fill("#try-fields [data-name=path]", "/login");
    page.click("#try button[type=submit]");
    page.until_text("#try-result .verdict", "Denied by login");
    let button =
        |name: &str| format!("#try-result .card:has(h2) button[aria-label='{name} under login']");

    page.click(&button("Grant"));
    page.until_text(
        "#act-preview",
        "ip=203.0.113.7 under login gets 10 tokens, up to its capacity",
    );
    confirm(&mut page, &[("tokens", "2")]);
    page.until_text("#toasts", "Granted 2 to ip=203.0.113.7 under login.");
    page.until_text("#try-result .verdict", "Allowed");
    assert_eq!(allowed(), 2);

    page.click(&button("Override"));
    confirm(
        &mut page,
        &[
            ("limits", "7/d, 100/h"),
            ("for", "1d"),
            ("reason", "a guest"),
        ],
    );
    page.until_text("#try-result .level", "7/d");
    assert_eq!(allowed(), 7);

    page.click(&button("Reset"));
    page.until_text("#act-preview", "refills its limits");
    confirm(&mut page, &[]);
    page.until_text("#try-result .level", "3 of 3 left");
    assert_eq!(allowed(), 3);
    page.no_problems();
}

#[test]
fn selecting_a_policy_shows_the_attributes_of_its_key() {
    let server = serve("");
    let mut page = open(&server, "overrides");
    page.click("#view-overrides [data-act=grant]");
    choose(&mut page, "api");
    page.until("document.querySelector('#act-fields [data-name=user]')");
    choose(&mut page, "everyone");
    page.until_text(
        "#act-preview",
        "all requests (one bucket) under everyone gets",
    );
    choose(&mut page, "api");
    confirm(&mut page, &[]);
    page.until_text("#act-error", "counts by user, and `subject` lacks it");
    page.click("#act-cancel");
    page.until("!document.getElementById('act').open");
    page.click("nav a[href='#policies']");
    page.click("[data-act=reload]");
    confirm(&mut page, &[]);
    page.until_text("#toasts", "Reloaded: 4 policies.");
    assert_eq!(
        server.metric("ratekeeper_config_reloads_total{result=\"ok\"}"),
        1.0
    );
    page.no_problems_except("400 (Bad Request)");
}

#[test]
fn without_the_token_a_change_is_rejected_with_an_error() {
    let server = serve(&format!("admin_token = \"{TOKEN}\"\n"));
    let mut page = open(&server, "overrides");
    let rejected = |page: &mut Browser, error: &str| {
        page.until_text("#act-error", error);
        page.until("document.activeElement.id === 'act-token'");
    };
    page.click("#view-overrides [data-act=ban]");
    confirm(&mut page, &[("ip", "203.0.113.7")]);
    rejected(&mut page, "admin_token required");
    assert!(ask(&server, "203.0.113.7", "", "/login"));
    page.write("not the token, but as long");
    page.click("#act-submit");
    rejected(&mut page, "wrong admin_token");
    page.eval("document.activeElement.select()");
    page.write(TOKEN);
    page.press("Enter");
    page.until_text("#overrides tr", "ip=203.0.113.7");
    assert!(!ask(&server, "203.0.113.7", "", "/login"));

    // It is asked for once, and kept in the memory of the page only.
    page.click("#overrides .button");
    confirm(&mut page, &[]);
    page.until("!document.getElementById('no-overrides').hidden");
    let stored = page
        .eval("JSON.stringify([{...localStorage}, {...sessionStorage}, document.body.innerHTML])");
    assert!(!stored.as_str().unwrap().contains(TOKEN));
    page.click("nav a[href='#audit']");
    page.until("document.querySelectorAll('#audit tr').length === 4");
    let outcomes =
        page.eval("[...document.querySelectorAll('#audit .tag')].map((tag) => tag.textContent)");
    assert_eq!(outcomes, json!(["done", "done", "rejected", "rejected"]));
    page.no_problems_except("401 (Unauthorized)");
}

/// With the default of `[stats] keys`.
#[test]
fn rows_with_fingerprints_have_working_buttons() {
    let policies = "[server]\nhttp = \"127.0.0.1:0\"\n[[policy]]\nname = \"login\"\nmatch = { path = \"/login\" }\nkey = \"ip\"\n\
                    limit = \"3/d\"\n[[policy]]\nname = \"api\"\nmatch = { path = \"/api\" }\nkey = \"user\"\nlimit = \"3/d\"\n";
    let server = Server::with_config(policies);
    let api = |ip: &str| {
        let subject = json!({"ip": ip, "method": "GET", "path": "/api"});
        let body = json!({"subject": subject}).to_string();
        server.check(&body).json()["allowed"] == json!(true)
    };
    // One key by address, and one by address because the user is missing.
    for _ in 0..4 {
        ask(&server, "203.0.113.7", "", "/login");
        api("203.0.113.7");
    }
    let mut page = open(&server, "keys");
    for (policy, attribute) in [("login", "ip"), ("api", "user")] {
        let button = format!("#most-active button[aria-label$='under {policy}']");
        page.until(&format!("!!document.querySelector(\"{button}\")"));
        let row = page.text(&button);
        assert!(row.contains("Ban"), "{row}");
        page.click(&button);
        page.until_text("#act-preview", &format!("{attribute}=#"));
        confirm(&mut page, &[("for", "1h")]);
        page.until_text("#toasts", &format!("under {policy}."));
    }
    assert!(
        !ask(&server, "203.0.113.7", "", "/login") && ask(&server, "203.0.113.8", "", "/login")
    );
    assert!(!api("203.0.113.7") && api("203.0.113.8"));
    let reason = |path: &str| {
        let subject = json!({"ip": "203.0.113.7", "path": path});
        server
            .check(&json!({"subject": subject}).to_string())
            .json()["reason"]
            .clone()
    };
    assert_eq!(
        (reason("/login"), reason("/api")),
        (json!("ban"), json!("ban"))
    );

    // Bans are lifted by the same fingerprints.
    page.click("nav a[href='#overrides']");
    for left in [1, 0] {
        page.click("#overrides .button");
        page.until("document.getElementById('act').open");
        page.click("#act-submit");
        page.until(&format!(
            "document.querySelectorAll('#overrides .button').length === {left}"
        ));
    }
    assert_eq!(
        (reason("/login"), reason("/api")),
        (json!("limits"), json!("limits"))
    );
    page.no_problems();
}
