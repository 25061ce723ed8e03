//! What the page changes: bans, overrides, grants, resets, lifts, a reload; and that it cannot
//! without the token.

use crate::browser::Browser;
use crate::support::Server;
use crate::{ask, open, serve};
use serde_json::json;

const TOKEN: &str = "a token of more than sixteen bytes";

/// Fills fields of the dialog and does what it says.
fn confirm(page: &mut Browser, fields: &[(&str, &str)]) {
    page.until("document.getElementById('act').open");
    for (name, value) in fields {
        page.fill(&format!("#act-fields [data-name='{name}']"), value);
    }
    page.click("#act-do");
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
fn a_key_is_banned_after_a_confirmation_and_let_in_again() {
    let server = serve("");
    let mut page = open(&server, "holds");
    page.until("!document.getElementById('no-holds').hidden");
    page.click("#view-holds [data-act=ban]");
    page.until_text(
        "#act-says",
        "Every request of ip=… under login is turned away for 1h.",
    );
    page.press("Escape");
    page.until("!document.getElementById('act').open");
    assert!(
        ask(&server, "203.0.113.7", "", "/login"),
        "nothing was done"
    );

    let reason = "scraping <b>all</b> night";
    page.click("#view-holds [data-act=ban]");
    confirm(
        &mut page,
        &[("ip", "203.0.113.7"), ("for", "2h"), ("reason", reason)],
    );
    page.until_text("#toasts", "Banned ip=203.0.113.7 under login.");
    page.until_text("#holds tr", "ip=203.0.113.7");
    page.until_text("#holds tr", reason);
    page.until_text("#holds tr", "in 1 h 59 min");
    page.until_text("#nav-holds", "1");
    assert!(!ask(&server, "203.0.113.7", "", "/login"));
    assert!(ask(&server, "203.0.113.8", "", "/login"), "another key");

    page.click("#holds .button");
    page.until_text("#act-says", "that ip=203.0.113.7 under login has end now");
    page.click("#act-do");
    page.until("!document.getElementById('no-holds').hidden");
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
    page.no_complaints();
}

#[test]
fn a_key_that_was_tried_gets_tokens_other_limits_and_a_fresh_start() {
    let server = serve("");
    let passed = || {
        (0..50)
            .take_while(|_| ask(&server, "203.0.113.7", "", "/login"))
            .count()
    };
    assert_eq!(passed(), 3);
    let mut page = open(&server, "try");
    page.fill("#try-fields [data-name=ip]", "203.0.113.7");
    page.fill("#try-fields [data-name=path]", "/login");
    page.click("#try button[type=submit]");
    page.until_text("#try-told .verdict", "Denied by login");
    let button =
        |name: &str| format!("#try-told .card:has(h2) button[aria-label='{name} under login']");

    page.click(&button("Grant"));
    page.until_text(
        "#act-says",
        "ip=203.0.113.7 under login gets 10 tokens back",
    );
    confirm(&mut page, &[("tokens", "2")]);
    page.until_text("#toasts", "Granted 2 to ip=203.0.113.7 under login.");
    page.until_text("#try-told .verdict", "Allowed");
    assert_eq!(passed(), 2);

    page.click(&button("Override"));
    confirm(
        &mut page,
        &[
            ("limits", "7/d, 100/h"),
            ("for", "1d"),
            ("reason", "a guest"),
        ],
    );
    page.until_text("#try-told .level", "7/d");
    assert_eq!(passed(), 7);

    page.click(&button("Reset"));
    page.until_text("#act-says", "its limits are full again");
    confirm(&mut page, &[]);
    page.until_text("#try-told .level", "3 of 3 left");
    assert_eq!(passed(), 3);
    page.no_complaints();
}

#[test]
fn another_policy_asks_for_what_it_counts_by() {
    let server = serve("");
    let mut page = open(&server, "holds");
    page.click("#view-holds [data-act=grant]");
    choose(&mut page, "api");
    page.until("document.querySelector('#act-fields [data-name=user]')");
    choose(&mut page, "everyone");
    page.until_text(
        "#act-says",
        "everyone (one bucket for all) under everyone gets",
    );
    choose(&mut page, "api");
    confirm(&mut page, &[]);
    page.until_text("#act-wrong", "counts by user, and `subject` has none");
    page.click("#act-cancel");
    page.until("!document.getElementById('act').open");
    page.click("nav a[href='#policies']");
    page.click("[data-act=reload]");
    confirm(&mut page, &[]);
    page.until_text("#toasts", "Reloaded: 4 policies.");
    assert_eq!(
        server.figure("ratekeeper_config_reloads_total{result=\"ok\"}"),
        1.0
    );
    page.no_complaints_but("400 (Bad Request)");
}

#[test]
fn without_the_token_a_write_is_refused_and_the_page_says_so() {
    let server = serve(&format!("admin_token = \"{TOKEN}\"\n"));
    let mut page = open(&server, "holds");
    let refused = |page: &mut Browser, sentence: &str| {
        page.until_text("#act-wrong", sentence);
        page.until("document.activeElement.id === 'act-token'");
    };
    page.click("#view-holds [data-act=ban]");
    confirm(&mut page, &[("ip", "203.0.113.7")]);
    refused(
        &mut page,
        "only who has the `admin_token` of [server] may change something",
    );
    assert!(ask(&server, "203.0.113.7", "", "/login"));
    page.write("not the token, but as long");
    page.click("#act-do");
    refused(&mut page, "this is not the `admin_token` of [server]");
    page.eval("document.activeElement.select()");
    page.write(TOKEN);
    page.press("Enter");
    page.until_text("#holds tr", "ip=203.0.113.7");
    assert!(!ask(&server, "203.0.113.7", "", "/login"));

    // It is asked for once, and kept nowhere but in the memory of the page.
    page.click("#holds .button");
    confirm(&mut page, &[]);
    page.until("!document.getElementById('no-holds').hidden");
    let kept = page
        .eval("JSON.stringify([{...localStorage}, {...sessionStorage}, document.body.innerHTML])");
    assert!(!kept.as_str().unwrap().contains(TOKEN));
    page.click("nav a[href='#audit']");
    page.until("document.querySelectorAll('#audit tr').length === 4");
    let outcomes =
        page.eval("[...document.querySelectorAll('#audit .tag')].map((tag) => tag.textContent)");
    assert_eq!(outcomes, json!(["done", "done", "refused", "refused"]));
    page.no_complaints_but("401 (Unauthorized)");
}

/// As `[stats] keys` is unless it is set.
#[test]
fn a_row_is_acted_on_where_keys_are_shown_by_their_fingerprints() {
    let policies = "[server]\nhttp = \"127.0.0.1:0\"\n[[policy]]\nname = \"login\"\nmatch = { path = \"/login\" }\nkey = \"ip\"\n\
                    limit = \"3/d\"\n[[policy]]\nname = \"api\"\nmatch = { path = \"/api\" }\nkey = \"user\"\nlimit = \"3/d\"\n";
    let server = Server::with_config(policies);
    let api = |ip: &str| {
        let subject = json!({"ip": ip, "method": "GET", "path": "/api"});
        let body = json!({"subject": subject}).to_string();
        server.check(&body).json()["allowed"] == json!(true)
    };
    // One key by its address, and one by its address in place of a user.
    for _ in 0..4 {
        ask(&server, "203.0.113.7", "", "/login");
        api("203.0.113.7");
    }
    let mut page = open(&server, "keys");
    for (policy, attribute) in [("login", "ip"), ("api", "user")] {
        let button = format!("#heaviest button[aria-label$='under {policy}']");
        page.until(&format!("!!document.querySelector(\"{button}\")"));
        let row = page.text(&button);
        assert!(row.contains("Ban"), "{row}");
        page.click(&button);
        page.until_text("#act-says", &format!("{attribute}=#"));
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

    // The rows of the list of bans are lifted by the same names.
    page.click("nav a[href='#holds']");
    for left in [1, 0] {
        page.click("#holds .button");
        page.until("document.getElementById('act').open");
        page.click("#act-do");
        page.until(&format!(
            "document.querySelectorAll('#holds .button').length === {left}"
        ));
    }
    assert_eq!(
        (reason("/login"), reason("/api")),
        (json!("limits"), json!("limits"))
    );
    page.no_complaints();
}
