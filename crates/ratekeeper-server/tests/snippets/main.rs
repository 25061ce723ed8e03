//! The snippets of docs/deploy in a real nginx, Caddy, Traefik and Envoy: one table of requests for
//! all four, and what each does without ratekeeper.

mod app;
mod cases;
mod client;
mod proxies;
#[path = "../support/mod.rs"]
mod support;

use app::{app, seen};
use cases::{CASES, Case, POLICIES};
use client::send;
use proxies::{Proxy, Timeouts};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};
use support::{Server, eventually};

/// Runs a test for every proxy in parallel. A failure names all the cases that failed.
fn each_proxy(test: impl Fn(Proxy) -> Vec<String> + Copy + Send + Sync) {
    let failed: Vec<String> = std::thread::scope(|scope| {
        let threads = Proxy::ALL.map(|proxy| scope.spawn(move || test(proxy)));
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(
        failed.is_empty(),
        "{} failed:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

/// What is wrong with the outcome of a case, if anything: as many requests are allowed as its
/// policy says, unchanged, and the next one is denied.
fn failure(proxy: Proxy, case: &Case, at: SocketAddr, from: Ipv4Addr) -> Option<String> {
    for attempt in 1..=case.limit + 1 {
        let (request, body) = (case.request(attempt), case.body.bytes());
        let response = send(at, from, &request);
        let denied = if proxy == Proxy::Envoy {
            429
        } else {
            case.denied
        };
        let expected = if attempt > case.limit { denied } else { 200 };
        if case.refused_by.contains(&proxy) {
            return (response.status() != 400)
                .then(|| format!("attempt {attempt}, expected 400: {response:?}"));
        }
        let limit = response.header("x-ratelimit-limit").map(ToOwned::to_owned);
        if proxy == Proxy::Envoy && case.is_grpc() && attempt > case.limit {
            let is_denied = response.header("grpc-status") == Some("14")
                && response.header("x-seen").is_none()
                && limit == Some(case.limit.to_string());
            return (!is_denied).then(|| format!("expected UNAVAILABLE: {response:?}"));
        }
        let is_right = match expected {
            429 | 503 => {
                let problem = response.header("content-type") == Some("application/problem+json");
                // nginx answers with a page of its own, and Envoy leaves out the type where there
                // is no body.
                (problem || proxy == Proxy::Nginx || case.method == "HEAD")
                    && response.header("retry-after").is_some()
                    && limit == Some(case.limit.to_string())
            }
            _ => [case.target, case.normalized].iter().any(|target| {
                response.header("x-seen") == Some(&*seen(case.method, target, &body))
            }),
        };
        if response.status() != expected || !is_right {
            return Some(format!(
                "attempt {attempt}, expected {expected}: {response:?}"
            ));
        }
    }
    None
}

#[test]
fn limits_hold_and_ordinary_requests_pass() {
    each_proxy(|proxy| {
        let mut server = Server::with_config(POLICIES);
        let log = server.read_log();
        let Some(running) = proxy.start(Timeouts::Long, server.address, app()) else {
            return Vec::new();
        };
        let mut failed = Vec::new();
        for (number, case) in (1u8..).zip(CASES) {
            // Each case has its own client.
            if let Some(failure) =
                failure(proxy, case, running.at, Ipv4Addr::new(127, 1, 0, number))
            {
                failed.push(format!("{proxy:?}, {}: {failure}", case.name));
            }
            let untrusted = server.metric("ratekeeper_untrusted_forwarding_total");
            if !case.forged && untrusted > 0.0 {
                failed.push(format!(
                    "{proxy:?}, {}: a header of the proxy is not trusted",
                    case.name
                ));
            }
        }
        drop((running, server));
        let log = log.join().unwrap();
        // The configuration may warn of a header that a client forged.
        for line in log
            .lines()
            .filter(|line| line.contains("WARN") || line.contains("ERROR"))
        {
            if !line.contains("trusted_proxies under [identity]") || line.contains("::") {
                failed.push(format!("{proxy:?}: {line}"));
            }
        }
        failed
    });
}

/// Checks that requests are forwarded soon, as the comment in each file says.
fn without_ratekeeper(proxy: Proxy, ratekeeper: SocketAddr) -> Vec<String> {
    let Some(running) = proxy.start(Timeouts::Shipped, ratekeeper, app()) else {
        return Vec::new();
    };
    let mut failed = Vec::new();
    for case in CASES.iter().filter(|case| case.ordinary()) {
        let start = Instant::now();
        let response = send(running.at, Ipv4Addr::LOCALHOST, &case.request(1));
        let (status, took) = (response.status(), start.elapsed());
        let is_right =
            response.header("x-seen") == Some(&*seen(case.method, case.target, &case.body.bytes()));
        if !is_right || took > TIMEOUT {
            failed.push(format!(
                "{proxy:?}, {}: {status} after {took:?}: {response:?}",
                case.name
            ));
        }
    }
    failed
}

/// Far longer than the snippets' timeouts, far shorter than the proxies' own.
const TIMEOUT: Duration = Duration::from_secs(15);

#[test]
fn a_ratekeeper_that_is_down_does_not_stop_requests() {
    each_proxy(|proxy| {
        let nobody = SocketAddr::from(([127, 0, 0, 1], ratekeeper_testkit::free_port()));
        without_ratekeeper(proxy, nobody)
    });
}

#[test]
fn a_ratekeeper_that_hangs_does_not_stop_requests() {
    // Connections are established, and no response comes.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let hangs = listener.local_addr().unwrap();
    each_proxy(|proxy| without_ratekeeper(proxy, hangs));
}

#[test]
fn a_ratekeeper_that_comes_back_limits_again() {
    each_proxy(|proxy| {
        let server = Server::with_config(POLICIES);
        let Some(running) = proxy.start(Timeouts::Shipped, server.address, app()) else {
            return Vec::new();
        };
        let case = CASES.iter().find(|case| case.name == "path").unwrap();
        let ask = || send(running.at, Ipv4Addr::new(127, 1, 0, 1), &case.request(1)).status();
        // A slow machine may allow more, but not for ever.
        eventually("a limit that holds", || ask() == 429);
        server.freeze();
        let while_it_hangs = ask();
        server.signal("CONT");
        eventually("a limit that holds again", || ask() == 429);
        drop(server);
        let statuses = [while_it_hangs, ask()];
        (statuses != [200, 200])
            .then(|| format!("{proxy:?}: {statuses:?}"))
            .into_iter()
            .collect()
    });
}
