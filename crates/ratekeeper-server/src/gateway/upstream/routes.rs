//! Routes: which upstreams get a request, by its host and path. They change with the configuration.

use super::{Connector, HealthCheck, Peer, Upstreams, run_health_checks};
use crate::config::{GatewayConfig, Route};
use crate::net::tls;
use axum::http::header::HOST;
use axum::http::{HeaderValue, Request};
use std::sync::Arc;
use tokio::runtime::Handle;

/// The routes in force. An upstream in several of them is one [`Peer`], and a reload keeps the peers
/// that stay, with their connections, health and breakers.
pub(crate) struct Routes {
    routes: Vec<(Route, Arc<Upstreams>)>,
    /// The upstreams of requests without a route; none if all requests need one.
    rest: Option<Arc<Upstreams>>,
    peers: Vec<Arc<Peer>>,
    connector: Connector,
}

impl Routes {
    /// Builds the routes for so many workers, with the peers of the routes before. Errors are
    /// sentences.
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
