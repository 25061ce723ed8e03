//! Upstream selection: load balancing, health, circuit breakers.

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
pub(crate) use routes::Routes;
pub(crate) use timer::{Progress, Timeouts};

use http1::{H1Error, MAX_HEADERS};
use timer::TimeoutKind;

use crate::config::{Balance, GatewayConfig, Upstream};
use foldhash::fast::FixedState;
use ratekeeper::clock::CoarseClock;
use ratekeeper_tower::CircuitBreaker;
use ratekeeper_tower::breaker::{CallGuard, State};
use smallvec::SmallVec;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

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

/// The upstreams of a route, and the choice between them.
pub(crate) struct Upstreams {
    pub(crate) peers: Vec<Arc<Peer>>,
    balance: Balance,
    next: AtomicUsize,
}

/// The upstream that gets a request.
pub(crate) struct SelectedUpstream {
    pub(crate) index: usize,
    pub(crate) peer: Arc<Peer>,
    pub(crate) active: ActiveRequest,
    call: Option<CallGuard<CoarseClock>>,
}

/// Upstreams that were tried already, or may not be called.
pub(crate) type TriedPeers = SmallVec<[usize; 8]>;

/// No upstream may be called.
pub(crate) struct NoUpstreamError {
    /// When to try again, if a breaker is open.
    pub(crate) retry_after: Option<Duration>,
}

impl Upstreams {
    pub(crate) fn new(peers: Vec<Arc<Peer>>, balance: Balance) -> Self {
        Self {
            peers,
            balance,
            next: AtomicUsize::new(0),
        }
    }

    /// Whether upstreams are chosen by a key of the request.
    pub(crate) fn is_by_key(&self) -> bool {
        self.balance == Balance::ByKey && self.peers.len() > 1
    }

    /// Chooses an upstream that was not tried. An unhealthy one is used only if no other is left: a
    /// health check may be wrong, and there is nothing to lose.
    pub(crate) fn pick(
        &self,
        key: &[u8],
        tried: &TriedPeers,
    ) -> Result<SelectedUpstream, NoUpstreamError> {
        let mut excluded = tried.clone();
        let mut retry_after: Option<Duration> = None;
        let offset = if self.peers.len() > 1 {
            self.next.fetch_add(1, Relaxed)
        } else {
            0
        };
        for healthy in [true, false] {
            while let Some(index) = self.best(key, offset, healthy, &excluded) {
                let peer = &self.peers[index];
                match peer
                    .breaker
                    .as_ref()
                    .map(CircuitBreaker::try_acquire)
                    .transpose()
                {
                    Ok(call) => {
                        peer.active.fetch_add(1, Relaxed);
                        let active = ActiveRequest(Some(Arc::clone(peer)));
                        return Ok(SelectedUpstream {
                            index,
                            peer: Arc::clone(peer),
                            active,
                            call,
                        });
                    }
                    Err(open) => {
                        let after = open.retry_after();
                        retry_after = Some(retry_after.map_or(after, |known| known.min(after)));
                        excluded.push(index);
                    }
                }
            }
        }
        Err(NoUpstreamError { retry_after })
    }

    fn best(
        &self,
        key: &[u8],
        offset: usize,
        healthy: bool,
        excluded: &TriedPeers,
    ) -> Option<usize> {
        let many = self.peers.len();
        // Starts at another one each time, so that equals take turns.
        let candidates = (0..many)
            .map(|at| (offset % many + at) % many)
            .filter(|index| {
                !excluded.contains(index) && (!healthy || self.peers[*index].healthy.load(Relaxed))
            });
        match self.balance {
            Balance::Least => {
                candidates.min_by_key(|index| self.peers[*index].active.load(Relaxed))
            }
            // Rendezvous hashing: the upstream with the highest hash of itself and the key. Without
            // one of them, the others keep their keys.
            Balance::ByKey => candidates.max_by_key(|index| {
                FixedState::with_seed(0).hash_one((key, self.peers[*index].upstream.to_string()))
            }),
            _ => { candidates }.next(),
        }
    }
}

impl SelectedUpstream {
    /// Reports the outcome to the breaker.
    pub(crate) fn report(&mut self, went_well: bool) {
        let count = if went_well {
            &self.peer.answered
        } else {
            &self.peer.failed
        };
        count.fetch_add(1, Relaxed);
        match self.call.take() {
            Some(call) if went_well => call.success(),
            Some(call) => call.failure(),
            None => {}
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
