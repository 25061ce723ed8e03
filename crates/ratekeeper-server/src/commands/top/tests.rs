//! Drawn and printed views of recorded statuses.

use super::view::{View, ViewAction};
use super::{Snapshot, draw, text};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use serde_json::{Value, json};

const URL: &str = "http://127.0.0.1:9090";

/// The status some seconds after the start.
fn status(seconds: u64) -> Value {
    let total = |per_second: u64| per_second * seconds;
    let policy = |name: &str,
                  by: &[&str],
                  limit: &str,
                  rates: [u64; 2],
                  usage: f64,
                  usage_is: &str| {
        json!({"policy": name, "mode": "enforce", "enforced_percent": 100.0, "by": by, "limits": [limit], "allowed": total(rates[0]),
               "denied": total(rates[1]), "shadow_denied": 0, "delayed": 0, "errors": 0, "bans": 0, "keys": 12,
               "usage": usage, "usage_is": usage_is})
    };
    let mut watched = policy("watched", &["user", "path"], "5/s", [40, 0], 17.0, "cost");
    (watched["mode"], watched["shadow_denied"]) = (json!("shadow"), json!(total(3)));
    json!({
        "version": "0.1.0", "now_ms": 1_700_000_000_000_u64 + 1000 * seconds, "uptime_ms": 1000 * seconds,
        "serving": "gateway", "ready": true,
        "totals": {"requests": total(1500), "allowed": total(1200), "denied": total(300)},
        "store": {"kind": "memory", "error": null, "fallback_active": false, "errors": {}, "keys": 12},
        "policies": [policy("per-ip", &["ip"], "100/min burst 20", [1000, 100], 3210.0, "cost"),
                     policy("all", &[], "2000/s", [160, 200], 0.75, "share"), watched],
        "envoy": [{"rule": "shop/path", "allowed": total(1), "denied": 0, "shadow_denied": 0}],
        "breakers": [{"name": "http://127.0.0.1:3000", "state": "closed"}, {"name": "http://127.0.0.1:3001", "state": "open"}],
        "waiting": 2, "overrides": 1, "overload": null,
        "reloads": {"succeeded": 1, "rejected": 0, "stale": false},
    })
}

fn snapshot(status: &Value) -> Snapshot {
    let key = |key: &str, count: u64| json!({"policy": "per-ip", "key": key, "count": count, "at_least": count - count % 10});
    let top = json!({"most_active": [key("#00c0ffee00c0ffee", 1230), key("user=\u{1b}[2Jx", 57)],
                     "most_denied": [key("#00c0ffee00c0ffee", 300)]});
    Snapshot {
        status: serde_json::from_value(status.clone()).unwrap(),
        top: serde_json::from_value(top).unwrap(),
    }
}

fn overloaded() -> Value {
    let mut status = status(10);
    status["overload"] = json!({
        "limits": [{"policy": "api", "algorithm": "gradient2", "limit": 37, "min": 5, "max": 200, "in_flight": 21, "queued": 4, "denied": {"at_capacity": 0, "queue_full": 2, "waited_too_long": 1300},
                    "latency_ms": 12.4, "baseline_ms": 9.8, "news": true}],
        "shed": {"pressure": 0.42, "lowest_served": "sheddable", "classes": [{"class": "critical_plus", "allowed": 10, "shed": 0},
                 {"class": "sheddable", "allowed": 1500, "shed": 500}]}, "late": 7});
    status["store"] = json!({"kind": "redis", "error": "Redis cannot be reached (Connection refused); check that it runs",
                             "fallback_active": true, "errors": {"timeout": 3, "refused": 0}, "keys": null});
    (status["ready"], status["reloads"]["stale"]) = (json!(false), json!(true));
    status
}

fn drawn(view: &View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw::draw(view, frame)).unwrap();
    terminal.backend().to_string()
}

fn busy() -> View {
    let mut view = View::new(URL);
    view.update(Ok(snapshot(&status(10))));
    view.update(Ok(snapshot(&status(12))));
    view
}

fn press(view: &mut View, key: char) {
    assert_eq!(
        view.press(KeyEvent::from(KeyCode::Char(key))),
        ViewAction::Continue
    );
}

#[test]
fn before_the_first_response() {
    insta::assert_snapshot!(drawn(&View::new(URL), 100, 30));
}

#[test]
fn a_busy_gateway() {
    insta::assert_snapshot!(drawn(&busy(), 120, 36));
}

#[test]
fn a_small_terminal() {
    insta::assert_snapshot!(drawn(&busy(), 80, 24));
}

/// Drawing works on terminals of any size.
#[test]
fn terminals_of_any_size() {
    let mut view = busy();
    press(&mut view, '?');
    for width in [1, 2, 3, 9, 24, 40] {
        for height in [1, 2, 4, 11, 20] {
            drawn(&view, width, height);
        }
    }
}

#[test]
fn an_unavailable_store_and_load_shedding() {
    let mut view = View::new(URL);
    view.update(Ok(snapshot(&overloaded())));
    insta::assert_snapshot!(drawn(&view, 120, 36));
}

#[test]
fn sorting_and_selecting() {
    let mut view = busy();
    press(&mut view, 's');
    press(&mut view, 's');
    press(&mut view, 'j');
    let names: Vec<&str> = view.rows.iter().map(|row| &*row.name).collect();
    assert_eq!(names, ["all", "per-ip", "watched", "envoy shop/path"]);
    assert_eq!(view.selected, [1, 0, 0]);
    view.press(KeyEvent::from(KeyCode::Tab));
    view.press(KeyEvent::from(KeyCode::End));
    assert_eq!(view.selected, [1, 1, 0], "the last of the most active keys");
    press(&mut view, 's');
    press(&mut view, 's');
    let names: Vec<&str> = view.rows.iter().map(|row| &*row.name).collect();
    assert_eq!(
        names,
        ["per-ip", "all", "watched", "envoy shop/path"],
        "as configured"
    );
}

#[test]
fn help() {
    let mut view = busy();
    press(&mut view, '?');
    insta::assert_snapshot!(drawn(&view, 100, 30));
}

#[test]
fn an_error_is_shown_until_the_server_is_back() {
    let mut view = busy();
    view.update(Err(
        "cannot connect to http://127.0.0.1:9090: Connection refused (os error 111)".to_owned(),
    ));
    let gone = drawn(&view, 120, 36);
    assert!(
        gone.contains("cannot connect to http://127.0.0.1:9090") && gone.contains("retrying"),
        "{gone}"
    );
    assert!(gone.contains("per-ip"), "the last status stays: {gone}");
    // After a restart the counts begin at 0, and there is no rate until the second status.
    view.update(Ok(snapshot(&status(1))));
    assert!(
        view.error.is_none()
            && view.rates.is_none()
            && view.rows.iter().all(|row| row.rates.is_none())
    );
    view.update(Ok(snapshot(&status(2))));
    assert_eq!(view.rates.unwrap().all(), 1500.0);
}

#[test]
fn a_paused_view_does_not_change() {
    let mut view = busy();
    press(&mut view, 'p');
    view.update(Ok(snapshot(&status(20))));
    assert_eq!(view.now.as_ref().unwrap().status.uptime_ms, 12_000);
    press(&mut view, 'p');
    view.update(Ok(snapshot(&status(22))));
    assert_eq!(
        (
            view.now.as_ref().unwrap().status.uptime_ms,
            view.rates.unwrap().all()
        ),
        (22_000, 1500.0)
    );
}

#[test]
fn q_and_control_c_quit() {
    use ratatui::crossterm::event::KeyModifiers;
    let mut view = busy();
    assert_eq!(
        view.press(KeyEvent::from(KeyCode::Char('q'))),
        ViewAction::Quit
    );
    assert_eq!(
        view.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)),
        ViewAction::Quit
    );
    assert_eq!(
        view.press(KeyEvent::from(KeyCode::Char('c'))),
        ViewAction::Continue
    );
}

#[test]
fn as_text() {
    insta::assert_snapshot!(text::text(&snapshot(&status(10)), URL));
    insta::assert_snapshot!(text::text(&snapshot(&overloaded()), URL));
}
