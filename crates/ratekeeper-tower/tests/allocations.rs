//! Allocations of the layer for an allowed request, beyond those of the service behind it: header
//! values.

use allocation_counter::measure;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::Full;
use ratekeeper::{Keyed, Limit, ManualClock, MemoryStore};
use ratekeeper_policy::{Count, Engine, Match, Policies, Policy};
use ratekeeper_testkit::poll::noop_context;
use ratekeeper_tower::{Dialect, Dialects, Key, RateLimitLayer, identity::PeerAddr};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tower::{Layer, Service};

const REQUESTS: u64 = 1_000;

/// The digits of three numbers; numbers below 1,000 do not allocate. Names are static, and the map
/// of a response that has a header already has capacity for five more.
const VALUES: u64 = 3;

/// A hello world that allocates only for the map of its headers.
#[derive(Clone)]
struct Hello;

impl Service<Request<()>> for Hello {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let mut response = Response::new(Full::new(Bytes::from_static(b"Hello, World!")));
        response
            .headers_mut()
            .insert("content-type", HeaderValue::from_static("text/plain"));
        ready(Ok(response))
    }
}

/// Sends a request and reads the whole response; returns the headers.
fn ask<S, B>(service: &mut S) -> HeaderMap
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes, Error = Infallible>,
{
    let mut context = noop_context();
    let mut request = Request::new(());
    request
        .extensions_mut()
        .insert(PeerAddr(SocketAddr::from(([203, 0, 113, 7], 4711))));
    request
        .headers_mut()
        .insert("host", HeaderValue::from_static("example.com"));
    assert!(service.poll_ready(&mut context).is_ready());
    let Poll::Ready(Ok(response)) = pin!(service.call(request)).poll(&mut context) else {
        panic!("it waits")
    };
    assert_eq!(response.status(), 200);
    let (parts, body) = response.into_parts();
    let mut body = pin!(body);
    while let Poll::Ready(Some(frame)) = body.as_mut().poll_frame(&mut context) {
        assert_eq!(frame.unwrap().into_data().unwrap(), "Hello, World!");
    }
    parts.headers
}

/// The number of allocations for each request.
fn allocations<S, B>(mut service: S) -> u64
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes, Error = Infallible>,
{
    // The first request of a thread, and of a key, allocates its entry.
    (0..10).for_each(|_| drop(ask(&mut service)));
    let counted = measure(|| (0..REQUESTS).for_each(|_| drop(ask(&mut service))));
    assert_eq!(
        (counted.count_current, counted.count_total % REQUESTS),
        (0, 0),
        "every request allocates the same"
    );
    counted.count_total / REQUESTS
}

fn wide() -> Limit {
    Limit::per_second(1_000_000_000)
}

/// Two of ten policies apply.
fn engine(count: Count) -> Engine<MemoryStore<ManualClock>> {
    let mut policies = Policies::new()
        .policy(Policy::new("each").key("ip").limit(wide()).count(count))
        .policy(Policy::new("all").limit(wide()));
    for number in 2..10 {
        let path = format!("/service{number}/**").parse().unwrap();
        policies = policies.policy(
            Policy::new(format!("s{number}"))
                .matching(Match::new().path(path))
                .limit(wide()),
        );
    }
    let store = MemoryStore::builder()
        .max_keys(1_000)
        .clock(ManualClock::new())
        .build();
    Engine::new(store, policies).unwrap()
}

#[test]
fn one_limit_allocates_the_values_of_headers_and_nothing_else() {
    let bare = allocations(Hello);
    let layer = RateLimitLayer::keyed(Keyed::with_clock(wide(), ManualClock::new()), Key::ip());
    assert!(ask(&mut layer.layer(Hello)).contains_key("x-ratelimit-reset"));
    assert_eq!(allocations(layer.layer(Hello)) - bare, VALUES);
    // Without the headers there are no allocations.
    assert_eq!(
        allocations(layer.clone().headers(Dialects::none()).layer(Hello)) - bare,
        0
    );
    // With small limits it is only the reset, a Unix time.
    let small = Keyed::with_clock(Limit::per_hour(999), ManualClock::new());
    let small = RateLimitLayer::keyed(small, Key::ip()).cost(|_| 0);
    assert_eq!(allocations(small.layer(Hello)) - bare, 1);
    assert_eq!(
        allocations(small.headers(Dialect::XDelta).layer(Hello)) - bare,
        0
    );
    // Refunds do not allocate either.
    let counting = layer.count(Count::Failures).headers(Dialects::none());
    assert_eq!(allocations(counting.layer(Hello)) - bare, 0);
}

#[test]
fn policies_allocate_the_values_of_headers_and_nothing_else() {
    let bare = allocations(Hello);
    for count in [Count::All, Count::Failures] {
        let layer = RateLimitLayer::new(engine(count));
        assert!(ask(&mut layer.layer(Hello)).contains_key("x-ratelimit-reset"));
        assert_eq!(allocations(layer.layer(Hello)) - bare, VALUES);
        assert_eq!(
            allocations(layer.headers(Dialects::none()).layer(Hello)) - bare,
            0
        );
    }
}

/// The reset changes as time goes by. Allocations that outlive a response, a few each second, would
/// make glibc merge all free memory at every request, once it runs short of small chunks.
#[test]
fn allocations_of_a_response_are_freed_with_it() {
    let clock = ManualClock::new();
    let keyed = Keyed::with_clock(Limit::per_second(5_000), clock.clone());
    let mut service = RateLimitLayer::keyed(keyed, Key::ip()).layer(Hello);
    (0..10).for_each(|_| drop(ask(&mut service)));
    for _ in 0..100 {
        let second = measure(|| {
            clock.advance(Duration::from_secs(1));
            (0..10).for_each(|_| drop(ask(&mut service)));
        });
        assert_eq!(second.count_current, 0);
    }
}
