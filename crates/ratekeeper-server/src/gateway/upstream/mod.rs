//! Upstreams: routes, connections, health, circuit breakers.

mod conn;
mod connect;
mod error;
mod health;
mod http1;
mod http2;
mod routes;
mod target;
mod timer;

pub(crate) use conn::{ExchangeError, UpstreamBody, UpstreamConn, UpstreamPool, UpstreamRequest};
pub(crate) use connect::Connector;
pub(crate) use error::UpstreamError;
pub(crate) use health::{HealthCheck, run_health_checks};
pub(crate) use http1::{CLEANUP_INTERVAL, UpstreamStream};
pub(crate) use http2::ResponseEvent;
pub(crate) use routes::{Routes, SelectedUpstream, TriedPeers};
pub(crate) use timer::{Progress, Timeouts};

use http1::{H1Error, MAX_HEADERS};
use timer::TimeoutKind;

use crate::config::{GatewayConfig, Upstream};
use ratekeeper::clock::CoarseClock;
use ratekeeper_tower::CircuitBreaker;
use ratekeeper_tower::breaker::State;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The authority (host and port) of an upstream.
pub(crate) fn authority(upstream: &Upstream) -> String {
    match upstream.host() {
        host if host.contains(':') => format!("[{host}]:{}", upstream.port()),
        host => format!("{host}:{}", upstream.port()),
    }
}

/// The error of a response body that timed out.
#[derive(Debug)]
pub(crate) struct TimeoutError(pub(crate) TimeoutKind);

impl fmt::Display for TimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        UpstreamError::Timeout(self.0).fmt(f)
    }
}

impl std::error::Error for TimeoutError {}

/// A breaker with default settings.
fn breaker() -> CircuitBreaker<CoarseClock> {
    CircuitBreaker::builder()
        .clock(CoarseClock)
        .build()
        .expect("the default settings are valid")
}

/// One upstream; all workers share its state.
pub(crate) struct Peer {
    pub(crate) upstream: Upstream,
    /// Requests in flight there.
    active: AtomicUsize,
    /// The result of the last health checks.
    healthy: AtomicBool,
    /// The breaker works in seconds, so a clock with an accuracy of a few milliseconds is enough.
    breaker: Option<CircuitBreaker<CoarseClock>>,
    /// Its connections: a pool for each worker.
    pub(crate) pools: Vec<Arc<UpstreamPool>>,
    pub(crate) connector: Connector,
    pub(crate) answered: AtomicU64,
    pub(crate) failed: AtomicU64,
}

/// A request in flight at an upstream, until this is dropped.
pub(crate) struct ActiveRequest(Option<Arc<Peer>>);

impl ActiveRequest {
    /// Moves the guard to the body of the response.
    pub(crate) fn take(&mut self) -> Self {
        Self(self.0.take())
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        if let Some(peer) = &self.0 {
            peer.active.fetch_sub(1, Relaxed);
        }
    }
}

impl Peer {
    fn new(
        upstream: &Upstream,
        gateway: &GatewayConfig,
        connector: &Connector,
        workers: usize,
    ) -> Self {
        Self {
            upstream: upstream.clone(),
            active: AtomicUsize::new(0),
            healthy: AtomicBool::new(true),
            breaker: gateway.breaker.then(breaker),
            pools: (0..workers)
                .map(|_| Arc::new(UpstreamPool::new(gateway.http2)))
                .collect(),
            connector: connector.clone(),
            answered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.healthy.load(Relaxed)
    }

    /// The state of its breaker.
    pub(crate) fn breaker(&self) -> Option<State> {
        self.breaker.as_ref().map(CircuitBreaker::state)
    }

    pub(crate) fn active(&self) -> usize {
        self.active.load(Relaxed)
    }
}

#[cfg(test)]
mod tests;
