//! The layer for axum, whose responses keep axum's own body type.
#![cfg(feature = "axum")]

use allocation_counter::measure;
use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, Response, StatusCode};
use ratekeeper::{Keyed, Limit, ManualClock, MemoryStore};
use ratekeeper_policy::{Engine, Policies, Policy, PolicyLimit};
use ratekeeper_testkit::poll::{assert_ready, noop_context, poll_once};
use ratekeeper_tower::{Key, RateLimitLayer, identity::PeerAddr};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use tower::{Layer, Service, service_fn};

fn request() -> Request<Body> {
    let mut request = Request::new(Body::empty());
    request
        .extensions_mut()
        .insert(PeerAddr(SocketAddr::from(([203, 0, 113, 7], 4711))));
    request
}

fn answer<S, B, E>(service: &mut S) -> Response<B>
where
    S: Service<Request<Body>, Response = Response<B>, Error = E>,
{
    assert!(service.poll_ready(&mut noop_context()).is_ready());
    match poll_once(pin!(service.call(request()))) {
        Poll::Ready(Ok(response)) => response,
        _ => panic!("it neither waits nor fails"),
    }
}

fn text(body: Body) -> String {
    let read = axum::body::to_bytes(body, 1 << 16);
    String::from_utf8(assert_ready(read).unwrap().to_vec()).unwrap()
}

fn on<F>(layer: RateLimitLayer<ratekeeper_tower::decider::LimitDecider<ManualClock>, F>) -> Router
where
    RateLimitLayer<ratekeeper_tower::decider::LimitDecider<ManualClock>, F>: AxumLayer,
{
    layer
        .on(Router::new().route("/", get(async || "Hello, World!")))
        .with_state(())
}

/// A layer with either body kind.
trait AxumLayer {
    fn on(self, app: Router) -> Router;
}

impl AxumLayer for RateLimitLayer<ratekeeper_tower::decider::LimitDecider<ManualClock>> {
    fn on(self, app: Router) -> Router {
        app.layer(self)
    }
}

impl AxumLayer
    for RateLimitLayer<
        ratekeeper_tower::decider::LimitDecider<ManualClock>,
        ratekeeper_tower::rate_limit::AxumBody,
    >
{
    fn on(self, app: Router) -> Router {
        app.layer(self)
    }
}

fn hourly(many: u64) -> RateLimitLayer<ratekeeper_tower::decider::LimitDecider<ManualClock>> {
    RateLimitLayer::keyed(
        Keyed::with_clock(Limit::per_hour(many), ManualClock::new()),
        Key::ip(),
    )
}

#[test]
fn responses_are_the_same_with_both_body_kinds() {
    let (mut plain, mut for_axum) = (on(hourly(2)), on(hourly(2).for_axum()));
    for status in [200, 200, 429] {
        let [a, b] = [answer(&mut plain), answer(&mut for_axum)];
        assert_eq!(a.status(), status);
        assert_eq!((a.status(), a.headers()), (b.status(), b.headers()));
        let [a, b] = [a, b].map(|response| text(response.into_body()));
        assert_eq!(a, b);
        assert_eq!(a == "Hello, World!", status == 200);
    }
}

#[test]
fn one_allocation_less() {
    let count = |mut app: Router| {
        (0..10).for_each(|_| drop(answer(&mut app)));
        measure(|| (0..100).for_each(|_| drop(answer(&mut app)))).count_total
    };
    assert_eq!(
        count(on(hourly(1_000_000))),
        count(on(hourly(1_000_000).for_axum())) + 100
    );
}

#[test]
fn a_permit_is_held_by_axums_body_too() {
    let one = Policies::new().policy(Policy::new("one").limit(PolicyLimit::Concurrent(1)));
    let engine = Engine::new(
        MemoryStore::builder().clock(ManualClock::new()).build(),
        one,
    )
    .unwrap();
    let hello = service_fn(async |_: Request<Body>| {
        Ok::<_, std::convert::Infallible>(Response::new(Body::from("Hello")))
    });
    let mut service = RateLimitLayer::new(engine).for_axum().layer(hello);
    let response = answer(&mut service);
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(answer(&mut service).status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(text(response.into_body()), "Hello");
    assert_eq!(answer(&mut service).status(), StatusCode::OK);
}
