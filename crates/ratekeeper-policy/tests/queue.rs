//! Queues of adaptive limits, and deadlines, on the manual clock.

use ratekeeper::adaptive::QueueConfig;
use ratekeeper::{Clock, Limit, ManualClock, MemoryStore, Timestamp, adaptive::Class};
use ratekeeper_policy::{
    Action, Completion, Engine, Match, Policies, Policy, PolicyVerdict, Reason, Subject,
    engine::MaybeReady, overload::AdaptiveLimit, overload::Shed,
};
use ratekeeper_testkit::poll::poll_once;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

type TestEngine = Engine<MemoryStore<ManualClock>>;

fn new_engine(policies: Policies) -> (TestEngine, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(clock.clone()).build();
    (Engine::new(store, policies).unwrap(), clock)
}

/// One request at a time, with a queue of this length.
fn one(name: &str, queue: usize) -> Policy {
    Policy::new(name).adaptive(
        AdaptiveLimit::new()
            .between(1, 1)
            .queue(QueueConfig::of(queue)),
    )
}

/// A request that waits for its verdict.
type PendingVerdict = Pin<Box<dyn Future<Output = PolicyVerdict>>>;

fn ask(engine: &TestEngine, subject: Subject<'static>) -> PendingVerdict {
    let engine = engine.clone();
    Box::pin(async move { engine.decide(&subject).await })
}

fn poll(pending: &mut PendingVerdict) -> Option<PolicyVerdict> {
    match poll_once(pending) {
        Poll::Ready(verdict) => Some(verdict),
        Poll::Pending => None,
    }
}

/// A request that has to wait.
fn wait(engine: &TestEngine) -> PendingVerdict {
    wait_as(engine, Subject::new())
}

fn wait_as(engine: &TestEngine, subject: Subject<'static>) -> PendingVerdict {
    let mut pending = ask(engine, subject);
    assert!(poll(&mut pending).is_none(), "it waits");
    pending
}

fn pass(engine: &TestEngine) -> PolicyVerdict {
    let verdict = poll(&mut ask(engine, Subject::new())).unwrap();
    assert!(verdict.is_allowed(), "{verdict:?}");
    verdict
}

/// Requests in flight and in the queue, of the first adaptive limit.
fn in_flight_and_queued(engine: &TestEngine) -> (u64, u64) {
    let pressure = engine.stats().overload().unwrap();
    (
        pressure.limits[0].snapshot.in_flight,
        pressure.limits[0].queued,
    )
}

#[test]
fn a_request_without_a_permit_waits_in_order() {
    let policy = one("api", 10).limit(Limit::per_hour(3).burst(3));
    let (engine, clock) = new_engine(Policies::new().policy(policy));
    let left = || {
        engine
            .peek_now(&Subject::new())
            .limits()
            .next()
            .unwrap()
            .decision()
            .remaining()
    };
    let held = pass(&engine);
    let mut first = wait(&engine);
    let mut second = wait(&engine);
    assert_eq!(
        (in_flight_and_queued(&engine), left()),
        ((1, 2), 2),
        "a waiting request is charged nothing"
    );
    clock.advance(20 * MS);
    engine.settle_now(held, Completion::status(200));
    assert!(poll(&mut second).is_none());
    let first = poll(&mut first).unwrap();
    assert!(first.is_allowed() && first.holds_permits());
    assert_eq!(first.decided_at(), clock.now());
    assert_eq!((in_flight_and_queued(&engine), left()), ((1, 1), 1));
    clock.advance(20 * MS);
    engine.settle_now(first, Completion::status(200));
    // The wait is not part of the latency.
    assert_eq!(
        engine.stats().overload().unwrap().limits[0].snapshot.short,
        None
    );
    let second = poll(&mut second).unwrap();
    assert!(second.is_allowed());
    drop(second);
    assert_eq!((in_flight_and_queued(&engine), left()), ((0, 0), 0));
}

#[test]
fn the_wait_is_not_part_of_the_latency() {
    let limit = AdaptiveLimit::new()
        .between(10, 10)
        .queue(QueueConfig::of(20));
    let (engine, clock) = new_engine(Policies::new().policy(Policy::new("api").adaptive(limit)));
    let held: Vec<_> = (0..10).map(|_| pass(&engine)).collect();
    let waiting: Vec<_> = (0..10).map(|_| wait(&engine)).collect();
    clock.advance(70 * MS);
    // Dropped: no clock is read.
    drop(held);
    let served: Vec<_> = waiting
        .into_iter()
        .map(|mut pending| poll(&mut pending).unwrap())
        .collect();
    clock.advance(64 * MS);
    served
        .into_iter()
        .for_each(|verdict| engine.settle_now(verdict, Completion::status(200)));
    assert_eq!(
        engine.stats().overload().unwrap().limits[0].snapshot.short,
        Some(64 * MS)
    );
}

#[test]
fn a_request_that_waits_too_long_is_denied() {
    let (engine, clock) = new_engine(Policies::new().policy(one("api", 10)));
    let _held = pass(&engine);
    let mut pending = wait(&engine);
    clock.advance(99 * MS);
    assert!(poll(&mut pending).is_none());
    clock.advance(MS);
    let refused = poll(&mut pending).unwrap();
    assert!(matches!(refused.reason(), Reason::WaitedTooLong) && !refused.is_never());
    assert_eq!(
        (refused.status(), refused.policy(), refused.retry_after()),
        (503, Some("api"), None)
    );
    assert_eq!(
        (refused.reason().name(), in_flight_and_queued(&engine)),
        ("waited_too_long", (1, 0))
    );
    assert_eq!(engine.stats().totals(), (1, 1));
}

#[test]
fn a_backlog_has_short_timeouts_and_serves_the_newest_first() {
    let (engine, clock) = new_engine(Policies::new().policy(one("api", 10)));
    let mut held = pass(&engine);
    let mut old = wait(&engine);
    for _ in 0..2 {
        // The queue is never empty.
        let mut next = wait(&engine);
        clock.advance(45 * MS);
        engine.settle_now(held, Completion::status(200));
        held = poll(&mut old).unwrap();
        assert!(held.is_allowed() && poll(&mut next).is_none());
        old = next;
    }
    clock.advance(10 * MS);
    let mut second = wait(&engine);
    let mut newest = wait(&engine);
    engine.settle_now(held, Completion::status(200));
    assert!(poll(&mut old).is_none() && poll(&mut second).is_none());
    let _held = poll(&mut newest).unwrap();
    // 5 ms for requests that came into the backlog, and an interval for those before it.
    clock.advance(5 * MS);
    assert!(matches!(
        poll(&mut second).unwrap().reason(),
        Reason::WaitedTooLong
    ));
    assert!(poll(&mut old).is_none());
    clock.advance(40 * MS);
    assert!(matches!(
        poll(&mut old).unwrap().reason(),
        Reason::WaitedTooLong
    ));
}

#[test]
fn a_full_queue_denies_at_once() {
    let (engine, _) = new_engine(Policies::new().policy(one("api", 1)));
    let _held = pass(&engine);
    let _waiting = wait(&engine);
    let refused = poll(&mut ask(&engine, Subject::new())).unwrap();
    assert!(matches!(refused.reason(), Reason::QueueFull));
    assert_eq!(
        (refused.status(), refused.policy(), refused.reason().name()),
        (503, Some("api"), "queue_full")
    );
}

#[test]
fn a_dropped_request_leaves_no_state() {
    let policies = || {
        Policies::new()
            .policy(one("a", 5))
            .policy(one("b", 5).limit(Limit::per_hour(9)))
    };
    let (engine, _) = new_engine(policies());
    let b = |engine: &TestEngine| {
        let limit = &engine.stats().overload().unwrap().limits[1];
        (limit.snapshot.in_flight, limit.queued)
    };
    // A request with a permit of `b` alone.
    let held = poll(&mut ask(&engine, Subject::new())).unwrap();
    let waiting = wait(&engine);
    assert_eq!(
        (in_flight_and_queued(&engine), b(&engine)),
        ((1, 1), (1, 0))
    );
    drop(waiting);
    assert_eq!(
        (in_flight_and_queued(&engine), b(&engine)),
        ((1, 0), (1, 0))
    );
    drop(held);
    assert_eq!(
        (in_flight_and_queued(&engine), b(&engine)),
        ((0, 0), (0, 0))
    );
    // Its permit is ready, but the future is not polled.
    let held = poll(&mut ask(&engine, Subject::new())).unwrap();
    let gone = wait(&engine);
    let mut next = wait(&engine);
    drop(held);
    drop(gone);
    let next = poll(&mut next).unwrap();
    assert!(next.is_allowed());
    drop(next);
    assert_eq!(
        (in_flight_and_queued(&engine), b(&engine)),
        ((0, 0), (0, 0))
    );
    assert_eq!(
        engine
            .peek_now(&Subject::new())
            .limits()
            .next()
            .unwrap()
            .decision()
            .remaining(),
        6
    );
}

/// In one queue after the other: an acquired permit is released if the wait for the next one fails.
#[test]
fn permits_of_several_adaptive_limits() {
    let path = Match::new().path("/b".parse().unwrap());
    let policies = Policies::new()
        .policy(one("a", 5))
        .policy(one("b", 5).matching(path));
    let alone = Policies::new().policy(one("b", 5));
    let (engine, clock) = new_engine(policies);
    let b = Subject::new().path("/b");
    let held = poll(&mut ask(&engine, b.clone())).unwrap();
    let mut both = wait_as(&engine, b);
    clock.advance(90 * MS);
    drop(held);
    // Both are free, and it takes both.
    let both = poll(&mut both).unwrap();
    assert!(both.is_allowed());
    drop(both);
    assert_eq!(in_flight_and_queued(&engine), (0, 0));
    // Another request holds `b`, by rules with only that policy.
    engine.set_policies(alone).unwrap();
    let held = pass(&engine);
    engine
        .set_policies(Policies::new().policy(one("a", 5)).policy(one("b", 5)))
        .unwrap();
    let mut waiting = wait(&engine);
    assert_eq!(in_flight_and_queued(&engine), (1, 0));
    clock.advance(100 * MS);
    let refused = poll(&mut waiting).unwrap();
    assert_eq!(
        (refused.policy(), in_flight_and_queued(&engine)),
        (Some("b"), (0, 0))
    );
    drop(held);
}

#[test]
fn a_shadow_policy_has_no_queue() {
    let (engine, _) = new_engine(Policies::new().policy(one("api", 10).action(Action::Shadow)));
    let _held: Vec<_> = (0..5).map(|_| pass(&engine)).collect();
    assert_eq!(in_flight_and_queued(&engine), (1, 0));
}

#[test]
fn a_request_that_cannot_wait_is_denied() {
    let policies = Policies::new().policy(one("api", 10));
    let (engine, _) = new_engine(policies);
    let _held = pass(&engine);
    let at_capacity = |verdict: PolicyVerdict| {
        assert!(
            matches!(verdict.reason(), Reason::AtCapacity),
            "{verdict:?}"
        );
    };
    at_capacity(engine.decide_now(&Subject::new()));
    at_capacity(poll(&mut ask(&engine, Subject::new().no_wait())).unwrap());
    let by_name = engine.clone();
    let mut by_name: PendingVerdict =
        Box::pin(async move { by_name.decide_by("api", b"x", 1, false).await.unwrap() });
    at_capacity(poll(&mut by_name).unwrap());
    // A reservation holds no permit, and waits for none.
    let later = engine.clone();
    let mut later: PendingVerdict =
        Box::pin(async move { later.reserve(&Subject::new(), None).await });
    assert!(poll(&mut later).unwrap().is_allowed());
}

#[test]
fn a_pending_verdict_waits_too() {
    let (engine, _) = new_engine(Policies::new().policy(one("api", 1)));
    let MaybeReady::Ready(held) = engine.try_decide(&Subject::new()) else {
        panic!("a permit is free")
    };
    let MaybeReady::Pending(later) = engine.try_decide(&Subject::new()) else {
        panic!("no permit is free")
    };
    let mut later: PendingVerdict = Box::pin(later);
    assert!(poll(&mut later).is_none());
    let MaybeReady::Ready(full) = engine.try_decide(&Subject::new()) else {
        panic!("it need not wait")
    };
    assert!(matches!(full.reason(), Reason::QueueFull));
    engine.settle_now(held, Completion::status(200));
    assert!(poll(&mut later).unwrap().is_allowed());
}

/// A caller that needs the verdict within some time waits no longer than that.
#[test]
fn decide_within_bounds_the_wait() {
    let (engine, clock) = new_engine(Policies::new().policy(one("api", 1)));
    let _held = pass(&engine);
    let hurried = engine.clone();
    let mut hurried: PendingVerdict =
        Box::pin(async move { hurried.decide(&Subject::new().within(30 * MS)).await });
    assert!(poll(&mut hurried).is_none());
    clock.advance(30 * MS);
    assert!(matches!(
        poll(&mut hurried).unwrap().reason(),
        Reason::WaitedTooLong
    ));
}

/// Important requests need not wait for less important ones.
#[test]
fn capacity_is_held_for_important_requests_in_the_queue() {
    let limit = AdaptiveLimit::new()
        .between(10, 10)
        .queue(QueueConfig::of(10));
    let (engine, _) = new_engine(
        Policies::new()
            .shed(Shed::new())
            .policy(Policy::new("api").adaptive(limit)),
    );
    let low = Subject::new().with("class", "sheddable");
    let held: Vec<_> = (0..3)
        .map(|_| poll(&mut ask(&engine, low.clone())).unwrap())
        .collect();
    let mut waits = wait_as(&engine, low);
    assert!(pass(&engine).is_allowed());
    drop(held);
    assert!(poll(&mut waits).unwrap().is_allowed());
}

#[test]
fn a_reload_loses_no_waiter() {
    let limit = || AdaptiveLimit::new().between(1, 1);
    let with = |limit: AdaptiveLimit| Policies::new().policy(Policy::new("api").adaptive(limit));
    let (engine, clock) = new_engine(with(limit()));
    let held = pass(&engine);
    // A new queue is also served by permits from before it.
    engine
        .set_policies(with(limit().queue(QueueConfig::of(3))))
        .unwrap();
    assert_eq!(
        in_flight_and_queued(&engine),
        (1, 0),
        "the adaptive limit is the same"
    );
    let mut first = wait(&engine);
    let mut second = wait(&engine);
    let mut third = wait(&engine);
    engine.settle_now(held, Completion::status(200));
    let held = poll(&mut first).unwrap();
    // A shorter queue, then none: waiting requests stay in it.
    engine
        .set_policies(with(limit().queue(QueueConfig::of(1))))
        .unwrap();
    assert_eq!(in_flight_and_queued(&engine), (1, 2));
    assert!(matches!(
        poll(&mut ask(&engine, Subject::new())).unwrap().reason(),
        Reason::QueueFull
    ));
    engine.set_policies(with(limit())).unwrap();
    engine.settle_now(held, Completion::status(200));
    let held = poll(&mut second).unwrap();
    // Other parameters make another limit: requests in the old queue are served by it.
    engine
        .set_policies(with(limit().between(1, 5).queue(QueueConfig::of(3))))
        .unwrap();
    assert_eq!(in_flight_and_queued(&engine), (0, 0));
    clock.advance(10 * MS);
    engine.settle_now(held, Completion::status(200));
    assert!(poll(&mut third).unwrap().is_allowed());
}

fn unix(at: Timestamp) -> String {
    at.since_unix().as_millis().to_string()
}

#[test]
fn a_request_after_its_deadline_costs_nothing() {
    let policy = Policy::new("api")
        .limit(Limit::per_hour(3))
        .adaptive(AdaptiveLimit::new().between(1, 1));
    let (engine, clock) = new_engine(Policies::new().policy(policy));
    let now = clock.now();
    let late = engine.decide_now(&Subject::new().deadline(now));
    assert!(matches!(late.reason(), Reason::TooLate) && late.is_never());
    assert_eq!(
        (late.status(), late.policy(), late.reason().name()),
        (504, None, "too_late")
    );
    assert_eq!(late.limits().count(), 0);
    let text = unix(now - MS);
    assert!(matches!(
        engine
            .decide_now(&Subject::new().with("deadline", &text))
            .reason(),
        Reason::TooLate
    ));
    let reserved = engine.clone();
    let mut reserved: PendingVerdict =
        Box::pin(async move { reserved.reserve(&Subject::new().deadline(now), None).await });
    assert!(matches!(
        poll(&mut reserved).unwrap().reason(),
        Reason::TooLate
    ));
    assert_eq!(engine.stats().totals(), (0, 3));
    for count_allowed in [
        Subject::new().deadline(now + MS),
        Subject::new().with("deadline", "soon"),
        Subject::new(),
    ] {
        let verdict = engine.decide_now(&count_allowed);
        assert!(verdict.is_allowed(), "{verdict:?}");
    }
}

#[test]
fn no_request_waits_beyond_its_deadline() {
    let (engine, clock) = new_engine(Policies::new().policy(one("api", 5)));
    let _held = pass(&engine);
    let mut pending = wait_as(&engine, Subject::new().deadline(clock.now() + 30 * MS));
    clock.advance(29 * MS);
    assert!(poll(&mut pending).is_none());
    clock.advance(MS);
    assert!(matches!(
        poll(&mut pending).unwrap().reason(),
        Reason::TooLate
    ));
    assert_eq!(in_flight_and_queued(&engine), (1, 0));
}

#[test]
fn an_old_request_is_late_however_important_it_is() {
    let (engine, clock) = new_engine(Policies::new().shed(Shed::new().patience(2_000 * MS)));
    let now = clock.now();
    let late =
        |subject: &Subject<'_>| matches!(engine.decide_now(subject).reason(), Reason::TooLate);
    assert!(late(
        &Subject::new()
            .start(now - 2_000 * MS)
            .with("class", "critical_plus")
    ));
    assert!(!late(&Subject::new().start(now - 1_999 * MS)));
    let text = format!("t={}", unix(now - 3_000 * MS));
    assert!(late(&Subject::new().with("start", &text)));
    // A clock that is ahead, a malformed time, and none at all.
    assert!(!late(&Subject::new().start(now + 60_000 * MS)));
    assert!(!late(&Subject::new().with("start", "long ago")));
    assert!(!late(&Subject::new()));
    // The request can only shorten the time.
    let headers = |timeout: &str| vec![("grpc-timeout", timeout.to_owned())];
    let short = headers("500m");
    let none = headers("0m");
    let long = headers("1H");
    assert!(late(&Subject::new().start(now - 500 * MS).headers(&short)));
    assert!(!late(&Subject::new().start(now - 499 * MS).headers(&short)));
    assert!(late(&Subject::new().headers(&none)));
    assert!(late(&Subject::new().start(now - 2_000 * MS).headers(&long)));
    assert!(!late(&Subject::new().headers(&headers("soon"))));
    let figures = engine.stats().overload().unwrap().shed.unwrap();
    let of = |class: Class| {
        figures
            .classes
            .iter()
            .find(|one| one.class == class)
            .unwrap()
            .admitted
    };
    assert_eq!(
        of(Class::CriticalPlus),
        0,
        "a late request is denied, not shed"
    );
}

/// Without load shedding, only an explicit deadline makes a request late.
#[test]
fn without_patience_no_request_is_too_old() {
    let (engine, clock) = new_engine(Policies::new().policy(one("api", 0)));
    let headers = vec![("grpc-timeout", "0m")];
    let verdict = engine.decide_now(
        &Subject::new()
            .start(clock.now() - 3_600_000 * MS)
            .headers(&headers),
    );
    assert!(verdict.is_allowed(), "{verdict:?}");
}

/// With threads and the system clock: every waiter is served in the end, and no permit is left.
#[test]
fn with_threads_no_waiter_is_forgotten() {
    const THREADS: usize = 4;
    const EACH: usize = 2_000;
    let queue = QueueConfig::of(THREADS).interval(Duration::from_secs(3_600));
    let limit = AdaptiveLimit::new().between(2, 2).queue(queue);
    let policies = Policies::new().policy(
        Policy::new("api")
            .adaptive(limit)
            .limit(Limit::per_hour(1_000_000)),
    );
    let engine = Engine::new(MemoryStore::new(), policies).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    for nth in 0..EACH {
                        let verdict = engine.decide(&Subject::new()).await;
                        assert!(verdict.is_allowed(), "{verdict:?}");
                        tokio::task::yield_now().await;
                        if nth % 2 == 0 {
                            drop(verdict);
                        } else {
                            engine.settle_now(verdict, Completion::status(200));
                        }
                    }
                });
            });
        }
    });
    let limit = &engine.stats().overload().unwrap().limits[0];
    assert_eq!((limit.snapshot.in_flight, limit.queued), (0, 0));
    assert_eq!(engine.stats().totals(), ((THREADS * EACH) as u64, 0));
}
