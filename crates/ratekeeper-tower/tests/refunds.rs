//! Refunds: for requests that hang up while they wait, fail, or are denied by another layer.

mod support;

use http::{Request, Response, StatusCode};
use ratekeeper::{Keyed, Limit, ManualClock, MemoryStore};
use ratekeeper_policy::{Count, Engine, Policies, Policy, PolicyLimit};
use ratekeeper_testkit::poll::poll_once;
use ratekeeper_tower::breaker::State;
use ratekeeper_tower::{
    CircuitBreaker, CircuitBreakerLayer, ConcurrencyLayer, Key, RateLimitLayer,
    decider::LimitDecider, decider::PolicyDecider, response::NotReached,
};
use std::convert::Infallible;
use std::future::{pending, ready};
use std::time::Duration;
use support::{OnceReady, Text, get};
use tower::{Layer, Service, ServiceExt, service_fn};

const SECOND: Duration = Duration::from_secs(1);

fn limited(limit: Limit) -> (RateLimitLayer<LimitDecider<ManualClock>>, ManualClock) {
    let clock = ManualClock::new();
    let keyed = Keyed::builder(limit)
        .max_keys(1_000)
        .clock(clock.clone())
        .build();
    (RateLimitLayer::keyed(keyed, Key::all()), clock)
}

fn by_policy(
    policy: Policy,
) -> (
    RateLimitLayer<PolicyDecider<MemoryStore<ManualClock>>>,
    ManualClock,
) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(1_000)
        .clock(clock.clone())
        .build();
    (
        RateLimitLayer::new(Engine::new(store, Policies::new().policy(policy)).unwrap()),
        clock,
    )
}

async fn status<S, B>(service: &S) -> u16
where
    S: Service<Request<Text>, Response = Response<B>, Error: std::fmt::Debug> + Clone,
{
    service
        .clone()
        .oneshot(get("/"))
        .await
        .unwrap()
        .status()
        .as_u16()
}

#[tokio::test]
async fn hanging_up_while_waiting_frees_the_slot() {
    let (layer, clock) = limited(Limit::per_second(1).burst(1));
    let service = layer.delay(SECOND).layer(OnceReady::default());
    assert_eq!(status(&service).await, 200);
    for _ in 0..5 {
        let mut waiting = Box::pin(service.clone().oneshot(get("/")));
        assert!(poll_once(waiting.as_mut()).is_pending());
        assert_eq!(status(&service).await, 429, "the place is taken");
    }
    let mut waiting = Box::pin(service.clone().oneshot(get("/")));
    assert!(poll_once(waiting.as_mut()).is_pending());
    clock.advance(SECOND);
    assert_eq!(waiting.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_paced_limit_delays_requests() {
    let (layer, clock) = limited("1/s wait 2s".parse().unwrap());
    let service = layer.layer(OnceReady::default());
    assert_eq!(status(&service).await, 200);
    let mut second = Box::pin(service.clone().oneshot(get("/")));
    assert!(poll_once(second.as_mut()).is_pending(), "one a second");
    clock.advance(SECOND);
    assert_eq!(second.await.unwrap().status(), 200);
}

#[tokio::test]
async fn an_error_of_the_service_is_a_failure() {
    let broken =
        || service_fn(|_: Request<Text>| ready(Err::<Response<Text>, _>("connection refused")));
    let (layer, _) = limited(Limit::per_hour(1));
    let service = layer.count(Count::Successes).layer(broken());
    for _ in 0..3 {
        assert_eq!(
            service.clone().oneshot(get("/")).await.unwrap_err(),
            "connection refused"
        );
    }
    let (layer, _) = limited(Limit::per_hour(1));
    let service = layer.count(Count::Failures).layer(broken());
    assert_eq!(
        service.clone().oneshot(get("/")).await.unwrap_err(),
        "connection refused"
    );
    assert_eq!(service.oneshot(get("/")).await.unwrap().status(), 429);
}

#[tokio::test]
async fn a_future_that_has_failed_holds_no_permit() {
    let (layer, _) = by_policy(Policy::new("slots").limit(PolicyLimit::Concurrent(1)));
    let mut service = layer.layer(service_fn(|_: Request<Text>| {
        ready(Err::<Response<Text>, _>("refused"))
    }));
    let mut done = Box::pin(service.ready().await.unwrap().call(get("/")));
    assert!(poll_once(done.as_mut()).is_ready());
    assert_eq!(
        service.oneshot(get("/")).await.unwrap_err(),
        "refused",
        "not a 429"
    );
    drop(done);
}

/// A request that the second of two limits denies does not use up the first one.
#[tokio::test]
async fn a_denial_by_another_limit_is_refunded() {
    let (global, _) = limited(Limit::per_hour(3));
    let (own, _) = limited(Limit::per_hour(1));
    let service = global.clone().layer(own.layer(OnceReady::default()));
    assert_eq!(status(&service).await, 200);
    for _ in 0..10 {
        assert_eq!(status(&service).await, 429);
    }
    let others = global.layer(OnceReady::default());
    assert_eq!(
        [
            status(&others).await,
            status(&others).await,
            status(&others).await
        ],
        [200, 200, 429]
    );

    let (global, _) = limited(Limit::per_hour(2));
    let (own, _) = limited(Limit::deny_all());
    let teapot = own.denied(|_| {
        Response::builder()
            .status(418)
            .body(Default::default())
            .unwrap()
    });
    let service = global
        .delay(SECOND)
        .layer(teapot.layer(OnceReady::default()));
    for _ in 0..5 {
        assert_eq!(
            status(&service).await,
            418,
            "with a response of its own, and where the first one would wait"
        );
    }
}

#[tokio::test]
async fn only_failures_count_where_requests_are_delayed() {
    let (layer, clock) = limited(Limit::per_hour(1));
    let slow = service_fn(move |_: Request<Text>| {
        clock.advance(SECOND);
        ready(Ok::<_, Infallible>(Response::new(Text::default())))
    });
    let service = layer.count(Count::Failures).delay(SECOND).layer(slow);
    for _ in 0..5 {
        assert_eq!(status(&service).await, 200);
    }
}

#[tokio::test]
async fn a_shadow_limit_writes_no_headers() {
    let (layer, _) = limited(Limit::per_hour(1));
    let service = layer.shadow().layer(OnceReady::default());
    for _ in 0..2 {
        let response = service.clone().oneshot(get("/")).await.unwrap();
        assert_eq!(
            (response.status(), response.headers().len()),
            (StatusCode::OK, 0)
        );
    }
}

#[tokio::test]
async fn a_response_that_did_not_reach_the_service_is_ignored() {
    let breaker = CircuitBreaker::new();
    let hanging = service_fn(|_: Request<Text>| pending::<Result<Response<Text>, Infallible>>());
    let service = CircuitBreakerLayer::new(breaker.clone())
        .layer(ConcurrencyLayer::new(1).unavailable().layer(hanging));
    let mut first = Box::pin(service.clone().oneshot(get("/")));
    assert!(poll_once(first.as_mut()).is_pending());
    for _ in 0..30 {
        let response = service.clone().oneshot(get("/")).await.unwrap();
        assert_eq!(response.status(), 503);
        assert!(response.extensions().get::<NotReached>().is_some());
    }
    assert_eq!((breaker.state(), breaker.stats().calls), (State::Closed, 0));
}

/// gRPC has its own status, and browsers get HTML instead of JSON.
#[tokio::test]
async fn every_layer_answers_in_the_accepted_format() {
    let breaker = CircuitBreaker::new();
    breaker.force(ratekeeper_tower::breaker::Force::Open);
    let open = CircuitBreakerLayer::new(breaker).layer(OnceReady::default());
    let full = ConcurrencyLayer::new(0).layer(OnceReady::default());
    let asking = |name: &'static str, value: &'static str| {
        let mut request = get("/");
        request.headers_mut().insert(name, value.parse().unwrap());
        request
    };
    let response = open
        .clone()
        .oneshot(asking("content-type", "application/grpc+proto"))
        .await
        .unwrap();
    assert_eq!(
        (
            response.status().as_u16(),
            &response.headers()["grpc-status"]
        ),
        (200, &"14".parse().unwrap())
    );
    let response = full
        .clone()
        .oneshot(asking("content-type", "application/grpc"))
        .await
        .unwrap();
    assert_eq!(
        (
            response.status().as_u16(),
            &response.headers()["grpc-status"]
        ),
        (200, &"8".parse().unwrap())
    );
    let response = open.oneshot(asking("accept", "text/html")).await.unwrap();
    assert_eq!(
        (
            response.status().as_u16(),
            &response.headers()["content-type"]
        ),
        (503, &"text/html; charset=utf-8".parse().unwrap())
    );
    let response = full.oneshot(asking("accept", "text/plain")).await.unwrap();
    assert_eq!(
        (
            response.status().as_u16(),
            &response.headers()["content-type"]
        ),
        (429, &"text/plain; charset=utf-8".parse().unwrap())
    );
}
