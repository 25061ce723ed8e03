//! Routes: which upstream gets a request, by its host and path, then by load balancing. They change
//! with the configuration.

use super::{ActiveRequest, Connector, HealthCheck, Peer, run_health_checks};
use crate::config::{Balance, GatewayConfig, Route};
use crate::net::tls;
use axum::http::header::HOST;
use axum::http::{HeaderValue, Request};
use foldhash::fast::FixedState;
use ratekeeper::clock::CoarseClock;
use ratekeeper_tower::CircuitBreaker;
use ratekeeper_tower::breaker::CallGuard;
use smallvec::SmallVec;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::runtime::Handle;

/// The routes in force. An upstream in several of them is one [`Peer`], and a reload keeps the peers
/// that stay, with their connections, health and breakers.
pub(crate) struct Routes {
    routes: Vec<(Route, Arc<Upstreams>)>,
    /// The upstreams of requests without a route; `None` if such requests are not found.
    rest: Option<Arc<Upstreams>>,
    peers: Vec<Arc<Peer>>,
    connector: Connector,
}

impl Routes {
    /// Builds the routes for this number of workers. Peers of the previous routes are kept. Errors
    /// are sentences.
    pub(crate) fn new(
        config: &GatewayConfig,
        workers: usize,
        before: Option<&Self>,
    ) -> Result<Self, String> {
        // The certificate authorities are read once.
        let connector = match before.filter(|routes| routes.connector.tls.is_some()) {
            Some(before) => before.connector.clone(),
            None => Connector {
                tls: tls::connector(config)?,
                connect_timeout: config.connect_timeout,
            },
        };
        let mut peers: Vec<Arc<Peer>> = Vec::new();
        let mut group = |upstreams: &[_]| {
            let mut members = Vec::with_capacity(upstreams.len());
            for upstream in upstreams {
                let known = before.iter().flat_map(|routes| &routes.peers);
                let known = peers.iter().chain(known);
                let peer = known
                    .into_iter()
                    .find(|peer| peer.upstream == *upstream)
                    .cloned()
                    .unwrap_or_else(|| Arc::new(Peer::new(upstream, config, &connector, workers)));
                if !peers.iter().any(|known| Arc::ptr_eq(known, &peer)) {
                    peers.push(Arc::clone(&peer));
                }
                members.push(peer);
            }
            Arc::new(Upstreams::new(members, config.balance))
        };
        let rest = (!config.upstreams.is_empty()).then(|| group(&config.upstreams));
        let routes = config
            .route
            .iter()
            .map(|route| (route.clone(), group(&route.upstreams)))
            .collect();
        Ok(Self {
            routes,
            rest,
            peers,
            connector,
        })
    }

    /// The upstreams of a request: those of the first route that matches, else the rest.
    pub(crate) fn find<B>(&self, request: &Request<B>) -> Option<&Arc<Upstreams>> {
        let host = request.headers().get(HOST).map(HeaderValue::as_bytes);
        let matches = |route: &Route| {
            let hosts = &route.hosts;
            let host = host.unwrap_or_default();
            (hosts.is_empty() || hosts.iter().any(|pattern| pattern.matches_host(host)))
                && route
                    .path
                    .as_ref()
                    .is_none_or(|path| path.matches_path(request.uri().path()))
        };
        self.routes
            .iter()
            .find(|(route, _)| matches(route))
            .map(|(_, upstreams)| upstreams)
            .or(self.rest.as_ref())
    }

    /// Every upstream of any route, once.
    pub(crate) fn peers(&self) -> &[Arc<Peer>] {
        &self.peers
    }

    /// Starts the health checks of the peers that were not there before. They end with their peer.
    pub(crate) fn run_health_checks(
        &self,
        config: &GatewayConfig,
        before: Option<&Self>,
        runtime: &Handle,
    ) {
        let Some(path) = &config.health_path else {
            return;
        };
        let is_new = |peer: &&Arc<Peer>| {
            !before.is_some_and(|routes| {
                let mut known = routes.peers.iter();
                known.any(|known| Arc::ptr_eq(known, peer))
            })
        };
        for peer in self.peers.iter().filter(is_new) {
            let check = HealthCheck {
                path: path.clone(),
                interval: config.health_interval,
                http2: config.http2,
                connector: self.connector.clone(),
            };
            runtime.spawn(run_health_checks(Arc::downgrade(peer), check));
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
