//! The metrics count what happened.

use crate::promtool::promtool;
use crate::scraped::{families, pages};
use crate::support::{Server, config_file, eventually, ratekeeper, service};
use ratekeeper_testkit::RedisServer;
use serde_json::json;
use std::path::Path;

/// Fixed names that do not end in `_total`.
const FIXED_NAMES: [&str; 2] = ["ratelimit_requests_allowed ", "ratelimit_requests_blocked "];

#[test]
fn promtool_reports_only_the_fixed_names() {
    for page in pages() {
        let output =
            String::from_utf8(promtool(&["check", "metrics"], Path::new("."), &page).stderr)
                .unwrap();
        let others: Vec<_> = output
            .lines()
            .filter(|line| !FIXED_NAMES.iter().any(|name| line.starts_with(name)))
            .collect();
        assert_eq!(others, [""; 0], "{page}");
    }
}

/// Names that dashboards rely on.
#[test]
fn the_fixed_metrics_exist() {
    let families = families(&pages());
    for (name, kind, labels) in [
        ("ratelimit_requests_total", "counter", ""),
        ("ratelimit_requests_allowed", "counter", ""),
        ("ratelimit_requests_blocked", "counter", ""),
        ("ratelimit_current_usage", "gauge", "policy"),
        ("ratelimit_avg_response_time", "histogram", ""),
        ("ratekeeper_decisions_total", "counter", "outcome,policy"),
        ("ratekeeper_decision_duration_seconds", "histogram", "store"),
        ("ratekeeper_store_errors_total", "counter", "kind"),
        ("ratekeeper_store_fallback_active", "gauge", ""),
        ("ratekeeper_keys", "gauge", "policy"),
        ("ratekeeper_keys_evicted_total", "counter", "policy,reason"),
        ("ratekeeper_breaker_state", "gauge", "name,state"),
        ("ratekeeper_config_reloads_total", "counter", "result"),
        ("ratekeeper_waiting", "gauge", ""),
        ("ratekeeper_wait_seconds", "histogram", ""),
        ("ratekeeper_build_info", "gauge", "version"),
    ] {
        let family = families.get(name).unwrap_or_else(|| panic!("no {name}"));
        let found = family.labels.keys().cloned().collect::<Vec<_>>().join(",");
        assert_eq!((&*family.kind, &*found), (kind, labels), "{name}");
    }
}

fn delaying(limit: &str) -> Server {
    let file = config_file(&format!(
        "[[policy]]\nname = \"slow\"\nlimit = \"{limit}\"\naction = \"delay\"\nmax_delay = \"2h\"\n"
    ));
    let mut command = ratekeeper();
    let upstream = format!("http://{}", service());
    command
        .args([
            "proxy",
            "--listen",
            "127.0.0.1:0",
            "--upstream",
            &upstream,
            "--config",
        ])
        .arg(file);
    Server::run(command)
}

#[test]
fn a_waiting_request_is_counted_until_its_client_disconnects() {
    let server = delaying("1/h burst 1");
    assert_eq!(server.request("GET", "/", "").status(), 200);
    let mut waiting = server.connect();
    waiting.send("GET", "/", "");
    eventually("it waits", || server.metric("ratekeeper_waiting") == 1.0);
    drop(waiting);
    eventually("it has left", || server.metric("ratekeeper_waiting") == 0.0);
    assert_eq!(
        server.metric("ratekeeper_wait_seconds_count"),
        0.0,
        "it never got its slot"
    );
}

#[test]
fn delays_are_in_the_histogram() {
    let server = delaying("4/s burst 1");
    // On a slow machine the limit may have refilled before the next request.
    eventually("a delayed request", || {
        (0..2).for_each(|_| assert_eq!(server.request("GET", "/", "").status(), 200));
        server.metric("ratekeeper_wait_seconds_count") > 0.0
    });
    let delayed = server.metric("ratekeeper_decisions_total{policy=\"slow\",outcome=\"delayed\"}");
    assert_eq!(server.metric("ratekeeper_wait_seconds_count"), delayed);
    assert!(server.metric("ratekeeper_wait_seconds_sum") > 0.0);
    assert_eq!(server.metric("ratekeeper_waiting"), 0.0);
}

/// Every request is decided by Redis or from a lease, and leases spend at most what was granted.
#[test]
fn leases_add_up() {
    let redis = RedisServer::start();
    let server = Server::with_config(&format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n[store]\nkind = \"redis\"\nurl = \"{}\"\ntimeout = \"5s\"\n[[policy]]\n\
         name = \"user\"\nkey = [\"user\"]\nlimit = \"1000/h burst 1000\"\nmode = \"leased\"\nstaleness = \"1m\"\n",
        redis.url()
    ));
    let metric = |name: &str| server.metric(&format!("ratekeeper_store_{name}_total"));
    let requests = std::cell::Cell::new(0.0);
    let ask = || {
        assert_eq!(
            server
                .check(&json!({"subject": {"user": "ann"}}).to_string())
                .status(),
            200
        );
        requests.set(requests.get() + 1.0);
    };
    eventually("a lease decides", || {
        ask();
        metric("lease_decisions") > 0.0
    });
    (0..10).for_each(|_| ask());
    let (by_redis, by_lease) = (metric("decisions"), metric("lease_decisions"));
    assert_eq!(by_redis + by_lease, requests.get());
    assert_eq!(metric("fallbacks"), 0.0);
    // Each costs one.
    assert_eq!(metric("lease_spent"), by_lease);
    assert!(metric("lease_calls") >= 1.0);
    assert!(metric("lease_granted") >= metric("lease_spent") + metric("lease_expired"));
}

#[test]
fn unspent_units_of_a_lease_are_counted() {
    let redis = RedisServer::start();
    let server = Server::with_config(&format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n[store]\nkind = \"redis\"\nurl = \"{}\"\ntimeout = \"5s\"\n[[policy]]\n\
         name = \"user\"\nkey = [\"user\"]\nlimit = \"100000/s burst 100000\"\nmode = \"leased\"\nstaleness = \"20ms\"\n",
        redis.url()
    ));
    let metric = |name: &str| server.metric(&format!("ratekeeper_store_{name}_total"));
    // Leases are granted to frequent keys.
    let often = json!(vec![json!({"subject": {"user": "ann"}}); 50]).to_string();
    eventually("a lease ends unspent", || {
        assert_eq!(server.check(&often).status(), 200);
        metric("lease_expired") > 0.0
    });
    assert!(metric("lease_granted") >= metric("lease_spent") + metric("lease_expired"));
}

#[test]
fn process_metrics_are_plausible() {
    let server = Server::start();
    let resident = server.metric("process_resident_memory_bytes");
    assert!(
        (1.0..=server.memory("VmHWM:") as f64).contains(&resident),
        "{resident}"
    );
    let open = server.metric("process_open_fds");
    // Twice as many as expected below: some of those open may belong to earlier requests.
    let connections: Vec<_> = (0..40).map(|_| server.connect()).collect();
    eventually("the connections are counted", || {
        server.metric("process_open_fds") >= open + 20.0
    });
    drop(connections);
    assert!(server.metric("process_max_fds") >= open);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    assert!((now - 600.0..=now).contains(&server.metric("process_start_time_seconds")));
    assert!(server.metric("process_cpu_seconds_total") >= 0.0);
}
