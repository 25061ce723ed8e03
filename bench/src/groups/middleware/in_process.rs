//! The same applications without a socket: what a request costs in the router alone, where little else disturbs it.

use super::server::Who;
use crate::harness::{self, Contestant};
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Request, header::HOST};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use tower_service::Service;

/// Nanoseconds of a request through each, the best runs.
pub(super) fn nanos() -> Result<Vec<f64>, String> {
    let mut contestants = Vec::new();
    for who in Who::ALL {
        // As servers do it, once: else axum puts every layer on anew for each request.
        let app = who.app()?.with_state(());
        contestants.push(Contestant::new(who.name(), move || answers(&app)));
    }
    Ok(harness::one_thread(&contestants))
}

/// Whether a request is answered with 200, at once. As servers do, each has a clone of the application.
fn answers(app: &Router) -> bool {
    let mut request = Request::new(Body::empty());
    request.headers_mut().insert(HOST, HeaderValue::from_static("localhost:8080"));
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 4711))));
    let answer = pin!(app.clone().call(request)).poll(&mut Context::from_waker(Waker::noop()));
    matches!(answer, Poll::Ready(Ok(response)) if response.status() == 200)
}
