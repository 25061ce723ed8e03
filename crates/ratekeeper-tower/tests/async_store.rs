//! The rate limit layer on an asynchronous store: the client found before the decision is passed to
//! the hook after it.

use axum::body::Body;
use axum::http::{Request, Response};
use ratekeeper::{
    Ask, Limit, MemoryStore, Store, Timestamp, Verdict, keyed::TooManyLimitsError,
    store::LimitHandle, store::LimitKeyStats,
};
use ratekeeper_policy::{Engine, Policies, Policy};
use ratekeeper_tower::RateLimitLayer;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::yield_now;
use tower::{Layer, service_fn};

/// A store whose answers take a while.
struct Elsewhere(MemoryStore);

impl Store for Elsewhere {
    fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimitsError> {
        Store::limit(&self.0, name, limit)
    }

    fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimitsError> {
        Store::concurrency(&self.0, name, limit)
    }

    fn set_limit(&self, handle: &LimitHandle, limit: Limit) {
        Store::set_limit(&self.0, handle, limit);
    }

    fn set_concurrency(&self, handle: &LimitHandle, limit: u64) {
        Store::set_concurrency(&self.0, handle, limit);
    }

    fn now(&self) -> Timestamp {
        Store::now(&self.0)
    }

    async fn decide_within(&self, asks: &[Ask<'_>], within: Option<Duration>) -> Verdict {
        yield_now().await;
        self.0.decide_within(asks, within).await
    }

    async fn settle(&self, verdict: Verdict, actual: &[u64]) {
        Store::settle(&self.0, verdict, actual).await;
    }

    async fn grant(&self, handle: &LimitHandle, key: &[u8], tokens: u64) {
        Store::grant(&self.0, handle, key, tokens).await;
    }

    async fn reset(&self, handle: &LimitHandle, key: &[u8]) {
        Store::reset(&self.0, handle, key).await;
    }

    fn key_stats(&self, _: &[LimitHandle]) -> Option<Vec<LimitKeyStats>> {
        None
    }
}

#[tokio::test]
async fn a_hook_gets_the_client_of_the_request() {
    let policies = Policies::new().policy(Policy::new("each").key("ip").limit(Limit::per_hour(1)));
    let engine = Engine::new(Elsewhere(MemoryStore::new()), policies).unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    let layer = RateLimitLayer::new(engine)
        .on_verdict(move |head, denial| hears.lock().unwrap().push((head.ip(), denial.is_some())));
    let served =
        service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let mut service = layer.layer(served);

    let [one, other] = ["203.0.113.7", "2001:db8::7"].map(|ip| ip.parse::<IpAddr>().unwrap());
    for (peer, status) in [(one, 200), (one, 429), (other, 200)] {
        let response = service
            .call_from(Some(peer), Request::new(Body::empty()))
            .await
            .unwrap();
        assert_eq!(response.status(), status);
    }
    assert_eq!(
        *heard.lock().unwrap(),
        [(Some(one), false), (Some(one), true), (Some(other), false)]
    );
}
