//! Active health checks of upstreams.

use super::{Connector, MAX_HEADERS, Peer, UpstreamError, authority};
use crate::gateway::body::RequestBody;
use axum::http::header::{HOST, USER_AGENT};
use axum::http::{HeaderValue, Request};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// How many checks in a row must fail before an upstream counts as unhealthy.
const FAILURES: u32 = 2;

/// How an upstream is checked.
#[derive(Clone)]
pub(crate) struct HealthCheck {
    pub(crate) path: String,
    pub(crate) interval: Duration,
    pub(crate) http2: bool,
    pub(crate) connector: Connector,
}

/// Checks an upstream for as long as it is in a route.
pub(crate) async fn run_health_checks(peer: Weak<Peer>, check: HealthCheck) {
    let mut ticks = interval(check.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failures = 0;
    loop {
        ticks.tick().await;
        let Some(peer) = peer.upgrade() else { return };
        // A check that takes longer than the interval has failed.
        let result = match timeout(
            check.interval.max(check.connector.connect_timeout),
            check_once(&peer, &check),
        )
        .await
        {
            Ok(Ok(status)) if status < 400 => Ok(()),
            Ok(Ok(status)) => Err(format!("it answered {status}")),
            Ok(Err(error)) => Err(error),
            Err(_) => Err("no answer in time".to_owned()),
        };
        failures = if result.is_ok() { 0 } else { failures + 1 };
        let (was, is) = (peer.healthy.load(Relaxed), failures < FAILURES);
        if is != was {
            peer.healthy.store(is, Relaxed);
            match result {
                Ok(()) => tracing::info!("upstream {} is healthy again", peer.upstream),
                Err(error) => tracing::warn!("upstream {} is unhealthy: {error}", peer.upstream),
            }
        }
    }
}

async fn check_once(peer: &Peer, check: &HealthCheck) -> Result<u16, String> {
    let upstream = &peer.upstream;
    let stream = check
        .connector
        .connect(upstream)
        .await
        .map_err(|error| error.to_string())?;
    let authority = authority(upstream);
    let target = if check.http2 {
        format!("http://{authority}{}{}", upstream.prefix(), check.path)
    } else {
        format!("{}{}", upstream.prefix(), check.path)
    };
    let request = Request::get(target)
        .header(HOST, authority)
        .header(USER_AGENT, HeaderValue::from_static("ratekeeper"))
        .body(RequestBody::empty())
        .map_err(|error| error.to_string())?;
    let broken = |error: hyper::Error| UpstreamError::Broken(error).to_string();
    let io = TokioIo::new(stream);
    let status = if check.http2 {
        let (mut send, connection) = http2::Builder::new(TokioExecutor::new())
            .handshake(io)
            .await
            .map_err(broken)?;
        let connection = tokio::spawn(connection);
        let result = send
            .send_request(request)
            .await
            .map(|result| result.status().as_u16());
        connection.abort();
        result.map_err(broken)?
    } else {
        let (mut send, connection) = http1::Builder::new()
            .max_headers(MAX_HEADERS)
            .handshake(io)
            .await
            .map_err(broken)?;
        let connection = tokio::spawn(connection);
        let result = send
            .send_request(request)
            .await
            .map(|result| result.status().as_u16());
        connection.abort();
        result.map_err(broken)?
    };
    Ok(status)
}
