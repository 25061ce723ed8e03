//! Overload at the gateway: adaptive limits and load shedding.

use crate::gateway;
use crate::service::{echo, head, service};
use crate::support::{Server, eventually};
use std::io::{BufReader, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

const ONE: &str = "[[policy]]\nname = \"all\"\nadaptive = { min = 1, max = 1, start = 1 }\n";

/// An upstream that sends half of each response, and the rest on a signal.
pub(crate) fn half_response_upstream() -> (SocketAddr, Sender<()>) {
    let (release, released) = channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let upstream = service(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while head(&mut reader).is_some() {
            if stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
                .is_err()
                || released.lock().unwrap().recv().is_err()
                || stream.write_all(b"k").is_err()
            {
                return;
            }
        }
    });
    (upstream, release)
}

#[test]
fn an_adaptive_permit_is_held_until_the_response_has_ended() {
    let (upstream, release) = half_response_upstream();
    let server = gateway(&[upstream], ONE);
    let mut first = server.connect();
    first.send("GET", "/", "");
    assert!(first.head().starts_with("HTTP/1.1 200 "));
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
        server.metric("ratekeeper_adaptive_limit{policy=\"all\"}"),
        1.0
    );
    assert_eq!(
        server.metric("ratekeeper_adaptive_in_flight{policy=\"all\"}"),
        1.0
    );
    let status = server.admin("GET", "/admin/status").json();
    let limit = &status["overload"]["limits"][0];
    assert_eq!(
        (&limit["policy"], &limit["algorithm"]),
        (&"all".into(), &"gradient2".into())
    );
    assert_eq!(
        (&limit["limit"], &limit["in_flight"]),
        (&1.into(), &1.into())
    );
    assert!(status["overload"]["shed"].is_null());
    (0..100).for_each(|_| release.send(()).unwrap_or_default());
    eventually("the place given back", || {
        server.request("GET", "/", "").status() == 200
    });
}

#[test]
fn a_client_that_hangs_up_releases_its_permit() {
    let (upstream, release) = half_response_upstream();
    let server = gateway(&[upstream], ONE);
    let mut first = server.connect();
    first.send("GET", "/", "");
    assert!(first.head().starts_with("HTTP/1.1 200 "));
    drop(first);
    (0..100).for_each(|_| release.send(()).unwrap_or_default());
    eventually("the place given back", || {
        server.request("GET", "/", "").status() == 200
    });
}

/// Every machine uses more memory than this threshold, so requests are always shed.
const PRESSED: &str = "[shed]\nmemory = 0.0001\nheader = \"x-priority\"\nspare = \"critical\"\n\
    [[policy]]\nname = \"export\"\nmatch = { path = \"/export\" }\nclass = \"sheddable\"\n";

fn with_priority(server: &Server, priority: &str) -> u16 {
    let mut connection = server.connect();
    connection.write(&format!(
        "GET / HTTP/1.1\r\nHost: x\r\nX-Priority: {priority}\r\nConnection: close\r\n\r\n"
    ));
    connection.answer().status()
}

#[test]
fn the_least_important_requests_are_shed_first() {
    let (upstream, _requests) = echo();
    let server = gateway(&[upstream], PRESSED);
    let mut shed = None;
    eventually("a request shed", || {
        assert_eq!(server.request("GET", "/", "").status(), 200);
        let answer = server.request("GET", "/export", "");
        let is_shed = answer.status() == 503;
        shed = Some(answer);
        is_shed
    });
    let shed = shed.unwrap();
    let after: u32 = shed.header("retry-after").unwrap().parse().unwrap();
    assert!((5..=10).contains(&after), "{after}");
    assert_eq!(shed.json()["title"], "Temporary Reduced Capacity");
    // No proxy is trusted, so the header is ignored.
    assert!((0..50).all(|_| with_priority(&server, "sheddable") == 200));
    assert!(server.metric("ratekeeper_shed_total{class=\"sheddable\"}") >= 1.0);
    assert_eq!(
        server.metric("ratekeeper_shed_total{class=\"critical\"}"),
        0.0
    );
    assert!(server.metric("ratekeeper_shed_pressure") > 1.0);
    let shed = &server.admin("GET", "/admin/status").json()["overload"]["shed"];
    assert!(shed["pressure"].as_f64().unwrap() > 1.0, "{shed}");
    assert_eq!(shed["classes"][0]["class"], "critical_plus");
}

#[test]
fn a_trusted_proxy_sets_the_class_of_a_request() {
    let (upstream, _requests) = echo();
    let server = gateway(
        &[upstream],
        &format!("[identity]\ntrusted_proxies = [\"127.0.0.1\"]\n{PRESSED}"),
    );
    eventually("a request shed", || {
        with_priority(&server, "sheddable") == 503
    });
    assert!((0..20).all(|_| with_priority(&server, "critical_plus") == 200));
    assert!((0..20).all(|_| with_priority(&server, "what?") == 200));
}
