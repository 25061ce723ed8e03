//! The queue of an adaptive limit at the gateway, and requests whose clients no longer wait.

use crate::gateway;
use crate::overload::half_response_upstream;
use crate::service::echo;
use crate::support::{Connection, Server, eventually};
use std::sync::mpsc::Sender;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// One request at a time; the others wait for as long as a slow machine may take.
const QUEUE: &str = "[[policy]]\nname = \"all\"\n\
    adaptive = { min = 1, max = 1, start = 1, queue = 1, queue_interval = \"60s\" }\n";

fn limit(server: &Server) -> serde_json::Value {
    server.admin("GET", "/admin/status").json()["overload"]["limits"][0].clone()
}

/// A gateway that is busy with one request, and has another one in the queue.
fn one_waits() -> (Server, Connection, Connection, Sender<()>) {
    let (upstream, release) = half_response_upstream();
    let server = gateway(&[upstream], QUEUE);
    let (mut first, mut second) = (server.connect(), server.connect());
    first.send("GET", "/", "");
    assert!(first.head().starts_with("HTTP/1.1 200 "));
    second.send("GET", "/", "");
    eventually("a request in line", || limit(&server)["queued"] == 1);
    (server, first, second, release)
}

#[test]
fn a_queued_request_is_served_when_another_ends() {
    let (server, _first, mut second, release) = one_waits();
    assert_eq!(
        server.metric("ratekeeper_adaptive_queued{policy=\"all\"}"),
        1.0
    );
    // The queue has one slot.
    let response = server.request("GET", "/", "");
    assert_eq!(
        (response.status(), response.header("retry-after")),
        (503, Some("1"))
    );
    let problem = response.json();
    assert_eq!(
        problem["type"],
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    );
    assert_eq!(problem["violated-policies"][0], "all");
    assert_eq!(
        server.metric("ratekeeper_adaptive_denied_total{policy=\"all\",reason=\"queue_full\"}"),
        1.0
    );
    assert_eq!(limit(&server)["denied"]["queue_full"], 1);
    (0..100).for_each(|_| release.send(()).unwrap_or_default());
    assert_eq!(second.answer().status(), 200);
    eventually("an empty line", || {
        limit(&server)["queued"] == 0 && limit(&server)["in_flight"] == 0
    });
}

#[test]
fn a_client_that_hangs_up_leaves_the_queue() {
    let (server, _first, second, release) = one_waits();
    drop(second);
    eventually("an empty line", || limit(&server)["queued"] == 0);
    (0..100).for_each(|_| release.send(()).unwrap_or_default());
    eventually("a free place", || limit(&server)["in_flight"] == 0);
}

#[test]
fn no_request_waits_longer_than_the_interval() {
    let (upstream, _release) = half_response_upstream();
    let server = gateway(&[upstream], &QUEUE.replace("60s", "50ms"));
    let mut first = server.connect();
    first.send("GET", "/", "");
    assert!(first.head().starts_with("HTTP/1.1 200 "));
    let response = server.request("GET", "/", "");
    assert_eq!(response.status(), 503);
    let problem = response.json();
    assert!(
        problem["detail"]
            .as_str()
            .unwrap()
            .contains("waited too long in the queue"),
        "{problem}"
    );
    assert_eq!(
        server
            .metric("ratekeeper_adaptive_denied_total{policy=\"all\",reason=\"waited_too_long\"}"),
        1.0
    );
}

const PATIENT: &str = "[shed]\nstart_header = \"x-request-start\"\npatience = \"60s\"\n";

/// A request that began `seconds` from now, negative for the past.
fn began(server: &Server, seconds: i64) -> u16 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let shift = Duration::from_secs(seconds.unsigned_abs());
    let start = if seconds < 0 {
        now - shift
    } else {
        now + shift
    };
    with(
        server,
        &format!(
            "X-Request-Start: t={}.{:03}",
            start.as_secs(),
            start.subsec_millis()
        ),
    )
}

fn with(server: &Server, header: &str) -> u16 {
    let mut connection = server.connect();
    connection.write(&format!(
        "GET / HTTP/1.1\r\nHost: x\r\n{header}\r\nConnection: close\r\n\r\n"
    ));
    connection.answer().status()
}

#[test]
fn expired_requests_do_not_reach_the_upstream() {
    let (upstream, requests) = echo();
    let server = gateway(
        &[upstream],
        &format!("[identity]\ntrusted_proxies = [\"127.0.0.1\"]\n{PATIENT}"),
    );
    assert_eq!(began(&server, -3_600), 504);
    assert!(requests.try_recv().is_err(), "it reached the service");
    assert_eq!(server.metric("ratekeeper_late_total"), 1.0);
    assert_eq!(
        server.admin("GET", "/admin/status").json()["overload"]["late"],
        1
    );
    assert_eq!((began(&server, -1), began(&server, 3_600)), (200, 200));
    assert_eq!(with(&server, "X-Request-Start: long ago"), 200);
    // An old start of its own can only harm the client itself.
    assert_eq!(
        (
            with(&server, "grpc-timeout: 0m"),
            with(&server, "grpc-timeout: 1M")
        ),
        (504, 200)
    );
}

#[test]
fn the_start_header_of_an_untrusted_client_is_ignored() {
    let (upstream, _requests) = echo();
    let server = gateway(&[upstream], PATIENT);
    assert_eq!(began(&server, -3_600), 200);
    assert_eq!(server.metric("ratekeeper_late_total"), 0.0);
}
