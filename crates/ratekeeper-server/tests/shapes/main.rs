//! The shape matrix: requests and responses in every shape that HTTP has, between clients and
//! upstreams from other projects, through the real gateway. The bytes that arrive are those that
//! were sent, and afterwards the gateway is idle.
//!
//! The short form takes a minute or two; `make full` runs the long one (`RATEKEEPER_SHAPES=full`).

#[path = "../support/authority.rs"]
mod authority;
mod client;
mod curl;
mod disconnects;
mod gateway;
mod pipelining;
mod shape;
mod streaming;
#[path = "../support/mod.rs"]
mod support;
mod table;
mod upstream;

use authority::Authority;
use client::{Client, Kind, Target};
use gateway::Gateways;
use shape::Shape;
use std::time::Duration;
use tokio::time::timeout;
use upstream::{Program, Upstream};

/// Far longer than any exchange takes, so that a gateway that hangs fails the test.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Whether the long form is requested.
fn is_full() -> bool {
    std::env::var("RATEKEEPER_SHAPES").is_ok_and(|form| form == "full")
}

/// The upstreams that know every shape.
fn programs() -> impl Iterator<Item = Program> {
    let programs = [
        Program::GoHttp1,
        Program::NodeHttp1,
        Program::GoHttp2,
        Program::NodeHttp2,
        Program::GoHttp2Tls,
    ];
    programs
        .into_iter()
        .filter(|program| is_full() || *program != Program::GoHttp2Tls)
}

/// Runs this against a gateway in front of an upstream, with more lines under `[gateway]`; then
/// checks that it is idle.
async fn against(program: Program, more: &str, run: impl AsyncFnOnce(&Target)) {
    let authority = Authority::new("an authority");
    let Some(upstream) = Upstream::start(program, &authority) else {
        return;
    };
    let gateways = Gateways::start(&upstream, &authority, more);
    run(&gateways.target).await;
    let ended = tokio::task::spawn_blocking(move || {
        gateways.assert_idle();
        gateways.stop();
    });
    ended.await.unwrap();
}

/// All shapes of the table, by all clients side by side.
async fn matrix(program: Program) {
    let shapes: Vec<Shape> = table::shapes()
        .into_iter()
        .filter(|shape| (is_full() || !shape.is_long) && program.knows(shape))
        .collect();
    against(program, "", async |target| {
        let clients =
            Kind::ALL.map(|kind| tokio::spawn(run(kind, program, target.clone(), shapes.clone())));
        let mut failures = Vec::new();
        for client in clients {
            failures.extend(client.await.unwrap());
        }
        assert!(
            failures.is_empty(),
            "{} failed:\n{}",
            failures.len(),
            failures.join("\n")
        );
    })
    .await;
}

/// The shapes that a client knows, one after the other. Returns the failures.
async fn run(kind: Kind, program: Program, target: Target, shapes: Vec<Shape>) -> Vec<String> {
    let mut client = Client::new(kind, &target);
    let mut failures = Vec::new();
    for shape in shapes.iter().filter(|shape| kind.knows(shape)) {
        let mut fail = |what: &str| {
            let Shape {
                method,
                query,
                upload,
                ..
            } = shape;
            failures.push(format!(
                "{program:?} {kind:?} {method} {query} {upload:?}: {what}"
            ));
        };
        match timeout(TIMEOUT, client.exchange(shape)).await {
            Ok(Ok(response)) => {
                if let Some(mismatch) = shape.mismatch(&response, kind.sees_trailers(shape)) {
                    fail(&mismatch);
                }
                let hints = if kind.sees_hints() {
                    shape.number("hints")
                } else {
                    0
                };
                if response.informational != hints {
                    fail(&format!(
                        "{} responses inform, not {hints}",
                        response.informational
                    ));
                }
            }
            Ok(Err(error)) => {
                fail(&error.to_string());
                client.disconnect();
            }
            // The next ones would hang, too.
            Err(_) => {
                fail(&format!(
                    "no response within {TIMEOUT:?}; the client asks for nothing more"
                ));
                return failures;
            }
        }
    }
    failures
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go_over_http1() {
    matrix(Program::GoHttp1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_over_http1() {
    matrix(Program::NodeHttp1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_with_files() {
    matrix(Program::NginxFiles).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_with_files_over_http2() {
    matrix(Program::NginxFilesHttp2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_as_a_proxy() {
    matrix(Program::NginxProxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go_over_http2() {
    matrix(Program::GoHttp2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go_over_http2_in_tls() {
    matrix(Program::GoHttp2Tls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_over_http2() {
    matrix(Program::NodeHttp2).await;
}
