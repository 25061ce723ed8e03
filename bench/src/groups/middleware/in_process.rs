//! The same applications without a socket: the cost of a request in the router alone, with little
//! noise.

use crate::harness::{self, Contestant, Pace, median};
use crate::instructions;
use crate::peers::clocks::SteppingClock;
use crate::web::{AppVisitor, Competitor, Web};
use axum::body::{Body, HttpBody};
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Request, header::HOST};
use ratekeeper::clock::SystemClock;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// The argument that makes the binary send itself requests: then the contestant, and how many.
pub(crate) const CHILD: &str = "--web-service-without-a-socket";

/// How many requests are counted.
const COUNTED: u64 = 5_000;

/// Returns nanoseconds of a request through each, the best runs.
pub(super) fn nanos() -> Result<Vec<f64>, String> {
    let mut contestants = Vec::new();
    for competitor in Competitor::ALL {
        contestants.push(competitor.app(SystemClock, IntoContestant(competitor.name()))?);
    }
    // Long enough for each to meet the machine at its best, which comes and goes within seconds.
    Ok(harness::one_thread_at(
        Pace {
            runs: 401,
            ..Pace::SHORT
        },
        &contestants,
    ))
}

/// Returns instructions of a request through each, independent of other load on the machine; an
/// error without valgrind.
pub(super) fn instructions() -> Result<Vec<f64>, String> {
    // tower_governor's clock is calibrated before, for as long as that takes.
    let of = |competitor: Competitor| {
        instructions::of_a_function(
            "*in_process::answers*",
            &[CHILD, competitor.name()],
            COUNTED,
        )
    };
    Competitor::ALL
        .iter()
        .map(|&competitor| of(competitor))
        .collect()
}

/// Runs under valgrind, which does not support how we read the system's clock: ours advances by a
/// step each time.
pub(crate) fn run(competitor: &str, requests: &str) -> ExitCode {
    let (Some(competitor), Ok(requests)) = (Competitor::named(competitor), requests.parse::<u64>())
    else {
        return ExitCode::from(2);
    };
    if competitor.app(SteppingClock::new(), RepeatedRequest(requests)) == Ok(true) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Returns nanoseconds of requests that each come after what a server does for one: reads and
/// writes of a socket, after which little of the application is left in the nearest cache.
/// Alternates between them, and returns the medians.
pub(super) fn nanos_after_a_socket() -> Result<Vec<f64>, String> {
    let (near, far) = connected().map_err(|error| format!("a connection to itself: {error}"))?;
    let mut timed = Vec::new();
    for competitor in Competitor::ALL {
        timed.push((
            competitor.app(SystemClock, SingleRequest)?,
            Vec::with_capacity(COLD),
        ));
    }
    for _ in 0..COLD {
        for (answers, nanos) in &mut timed {
            // Once before, untimed: what the others leave in the cache does not count.
            let mut answered = answers();
            for (from, to, length) in [(&near, &far, REQUEST), (&far, &near, RESPONSE)] {
                sent(from, to, length)
                    .map_err(|error| format!("a connection to itself: {error}"))?;
            }
            let start = Instant::now();
            answered &= answers();
            nanos.push(start.elapsed().as_nanos() as f64);
            assert!(answered, "a call took another path than its row's");
        }
    }
    Ok(timed.into_iter().map(|(_, nanos)| median(nanos)).collect())
}

/// How many cold requests.
const COLD: usize = 20_000;

/// About the size of a request and a response.
const REQUEST: usize = 64;
const RESPONSE: usize = 192;

fn connected() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

fn sent(mut from: &TcpStream, mut to: &TcpStream, length: usize) -> std::io::Result<()> {
    let mut bytes = [b'x'; RESPONSE];
    from.write_all(&bytes[..length])?;
    to.read_exact(&mut bytes[..length])
}

/// Sends one request.
struct SingleRequest;

impl AppVisitor for SingleRequest {
    type Into = Box<dyn Fn() -> bool>;

    fn put<S: Web>(self, app: S) -> Self::Into {
        Box::new(move || answers(&app))
    }
}

/// Turns a service into a contestant of that name.
struct IntoContestant(&'static str);

impl AppVisitor for IntoContestant {
    type Into = Contestant;

    fn put<S: Web>(self, app: S) -> Contestant {
        Contestant::new(self.0, move || answers(&app))
    }
}

/// Sends this many requests; returns whether each was answered.
struct RepeatedRequest(u64);

impl AppVisitor for RepeatedRequest {
    type Into = bool;

    fn put<S: Web>(self, app: S) -> bool {
        (0..self.0).all(|_| answers(&app))
    }
}

/// Sends a request; returns whether it is answered with 200 and a body without waiting. As in
/// servers, each request has a clone of the application, and the body is read to its end.
#[inline(never)]
fn answers<S: Web>(app: &S) -> bool {
    let mut request = Request::new(Body::empty());
    request
        .headers_mut()
        .insert(HOST, HeaderValue::from_static("localhost:8080"));
    request
        .extensions_mut()
        .insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 4711))));
    let context = &mut Context::from_waker(Waker::noop());
    let Poll::Ready(Ok(response)) = pin!(app.clone().call(request)).poll(context) else {
        return false;
    };
    let (head, mut body) = response.into_parts();
    while !body.is_end_stream() {
        let Poll::Ready(Some(Ok(_))) = Pin::new(&mut body).poll_frame(context) else {
            return false;
        };
    }
    head.status == 200
}
