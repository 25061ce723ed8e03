//! Load shedding as a layer: classes, responses and deadlines.

mod support;

use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode};
use http_body_util::BodyExt;
use ratekeeper::{Clock, ManualClock, adaptive::Class, adaptive::Shedder};
use ratekeeper_testkit::poll::poll_once;
use ratekeeper_tower::{
    ConcurrencyLayer, Deadline, Identity, Key, ShedLayer, identity::PeerAddr, response::NotReached,
};
use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::time::Duration;
use support::{OnceReady, Text, get};
use tower::{Layer, Service, ServiceExt, service_fn};

const TICK: Duration = Duration::from_millis(100);
const PROXY: [u8; 4] = [10, 0, 0, 1];
const STRANGER: [u8; 4] = [198, 51, 100, 9];

fn from(peer: [u8; 4], header: (&'static str, &'static str)) -> Request<Text> {
    let mut request = get("/");
    request
        .extensions_mut()
        .insert(PeerAddr(SocketAddr::from((peer, 4711))));
    request
        .headers_mut()
        .insert(header.0, header.1.parse().unwrap());
    request
}

/// A shedder that sheds everything but critical requests, without traffic of its own, and its
/// clock.
fn overloaded() -> (ManualClock, Shedder<ManualClock>) {
    let clock = ManualClock::new();
    let shedder = Shedder::builder()
        .spare(Class::Critical)
        .pressure(|| 10.0)
        .build_with_clock(clock.clone());
    for _ in 0..50 {
        clock.advance(TICK);
        shedder.tick();
    }
    assert_eq!(shedder.level(), 2.0);
    (clock, shedder)
}

fn trusting() -> Identity {
    Identity::direct().trust("10.0.0.0/8".parse().unwrap())
}

#[tokio::test]
async fn shed_requests_get_retry_after_and_do_not_reach_the_service() {
    let (clock, shedder) = overloaded();
    let inner = OnceReady::default();
    let layer = ShedLayer::with_clock(shedder, clock).default_class(Class::Sheddable);
    let mut service = layer.layer(inner.clone());
    let mut waits = Vec::new();
    for _ in 0..20 {
        let denied = service.ready().await.unwrap().call(get("/")).await.unwrap();
        assert_eq!(denied.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(denied.extensions().get(), Some(&Class::Sheddable));
        assert!(denied.extensions().get::<NotReached>().is_some());
        waits.push(
            denied.headers()["retry-after"]
                .to_str()
                .unwrap()
                .parse::<u64>()
                .unwrap(),
        );
        let body = denied.into_body().collect().await.unwrap().to_bytes();
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            problem["type"],
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
        );
    }
    assert!(
        waits.iter().all(|wait| (5..=10).contains(wait)),
        "{waits:?}"
    );
    waits.sort_unstable();
    waits.dedup();
    assert!(
        waits.len() > 3,
        "they do not all come back at once: {waits:?}"
    );
    assert_eq!(inner.calls(), 0);

    let mut grpc = get("/");
    grpc.headers_mut()
        .insert("content-type", "application/grpc".parse().unwrap());
    let denied = service.ready().await.unwrap().call(grpc).await.unwrap();
    assert_eq!(
        (denied.status(), &denied.headers()["grpc-status"]),
        (StatusCode::OK, &"14".parse().unwrap())
    );
}

#[tokio::test]
async fn the_class_is_the_first_that_is_known() {
    let (clock, shedder) = overloaded();
    let layer = ShedLayer::with_clock(shedder, clock)
        .class(|head| (head.uri.path() == "/export").then_some(Class::Sheddable))
        .header(HeaderName::from_static("x-class"))
        .identity(trusting());
    let service = layer.layer(OnceReady::default());
    let status = async |request| service.clone().oneshot(request).await.unwrap().status();
    assert_eq!(
        status(get("/")).await,
        200,
        "without a class it is critical"
    );
    assert_eq!(status(get("/export")).await, 503);
    let mut request = get("/export");
    request.extensions_mut().insert(Class::CriticalPlus);
    assert_eq!(
        status(request).await,
        200,
        "an extension comes before the function"
    );
    assert_eq!(
        status(from(PROXY, ("x-class", "sheddable_plus"))).await,
        503
    );
    assert_eq!(status(from(PROXY, ("x-class", " Sheddable "))).await, 503);
    assert_eq!(
        status(from(PROXY, ("x-class", "urgent"))).await,
        200,
        "an unknown class is ignored"
    );
}

#[tokio::test]
async fn a_header_is_believed_from_trusted_proxies_only() {
    let (clock, shedder) = overloaded();
    let layer = ShedLayer::with_clock(shedder, clock).default_class(Class::Sheddable);
    let header = HeaderName::from_static("x-class");
    let status = async |layer: &ShedLayer<ManualClock>, request| {
        layer
            .layer(OnceReady::default())
            .oneshot(request)
            .await
            .unwrap()
            .status()
    };
    let important = ("x-class", "critical_plus");
    let trusting = layer.clone().header(header.clone()).identity(trusting());
    assert_eq!(status(&trusting, from(PROXY, important)).await, 200);
    assert_eq!(status(&trusting, from(STRANGER, important)).await, 503);
    let mut no_peer = get("/");
    no_peer
        .headers_mut()
        .insert("x-class", "critical_plus".parse().unwrap());
    assert_eq!(
        status(&trusting, no_peer).await,
        503,
        "nor from an unknown peer"
    );
    assert_eq!(
        status(&layer.header(header), from(PROXY, important)).await,
        503,
        "nor without trusted proxies"
    );
}

#[tokio::test]
async fn requests_after_their_deadline_do_not_reach_the_service() {
    let clock = ManualClock::new();
    let shedder = Shedder::builder().build_with_clock(clock.clone());
    let layer = ShedLayer::with_clock(shedder.clone(), clock.clone())
        .start_header(HeaderName::from_static("x-request-start"))
        .identity(trusting());
    let inner = OnceReady::default();
    let ask = async |layer: &ShedLayer<ManualClock>, request| {
        layer.layer(inner.clone()).oneshot(request).await.unwrap()
    };

    let mut request = get("/");
    request.extensions_mut().insert(Deadline(clock.now()));
    let late = ask(&layer, request).await;
    assert_eq!(
        (late.status(), late.headers().get("retry-after")),
        (StatusCode::GATEWAY_TIMEOUT, None)
    );
    let body = late.into_body().collect().await.unwrap().to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        problem["detail"],
        "The deadline of this request passed before it was processed."
    );

    let mut request = get("/");
    request
        .extensions_mut()
        .insert(Deadline(clock.now() + Duration::from_nanos(1)));
    assert_eq!(ask(&layer, request).await.status(), 200);

    let mut request = get("/");
    request
        .headers_mut()
        .insert("content-type", "application/grpc".parse().unwrap());
    request
        .headers_mut()
        .insert("grpc-timeout", "0m".parse().unwrap());
    assert_eq!(ask(&layer, request).await.headers()["grpc-status"], "4");

    // The manual clock begins at 2020-01-01: this request waited for two seconds in a proxy.
    let waited = ("x-request-start", "t=1577836798.000");
    let patient = layer.clone().within(Duration::from_secs(3));
    let hasty = layer.clone().within(Duration::from_secs(2));
    assert_eq!(ask(&patient, from(PROXY, waited)).await.status(), 200);
    assert_eq!(ask(&hasty, from(PROXY, waited)).await.status(), 504);
    assert_eq!(
        ask(&hasty, from(STRANGER, waited)).await.status(),
        200,
        "an untrusted header is ignored"
    );
    assert_eq!(
        ask(&hasty, from(PROXY, ("x-request-start", "t=1977836798")))
            .await
            .status(),
        200,
        "nor the future"
    );
    assert_eq!(inner.calls(), 4);
    let offered: u64 = shedder
        .snapshot()
        .classes
        .iter()
        .map(|class| class.admitted + class.shed)
        .sum();
    assert_eq!(offered, 4, "what is dropped does not even count");
}

#[tokio::test]
async fn the_class_and_the_deadline_are_passed_on_as_extensions() {
    let clock = ManualClock::new();
    let layer = ShedLayer::with_clock(
        Shedder::builder().build_with_clock(clock.clone()),
        clock.clone(),
    );
    let layer = layer
        .default_class(Class::SheddablePlus)
        .within(Duration::from_secs(1))
        .extension();
    let inner = service_fn(|request: Request<Text>| {
        let extensions = request.extensions();
        ready(Ok::<_, Infallible>(Response::new(Text::from(format!(
            "{:?} {:?}",
            extensions.get::<Class>(),
            extensions.get::<Deadline>()
        )))))
    });
    let body = layer
        .layer(inner)
        .oneshot(get("/"))
        .await
        .unwrap()
        .into_body()
        .collect()
        .await
        .unwrap()
        .to_bytes();
    let expected = Deadline(clock.now() + Duration::from_secs(1));
    assert_eq!(
        body,
        Bytes::from(format!("Some(SheddablePlus) Some({expected:?})"))
    );
}

/// Denials by an inner limit are reported as overload: then sheddable requests no longer reach that
/// limit.
#[tokio::test]
async fn it_learns_from_inner_limits() {
    for (limit, level) in [
        (ConcurrencyLayer::new(0).unavailable(), true),
        (ConcurrencyLayer::new(0), false),
    ] {
        let clock = ManualClock::new();
        let layer = ShedLayer::with_clock(
            Shedder::builder().build_with_clock(clock.clone()),
            clock.clone(),
        );
        let layer = layer.default_class(Class::Sheddable);
        let service = layer.layer(limit.layer(OnceReady::default()));
        for _ in 0..20 {
            service.clone().oneshot(get("/")).await.unwrap();
        }
        clock.advance(TICK);
        service.clone().oneshot(get("/")).await.unwrap();
        assert_eq!(
            layer.shedder().level() > 0.5,
            level,
            "a 429 is the limit of a client, a 503 is a lack of capacity"
        );
    }
}

#[tokio::test]
async fn requests_with_the_same_key_are_shed_alike() {
    let clock = ManualClock::new();
    let shedder = Shedder::builder().build_with_clock(clock.clone());
    (0..1_000).for_each(|_| _ = shedder.admit(Class::Sheddable));
    shedder.report(2.0);
    clock.advance(TICK);
    shedder.tick();
    let key = Key::header(HeaderName::from_static("x-user"));
    let layer = ShedLayer::with_clock(shedder, clock)
        .default_class(Class::Sheddable)
        .alike(key);
    let service = layer.layer(OnceReady::default());
    let mut passed = 0;
    for user in 0..200 {
        let ask = async || {
            let mut request = get("/");
            request.headers_mut().insert("x-user", user.into());
            service.clone().oneshot(request).await.unwrap().status()
        };
        let first = ask().await;
        for _ in 0..3 {
            assert_eq!(ask().await, first);
        }
        passed += u32::from(first == 200);
    }
    assert!((60..=140).contains(&passed), "about half: {passed}");
}

#[tokio::test]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    let (clock, shedder) = overloaded();
    let layer = ShedLayer::with_clock(shedder, clock)
        .class(|head| (head.uri.path() == "/export").then_some(Class::Sheddable));
    let inner = OnceReady::default();
    let mut service = layer.layer(inner.clone());
    inner.block(true);
    assert!(poll_once(std::pin::pin!(service.ready())).is_pending());
    inner.block(false);
    assert_eq!(
        service
            .ready()
            .await
            .unwrap()
            .call(get("/export"))
            .await
            .unwrap()
            .status(),
        503
    );
    // The readiness that the denied request did not use is still valid.
    assert_eq!(service.call(get("/")).await.unwrap().status(), 200);
}

#[test]
fn an_allowed_request_allocates_nothing() {
    let inner = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(()))));
    let layer = ShedLayer::default()
        .class(|head| (head.uri.path() == "/export").then_some(Class::Sheddable))
        .header(HeaderName::from_static("x-class"))
        .within(Duration::from_secs(1));
    let mut service = layer.layer(inner);
    let mut request = Request::new(());
    request
        .headers_mut()
        .insert("x-class", "sheddable".parse().unwrap());
    request
        .headers_mut()
        .insert("grpc-timeout", "5S".parse().unwrap());
    request
        .extensions_mut()
        .insert(PeerAddr(SocketAddr::from((STRANGER, 4711))));
    let allocated = allocation_counter::measure(|| {
        assert!(poll_once(std::pin::pin!(service.call(request))).is_ready());
    });
    assert_eq!(allocated.count_total, 0);
}
