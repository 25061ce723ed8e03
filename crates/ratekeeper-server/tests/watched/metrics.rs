//! What is on `/metrics` happened.

use crate::promtool::promtool;
use crate::scraped::{families, pages};
use crate::support::{Server, config_file, eventually, ratekeeper, service};
use ratekeeper_testkit::RedisServer;
use serde_json::json;
use std::path::Path;

/// The names of these two were given, and do not end in `_total`.
const GIVEN: [&str; 2] = ["ratelimit_requests_allowed ", "ratelimit_requests_blocked "];

#[test]
fn promtool_complains_of_nothing_but_the_names_that_were_given() {
    for page in pages() {
        let said = String::from_utf8(promtool(&["check", "metrics"], Path::new("."), &page).stderr)
            .unwrap();
        let others: Vec<_> = said
            .lines()
            .filter(|line| !GIVEN.iter().any(|name| line.starts_with(name)))
            .collect();
        assert_eq!(others, [""; 0], "{page}");
    }
}

/// What WIRE and the operators go by; a figure that is renamed breaks somebody's dashboard.
#[test]
fn the_names_that_others_rely_on_are_there() {
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
fn who_waits_is_counted_until_it_hangs_up() {
    let server = delaying("1/h burst 1");
    assert_eq!(server.request("GET", "/", "").status(), 200);
    let mut waiting = server.connect();
    waiting.send("GET", "/", "");
    eventually("it waits", || server.figure("ratekeeper_waiting") == 1.0);
    drop(waiting);
    eventually("it has left", || server.figure("ratekeeper_waiting") == 0.0);
    assert_eq!(
        server.figure("ratekeeper_wait_seconds_count"),
        0.0,
        "its turn never came"
    );
}

#[test]
fn who_has_waited_is_in_the_histogram() {
    let server = delaying("4/s burst 1");
    // On a slow machine the limit may have refilled before the next comes.
    eventually("somebody had to wait", || {
        (0..2).for_each(|_| assert_eq!(server.request("GET", "/", "").status(), 200));
        server.figure("ratekeeper_wait_seconds_count") > 0.0
    });
    let delayed = server.figure("ratekeeper_decisions_total{policy=\"slow\",outcome=\"delayed\"}");
    assert_eq!(server.figure("ratekeeper_wait_seconds_count"), delayed);
    assert!(server.figure("ratekeeper_wait_seconds_sum") > 0.0);
    assert_eq!(server.figure("ratekeeper_waiting"), 0.0);
}

/// Every request is either decided by Redis or by a lease, and no lease spends what it was not
/// given.
#[test]
fn leases_add_up() {
    let redis = RedisServer::start();
    let server = Server::with_config(&format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n[store]\nkind = \"redis\"\nurl = \"{}\"\ntimeout = \"5s\"\n[[policy]]\n\
         name = \"user\"\nkey = [\"user\"]\nlimit = \"1000/h burst 1000\"\nmode = \"leased\"\nstaleness = \"1m\"\n",
        redis.url()
    ));
    let figure = |name: &str| server.figure(&format!("ratekeeper_store_{name}_total"));
    let asked = std::cell::Cell::new(0.0);
    let ask = || {
        assert_eq!(
            server
                .check(&json!({"subject": {"user": "ann"}}).to_string())
                .status(),
            200
        );
        asked.set(asked.get() + 1.0);
    };
    eventually("a lease decides", || {
        ask();
        figure("lease_decisions") > 0.0
    });
    (0..10).for_each(|_| ask());
    let (by_redis, by_lease) = (figure("decisions"), figure("lease_decisions"));
    assert_eq!(by_redis + by_lease, asked.get());
    assert_eq!(figure("fallbacks"), 0.0);
    // Each costs one.
    assert_eq!(figure("lease_spent"), by_lease);
    assert!(figure("lease_calls") >= 1.0);
    assert!(figure("lease_granted") >= figure("lease_spent") + figure("lease_expired"));
}

/// A lease that nobody asks for any more ends unspent.
#[test]
fn what_a_lease_did_not_spend_is_told() {
    let redis = RedisServer::start();
    let server = Server::with_config(&format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n[store]\nkind = \"redis\"\nurl = \"{}\"\ntimeout = \"5s\"\n[[policy]]\n\
         name = \"user\"\nkey = [\"user\"]\nlimit = \"100000/s burst 100000\"\nmode = \"leased\"\nstaleness = \"20ms\"\n",
        redis.url()
    ));
    let figure = |name: &str| server.figure(&format!("ratekeeper_store_{name}_total"));
    // A lease is for who asks often.
    let often = json!(vec![json!({"subject": {"user": "ann"}}); 50]).to_string();
    eventually("a lease ends unspent", || {
        assert_eq!(server.check(&often).status(), 200);
        figure("lease_expired") > 0.0
    });
    assert!(figure("lease_granted") >= figure("lease_spent") + figure("lease_expired"));
}

#[test]
fn the_process_tells_its_memory_descriptors_and_age() {
    let server = Server::start();
    let resident = server.figure("process_resident_memory_bytes");
    assert!(
        (1.0..=server.memory("VmHWM:") as f64).contains(&resident),
        "{resident}"
    );
    let open = server.figure("process_open_fds");
    // Twice as many: among those that were open may be some of earlier questions, which are closed
    // by now.
    let held: Vec<_> = (0..40).map(|_| server.connect()).collect();
    eventually("its clients are seen", || {
        server.figure("process_open_fds") >= open + 20.0
    });
    drop(held);
    assert!(server.figure("process_max_fds") >= open);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    assert!((now - 600.0..=now).contains(&server.figure("process_start_time_seconds")));
    assert!(server.figure("process_cpu_seconds_total") >= 0.0);
}
