//! The layer of ratekeeper-tower, with the policies of a group.

use crate::config::Config;
use crate::table::{Group, TestRequest};
use axum::body::Body;
use hyper::{Request, Response};
use ratekeeper::{MemoryStore, clock::SystemClock};
use ratekeeper_policy::Engine;
use ratekeeper_tower::decider::{Decider, LimitDecider, PolicyDecider};
use ratekeeper_tower::{Identity, Key, RateLimitLayer, identity::PeerAddr};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

pub(crate) type ByGroup = RateLimitLayer<PolicyDecider<MemoryStore<SystemClock>>>;

pub(crate) fn of(group: &Group) -> ByGroup {
    let loaded = Config::parse("ratekeeper.toml", &group.file(""), []);
    let config = loaded
        .config
        .unwrap_or_else(|| panic!("{}: {:?}", group.name, loaded.diagnostics));
    let store = MemoryStore::builder()
        .max_keys(1_000)
        .clock(SystemClock)
        .build();
    let layer = RateLimitLayer::new(Engine::new(store, config.policies).unwrap())
        .preflight(config.gateway.preflight);
    let identity = Identity::direct().trust_all(
        config
            .identity
            .trusted_proxies
            .as_networks()
            .iter()
            .copied(),
    );
    let layer = match config.identity.user {
        Some(user) => layer.user_header(user.header.parse().unwrap(), user.from),
        None => layer,
    };
    let layer = match config.identity.api_key {
        Some(name) => layer.api_key_header(name.parse().unwrap()),
        None => layer,
    };
    layer.identity(identity)
}

/// A layer of one limit, counted by a cookie.
pub(crate) fn by_cookie(name: &str) -> RateLimitLayer<LimitDecider> {
    RateLimitLayer::by(Key::cookie(name), "1/d".parse().unwrap())
}

/// The service behind the layer.
#[derive(Clone)]
struct Passes;

impl Service<Request<()>> for Passes {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(Body::empty())))
    }
}

pub(crate) fn status<D: Decider>(layer: &RateLimitLayer<D>, sent: &TestRequest) -> u16 {
    // As hyper represents HTTP/1.1, and HTTP/2 where there is an authority.
    let target = sent.absolute.map_or(sent.path.to_owned(), |authority| {
        format!("http://{authority}{}", sent.path)
    });
    let mut request = Request::builder().method(sent.method).uri(target);
    if let Some(host) = sent.host {
        request = request.header("host", host);
    }
    for (name, value) in sent.headers {
        request = request.header(*name, *value);
    }
    // A target that no server can parse is rejected.
    let Ok(mut request) = request.body(()) else {
        return 400;
    };
    request
        .extensions_mut()
        .insert(PeerAddr("203.0.113.7:4711".parse().unwrap()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let Ok(response) = runtime.block_on(layer.layer(Passes).call(request));
    response.status().as_u16()
}
