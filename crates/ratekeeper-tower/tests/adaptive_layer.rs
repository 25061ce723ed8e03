//! The adaptive concurrency limit as a layer: outcomes, when they are recorded, denials, and the
//! queue.

mod support;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use ratekeeper::adaptive::RequestOutcome;
use ratekeeper::{
    Clock, ManualClock, adaptive::AdaptiveConcurrency, adaptive::AtCapacityError, adaptive::Class,
    adaptive::Shedder,
};
use ratekeeper_testkit::poll::poll_once;
use ratekeeper_tower::concurrency::QueueConfig;
use ratekeeper_tower::{
    AdaptiveConcurrencyLayer, Deadline, ShedLayer, response::NoCapacity, response::NotReached,
};
use std::convert::Infallible;
use std::future::{pending, ready};
use std::pin::{Pin, pin};
use std::time::Duration;
use support::{OnceReady, Pieces, Text, get};
use tower::{Layer, Service, ServiceExt, service_fn};

/// A limit that stays constant.
fn limit_of(many: u64, clock: &ManualClock) -> AdaptiveConcurrency<ManualClock> {
    AdaptiveConcurrency::builder()
        .min(many)
        .max(many)
        .start(many)
        .build_with_clock(clock.clone())
}

fn piece(text: &'static str) -> Result<Frame<Bytes>, &'static str> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

type Pending = Pin<Box<dyn Future<Output = StatusCode>>>;

/// Calls any service and polls the response once.
fn sent<S, B>(service: &S, request: Request<Text>) -> Pending
where
    S: Service<Request<Text>, Response = Response<B>, Error = Infallible> + Clone + 'static,
    B: 'static,
{
    let service = service.clone();
    let mut future: Pending =
        Box::pin(async move { service.oneshot(request).await.unwrap().status() });
    assert!(poll_once(future.as_mut()).is_pending());
    future
}

/// Sends `many` requests for a response that takes 30 ms to its head and 20 ms more to the end of
/// its body.
async fn take_50_ms(
    layer: &AdaptiveConcurrencyLayer<ManualClock>,
    clock: &ManualClock,
    many: usize,
) {
    for _ in 0..many {
        let passing = clock.clone();
        let inner = service_fn(move |_: Request<Text>| {
            passing.advance(Duration::from_millis(30));
            ready(Ok::<_, Infallible>(answer(
                200,
                vec![piece("one"), piece("two")],
            )))
        });
        let response = layer.layer(inner).oneshot(get("/")).await.unwrap();
        clock.advance(Duration::from_millis(20));
        assert_eq!(layer.concurrency().in_flight(), 1);
        response.into_body().collect().await.unwrap();
        assert_eq!(layer.concurrency().in_flight(), 0);
    }
}

#[tokio::test]
async fn latency_counts_to_the_end_of_the_body() {
    let clock = ManualClock::new();
    let layer = AdaptiveConcurrencyLayer::new(limit_of(5, &clock));
    take_50_ms(&layer, &clock, 40).await;
    let seen = layer.concurrency().snapshot();
    assert_eq!(
        (seen.short, seen.drops),
        (Some(Duration::from_millis(50)), 0)
    );
}

/// How one response is classified: whether it was dropped, and whether anything was learnt from
/// many of them.
async fn counted(
    respond: impl Fn() -> Result<Response<Pieces>, &'static str> + Clone + 'static,
    read: bool,
) -> (u64, bool) {
    let clock = ManualClock::new();
    let layer = AdaptiveConcurrencyLayer::new(limit_of(5, &clock));
    for _ in 0..50 {
        let respond = respond.clone();
        let inner = service_fn(move |_: Request<Text>| ready(respond()));
        let answered = layer.layer(inner).oneshot(get("/")).await;
        clock.advance(Duration::from_millis(10));
        if let (Ok(response), true) = (answered, read) {
            _ = response.into_body().collect().await;
        }
        assert_eq!(layer.concurrency().in_flight(), 0);
    }
    let seen = layer.concurrency().snapshot();
    (seen.drops, seen.short.is_some())
}

fn answer(status: u16, frames: Vec<Result<Frame<Bytes>, &'static str>>) -> Response<Pieces> {
    let body = Pieces {
        frames: frames.into(),
        knows_its_end: false,
    };
    Response::builder().status(status).body(body).unwrap()
}

#[tokio::test]
async fn outcomes_of_responses() {
    const SERVED: (u64, bool) = (0, true);
    const SAYS_NOTHING: (u64, bool) = (0, false);
    for status in [200, 204, 302, 404, 500] {
        assert_eq!(
            counted(move || Ok(answer(status, vec![piece("x")])), true).await,
            SERVED,
            "{status}"
        );
    }
    for status in [503, 504] {
        assert_eq!(
            counted(move || Ok(answer(status, vec![])), true).await.0,
            50,
            "{status}"
        );
        assert_eq!(
            counted(move || Ok(answer(status, vec![])), false).await.0,
            50,
            "read or not: {status}"
        );
    }
    assert_eq!(counted(|| Err("timed out"), true).await.0, 50);
    assert_eq!(
        counted(|| Ok(answer(200, vec![piece("x"), Err("reset")])), true)
            .await
            .0,
        50
    );
    assert_eq!(
        counted(|| Ok(answer(429, vec![])), true).await,
        SAYS_NOTHING
    );
    assert_eq!(
        counted(|| Ok(answer(200, vec![piece("x")])), false).await,
        SAYS_NOTHING,
        "it hung up"
    );
    let by_breaker = || {
        let mut response = answer(503, vec![]);
        response.extensions_mut().insert(NotReached);
        Ok(response)
    };
    assert_eq!(
        counted(by_breaker, true).await,
        SAYS_NOTHING,
        "it never reached the service"
    );
}

#[tokio::test]
async fn a_grpc_status_of_overload_is_recognized() {
    let trailers = |status: &'static str| {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", status.parse().unwrap());
        trailers
    };
    for (status, drops) in [("0", 0), ("5", 0), ("4", 50), ("14", 50)] {
        let at_the_end = move || {
            Ok(answer(
                200,
                vec![piece("x"), Ok(Frame::trailers(trailers(status)))],
            ))
        };
        assert_eq!(counted(at_the_end, true).await.0, drops, "{status}");
        let at_once = move || {
            let mut response = answer(200, vec![]);
            *response.headers_mut() = trailers(status);
            Ok(response)
        };
        assert_eq!(counted(at_once, true).await.0, drops, "{status}");
    }
}

#[tokio::test]
async fn a_classifier_replaces_the_default() {
    let clock = ManualClock::new();
    let layer = AdaptiveConcurrencyLayer::new(limit_of(5, &clock)).classify(|head| {
        match head.status.as_u16() {
            429 => RequestOutcome::Dropped,
            _ => RequestOutcome::Ignored,
        }
    });
    for status in [200, 429, 503] {
        let inner =
            service_fn(move |_: Request<Text>| ready(Ok::<_, Infallible>(answer(status, vec![]))));
        layer
            .layer(inner)
            .oneshot(get("/"))
            .await
            .unwrap()
            .into_body()
            .collect()
            .await
            .unwrap();
    }
    assert_eq!(layer.concurrency().snapshot().drops, 1);
}

#[tokio::test]
async fn a_request_without_a_permit_gets_a_503_and_the_service_stays_ready() {
    let clock = ManualClock::new();
    let layer = AdaptiveConcurrencyLayer::new(limit_of(1, &clock));
    let inner = OnceReady::default();
    let mut service = layer.layer(inner.clone());
    let permit = layer.concurrency().try_acquire().unwrap();
    inner.block(true);
    assert!(poll_once(pin!(service.ready())).is_pending());
    inner.block(false);
    let denied = service.ready().await.unwrap().call(get("/")).await.unwrap();
    assert_eq!(
        (denied.status(), inner.calls()),
        (StatusCode::SERVICE_UNAVAILABLE, 0)
    );
    assert_eq!(denied.headers()["retry-after"], "1");
    assert_eq!(
        denied
            .extensions()
            .get::<AtCapacityError>()
            .map(AtCapacityError::limit),
        Some(1)
    );
    assert!(
        denied.extensions().get::<NotReached>().is_some()
            && denied.extensions().get::<NoCapacity>().is_some()
    );
    let body = denied.into_body().collect().await.unwrap().to_bytes();
    assert!(
        std::str::from_utf8(&body)
            .unwrap()
            .contains("#temporary-reduced-capacity")
    );
    drop(permit);
    // The readiness that the denied request did not use is still valid.
    assert_eq!(
        service.call(get("/")).await.unwrap().status(),
        StatusCode::OK
    );

    let _permit = layer.concurrency().try_acquire().unwrap();
    let mut grpc = get("/");
    grpc.headers_mut()
        .insert("content-type", "application/grpc+proto".parse().unwrap());
    assert_eq!(
        service
            .ready()
            .await
            .unwrap()
            .call(grpc)
            .await
            .unwrap()
            .headers()["grpc-status"],
        "14"
    );
}

#[tokio::test]
async fn a_client_that_hangs_up_releases_the_permit() {
    let clock = ManualClock::new();
    let layer = AdaptiveConcurrencyLayer::new(limit_of(1, &clock));
    let hanging = layer.layer(service_fn(|_: Request<Text>| {
        pending::<Result<Response<Text>, Infallible>>()
    }));
    let future = sent(&hanging, get("/"));
    assert_eq!(layer.concurrency().in_flight(), 1);
    drop(future);
    assert_eq!(
        (
            layer.concurrency().in_flight(),
            layer.concurrency().snapshot().drops
        ),
        (0, 0)
    );
}

/// A limit of one that is used up, with a queue of three.
fn with_queue(clock: &ManualClock) -> (AdaptiveConcurrencyLayer<ManualClock>, OnceReady) {
    (
        AdaptiveConcurrencyLayer::new(limit_of(1, clock)).queue(QueueConfig::of(3)),
        OnceReady::default(),
    )
}

#[tokio::test]
async fn queued_requests_are_served_in_order_when_a_request_ends() {
    let clock = ManualClock::new();
    let (layer, inner) = with_queue(&clock);
    let service = layer.layer(inner.clone());
    let hanging = layer.layer(service_fn(|_: Request<Text>| {
        pending::<Result<Response<Text>, Infallible>>()
    }));
    let permit = sent(&hanging, get("/"));
    let (mut first, mut second) = (sent(&service, get("/")), sent(&service, get("/")));
    assert_eq!((layer.queued(), inner.calls()), (2, 0));
    drop(permit);
    assert!(
        poll_once(second.as_mut()).is_pending(),
        "it is not its turn"
    );
    assert_eq!(
        poll_once(first.as_mut()),
        std::task::Poll::Ready(StatusCode::OK)
    );
    assert_eq!(
        poll_once(second.as_mut()),
        std::task::Poll::Ready(StatusCode::OK)
    );
    assert_eq!(
        (
            layer.queued(),
            layer.concurrency().in_flight(),
            inner.calls()
        ),
        (0, 0, 2)
    );
}

#[tokio::test]
async fn a_queue_timeout_or_a_full_queue_is_a_503() {
    let clock = ManualClock::new();
    let (layer, inner) = with_queue(&clock);
    let service = layer.layer(inner.clone());
    let permit = layer.concurrency().try_acquire().unwrap();
    let mut waiting: Vec<_> = (0..3).map(|_| sent(&service, get("/"))).collect();
    let full = service.clone().oneshot(get("/")).await.unwrap();
    assert_eq!(
        (full.status(), layer.queued()),
        (StatusCode::SERVICE_UNAVAILABLE, 3)
    );
    clock.advance(Duration::from_millis(99));
    for waiting in &mut waiting {
        assert!(poll_once(waiting.as_mut()).is_pending());
    }
    clock.advance(Duration::from_millis(1));
    for waiting in &mut waiting {
        assert_eq!(
            poll_once(waiting.as_mut()),
            std::task::Poll::Ready(StatusCode::SERVICE_UNAVAILABLE)
        );
    }
    assert_eq!((layer.queued(), inner.calls()), (0, 0));
    drop(permit);
    assert_eq!(
        service.oneshot(get("/")).await.unwrap().status(),
        StatusCode::OK
    );
}

#[tokio::test]
async fn in_a_backlog_requests_wait_5_ms_and_the_newest_is_served_first() {
    let clock = ManualClock::new();
    let (layer, inner) = with_queue(&clock);
    let service = layer.layer(inner.clone());
    let hanging = layer.layer(service_fn(|_: Request<Text>| {
        pending::<Result<Response<Text>, Infallible>>()
    }));
    let permit = sent(&hanging, get("/"));
    let mut old = sent(&service, get("/"));
    clock.advance(Duration::from_millis(60));
    let mut newer = sent(&service, get("/"));
    clock.advance(Duration::from_millis(40));
    // The queue has not been empty for an interval.
    let mut newest = sent(&service, get("/"));
    assert_eq!(
        poll_once(old.as_mut()),
        std::task::Poll::Ready(StatusCode::SERVICE_UNAVAILABLE)
    );
    drop(permit);
    assert!(poll_once(newer.as_mut()).is_pending());
    assert_eq!(
        poll_once(newest.as_mut()),
        std::task::Poll::Ready(StatusCode::OK),
        "the newest comes first"
    );
    assert_eq!(
        poll_once(newer.as_mut()),
        std::task::Poll::Ready(StatusCode::OK)
    );
    let permit = layer.concurrency().try_acquire().unwrap();
    let first = sent(&service, get("/"));
    clock.advance(Duration::from_millis(100));
    let mut late = sent(&service, get("/"));
    clock.advance(Duration::from_millis(5));
    assert_eq!(
        poll_once(late.as_mut()),
        std::task::Poll::Ready(StatusCode::SERVICE_UNAVAILABLE),
        "5 ms, no more"
    );
    drop((first, permit));
}

#[tokio::test]
async fn hanging_up_leaves_the_queue_at_once_also_with_a_permit() {
    let clock = ManualClock::new();
    let (layer, inner) = with_queue(&clock);
    let service = layer.layer(inner.clone());
    let hanging = layer.layer(service_fn(|_: Request<Text>| {
        pending::<Result<Response<Text>, Infallible>>()
    }));
    let permit = sent(&hanging, get("/"));
    let (first, second, mut third) = (
        sent(&service, get("/")),
        sent(&service, get("/")),
        sent(&service, get("/")),
    );
    drop(second);
    assert_eq!(layer.queued(), 2);
    drop(permit);
    // The first one has the permit now, and hangs up before it is polled.
    drop(first);
    assert_eq!(
        poll_once(third.as_mut()),
        std::task::Poll::Ready(StatusCode::OK)
    );
    assert_eq!(
        (
            layer.queued(),
            layer.concurrency().in_flight(),
            inner.calls()
        ),
        (0, 0, 1)
    );
}

#[tokio::test]
async fn no_request_is_queued_beyond_its_deadline() {
    let clock = ManualClock::new();
    let (layer, inner) = with_queue(&clock);
    let service = layer.layer(inner.clone());
    let _held = layer.concurrency().try_acquire().unwrap();
    let mut request = get("/");
    request
        .extensions_mut()
        .insert(Deadline(clock.now() + Duration::from_millis(20)));
    let mut waiting = sent(&service, request);
    clock.advance(Duration::from_millis(19));
    assert!(poll_once(waiting.as_mut()).is_pending());
    clock.advance(Duration::from_millis(1));
    assert_eq!(
        poll_once(waiting.as_mut()),
        std::task::Poll::Ready(StatusCode::GATEWAY_TIMEOUT)
    );
    assert_eq!(inner.calls(), 0);
}

#[tokio::test]
async fn partitions_keep_their_share_also_in_the_queue() {
    let clock = ManualClock::new();
    let concurrency = AdaptiveConcurrency::builder()
        .min(4)
        .max(4)
        .start(4)
        .partition("live", 0.5)
        .unwrap();
    let concurrency = concurrency.build_with_clock(clock.clone());
    let live = concurrency.partition("live").unwrap();
    let layer = AdaptiveConcurrencyLayer::new(concurrency.clone())
        .partition(move |head| (head.extensions.get() == Some(&Class::Critical)).then_some(live))
        .queue(QueueConfig::of(10));
    let hanging = layer.layer(service_fn(|_: Request<Text>| {
        pending::<Result<Response<Text>, Infallible>>()
    }));
    let critical = || {
        let mut request = get("/");
        request.extensions_mut().insert(Class::Critical);
        request
    };
    let mut batch: Vec<_> = (0..3).map(|_| sent(&hanging, get("/"))).collect();
    assert_eq!(
        (concurrency.in_flight(), layer.queued()),
        (2, 1),
        "two are reserved for the live partition"
    );
    let live: Vec<_> = (0..2).map(|_| sent(&hanging, critical())).collect();
    // The first in the queue has to wait; the one behind it does not, once a permit of its
    // partition is free.
    assert_eq!((concurrency.in_flight(), layer.queued()), (4, 1));
    let mut behind = sent(&hanging, critical());
    assert_eq!(layer.queued(), 2);
    drop(live);
    assert!(poll_once(behind.as_mut()).is_pending());
    assert_eq!((concurrency.in_flight(), layer.queued()), (3, 1));
    drop(batch.remove(0));
    assert_eq!((concurrency.in_flight(), layer.queued()), (3, 0));
}

/// Clients on several threads: if one were forgotten in the queue, this would never end.
#[test]
fn under_threads_every_request_is_served() {
    const THREADS: usize = 4;
    const TASKS: usize = 16;
    const REQUESTS: usize = 200;
    let concurrency = AdaptiveConcurrency::builder()
        .min(3)
        .max(3)
        .start(3)
        .build();
    let patient = QueueConfig::of(THREADS * TASKS).interval(Duration::from_secs(3_600));
    let layer = AdaptiveConcurrencyLayer::new(concurrency.clone()).queue(patient);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_time()
                    .build()
                    .unwrap();
                let tasks = tokio::task::LocalSet::new();
                for _ in 0..TASKS {
                    let service = layer.layer(service_fn(|_: Request<Text>| async {
                        tokio::task::yield_now().await;
                        Ok::<_, Infallible>(Response::new(Text::from("hello")))
                    }));
                    tasks.spawn_local(async move {
                        for _ in 0..REQUESTS {
                            let response = service.clone().oneshot(get("/")).await.unwrap();
                            assert_eq!(response.status(), StatusCode::OK);
                            response.into_body().collect().await.unwrap();
                        }
                    });
                }
                runtime.block_on(async {
                    tokio::time::timeout(Duration::from_secs(120), tasks)
                        .await
                        .expect("a request was forgotten in the queue");
                });
            });
        }
    });
    assert_eq!((concurrency.in_flight(), layer.queued()), (0, 0));
}

/// With a class among the extensions permits are reserved for higher ones, at once and in the
/// queue, and it is not reported to a shedder.
#[tokio::test]
async fn permits_are_reserved_for_higher_classes() {
    let clock = ManualClock::new();
    let layer = AdaptiveConcurrencyLayer::new(limit_of(10, &clock));
    let service = layer.layer(service_fn(|_: Request<Text>| {
        pending::<Result<Response<Pieces>, Infallible>>()
    }));
    let of = |class: Class| {
        let mut request = get("/");
        request.extensions_mut().insert(class);
        request
    };
    let _low: Vec<_> = (0..3)
        .map(|_| sent(&service, of(Class::Sheddable)))
        .collect();
    let denied = service.clone().oneshot(of(Class::Sheddable)).await.unwrap();
    assert_eq!(denied.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(denied.extensions().get::<NoCapacity>().is_none());
    let _next: Vec<_> = (0..2)
        .map(|_| sent(&service, of(Class::SheddablePlus)))
        .collect();
    assert_eq!(
        service
            .clone()
            .oneshot(of(Class::SheddablePlus))
            .await
            .unwrap()
            .status(),
        503
    );
    let _most: Vec<_> = (0..5)
        .map(|_| sent(&service, of(Class::CriticalPlus)))
        .collect();
    assert_eq!(layer.concurrency().in_flight(), 10);
}

#[tokio::test]
async fn an_outer_shedder_learns_of_denials() {
    let clock = ManualClock::new();
    let concurrency = limit_of(1, &clock);
    let _held = concurrency.try_acquire().unwrap();
    let shed = ShedLayer::with_clock(
        Shedder::builder().build_with_clock(clock.clone()),
        clock.clone(),
    );
    let shed = shed.default_class(Class::Sheddable);
    let service =
        shed.layer(AdaptiveConcurrencyLayer::new(concurrency).layer(OnceReady::default()));
    for _ in 0..20 {
        service.clone().oneshot(get("/")).await.unwrap();
    }
    clock.advance(Duration::from_millis(100));
    service.clone().oneshot(get("/")).await.unwrap();
    assert!(shed.shedder().level() > 0.5);
}

#[test]
fn an_allowed_request_allocates_nothing() {
    for queue in [None, Some(QueueConfig::of(10))] {
        let inner = service_fn(|_: Request<()>| {
            ready(Ok::<_, Infallible>(Response::new(Text::from("hello"))))
        });
        let layer = AdaptiveConcurrencyLayer::default();
        let layer = match queue {
            Some(queue) => layer.queue(queue),
            None => layer,
        };
        let mut service = layer.layer(inner);
        let request = Request::new(());
        let allocated = allocation_counter::measure(|| {
            let std::task::Poll::Ready(Ok(response)) = poll_once(pin!(service.call(request)))
            else {
                panic!("it waits")
            };
            assert!(poll_once(pin!(response.into_body().collect())).is_ready());
        });
        assert_eq!(allocated.count_total, alone());
    }
}

/// The allocations of reading that body alone.
fn alone() -> u64 {
    allocation_counter::measure(|| {
        assert!(poll_once(pin!(Text::from("hello").collect())).is_ready());
    })
    .count_total
}
