//! The circuit breaker as a layer: failures, responses, and tower's readiness contract.

mod support;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use ratekeeper::ManualClock;
use ratekeeper_testkit::poll::poll_once;
use ratekeeper_tower::breaker::{CallOutcome, CircuitOpenError, State};
use ratekeeper_tower::{CircuitBreaker, CircuitBreakerLayer};
use std::convert::Infallible;
use std::future::{pending, ready};
use std::time::Duration;
use support::{OnceReady, Text, get};
use tower::{Layer, Service, ServiceExt, service_fn};

fn breaker() -> (CircuitBreaker<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let breaker = CircuitBreaker::builder()
        .jitter_percent(0)
        .slow_after(Duration::from_secs(1))
        .clock(clock.clone())
        .build()
        .unwrap();
    (breaker, clock)
}

fn answer(status: u16) -> Result<Response<Text>, Infallible> {
    Ok(Response::builder()
        .status(status)
        .body(Text::from("from inside"))
        .unwrap())
}

#[tokio::test]
async fn server_errors_open_it_and_then_callers_get_a_503_with_retry_after() {
    let (breaker, clock) = breaker();
    let service =
        CircuitBreakerLayer::new(breaker.clone()).layer(service_fn(|_| ready(answer(502))));
    for _ in 0..20 {
        let response = service.clone().oneshot(get("/")).await.unwrap();
        assert_eq!(response.status(), 502, "the service's own answer");
        assert_eq!(
            response.into_body().collect().await.unwrap().to_bytes(),
            "from inside"
        );
    }
    assert_eq!(breaker.state(), State::Open);

    clock.advance(Duration::from_millis(1_500));
    let response = service.clone().oneshot(get("/")).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        response.headers()["retry-after"],
        "4",
        "3.5 seconds, rounded up"
    );
    assert_eq!(response.headers()["cache-control"], "no-store");
    assert_eq!(
        response.headers()["content-type"],
        "application/problem+json"
    );
    let open = response
        .extensions()
        .get::<CircuitOpenError>()
        .expect("an outer layer can tell whose 503 it is");
    assert_eq!(open.retry_after(), Duration::from_millis(3_500));
    assert_eq!(
        response.into_body().collect().await.unwrap().to_bytes(),
        concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","#,
            r#""title":"Temporary Reduced Capacity","status":503,"#,
            r#""detail":"The service is failing and its circuit breaker is open; try again in 4 seconds.","#,
            r#""violated-policies":[],"retry_after_ms":3500}"#,
            "\n"
        )
    );

    clock.advance(Duration::from_millis(3_499));
    let response = service.oneshot(get("/")).await.unwrap();
    assert_eq!(response.headers()["retry-after"], "1", "at least a second");
}

#[tokio::test]
async fn errors_of_the_service_are_failures_and_pass_through() {
    let (breaker, _) = breaker();
    let refused =
        |_: Request<Empty<&'static [u8]>>| ready(Err::<Response<Text>, _>("connection refused"));
    let service = CircuitBreakerLayer::new(breaker.clone()).layer(service_fn(refused));
    for _ in 0..20 {
        assert_eq!(
            service
                .clone()
                .oneshot(Request::new(Empty::new()))
                .await
                .unwrap_err(),
            "connection refused"
        );
    }
    assert_eq!(breaker.state(), State::Open);
    let response = service.oneshot(Request::new(Empty::new())).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn client_errors_are_ignored() {
    let (breaker, _) = breaker();
    for status in [400, 401, 403, 404, 408, 409, 422, 429, 499] {
        let service = CircuitBreakerLayer::new(breaker.clone())
            .layer(service_fn(move |_| ready(answer(status))));
        for _ in 0..20 {
            service.clone().oneshot(get("/")).await.unwrap();
        }
    }
    assert_eq!((breaker.state(), breaker.stats().calls), (State::Closed, 0));
}

#[tokio::test]
async fn a_client_error_frees_the_slot_of_a_probe() {
    let (breaker, clock) = breaker();
    (0..20).for_each(|_| breaker.try_acquire().unwrap().failure());
    clock.advance(Duration::from_secs(5));
    let service =
        CircuitBreakerLayer::new(breaker.clone()).layer(service_fn(|_| ready(answer(404))));
    for _ in 0..10 {
        assert_eq!(
            service.clone().oneshot(get("/")).await.unwrap().status(),
            404
        );
    }
    let service =
        CircuitBreakerLayer::new(breaker.clone()).layer(service_fn(|_| ready(answer(204))));
    for _ in 0..3 {
        service.clone().oneshot(get("/")).await.unwrap();
    }
    assert_eq!(breaker.state(), State::Closed);
}

#[tokio::test]
async fn a_client_that_hangs_up_is_no_failure_and_leaves_no_probe_behind() {
    let (breaker, clock) = breaker();
    let hanging = service_fn(|_: Request<Empty<&'static [u8]>>| {
        pending::<Result<Response<Text>, Infallible>>()
    });
    let mut service = CircuitBreakerLayer::new(breaker.clone()).layer(hanging);
    let mut hang_up = async || {
        let mut future = Box::pin(
            service
                .ready()
                .await
                .unwrap()
                .call(Request::new(Empty::new())),
        );
        assert!(poll_once(future.as_mut()).is_pending());
    };
    for _ in 0..30 {
        hang_up().await;
    }
    assert_eq!((breaker.state(), breaker.stats().calls), (State::Closed, 0));

    (0..20).for_each(|_| breaker.try_acquire().unwrap().failure());
    clock.advance(Duration::from_secs(5));
    for _ in 0..30 {
        hang_up().await;
    }
    for _ in 0..3 {
        breaker.try_acquire().unwrap().success();
    }
    assert_eq!(breaker.state(), State::Closed);
}

#[tokio::test]
async fn slow_is_the_time_to_the_head_and_the_body_may_take_its_time() {
    let (breaker, clock) = breaker();
    let late = clock.clone();
    let service = CircuitBreakerLayer::new(breaker.clone()).layer(service_fn(move |_| {
        late.advance(Duration::from_millis(1_000));
        ready(answer(200))
    }));
    for _ in 0..5 {
        let response = service.clone().oneshot(get("/")).await.unwrap();
        clock.advance(Duration::from_secs(60));
        response.into_body().collect().await.unwrap();
    }
    assert_eq!((breaker.stats().calls, breaker.stats().slow), (5, 0));

    let late = clock.clone();
    let service = CircuitBreakerLayer::new(breaker.clone()).layer(service_fn(move |_| {
        late.advance(Duration::from_millis(1_001));
        ready(answer(200))
    }));
    service.oneshot(get("/")).await.unwrap();
    assert_eq!((breaker.stats().calls, breaker.stats().slow), (6, 1));
}

#[tokio::test]
async fn a_closure_decides_what_is_a_failure() {
    let (breaker, _) = breaker();
    let layer = CircuitBreakerLayer::new(breaker.clone()).classify(|head| {
        match head.headers.get("grpc-status") {
            Some(code) if code == "14" => CallOutcome::Failure,
            Some(_) => CallOutcome::Ignored,
            None => CallOutcome::Success,
        }
    });
    let service = layer.layer(service_fn(|code: Request<&'static str>| {
        let response = Response::builder()
            .header("grpc-status", *code.body())
            .body(Text::default())
            .unwrap();
        ready(Ok::<_, Infallible>(response))
    }));
    for code in ["14", "5", "14", "0"] {
        service.clone().oneshot(Request::new(code)).await.unwrap();
    }
    assert_eq!((breaker.stats().calls, breaker.stats().failures), (2, 2));
}

#[tokio::test]
async fn the_service_that_was_readied_is_the_one_that_is_called() {
    let (breaker, _) = breaker();
    let mut service = CircuitBreakerLayer::new(breaker.clone()).layer(OnceReady::default());
    for _ in 0..3 {
        // The service panics if it is called when not ready; its clones are not ready.
        service.ready().await.unwrap().call(get("/")).await.unwrap();
        let mut clone = service.clone();
        clone.ready().await.unwrap().call(get("/")).await.unwrap();
    }
    assert_eq!(breaker.stats().calls, 6);
}

#[tokio::test]
async fn it_is_as_ready_as_the_service_inside_and_an_open_breaker_is_too() {
    let (breaker, _) = breaker();
    let inner = OnceReady::default();
    let mut service = CircuitBreakerLayer::new(breaker.clone()).layer(inner.clone());
    inner.block(true);
    assert!(poll_once(std::pin::pin!(service.ready())).is_pending());
    inner.block(false);
    assert!(poll_once(std::pin::pin!(service.ready())).is_ready());

    (0..20).for_each(|_| breaker.try_acquire().unwrap().failure());
    let response = service.ready().await.unwrap().call(get("/")).await.unwrap();
    assert_eq!(
        (response.status(), inner.calls()),
        (StatusCode::SERVICE_UNAVAILABLE, 0)
    );
}

#[tokio::test]
async fn services_of_one_layer_share_the_breaker() {
    let layer = CircuitBreakerLayer::default();
    let first = layer.layer(service_fn(|_| ready(answer(500))));
    let second = layer.clone().layer(service_fn(|_| ready(answer(200))));
    for _ in 0..20 {
        first.clone().oneshot(get("/")).await.unwrap();
    }
    assert_eq!(
        second.oneshot(get("/")).await.unwrap().status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(layer.breaker().state(), State::Open);
}

#[test]
fn an_allowed_request_allocates_nothing() {
    let (breaker, _) = breaker();
    let mut service = CircuitBreakerLayer::new(breaker).layer(service_fn(|_: Request<()>| {
        ready(Ok::<_, Infallible>(Response::new(Text::default())))
    }));
    let request = Request::new(());
    let allocated = allocation_counter::measure(|| {
        let future = std::pin::pin!(service.call(request));
        assert!(poll_once(future).is_ready());
    });
    assert_eq!(allocated.count_total, 0);
}
