//! The concurrency limit as a layer: a permit is held until the body of the response ends.

mod support;

use axum::Router;
use axum::body::Body as AxumBody;
use axum::routing::get as route;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use ratekeeper::{Concurrency, concurrency::BusyError, keyed::KeyedConcurrency};
use ratekeeper_testkit::poll::poll_once;
use ratekeeper_tower::{CircuitBreakerLayer, ConcurrencyLayer, ResponseBody};
use std::convert::Infallible;
use std::future::{pending, ready};
use support::{OnceReady, Pieces, Text, get};
use tower::{Layer, Service, ServiceExt, service_fn};

fn piece(text: &'static str) -> Result<Frame<Bytes>, &'static str> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

fn pieces(knows_its_end: bool) -> Pieces {
    Pieces {
        frames: [piece("one"), piece("two")].into(),
        knows_its_end,
    }
}

/// A limit of one, and the response of a service behind it with this body.
async fn respond_with(
    body: Pieces,
) -> (
    Concurrency,
    Response<ResponseBody<Pieces, ratekeeper::Permit>>,
) {
    let limit = Concurrency::new(1);
    let mut body = Some(body);
    let inner = service_fn(move |_: Request<Text>| {
        ready(Ok::<_, Infallible>(Response::new(body.take().unwrap())))
    });
    let response = ConcurrencyLayer::over(limit.clone())
        .layer(inner)
        .oneshot(get("/"))
        .await
        .unwrap();
    (limit, response)
}

#[tokio::test]
async fn the_permit_is_held_until_a_streaming_body_has_ended() {
    let (limit, response) = respond_with(pieces(false)).await;
    let mut body = response.into_body();
    for text in ["one", "two"] {
        assert_eq!(limit.in_flight(), 1);
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            text
        );
    }
    assert_eq!(limit.in_flight(), 1, "its end is not known yet");
    assert!(body.frame().await.is_none());
    assert_eq!(limit.in_flight(), 0, "and the body is still there");
    drop(body);
    assert_eq!(limit.in_flight(), 0);
}

#[tokio::test]
async fn a_body_that_knows_its_end_releases_the_permit_with_its_last_frame() {
    let (limit, response) = respond_with(pieces(true)).await;
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(limit.in_flight(), 1);
    body.frame().await.unwrap().unwrap();
    assert!(body.is_end_stream());
    assert_eq!(limit.in_flight(), 0);
}

#[tokio::test]
async fn trailers_come_through() {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let frames = [piece("one"), Ok(Frame::trailers(trailers.clone()))].into();
    let (limit, response) = respond_with(Pieces {
        frames,
        knows_its_end: false,
    })
    .await;
    let collected = response.into_body().collect().await.unwrap();
    assert_eq!(
        (collected.trailers(), limit.in_flight()),
        (Some(&trailers), 0)
    );
}

#[tokio::test]
async fn a_body_that_is_dropped_early_releases_the_permit() {
    let (limit, response) = respond_with(pieces(false)).await;
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(limit.in_flight(), 1);
    drop(body);
    assert_eq!(limit.in_flight(), 0);

    let (limit, response) = respond_with(pieces(false)).await;
    drop(response);
    assert_eq!(limit.in_flight(), 0, "nor does it have to be read at all");
}

#[tokio::test]
async fn a_body_that_fails_releases_the_permit() {
    let frames = [piece("one"), Err("connection reset")].into();
    let (limit, response) = respond_with(Pieces {
        frames,
        knows_its_end: false,
    })
    .await;
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(body.frame().await.unwrap().unwrap_err(), "connection reset");
    assert_eq!(limit.in_flight(), 0);
}

#[tokio::test]
async fn an_empty_body_holds_no_permit() {
    let (limit, _response) = respond_with(Pieces {
        frames: [].into(),
        knows_its_end: true,
    })
    .await;
    assert_eq!(limit.in_flight(), 0);
}

#[tokio::test]
async fn one_request_too_many_gets_a_429() {
    let mut service = ConcurrencyLayer::new(2).layer(OnceReady::default());
    let first = service.ready().await.unwrap().call(get("/")).await.unwrap();
    let _second = service
        .clone()
        .ready()
        .await
        .unwrap()
        .call(get("/"))
        .await
        .unwrap();
    let denied = service.ready().await.unwrap().call(get("/")).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.headers()["retry-after"], "1");
    assert_eq!(denied.headers()["cache-control"], "no-store");
    assert_eq!(denied.headers()["content-type"], "application/problem+json");
    assert_eq!(denied.extensions().get::<BusyError>().unwrap().limit(), 2);
    let body = denied.into_body();
    let length = body.size_hint().exact();
    let body = body.collect().await.unwrap().to_bytes();
    assert_eq!(length, Some(body.len() as u64));
    assert_eq!(
        body,
        concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","#,
            r#""status":429,"detail":"Too many requests are in flight; try again in 1 second.","#,
            r#""violated-policies":[],"retry_after_ms":1000}"#,
            "\n"
        )
    );
    first.into_body().collect().await.unwrap();
    assert_eq!(
        service
            .ready()
            .await
            .unwrap()
            .call(get("/"))
            .await
            .unwrap()
            .status(),
        StatusCode::OK
    );
}

#[tokio::test]
async fn or_a_503_if_unavailable() {
    let service = ConcurrencyLayer::new(0)
        .unavailable()
        .layer(OnceReady::default());
    let denied = service.oneshot(get("/")).await.unwrap();
    assert_eq!(
        (denied.status(), &denied.headers()["retry-after"]),
        (StatusCode::SERVICE_UNAVAILABLE, &"1".parse().unwrap())
    );
    let body = denied.into_body().collect().await.unwrap().to_bytes();
    assert!(
        std::str::from_utf8(&body)
            .unwrap()
            .contains("#temporary-reduced-capacity")
    );
}

#[tokio::test]
async fn each_key_has_its_own_permits() {
    let permits = KeyedConcurrency::<Option<String>>::builder(1)
        .max_keys(100)
        .build();
    let layer =
        ConcurrencyLayer::over_keyed(permits.clone(), |head| head.uri.query().map(String::from));
    let service = layer.layer(OnceReady::default());
    let ask = |path| service.clone().oneshot(get(path));
    let acme = ask("/?acme").await.unwrap();
    let no_tenant = ask("/").await.unwrap();
    assert_eq!(
        (acme.status(), no_tenant.status()),
        (StatusCode::OK, StatusCode::OK)
    );
    assert_eq!(
        ask("/other?acme").await.unwrap().status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    assert_eq!(
        ask("/").await.unwrap().status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    assert_eq!(ask("/?emca").await.unwrap().status(), StatusCode::OK);
    drop(acme);
    assert_eq!(permits.in_flight(&Some("acme".to_owned())), 0);
    assert_eq!(ask("/?acme").await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn an_error_or_a_client_that_hangs_up_releases_the_permit() {
    let limit = Concurrency::new(1);
    let layer = ConcurrencyLayer::over(limit.clone());
    let failing = layer.layer(service_fn(|_: Request<Text>| {
        ready(Err::<Response<Text>, _>("no"))
    }));
    assert_eq!(failing.oneshot(get("/")).await.unwrap_err(), "no");
    assert_eq!(limit.in_flight(), 0);

    let mut hanging = layer.layer(service_fn(|_: Request<Text>| {
        pending::<Result<Response<Text>, Infallible>>()
    }));
    let mut future = Box::pin(hanging.ready().await.unwrap().call(get("/")));
    assert!(poll_once(future.as_mut()).is_pending());
    assert_eq!(limit.in_flight(), 1);
    drop(future);
    assert_eq!(limit.in_flight(), 0);
}

#[tokio::test]
async fn it_is_as_ready_as_the_service_inside_even_with_no_permit_left() {
    let limit = Concurrency::new(1);
    let inner = OnceReady::default();
    let mut service = ConcurrencyLayer::over(limit.clone()).layer(inner.clone());
    let permit = limit.try_acquire().unwrap();
    inner.block(true);
    assert!(poll_once(std::pin::pin!(service.ready())).is_pending());
    inner.block(false);
    let denied = service.ready().await.unwrap().call(get("/")).await.unwrap();
    assert_eq!(
        (denied.status(), inner.calls()),
        (StatusCode::TOO_MANY_REQUESTS, 0)
    );
    drop(permit);
    // The readiness that the denied request did not use is still valid.
    assert_eq!(
        service.call(get("/")).await.unwrap().status(),
        StatusCode::OK
    );
}

#[tokio::test]
async fn axum_takes_both_layers_and_a_breaker_inside_keeps_no_permit() {
    let limit = Concurrency::new(1);
    let breaker = CircuitBreakerLayer::default();
    let app = Router::new()
        .route("/", route(|| async { StatusCode::INTERNAL_SERVER_ERROR }))
        .layer(breaker.clone())
        .layer(ConcurrencyLayer::over(limit.clone()))
        .layer(ConcurrencyLayer::per_key(5, |head| {
            head.headers.get("x-tenant").cloned()
        }));
    for _ in 0..20 {
        let response = app
            .clone()
            .oneshot(Request::new(AxumBody::empty()))
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
    let open = app
        .clone()
        .oneshot(Request::new(AxumBody::empty()))
        .await
        .unwrap();
    assert_eq!(
        (open.status(), limit.in_flight()),
        (StatusCode::SERVICE_UNAVAILABLE, 1)
    );
    let busy = app
        .clone()
        .oneshot(Request::new(AxumBody::empty()))
        .await
        .unwrap();
    assert_eq!(
        busy.status(),
        StatusCode::TOO_MANY_REQUESTS,
        "the permit comes before the breaker"
    );
    open.into_body().collect().await.unwrap();
    assert_eq!(limit.in_flight(), 0);
}

#[test]
fn an_allowed_request_allocates_nothing() {
    let inner =
        service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(pieces(false)))));
    let mut service = ConcurrencyLayer::new(1).layer(inner);
    let (request, alone) = (
        Request::new(()),
        allocation_counter::measure(|| drop(pieces(false))),
    );
    let allocated = allocation_counter::measure(|| {
        let future = std::pin::pin!(service.call(request));
        assert!(poll_once(future).is_ready());
    });
    assert_eq!(allocated.count_total, alone.count_total);
}
