//! The same applications without a socket: what a request costs in the router alone, where little else disturbs it.

use super::server::Who;
use crate::harness::{self, Contestant};
use crate::instructions;
use crate::peers::clocks::Still;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Request, header::HOST};
use std::net::SocketAddr;
use std::pin::pin;
use std::process::ExitCode;
use std::task::{Context, Poll, Waker};
use tollgate::SystemClock;
use tower_service::Service;

/// The argument that makes the binary ask itself: then who, and how often.
pub(crate) const CHILD: &str = "--web-service-without-a-socket";

/// So many are counted.
const COUNTED: u64 = 5_000;

/// Nanoseconds of a request through each, the best runs.
pub(super) fn nanos() -> Result<Vec<f64>, String> {
    let mut contestants = Vec::new();
    for who in Who::ALL {
        // As servers do it, once: else axum puts every layer on anew for each request.
        let app = who.app(SystemClock)?.with_state(());
        contestants.push(Contestant::new(who.name(), move || answers(&app)));
    }
    Ok(harness::one_thread(&contestants))
}

/// Instructions of a request through each, the same whatever else the machine does; an error without valgrind.
pub(super) fn instructions() -> Result<Vec<f64>, String> {
    // A clock of tower_governor's is calibrated before, for as long as that takes.
    let of = |who: Who| instructions::of_a_function("*in_process::answers*", &[CHILD, who.name()], COUNTED);
    Who::ALL.into_iter().map(of).collect()
}

/// What runs under valgrind, which does not know the system's clock as we read it: ours stands still.
pub(crate) fn run(who: &str, requests: &str) -> ExitCode {
    let (Some(who), Ok(requests)) = (Who::named(who), requests.parse::<u64>()) else { return ExitCode::from(2) };
    let Ok(app) = who.app(Still) else { return ExitCode::FAILURE };
    let app = app.with_state(());
    if (0..requests).all(|_| answers(&app)) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether a request is answered with 200, at once. As servers do, each has a clone of the application.
#[inline(never)]
fn answers(app: &Router) -> bool {
    let mut request = Request::new(Body::empty());
    request.headers_mut().insert(HOST, HeaderValue::from_static("localhost:8080"));
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 4711))));
    let answer = pin!(app.clone().call(request)).poll(&mut Context::from_waker(Waker::noop()));
    matches!(answer, Poll::Ready(Ok(response)) if response.status() == 200)
}
