//! The rate limit layer in front of real services: decisions, headers, refunds.

use axum::Extension;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Method, Request, Response, StatusCode};
use axum::routing::{get, post};
use http_body_util::BodyExt;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};
use proptest::sample::select;
use ratekeeper::{Algorithm, Keyed, Limit, ManualClock, MemoryStore};
use ratekeeper_policy::{
    Attribute, Count, Engine, Match, Missing, Plan, Policies, Policy, PolicyLimit,
};
use ratekeeper_testkit::poll::poll_once;
use ratekeeper_tower::{
    CircuitBreaker, CircuitBreakerLayer, DenialStatus, Dialect, Identity, Key, RateLimitLayer,
    TrustedPeers, decider::LimitDecider, decider::RateLimitStatus, identity::PeerAddr,
    rate_limit::DelayStats,
};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tower::{Layer, Service, ServiceExt};

const SECOND: Duration = Duration::from_secs(1);

fn limited(key: Key, limit: Limit) -> (RateLimitLayer<LimitDecider<ManualClock>>, ManualClock) {
    let clock = ManualClock::new();
    let keyed = Keyed::builder(limit)
        .max_keys(1_000)
        .clock(clock.clone())
        .build();
    (RateLimitLayer::keyed(keyed, key), clock)
}

/// A request from that address.
fn from(ip: &str, method: Method, path: &str) -> Request<Body> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .body(Body::empty())
        .unwrap();
    request
        .extensions_mut()
        .insert(PeerAddr(SocketAddr::new(ip.parse().unwrap(), 1)));
    request
}

fn hello(ip: &str) -> Request<Body> {
    from(ip, Method::GET, "/")
}

fn app() -> Router {
    Router::new()
        .route("/", get(async || "hello"))
        .route("/other", get(async || "other"))
}

async fn call<S, B>(service: &S, request: Request<Body>) -> Response<B>
where
    S: Service<Request<Body>, Response = Response<B>, Error: std::fmt::Debug> + Clone,
{
    service.clone().oneshot(request).await.unwrap()
}

fn header<'a, B>(response: &'a Response<B>, name: &str) -> Option<&'a str> {
    response
        .headers()
        .get(name)
        .map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn a_server_may_pass_the_peer_itself() {
    let (layer, _) = limited(Key::ip(), Limit::per_minute(1));
    let mut service = layer
        .identity(Identity::direct().trust("10.0.0.0/8".parse().unwrap()))
        .layer(app());
    let proxied = |client: &str| {
        Request::builder()
            .uri("/")
            .header("x-forwarded-for", client)
            .body(Body::empty())
    };
    // The extensions are ignored; a trusted proxy is still believed.
    for (peer, request, status) in [
        ("203.0.113.7", hello("192.0.2.1"), 200),
        ("203.0.113.7", hello("192.0.2.2"), 429),
        ("203.0.113.8", hello("192.0.2.1"), 200),
        ("10.0.0.1", proxied("203.0.113.7").unwrap(), 429),
        ("10.0.0.1", proxied("203.0.113.9").unwrap(), 200),
    ] {
        let response = service
            .call_from(Some(peer.parse().unwrap()), request)
            .await
            .unwrap();
        assert_eq!(response.status(), status, "{peer}");
    }
    // All requests without an address share one bucket.
    for status in [200, 429] {
        let response = service
            .call_from(None, Request::new(Body::empty()))
            .await
            .unwrap();
        assert_eq!(response.status(), status);
    }
}

#[tokio::test]
async fn a_limit_holds_across_clones_routes_and_tasks() {
    let (layer, _) = limited(Key::ip(), Limit::per_minute(5));
    let service = app().layer(layer);
    let allowed = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..1_500)
        .map(|at| {
            let (service, allowed) = (service.clone(), Arc::clone(&allowed));
            tokio::spawn(async move {
                let path = if at % 2 == 0 { "/" } else { "/other" };
                let response = call(&service, from("203.0.113.7", Method::GET, path)).await;
                allowed.fetch_add(
                    usize::from(response.status() == StatusCode::OK),
                    Ordering::Relaxed,
                );
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(allowed.load(Ordering::Relaxed), 5);
    assert_eq!(
        call(&service, hello("203.0.113.8")).await.status(),
        StatusCode::OK
    );
}

#[tokio::test]
async fn headers_are_on_every_response() {
    let (layer, clock) = limited(Key::ip(), Limit::per_minute(2));
    let service = app().layer(layer);
    let unix = ratekeeper::Clock::now(&clock).since_unix().as_secs();
    let response = call(&service, hello("203.0.113.7")).await;
    let rate_limit_headers = |response: &Response<_>| {
        [
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            "retry-after",
        ]
        .map(|name| header(response, name).map(str::to_owned))
    };
    let some = |value: u64| Some(value.to_string());
    assert_eq!(
        rate_limit_headers(&response),
        [some(2), some(1), some(unix + 30), None]
    );
    assert_eq!(
        rate_limit_headers(&call(&service, hello("203.0.113.7")).await),
        [some(2), some(0), some(unix + 60), None]
    );
    let response = call(&service, hello("203.0.113.7")).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        rate_limit_headers(&response),
        [some(2), some(0), some(unix + 60), some(30)]
    );
    assert_eq!(header(&response, "cache-control"), Some("no-store"));
    assert_eq!(
        header(&response, "content-type"),
        Some("application/problem+json")
    );
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&body["status"], &body["retry_after_ms"]),
        (&429.into(), &30_000.into())
    );
    assert_eq!(body["violated-policies"], serde_json::json!(["default"]));
    // A client that obeys Retry-After is allowed.
    clock.advance(30 * SECOND);
    assert_eq!(
        call(&service, hello("203.0.113.7")).await.status(),
        StatusCode::OK
    );
}

#[tokio::test]
async fn without_an_address_all_share_one_bucket() {
    let (layer, _) = limited(Key::ip(), Limit::per_minute(1));
    let service = app().layer(layer);
    let request = || Request::builder().uri("/").body(Body::empty()).unwrap();
    assert_eq!(call(&service, request()).await.status(), StatusCode::OK);
    assert_eq!(
        call(&service, request()).await.status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    // Policies by address apply to them, too.
    let policies =
        Policies::new().policy(Policy::new("each").key("ip").limit(Limit::per_minute(1)));
    let service = app().layer(RateLimitLayer::new(
        Engine::new(MemoryStore::new(), policies).unwrap(),
    ));
    assert_eq!(call(&service, request()).await.status(), StatusCode::OK);
    assert_eq!(
        call(&service, request()).await.status(),
        StatusCode::TOO_MANY_REQUESTS
    );
}

#[tokio::test]
async fn a_request_without_the_attribute_of_a_policy_is_counted_by_its_address() {
    for (missing, second, other) in [
        (
            Missing::Address,
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::OK,
        ),
        (
            Missing::Shared,
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::TOO_MANY_REQUESTS,
        ),
        (Missing::Skip, StatusCode::OK, StatusCode::OK),
    ] {
        let policy = Policy::new("each")
            .key("header:x-api-key")
            .missing(missing)
            .limit(Limit::per_minute(1));
        let service = app().layer(RateLimitLayer::new(
            engine(Policies::new().policy(policy)).0,
        ));
        let of = async |peer: &str| call(&service, hello(peer)).await.status();
        assert_eq!(of("203.0.113.1").await, StatusCode::OK);
        assert_eq!(
            (of("203.0.113.1").await, of("203.0.113.2").await),
            (second, other),
            "{missing:?}"
        );
    }
    let policy = Policy::new("each")
        .key(Attribute::User)
        .missing(Missing::Deny)
        .limit(Limit::per_minute(1));
    let service = app().layer(RateLimitLayer::new(
        engine(Policies::new().policy(policy)).0,
    ));
    let response = call(&service, hello("203.0.113.1")).await;
    assert_eq!(
        (response.status(), response.headers().get("retry-after")),
        (StatusCode::TOO_MANY_REQUESTS, None)
    );
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let body = String::from_utf8_lossy(&body);
    assert!(
        body.contains("This request has no user, which policy `each` requires"),
        "{body}"
    );
}

#[tokio::test]
async fn a_forwarding_header_is_believed_from_trusted_proxies() {
    let (layer, _) = limited(Key::ip(), Limit::per_minute(1));
    let service =
        app().layer(layer.identity(Identity::direct().trust("10.0.0.0/8".parse().unwrap())));
    let by = |peer: &str, header: &str| {
        let mut request = hello(peer);
        request
            .headers_mut()
            .insert("x-forwarded-for", header.parse().unwrap());
        request
    };
    assert_eq!(
        call(&service, by("10.0.0.1", "203.0.113.1")).await.status(),
        StatusCode::OK
    );
    assert_eq!(
        call(&service, by("10.0.0.2", "203.0.113.1")).await.status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    assert_eq!(
        call(&service, by("10.0.0.1", "203.0.113.2")).await.status(),
        StatusCode::OK
    );
    // An untrusted peer is counted by its own address; its headers are ignored.
    assert_eq!(
        call(&service, by("198.51.100.1", "203.0.113.3"))
            .await
            .status(),
        StatusCode::OK
    );
    assert_eq!(
        call(&service, by("198.51.100.1", "203.0.113.4"))
            .await
            .status(),
        StatusCode::TOO_MANY_REQUESTS
    );
}

#[derive(Clone)]
struct User(&'static str);

#[tokio::test]
async fn requests_are_counted_by_their_key() {
    let with = |name: &'static str, value: &str, ip: &str| {
        let mut request = hello(ip);
        request.headers_mut().insert(name, value.parse().unwrap());
        request
    };
    let (layer, _) = limited(
        Key::header("x-api-key".parse().unwrap()),
        Limit::per_minute(1),
    );
    let service = app().layer(layer);
    assert_eq!(
        call(&service, with("x-api-key", "a", "10.0.0.1"))
            .await
            .status(),
        200
    );
    assert_eq!(
        call(&service, with("x-api-key", "a", "10.0.0.2"))
            .await
            .status(),
        429
    );
    // An empty header is no key: its callers are counted by their addresses.
    for (ip, status) in [("10.0.0.7", 200), ("10.0.0.8", 200), ("10.0.0.7", 429)] {
        let response = call(&service, with("x-api-key", "", ip)).await;
        assert_eq!(response.status(), status, "{ip}");
    }
    assert_eq!(
        call(&service, with("x-api-key", "b", "10.0.0.2"))
            .await
            .status(),
        200
    );
    // Leaving it out does not bypass the limit.
    assert_eq!(call(&service, hello("10.0.0.3")).await.status(), 200);
    assert_eq!(call(&service, hello("10.0.0.3")).await.status(), 429);

    let (layer, _) = limited(Key::cookie("sid"), Limit::per_minute(1));
    let service = app().layer(layer);
    assert_eq!(
        call(&service, with("cookie", "a=b; sid=1; c=d", "10.0.0.1"))
            .await
            .status(),
        200
    );
    assert_eq!(
        call(&service, with("cookie", "sid=1", "10.0.0.2"))
            .await
            .status(),
        429
    );
    assert_eq!(
        call(&service, with("cookie", "xsid=1; sid=2", "10.0.0.2"))
            .await
            .status(),
        200
    );
    // A service may take either of two.
    let two = call(&service, with("cookie", "sid=3; sid=1", "10.0.0.2")).await;
    assert_eq!(two.status(), 400);
    let body = two.into_body().collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    assert!(
        body.contains("\"code\":\"repeated_cookie\"")
            && body.contains("the cookie sid is repeated with different values"),
        "{body}"
    );

    let (layer, _) = limited(Key::extension(|user: &User| user.0), Limit::per_minute(1));
    let service = app().layer(layer);
    let by = |user| {
        let mut request = hello("10.0.0.1");
        request.extensions_mut().insert(User(user));
        request
    };
    assert_eq!(call(&service, by("ann")).await.status(), 200);
    assert_eq!(call(&service, by("ann")).await.status(), 429);
    assert_eq!(call(&service, by("bob")).await.status(), 200);

    let (layer, _) = limited(Key::all(), Limit::per_minute(1));
    let service = app().layer(layer);
    assert_eq!(call(&service, hello("10.0.0.1")).await.status(), 200);
    assert_eq!(call(&service, hello("10.0.0.2")).await.status(), 429);
}

#[tokio::test]
async fn the_same_layer_is_one_bucket_and_another_is_its_own() {
    let (layer, _) = limited(Key::ip(), Limit::per_minute(1));
    let (other, _) = limited(Key::ip(), Limit::per_minute(1));
    let service = Router::new()
        .route("/a", get(async || "").layer(layer.clone()))
        .route("/b", get(async || "").layer(layer))
        .route("/c", get(async || "").layer(other));
    let path = |path| from("10.0.0.1", Method::GET, path);
    assert_eq!(call(&service, path("/a")).await.status(), 200);
    assert_eq!(call(&service, path("/b")).await.status(), 429);
    assert_eq!(call(&service, path("/c")).await.status(), 200);
}

#[tokio::test]
async fn health_checks_and_preflights_are_not_counted() {
    let (layer, _) = limited(Key::all(), Limit::deny_all());
    let service = app()
        .route("/healthz", get(async || "ok"))
        .layer(layer.skip_paths(["/healthz"]));
    assert_eq!(
        call(&service, from("10.0.0.1", Method::GET, "/healthz"))
            .await
            .status(),
        200
    );
    let mut preflight = from("10.0.0.1", Method::OPTIONS, "/");
    preflight
        .headers_mut()
        .insert("origin", "https://example.com".parse().unwrap());
    assert_eq!(
        call(&service, {
            let mut request = from("10.0.0.1", Method::OPTIONS, "/");
            request
                .headers_mut()
                .insert("origin", "https://example.com".parse().unwrap());
            request
        })
        .await
        .status(),
        429
    );
    preflight
        .headers_mut()
        .insert("access-control-request-method", "POST".parse().unwrap());
    assert_eq!(call(&service, preflight).await.status(), 405);
}

#[tokio::test]
async fn only_failures_and_hangups_count() {
    let (layer, _) = limited(
        Key::ip(),
        Limit::per_minute(2).algorithm(Algorithm::SlidingLog),
    );
    let service = Router::new()
        .route("/ok", post(async || StatusCode::OK))
        .route("/no", post(async || StatusCode::UNAUTHORIZED))
        .route("/never", post(async || std::future::pending::<()>().await))
        .layer(layer.count(Count::Failures));
    let to = |path| from("10.0.0.1", Method::POST, path);
    for _ in 0..10 {
        assert_eq!(call(&service, to("/ok")).await.status(), 200);
    }
    assert_eq!(call(&service, to("/no")).await.status(), 401);
    // The client hangs up: the outcome is unknown.
    let mut never = Box::pin(call(&service, to("/never")));
    assert!(poll_once(&mut never).is_pending());
    drop(never);
    assert_eq!(call(&service, to("/ok")).await.status(), 429);
}

#[tokio::test]
async fn slow_failures_at_once_are_never_more_than_the_limit() {
    let (layer, _) = limited(Key::ip(), Limit::per_minute(3));
    let reached = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reached);
    let handler = async move || {
        counted.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        StatusCode::UNAUTHORIZED
    };
    let service = Router::new()
        .route("/", get(handler))
        .layer(layer.count(Count::Failures));
    let tasks: Vec<_> = (0..100)
        .map(|_| tokio::spawn(service.clone().oneshot(hello("10.0.0.1"))))
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(reached.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_request_over_the_limit_waits_up_to_the_maximum() {
    let (layer, clock) = limited(Key::all(), Limit::per_second(1).burst(1));
    let service = app().layer(layer.delay(SECOND));
    assert_eq!(call(&service, hello("10.0.0.1")).await.status(), 200);
    let mut waiting = Box::pin(call(&service, hello("10.0.0.1")));
    assert!(poll_once(&mut waiting).is_pending());
    assert_eq!(call(&service, hello("10.0.0.1")).await.status(), 429);
    clock.advance(SECOND);
    assert_eq!(waiting.await.status(), 200);
}

#[tokio::test]
async fn at_most_max_waiting_requests_wait() {
    let (layer, clock) = limited(Key::all(), Limit::per_second(1).burst(1));
    let waits = DelayStats::new();
    let service = app().layer(layer.delay(60 * SECOND).max_waiting(1).delay_stats(&waits));
    assert_eq!(call(&service, hello("10.0.0.1")).await.status(), 200);
    let mut waiting = Box::pin(call(&service, hello("10.0.0.1")));
    assert!(poll_once(&mut waiting).is_pending());
    let denied = call(&service, hello("10.0.0.1")).await;
    assert_eq!(
        (denied.status(), header(&denied, "retry-after")),
        (StatusCode::SERVICE_UNAVAILABLE, Some("2"))
    );
    assert_eq!(waits.waiting(), 1);
    drop(waiting);
    assert_eq!(
        (waits.waiting(), waits.delays().count),
        (0, 0),
        "it left before its turn"
    );
    let mut waiting = Box::pin(call(&service, hello("10.0.0.1")));
    assert!(poll_once(&mut waiting).is_pending());
    clock.advance(60 * SECOND);
    assert_eq!(waiting.await.status(), 200);
    let times = waits.delays();
    assert_eq!(
        (waits.waiting(), times.count, times.sum_seconds),
        (0, 1, 1.0)
    );
}

#[tokio::test]
async fn a_limit_for_all_waits_and_then_answers_503_in_front_of_one_for_each() {
    let (all, clock) = limited(Key::all(), Limit::per_second(1).burst(2));
    let all = all
        .name("all")
        .delay(SECOND)
        .status(DenialStatus::ServiceUnavailable);
    let (each, _) = limited(Key::ip(), Limit::per_minute(1));
    let service = all.layer(each.layer(app()));
    assert_eq!(call(&service, hello("10.0.0.1")).await.status(), 200);
    for _ in 0..5 {
        // What the inner limit denies is refunded by the outer one.
        assert_eq!(call(&service, hello("10.0.0.1")).await.status(), 429);
    }
    assert_eq!(call(&service, hello("10.0.0.2")).await.status(), 200);
    let mut waiting = Box::pin(call(&service, hello("10.0.0.3")));
    assert!(poll_once(&mut waiting).is_pending());
    let response = call(&service, hello("10.0.0.4")).await;
    assert_eq!(response.status(), 503);
    assert!(header(&response, "retry-after").is_some());
    assert_eq!(header(&response, "x-ratelimit-limit"), Some("2"));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["title"], "Temporary Reduced Capacity");
    assert_eq!(body["violated-policies"], serde_json::json!(["all"]));
    clock.advance(SECOND);
    assert_eq!(waiting.await.status(), 200);
}

#[tokio::test]
async fn an_undelayed_request_that_does_not_count_is_refunded() {
    // A running clock: a slot could be released only at the very instant in which it was taken.
    let layer = RateLimitLayer::global(Limit::per_hour(1));
    let service = app().layer(layer.delay(SECOND).count(Count::Failures));
    for _ in 0..5 {
        assert_eq!(call(&service, hello("10.0.0.1")).await.status(), 200);
    }
}

#[tokio::test]
async fn a_shadow_limit_denies_nothing_and_is_observed() {
    let (layer, _) = limited(Key::all(), Limit::per_minute(2));
    let denied = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&denied);
    let service = app().layer(layer.shadow().on_verdict(move |_, denial| {
        assert!(denial.is_none_or(|denial| denial.is_shadow()));
        seen.fetch_add(usize::from(denial.is_some()), Ordering::Relaxed);
    }));
    for _ in 0..5 {
        assert_eq!(call(&service, hello("10.0.0.1")).await.status(), 200);
    }
    assert_eq!(denied.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn handlers_see_the_rate_limit_status() {
    let handler = async |Extension(status): Extension<RateLimitStatus>| {
        format!(
            "{} {} of {} {}",
            status.policy, status.remaining, status.limit, status.shadow_denied
        )
    };
    let body =
        async |response: Response<Body>| response.into_body().collect().await.unwrap().to_bytes();
    let (layer, _) = limited(Key::ip(), Limit::per_minute(5));
    let service = Router::new()
        .route("/", get(handler))
        .layer(layer.extension());
    assert_eq!(
        body(call(&service, hello("10.0.0.1")).await).await,
        "default 4 of 5 false"
    );
    let watch = Policy::new("watch")
        .limit(Limit::deny_all())
        .action(ratekeeper_policy::Action::Shadow);
    let (engine, _) = engine(
        Policies::new()
            .policy(watch)
            .policy(Policy::new("all").limit(Limit::per_minute(9))),
    );
    let service = Router::new()
        .route("/", get(handler))
        .layer(RateLimitLayer::new(engine).extension());
    assert_eq!(
        body(call(&service, hello("10.0.0.1")).await).await,
        "all 8 of 9 true"
    );
}

#[tokio::test]
async fn costs_hooks_and_responses_of_your_own() {
    let (layer, _) = limited(Key::ip(), Limit::per_minute(10));
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    let layer = layer
        .name("api")
        .cost(|head| if head.uri.path() == "/" { 6 } else { 1 })
        .on_verdict(move |_, denial| {
            counted.fetch_add(if denial.is_some() { 100 } else { 1 }, Ordering::Relaxed);
        })
        .denied(|denial| {
            let names: Vec<_> = denial.policies().collect();
            Response::builder()
                .status(420)
                .body(Bytes::from(names.join(",")))
                .unwrap()
        });
    let service = app().layer(layer);
    assert_eq!(call(&service, hello("10.0.0.1")).await.status(), 200);
    let response = call(&service, hello("10.0.0.1")).await;
    assert_eq!(
        (response.status().as_u16(), header(&response, "retry-after")),
        (420, Some("12"))
    );
    assert_eq!(header(&response, "x-ratelimit-remaining"), Some("4"));
    assert_eq!(
        response.into_body().collect().await.unwrap().to_bytes(),
        "api"
    );
    assert_eq!(seen.load(Ordering::Relaxed), 101);
}

#[tokio::test]
async fn other_dialects_and_browsers() {
    let (layer, _) = limited(Key::ip(), Limit::per_minute(60).burst(10));
    let service = app().layer(layer.headers(Dialect::Ietf).expose_headers());
    let response = call(&service, hello("10.0.0.1")).await;
    assert_eq!(
        header(&response, "ratelimit-policy"),
        Some("\"default\";q=10;w=10")
    );
    assert_eq!(header(&response, "ratelimit"), Some("\"default\";r=9;t=9"));
    assert!(header(&response, "x-ratelimit-limit").is_none());
    let exposed = header(&response, "access-control-expose-headers")
        .unwrap()
        .to_ascii_lowercase();
    assert!(
        exposed.contains("ratelimit") && exposed.contains("retry-after"),
        "{exposed}"
    );
}

fn engine(policies: Policies) -> (Engine<MemoryStore<ManualClock>>, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(1_000)
        .clock(clock.clone())
        .build();
    (Engine::new(store, policies).unwrap(), clock)
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn policies_go_by_route_user_and_plan() {
    let (engine, _) = engine(
        Policies::new()
            .plan(Plan::new("free").limit(Limit::per_minute(1)))
            .plan(Plan::new("pro").limit(Limit::per_minute(3)))
            .policy(
                Policy::new("api")
                    .matching(Match::new().path("/users/**".parse().unwrap()))
                    .key(Attribute::User)
                    .key(Attribute::Endpoint)
                    .plan(Attribute::Plan, Some("free")),
            ),
    );
    let layer = RateLimitLayer::new(engine)
        .user_header("x-user".parse().unwrap(), peers("10.0.0.0/8"))
        .attributes(|head, subject| match head.extensions.get::<User>() {
            Some(User(plan)) => subject.plan(plan),
            None => subject,
        });
    // Within the router, so that the route is known.
    let service = Router::new()
        .route("/users/{id}", get(async || "user").layer(layer.clone()))
        .route("/users/{id}/orders", get(async || "orders").layer(layer));
    let by = |user: &str, plan: Option<&'static str>, path: &str| {
        let mut request = from("10.0.0.1", Method::GET, path);
        request
            .headers_mut()
            .insert("x-user", user.parse().unwrap());
        if let Some(plan) = plan {
            request.extensions_mut().insert(User(plan));
        }
        request
    };
    assert_eq!(
        call(&service, by("ann", None, "/users/1")).await.status(),
        200
    );
    // Another path of the same route.
    assert_eq!(
        call(&service, by("ann", None, "/users/2")).await.status(),
        429
    );
    assert_eq!(
        call(&service, by("ann", None, "/users/2/orders"))
            .await
            .status(),
        200
    );
    for _ in 0..3 {
        assert_eq!(
            call(&service, by("bob", Some("pro"), "/users/1"))
                .await
                .status(),
            200
        );
    }
    assert_eq!(
        call(&service, by("bob", Some("pro"), "/users/1"))
            .await
            .status(),
        429
    );
}

fn peers(network: &str) -> TrustedPeers {
    TrustedPeers::from(network.parse::<ipnet::IpNet>().unwrap())
}

/// A peer trusted for addresses is not trusted for users.
#[tokio::test]
async fn a_user_header_is_believed_on_connections_from_its_own_peers_only() {
    let policies = || {
        let policy = Policy::new("user")
            .key(Attribute::User)
            .missing(Missing::Skip)
            .limit(Limit::per_minute(1));
        Policies::new().policy(policy)
    };
    let layer = |from: TrustedPeers| {
        let identity = Identity::direct().trust("192.0.2.0/24".parse().unwrap());
        RateLimitLayer::new(engine(policies()).0)
            .identity(identity)
            .user_header("x-user".parse().unwrap(), from)
    };
    let by = |peer: &str, client: &str| {
        let mut request = from(peer, Method::GET, "/");
        request
            .headers_mut()
            .insert("x-user", "ann".parse().unwrap());
        request
            .headers_mut()
            .insert("x-forwarded-for", client.parse().unwrap());
        request
    };
    // (the peer, the client that it names, the peers that may name users, whether `ann` is
    // believed)
    let table = [
        ("10.0.0.1", "203.0.113.7", peers("10.0.0.0/8"), true),
        ("::ffff:10.0.0.1", "203.0.113.7", peers("10.0.0.0/8"), true),
        ("192.0.2.1", "203.0.113.7", peers("192.0.2.1/32"), true),
        // It is trusted to name clients, and the client it names is a trusted peer, but the
        // connection is not.
        ("192.0.2.1", "10.0.0.1", peers("10.0.0.0/8"), false),
        ("192.0.2.1", "203.0.113.7", peers("10.0.0.0/8"), false),
        ("198.51.100.9", "10.0.0.1", peers("10.0.0.0/8"), false),
        ("10.0.0.1", "203.0.113.7", TrustedPeers::none(), false),
        (
            "10.0.0.1",
            "203.0.113.7",
            TrustedPeers::none().unix(),
            false,
        ),
    ];
    for (peer, client, user_peers, is_believed) in table {
        let service = layer(user_peers).layer(tower::service_fn(async |_: Request<Body>| {
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }));
        let mut last = 0;
        for _ in 0..2 {
            last = call(&service, by(peer, client)).await.status().as_u16();
        }
        assert_eq!(
            last,
            if is_believed { 429 } else { 200 },
            "{peer} for {client}"
        );
    }
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn the_route_is_known_within_the_router_and_not_around_it() {
    let policies = || {
        Policies::new().policy(
            Policy::new("route")
                .key(Attribute::Endpoint)
                .limit(Limit::per_minute(1)),
        )
    };
    let routes = || Router::new().route("/users/{id}", get(async || "user"));
    let to = |path| from("10.0.0.1", Method::GET, path);
    let within = routes().layer(RateLimitLayer::new(engine(policies()).0));
    assert_eq!(call(&within, to("/users/1")).await.status(), 200);
    assert_eq!(call(&within, to("/users/2")).await.status(), 429);
    let around = RateLimitLayer::new(engine(policies()).0).layer(routes());
    assert_eq!(call(&around, to("/users/1")).await.status(), 200);
    assert_eq!(call(&around, to("/users/2")).await.status(), 200);
    assert_eq!(call(&around, to("/users/2")).await.status(), 429);
}

#[tokio::test]
async fn a_permit_lives_until_the_response_has_ended() {
    let (engine, _) =
        engine(Policies::new().policy(Policy::new("slots").limit(PolicyLimit::Concurrent(1))));
    let service = app().layer(RateLimitLayer::new(engine));
    let response = call(&service, hello("10.0.0.1")).await;
    assert_eq!(response.status(), 200);
    assert_eq!(call(&service, hello("10.0.0.1")).await.status(), 429);
    response.into_body().collect().await.unwrap();
    let response = call(&service, hello("10.0.0.1")).await;
    assert_eq!(response.status(), 200);
    drop(response);
    assert_eq!(call(&service, hello("10.0.0.1")).await.status(), 200);
}

#[tokio::test]
async fn a_rejection_by_the_breaker_is_refunded() {
    let (layer, clock) = limited(Key::all(), Limit::per_hour(21));
    let breaker = CircuitBreaker::builder()
        .clock(clock.clone())
        .build()
        .unwrap();
    let failing = Router::new().route("/", get(async || StatusCode::INTERNAL_SERVER_ERROR));
    let service = layer.layer(CircuitBreakerLayer::new(breaker).layer(failing));
    for _ in 0..20 {
        assert_eq!(call(&service, hello("10.0.0.1")).await.status(), 500);
    }
    for _ in 0..5 {
        let response = call(&service, hello("10.0.0.1")).await;
        assert_eq!(response.status(), 503);
        assert_eq!(
            header(&response, "x-ratelimit-remaining"),
            Some("0"),
            "what it was before it came back"
        );
    }
}

/// A service may be called only after it was ready, not through a clone of it.
#[tokio::test]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    #[derive(Default)]
    struct Once {
        ready: bool,
    }
    impl Clone for Once {
        fn clone(&self) -> Self {
            Self::default()
        }
    }
    impl Service<Request<Body>> for Once {
        type Response = Response<Body>;
        type Error = std::convert::Infallible;
        type Future = std::future::Ready<Result<Response<Body>, Self::Error>>;

        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Self::Error>> {
            self.ready = true;
            std::task::Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            assert!(
                std::mem::take(&mut self.ready),
                "called before it was ready"
            );
            std::future::ready(Ok(Response::new(Body::empty())))
        }
    }
    let (layer, clock) = limited(Key::all(), Limit::per_second(1).burst(1));
    let mut service = layer.delay(SECOND).layer(Once::default());
    assert_eq!(
        service
            .ready()
            .await
            .unwrap()
            .call(hello("10.0.0.1"))
            .await
            .unwrap()
            .status(),
        200
    );
    let mut waiting = Box::pin(service.ready().await.unwrap().call(hello("10.0.0.1")));
    assert!(poll_once(&mut waiting).is_pending());
    clock.advance(SECOND);
    assert_eq!(waiting.await.unwrap().status(), 200);
}

/// The requests of a trace: from which client, what kind, how long after the one before; and a
/// changed limit now and then.
fn steps() -> impl Strategy<
    Value = (
        &'static str,
        Method,
        &'static [&'static str],
        u64,
        Option<u64>,
    ),
> {
    let peers = [
        "203.0.113.7",
        "::ffff:203.0.113.7",
        "64:ff9b::203.0.113.7",
        "10.0.0.1",
        "2001:db8::1",
        "2001:db8:0:ff::1",
        "2001:db8:0:100::1",
    ];
    let methods = [Method::GET, Method::POST, Method::OPTIONS];
    let headers: [&[&str]; 6] = [
        &[],
        &[],
        &["x-forwarded-for"],
        &["forwarded"],
        &["origin"],
        &["origin", "access-control-request-method"],
    ];
    let changes = prop_oneof![9 => Just(None), 1 => (0..8_u64).prop_map(Some)];
    (
        select(peers.to_vec()),
        select(methods.to_vec()),
        select(headers.to_vec()),
        0..400_u64,
        changes,
    )
}

proptest! {
    /// If only the peer matters, the layer takes a fast path: with the same decisions, on the same
    /// buckets.
    #[test]
    fn the_fast_path_decides_like_the_slow_path(
        trace in vec(steps(), 1..60),
        trusted in any::<bool>(),
        count in select(vec![Count::All, Count::Failures]),
        algorithm in select(vec![Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingLog]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let limit = |many| Limit::per_second(many).algorithm(algorithm);
        let of = |long: bool| {
            let clock = ManualClock::new();
            let keyed = Keyed::builder(limit(5)).max_keys(1_000).clock(clock.clone()).build();
            let proxies = trusted.then(|| "10.0.0.0/8".parse().unwrap());
            let identity = Identity::direct().trust_all(proxies);
            let layer = RateLimitLayer::keyed(keyed.clone(), Key::ip()).identity(identity.clone()).count(count);
            let layer = if long { layer.skip(|_| false) } else { layer };
            (layer.layer(app()), clock, keyed, identity)
        };
        let [short, long] = [of(false), of(true)];
        for (peer, method, headers, after, change) in trace {
            let answers = [&short, &long].map(|(service, clock, keyed, identity)| {
                clock.advance(Duration::from_millis(after));
                if let Some(many) = change {
                    keyed.set_limit(limit(many));
                }
                let mut request = from(peer, method.clone(), "/");
                for header in headers {
                    request.headers_mut().insert(*header, "198.51.100.3".parse().unwrap());
                }
                let response = runtime.block_on(call(service, request));
                (response.status(), response.headers().clone(), identity.untrusted())
            });
            prop_assert_eq!(&answers[0], &answers[1]);
        }
    }
}
