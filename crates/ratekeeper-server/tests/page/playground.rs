//! The playground: the page shows what the library decides.

use crate::support::Server;
use crate::{open, serve};
use ratekeeper::{Clock, Limit, Limiter, ManualClock};
use serde_json::{Value, json};
use std::time::Duration;

/// The number of arrivals that the library allows, spread evenly over bars of 100 ms.
fn allowed(limit: &str, arrivals: &[u64]) -> u64 {
    let clock = ManualClock::new();
    let start = clock.now();
    let limiter = Limiter::with_clock(limit.parse::<Limit>().unwrap(), clock.clone());
    let spread = arrivals.iter().enumerate().flat_map(|(bar, &count)| {
        (0..count).map(move |number| bar as u64 * 100_000_000 + number * 100_000_000 / count)
    });
    spread
        .filter(|nanos| {
            clock.set(start + Duration::from_nanos(*nanos));
            limiter.check().is_allowed()
        })
        .count() as u64
}

/// Limit, offered and allowed of each row.
const RESULTS: &str = "[...document.querySelectorAll('#playground-results tr')].map((row) => [...row.children].slice(0, 3).map((cell) => cell.textContent))";

const ARRIVALS: &str = "document.getElementById('arrivals-text').value";

fn numbers(text: &Value) -> Vec<u64> {
    text.as_str()
        .unwrap()
        .split(' ')
        .map(|number| number.parse().unwrap())
        .collect()
}

#[test]
fn each_limit_allows_what_the_library_allows() {
    let server = serve("");
    let mut page = open(&server, "playground");
    for preset in ["steady", "edge", "spikes", "ramp"] {
        page.click(&format!("[data-preset={preset}]"));
        page.until(&format!(
            "document.querySelector('[data-preset={preset}]').ariaPressed === 'true'"
        ));
        let arrivals = numbers(&page.eval(ARRIVALS));
        let offered: u64 = arrivals.iter().sum();
        let limits = [
            "20/s",
            "20/s fixed_window",
            "20/s sliding_window",
            "20/s pacing",
        ];
        let expected: Vec<_> = limits
            .map(|limit| {
                json!([
                    limit,
                    offered.to_string(),
                    allowed(limit, &arrivals).to_string()
                ])
            })
            .to_vec();
        page.until(&format!(
            "JSON.stringify({RESULTS}) === JSON.stringify({})",
            json!(expected)
        ));
    }
    page.click("#all-algorithms");
    page.until("document.querySelectorAll('#playground-results tr').length === 8");
    page.until("document.querySelectorAll('#limit-rows .allowed').length > 8");
    page.click("#add-limit");
    page.until_text("#playground-error", "At most 8 limits");
    page.no_problems();
}

/// The request and response of docs/page.md.
#[test]
fn the_documented_request_has_the_documented_response() {
    let docs = include_str!("../../../../docs/page.md");
    let (body, after) = docs
        .split_once("/admin/playground -d '")
        .unwrap()
        .1
        .split_once("'\n")
        .unwrap();
    let documented: String = after
        .lines()
        .take_while(|line| line.starts_with("    "))
        .map(str::trim)
        .collect();
    let server = serve("");
    let mut connection = Server::connect_to(server.admin);
    connection.send("POST", "/admin/playground", body);
    let answer = connection.answer();
    assert_eq!(
        (answer.status(), answer.json()),
        (200, serde_json::from_str(&documented).unwrap())
    );
    connection.send(
        "POST",
        "/admin/playground",
        r#"{"limits":[],"bin_ms":1,"arrivals":[1]}"#,
    );
    assert_eq!(
        connection.answer().problem(400, "invalid_field"),
        "`limits` must have 1 to 8 values, not 0"
    );
}

#[test]
fn traffic_is_drawn_with_the_mouse_with_keys_or_as_numbers() {
    let server = serve("");
    let mut page = open(&server, "playground");
    page.click("[data-preset=clear]");
    page.until(&format!(
        "{ARRIVALS}.split(' ').every((bar) => bar === '0')"
    ));
    let (x, y) = page.middle("#arrivals");
    page.mouse("mousePressed", x - 100.0, y);
    page.mouse("mouseMoved", x + 100.0, y - 20.0);
    page.mouse("mouseReleased", x + 100.0, y - 20.0);
    page.until(&format!(
        "{ARRIVALS} !== '' && {ARRIVALS}.split(' ').filter((bar) => bar > 0).length > 8"
    ));
    let bars = numbers(&page.eval(ARRIVALS));
    let first = bars.iter().position(|bar| *bar > 0).unwrap();
    let stroke: Vec<_> = bars[first..].iter().take_while(|bar| **bar > 0).collect();
    assert_eq!(
        stroke.len(),
        bars.iter().filter(|bar| **bar > 0).count(),
        "no gaps: {bars:?}"
    );
    assert!(stroke.is_sorted(), "{bars:?}");

    page.click("[data-preset=clear]");
    page.eval("document.getElementById('arrivals').focus()");
    page.press("Home");
    for key in ["ArrowUp", "ArrowUp", "ArrowUp", "ArrowRight", "ArrowUp"] {
        page.press(key);
    }
    page.until(&format!("{ARRIVALS}.startsWith('3 1 0 ')"));
    let value = page.eval("document.getElementById('arrivals').ariaValueText");
    assert_eq!(value, json!("Bar 2 of 60, at 100 ms: 1 request"));

    page.click("#view-playground .as-table summary");
    page.fill("#arrivals-text", "7, 8 9");
    page.until_text("#arrivals-total", "24 requests in 6 s");
    page.fill("#arrivals-text", "7, x");
    page.until_text("#playground-error", "Enter whole numbers");
    page.no_problems();
    page.fill("#arrivals-text", "30000");
    page.until_text("#playground-error", "send at most 20000 in all");
    page.fill("#arrivals-text", "5");
    page.fill("#limit-rows .limit-row:first-child input", "10/fortnight");
    page.until_text("#playground-error", "`fortnight` is not a unit of time");
    page.no_problems_except("400 (Bad Request)");
}
