//! The same applications without a socket: what a request costs in the router alone, where little else disturbs it.

use super::server::{Put, Web, Who};
use crate::harness::{self, Contestant};
use crate::instructions;
use crate::peers::clocks::Still;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Request, header::HOST};
use std::net::SocketAddr;
use std::pin::pin;
use std::process::ExitCode;
use std::task::{Context, Poll, Waker};
use tollgate::SystemClock;

/// The argument that makes the binary ask itself: then who, and how often.
pub(crate) const CHILD: &str = "--web-service-without-a-socket";

/// So many are counted.
const COUNTED: u64 = 5_000;

/// Nanoseconds of a request through each, the best runs.
pub(super) fn nanos() -> Result<Vec<f64>, String> {
    let mut contestants = Vec::new();
    for who in Who::ALL {
        contestants.push(who.app(SystemClock, Timed(who.name()))?);
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
    if who.app(Still, Asked(requests)) == Ok(true) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Makes a contestant of that name of it.
struct Timed(&'static str);

impl Put for Timed {
    type Into = Contestant;

    fn put<S: Web>(self, app: S) -> Contestant {
        Contestant::new(self.0, move || answers(&app))
    }
}

/// Asks it so often; says whether it answered each time.
struct Asked(u64);

impl Put for Asked {
    type Into = bool;

    fn put<S: Web>(self, app: S) -> bool {
        (0..self.0).all(|_| answers(&app))
    }
}

/// Whether a request is answered with 200, at once. As servers do, each has a clone of the application.
#[inline(never)]
fn answers<S: Web>(app: &S) -> bool {
    let mut request = Request::new(Body::empty());
    request.headers_mut().insert(HOST, HeaderValue::from_static("localhost:8080"));
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 4711))));
    let answer = pin!(app.clone().call(request)).poll(&mut Context::from_waker(Waker::noop()));
    matches!(answer, Poll::Ready(Ok(response)) if response.status() == 200)
}
