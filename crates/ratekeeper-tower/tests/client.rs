//! The client layer, on a manual clock.

mod support;

use http::{Method, Request, Response};
use ratekeeper::{Algorithm, Clock, Keyed, Limit, Limiter, ManualClock};
use ratekeeper_testkit::poll::poll_once;
use ratekeeper_tower::Deadline;
use ratekeeper_tower::client::{
    Backoff, ClientError, ClientLayer, Idempotent, Retries, RetryBudget,
};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use support::{OnceReady, Text};
use tower::{Layer, Service, ServiceExt};

/// A server's response.
#[derive(Clone)]
enum Answer {
    Head(u16, Vec<(&'static str, String)>),
    Error(std::io::ErrorKind),
    /// No response.
    Hangs,
}

fn ok() -> Answer {
    Answer::Head(200, vec![])
}

fn status(status: u16) -> Answer {
    Answer::Head(status, vec![])
}

fn with_header(status: u16, name: &'static str, value: &str) -> Answer {
    Answer::Head(status, vec![(name, value.to_owned())])
}

/// A server that responds by a script, repeating the last entry, and counts requests.
#[derive(Clone)]
struct Server(Arc<Mutex<(VecDeque<Answer>, u64)>>);

impl Server {
    fn new(script: impl IntoIterator<Item = Answer>) -> Self {
        Self(Arc::new(Mutex::new((script.into_iter().collect(), 0))))
    }

    fn calls(&self) -> u64 {
        self.0.lock().unwrap().1
    }
}

impl Service<Request<String>> for Server {
    type Response = Response<()>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<()>, std::io::Error>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), std::io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        let mut script = self.0.lock().unwrap();
        script.1 += 1;
        let answer = if script.0.len() > 1 {
            script.0.pop_front()
        } else {
            script.0.front().cloned()
        };
        Box::pin(async move {
            match answer.expect("a script") {
                Answer::Head(status, headers) => {
                    let response = Response::builder().status(status);
                    let response = headers
                        .into_iter()
                        .fold(response, |response, (name, value)| {
                            response.header(name, value)
                        });
                    Ok(response.body(()).unwrap())
                }
                Answer::Error(kind) => Err(kind.into()),
                Answer::Hangs => std::future::pending().await,
            }
        })
    }
}

fn request(method: Method, uri: &str) -> Request<String> {
    Request::builder()
        .method(method)
        .uri(uri)
        .body("body".to_owned())
        .unwrap()
}

fn get() -> Request<String> {
    request(Method::GET, "http://api.example/")
}

type Result200 = Result<u16, ClientError<std::io::Error>>;
type Pending = Pin<Box<dyn Future<Output = Result200>>>;

/// Polls a call once: its result, or a pending future.
fn send<S>(service: &S, request: Request<String>) -> (Pending, Poll<Result200>)
where
    S: Service<Request<String>, Response = Response<()>, Error = ClientError<std::io::Error>>
        + Clone
        + 'static,
{
    let service = service.clone();
    let mut future: Pending = Box::pin(async move {
        service
            .oneshot(request)
            .await
            .map(|response| response.status().as_u16())
    });
    let polled = poll_once(future.as_mut());
    (future, polled)
}

fn passed(polled: Poll<Result200>) -> u16 {
    match polled {
        Poll::Ready(Ok(status)) => status,
        other => panic!("{other:?}"),
    }
}

fn failed(polled: Poll<Result200>) -> ClientError<std::io::Error> {
    match polled {
        Poll::Ready(Err(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn secs(many: u64) -> Duration {
    Duration::from_secs(many)
}

#[tokio::test]
async fn nothing_is_sent_until_retry_after_has_passed() {
    let clock = ManualClock::new();
    let server = Server::new([with_header(429, "retry-after", "5"), ok()]);
    let client = ClientLayer::with_clock(clock.clone())
        .jitter(0.0)
        .layer(server.clone());
    assert_eq!(
        passed(send(&client, get()).1),
        429,
        "the first one learns it"
    );
    let (mut waiting, polled) = send(&client, get());
    assert!(polled.is_pending());
    clock.advance(secs(5) - Duration::from_nanos(1));
    assert!(poll_once(waiting.as_mut()).is_pending());
    assert_eq!(server.calls(), 1);
    assert_eq!(
        passed(send(&client, request(Method::GET, "http://other.example/")).1),
        200,
        "others are not meant"
    );
    clock.advance(Duration::from_nanos(1));
    assert_eq!(passed(poll_once(waiting.as_mut())), 200);
}

#[tokio::test]
async fn by_remaining_quota_no_request_is_denied() {
    let clock = ManualClock::new();
    for header in [
        vec![("ratelimit", r#""default";r=0;t=3"#.to_owned())],
        vec![("ratelimit", "limit=5, remaining=0, reset=3".to_owned())],
        vec![
            ("ratelimit-remaining", "0".to_owned()),
            ("ratelimit-reset", "3".to_owned()),
        ],
        vec![
            ("x-ratelimit-remaining", "0".to_owned()),
            ("x-ratelimit-reset", "3".to_owned()),
        ],
        vec![
            ("x-ratelimit-remaining", "0".to_owned()),
            (
                "x-ratelimit-reset",
                (clock.now().since_unix().as_secs() + 3).to_string(),
            ),
        ],
    ] {
        let clock = ManualClock::new();
        let server = Server::new([Answer::Head(200, header), ok()]);
        let client = ClientLayer::with_clock(clock.clone())
            .jitter(0.0)
            .layer(server.clone());
        assert_eq!(passed(send(&client, get()).1), 200);
        let (mut waiting, polled) = send(&client, get());
        assert!(polled.is_pending());
        clock.advance(secs(3));
        assert_eq!(passed(poll_once(waiting.as_mut())), 200);
    }
}

#[tokio::test]
async fn a_wait_that_is_too_long_fails_at_once_with_its_length() {
    let clock = ManualClock::new();
    let server = Server::new([with_header(503, "retry-after", "60")]);
    let client = ClientLayer::with_clock(clock.clone()).layer(server.clone());
    assert_eq!(passed(send(&client, get()).1), 503);
    let error = failed(send(&client, get()).1);
    assert!(matches!(error, ClientError::Paused { .. }) && error.is_unsent());
    assert_eq!(error.retry_after(), Some(secs(60)));
    assert_eq!(
        error.to_string(),
        "the server's rate limit is exhausted; try again in 60s or raise max_wait"
    );
    clock.advance(secs(31));
    assert!(
        send(&client, get()).1.is_pending(),
        "29 seconds can be waited for"
    );
    let hasty = ClientLayer::with_clock(clock.clone())
        .fail_fast()
        .layer(Server::new([with_header(429, "retry-after", "1")]));
    assert_eq!(passed(send(&hasty, get()).1), 429);
    assert_eq!(failed(send(&hasty, get()).1).retry_after(), Some(secs(1)));
    assert_eq!(server.calls(), 1);
}

#[tokio::test]
async fn after_a_pause_one_is_sent_and_the_others_wait_for_its_response() {
    let clock = ManualClock::new();
    let two_remaining = with_header(200, "ratelimit", r#""default";r=2;t=9"#);
    let server = Server::new([with_header(429, "retry-after", "5"), two_remaining, ok()]);
    let client = ClientLayer::with_clock(clock.clone())
        .jitter(0.0)
        .layer(server.clone());
    assert_eq!(passed(send(&client, get()).1), 429);
    let mut waiting: Vec<_> = (0..5).map(|_| send(&client, get()).0).collect();
    clock.advance(secs(5));
    let polled: Vec<_> = waiting
        .iter_mut()
        .map(|waiting| poll_once(waiting.as_mut()))
        .collect();
    let answered = polled.iter().filter(|polled| polled.is_ready()).count();
    // The first was answered at once here: two more of the others may be sent, and no more.
    assert_eq!((answered, server.calls()), (3, 4));
    clock.advance(secs(9));
    let mut rest: Vec<_> = waiting
        .into_iter()
        .zip(polled)
        .filter(|(_, polled)| polled.is_pending())
        .map(|(waiting, _)| waiting)
        .collect();
    assert!(
        rest.iter_mut()
            .all(|waiting| poll_once(waiting.as_mut()).is_ready())
    );
}

#[tokio::test]
async fn a_cancelled_first_request_does_not_block_the_others() {
    let clock = ManualClock::new();
    let server = Server::new([with_header(429, "retry-after", "5"), Answer::Hangs, ok()]);
    let client = ClientLayer::with_clock(clock.clone())
        .jitter(0.0)
        .layer(server.clone());
    assert_eq!(passed(send(&client, get()).1), 429);
    clock.advance(secs(5));
    let (ahead, polled) = send(&client, get());
    assert!(polled.is_pending());
    let (mut behind, polled) = send(&client, get());
    assert!(polled.is_pending());
    assert_eq!(server.calls(), 2, "it waits for the answer to the other");
    drop(ahead);
    assert_eq!(passed(poll_once(behind.as_mut())), 200);
}

#[tokio::test]
async fn clients_come_back_spread_and_never_early() {
    let clock = ManualClock::new();
    let server = Server::new([with_header(429, "retry-after", "10"), ok()]);
    let client = ClientLayer::with_clock(clock.clone()).layer(server.clone());
    assert_eq!(passed(send(&client, get()).1), 429);
    let mut waiting: Vec<_> = (0..50).map(|_| send(&client, get()).0).collect();
    clock.advance(Duration::from_millis(9_999));
    assert!(
        waiting
            .iter_mut()
            .all(|waiting| poll_once(waiting.as_mut()).is_pending())
    );
    clock.advance(Duration::from_millis(1_001));
    assert!(
        waiting
            .iter_mut()
            .all(|waiting| poll_once(waiting.as_mut()).is_ready()),
        "all within a tenth more"
    );
}

#[tokio::test]
async fn a_local_limit_is_waited_for() {
    let clock = ManualClock::new();
    let server = Server::new([ok()]);
    let limiter = Limiter::with_clock(Limit::per_second(1).burst(1), clock.clone());
    let client = ClientLayer::with_clock(clock.clone())
        .limit(limiter.clone())
        .layer(server.clone());
    assert_eq!(passed(send(&client, get()).1), 200);
    let (second, polled) = send(&client, get());
    assert!(polled.is_pending());
    let (third, polled) = send(&client, get());
    assert!(polled.is_pending());
    // Their slots are free again.
    drop(third);
    drop(second);
    clock.advance(secs(1));
    assert_eq!(passed(send(&client, get()).1), 200);
    let mut fourth = send(&client, get()).0;
    clock.advance(secs(1));
    assert_eq!(passed(poll_once(fourth.as_mut())), 200);

    let hasty = ClientLayer::with_clock(clock.clone())
        .limit(limiter)
        .fail_fast()
        .layer(server.clone());
    let error = failed(send(&hasty, get()).1);
    assert_eq!(error.retry_after(), Some(secs(1)));
    assert!(
        error
            .to_string()
            .starts_with("this client's own rate limit is exhausted"),
        "{error}"
    );
    assert_eq!(server.calls(), 3);
}

#[tokio::test]
async fn a_limit_of_each_host_and_one_by_windows() {
    let clock = ManualClock::new();
    let server = Server::new([ok()]);
    let keyed = Keyed::<str, _>::builder(Limit::per_second(1))
        .max_keys(100)
        .clock(clock.clone())
        .build();
    let client = ClientLayer::with_clock(clock.clone())
        .limit_per_host(keyed)
        .layer(server.clone());
    assert_eq!(passed(send(&client, get()).1), 200);
    assert!(
        send(&client, request(Method::GET, "http://API.example/"))
            .1
            .is_pending(),
        "the same, in other letters"
    );
    assert_eq!(
        passed(send(&client, request(Method::GET, "http://b.example/")).1),
        200
    );

    let log = Limiter::with_clock(
        Limit::per_second(2).algorithm(Algorithm::SlidingLog),
        clock.clone(),
    );
    let client = ClientLayer::with_clock(clock.clone())
        .limit(log)
        .layer(server.clone());
    assert_eq!(
        (
            passed(send(&client, get()).1),
            passed(send(&client, get()).1)
        ),
        (200, 200)
    );
    let (mut third, polled) = send(&client, get());
    assert!(polled.is_pending());
    clock.advance(secs(1));
    assert_eq!(passed(poll_once(third.as_mut())), 200);
    let never = Limiter::with_clock(Limit::per_second(0), clock.clone());
    let client = ClientLayer::with_clock(clock).limit(never).layer(server);
    assert_eq!(
        failed(send(&client, get()).1).to_string(),
        "this client's own rate limit never allows this request; raise the limit"
    );
}

#[tokio::test]
async fn a_server_that_denies_most_requests_gets_fewer() {
    let clock = ManualClock::new();
    let server = Server::new([status(503)]);
    let client = ClientLayer::with_clock(clock.clone())
        .throttle(2.0)
        .layer(server.clone());
    let mut throttled = 0;
    for _ in 0..1_000 {
        match send(&client, get()).1 {
            Poll::Ready(Ok(503)) => {}
            polled => {
                assert!(matches!(failed(polled), ClientError::Throttled));
                throttled += 1;
            }
        }
    }
    // After n requests the chance to be sent is 1 / (n + 1): about ln 1,000 of them are sent.
    assert!(
        server.calls() < 40 && throttled > 960,
        "{} sent",
        server.calls()
    );
    let fine = Server::new([ok(), status(404), status(500), status(503)]);
    let client = ClientLayer::with_clock(clock).throttle(2.0).layer(fine);
    assert!((0..4).all(|_| send(&client, get()).1.is_ready()));
}

/// Immediate retries, as far as the budget allows.
fn retries() -> Retries {
    Retries::default()
        .backoff(Backoff::new(Duration::ZERO, Duration::ZERO))
        .budget(RetryBudget::new(1.0, 100))
}

#[tokio::test]
async fn only_idempotent_requests_are_retried() {
    let clock = ManualClock::new();
    let calls = |answers: Vec<Answer>, request: Request<String>, retries: Retries| {
        let server = Server::new(answers);
        let client = ClientLayer::with_clock(clock.clone())
            .retry(retries)
            .layer(server.clone());
        let _ = send(&client, request).1;
        server.calls()
    };
    let post = || request(Method::POST, "http://api.example/");
    for code in [502, 503, 504] {
        assert_eq!(calls(vec![status(code)], get(), retries()), 3, "{code}");
        assert_eq!(calls(vec![status(code)], post(), retries()), 1, "{code}");
        let mut marked = post();
        marked.extensions_mut().insert(Idempotent);
        assert_eq!(calls(vec![status(code)], marked, retries()), 3, "{code}");
    }
    for code in [200, 304, 400, 404, 500, 501] {
        assert_eq!(calls(vec![status(code)], get(), retries()), 1, "{code}");
    }
    assert_eq!(calls(vec![status(503), ok()], get(), retries()), 2);
    assert_eq!(calls(vec![status(503)], get(), retries().max_retries(0)), 1);
    let (denied, reset) = (
        Answer::Error(std::io::ErrorKind::ConnectionRefused),
        Answer::Error(std::io::ErrorKind::ConnectionReset),
    );
    let unsent = || {
        retries().unsent(|error| {
            error.downcast_ref().is_some_and(|error: &std::io::Error| {
                error.kind() == std::io::ErrorKind::ConnectionRefused
            })
        })
    };
    assert_eq!(calls(vec![reset.clone()], get(), retries()), 3);
    assert_eq!(
        calls(vec![denied.clone()], post(), retries()),
        1,
        "it may have been sent"
    );
    assert_eq!(calls(vec![denied], post(), unsent()), 3);
    assert_eq!(
        calls(vec![reset], post(), unsent()),
        1,
        "its outcome is unknown"
    );
}

#[tokio::test]
async fn a_retry_comes_after_the_backoff_and_the_announced_pause() {
    let clock = ManualClock::new();
    let backoff = Backoff::new(secs(2), secs(60));
    let server = Server::new([status(503), ok()]);
    let layer = ClientLayer::with_clock(clock.clone())
        .jitter(0.0)
        .retry(retries().backoff(backoff));
    let client = layer.layer(server.clone());
    let (mut call, polled) = send(&client, get());
    assert!(polled.is_pending());
    clock.advance(Duration::from_millis(999));
    assert!(
        poll_once(call.as_mut()).is_pending() && server.calls() == 1,
        "at least half of it"
    );
    clock.advance(Duration::from_millis(1_001));
    assert_eq!(passed(poll_once(call.as_mut())), 200);

    let server = Server::new([with_header(429, "retry-after", "10"), ok()]);
    let client = layer.layer(server.clone());
    let (mut call, polled) = send(&client, request(Method::GET, "http://b.example/"));
    assert!(polled.is_pending());
    clock.advance(Duration::from_millis(9_999));
    assert!(poll_once(call.as_mut()).is_pending() && server.calls() == 1);
    clock.advance(Duration::from_millis(1));
    assert_eq!(passed(poll_once(call.as_mut())), 200);

    let server = Server::new([with_header(429, "retry-after", "100"), ok()]);
    let client = layer.layer(server.clone());
    assert_eq!(
        passed(send(&client, request(Method::GET, "http://c.example/")).1),
        429,
        "too long to wait for"
    );
}

#[tokio::test]
async fn the_budget_bounds_all_attempts() {
    let clock = ManualClock::new();
    let server = Server::new([status(503)]);
    let retries = retries().max_retries(10).budget(RetryBudget::new(0.1, 0));
    let client = ClientLayer::with_clock(clock.clone())
        .retry(retries)
        .layer(server.clone());
    for _ in 0..1_000 {
        assert_eq!(passed(send(&client, get()).1), 503);
    }
    assert_eq!(server.calls(), 1_100);
}

#[tokio::test]
async fn no_request_waits_or_is_retried_beyond_its_deadline() {
    let clock = ManualClock::new();
    let by = |within: Duration| {
        let mut request = get();
        request
            .extensions_mut()
            .insert(Deadline(clock.now() + within));
        request
    };
    let server = Server::new([with_header(429, "retry-after", "5"), ok()]);
    let client = ClientLayer::with_clock(clock.clone())
        .jitter(0.0)
        .layer(server.clone());
    assert!(matches!(
        failed(send(&client, by(Duration::ZERO)).1),
        ClientError::TooLate
    ));
    assert_eq!((passed(send(&client, get()).1), server.calls()), (429, 1));
    assert!(
        matches!(failed(send(&client, by(secs(4))).1), ClientError::TooLate),
        "it would come too late"
    );
    assert!(send(&client, by(secs(6))).1.is_pending());

    let limiter = Limiter::with_clock(Limit::per_second(1), clock.clone());
    let client = ClientLayer::with_clock(clock.clone())
        .limit(limiter)
        .layer(Server::new([ok()]));
    assert_eq!(passed(send(&client, get()).1), 200);
    assert!(matches!(
        failed(send(&client, by(Duration::from_millis(500))).1),
        ClientError::TooLate
    ));

    let server = Server::new([status(503)]);
    let retries = retries().backoff(Backoff::new(secs(2), secs(2)));
    let client = ClientLayer::with_clock(clock.clone())
        .retry(retries)
        .layer(server.clone());
    assert_eq!(
        passed(send(&client, by(Duration::from_millis(900))).1),
        503,
        "there is no time for a second try"
    );
    assert_eq!(server.calls(), 1);
}

#[tokio::test]
async fn a_key_distinguishes_servers() {
    let clock = ManualClock::new();
    let layer = ClientLayer::with_clock(clock).fail_fast().key(|head| {
        head.headers
            .get("authorization")
            .map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned())
            .unwrap_or_default()
    });
    let client = layer.layer(Server::new([with_header(429, "retry-after", "5"), ok()]));
    let with_key = |key: &str| {
        let mut request = get();
        request
            .headers_mut()
            .insert("authorization", key.parse().unwrap());
        request
    };
    assert_eq!(passed(send(&client, with_key("one")).1), 429);
    assert!(matches!(
        failed(send(&client, with_key("one")).1),
        ClientError::Paused { .. }
    ));
    assert_eq!(passed(send(&client, with_key("two")).1), 200);
}

#[tokio::test]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    let inner = OnceReady::default();
    let mut client = ClientLayer::new().layer(inner.clone());
    inner.block(true);
    assert!(
        poll_once(std::pin::pin!(ServiceExt::<Request<Text>>::ready(
            &mut client
        )))
        .is_pending()
    );
    inner.block(false);
    for _ in 0..3 {
        let ready = ServiceExt::<Request<Text>>::ready(&mut client)
            .await
            .unwrap();
        assert_eq!(ready.call(support::get("/")).await.unwrap().status(), 200);
    }
    assert_eq!(inner.calls(), 3);
}

#[test]
fn without_a_timer_a_wait_fails() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    for runtime in [None, Some(&runtime)] {
        let _entered = runtime.map(tokio::runtime::Runtime::enter);
        let client = ClientLayer::new().layer(Server::new([with_header(429, "retry-after", "5")]));
        assert_eq!(passed(send(&client, get()).1), 429);
        let error = failed(send(&client, get()).1);
        assert_eq!(
            error.to_string(),
            "no timer to wait with: make the call inside a tokio runtime with timers (`enable_time()` on its builder)"
        );
    }
}
