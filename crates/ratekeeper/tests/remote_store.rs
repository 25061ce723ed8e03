//! A remote store in another task: it gets owned copies of the asks over a channel and answers
//! later. Code for any `Store` runs on both with the same results.
#![cfg(feature = "tokio")]

use ratekeeper::{
    Algorithm, Ask, Clock, Limit, ManualClock, MemoryStore, Mode, Store, Timestamp, Verdict,
    keyed::TooManyLimitsError, store::AskOutcome, store::DynStore, store::LimitHandle,
    store::LimitKeyStats, store::LimitOptions, store::Source,
};
use ratekeeper_testkit::poll::poll_once;
use std::future::Future;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// An owned ask.
struct OwnedAsk {
    limit: LimitHandle,
    key: Vec<u8>,
    cost: u64,
    reserve: u64,
    mode: Mode,
    max_wait: Option<Duration>,
}

impl OwnedAsk {
    fn of(ask: &Ask<'_>) -> Self {
        Self {
            limit: ask.limit.clone(),
            key: ask.key.to_vec(),
            cost: ask.cost,
            reserve: ask.reserve,
            mode: ask.mode,
            max_wait: ask.max_wait,
        }
    }

    fn borrowed(&self) -> Ask<'_> {
        let Self {
            limit,
            key,
            cost,
            reserve,
            mode,
            max_wait,
        } = self;
        Ask {
            limit,
            key,
            cost: *cost,
            reserve: *reserve,
            mode: *mode,
            max_wait: *max_wait,
        }
    }
}

enum Message {
    Decide(Vec<OwnedAsk>, oneshot::Sender<Verdict>),
    Settle(Box<Verdict>, Vec<u64>, oneshot::Sender<()>),
    Grant(LimitHandle, Vec<u8>, u64, oneshot::Sender<()>),
    Reset(LimitHandle, Vec<u8>, oneshot::Sender<()>),
}

/// A store in another task.
struct RemoteStore {
    to: mpsc::Sender<Message>,
    /// Where its limits are registered.
    limits: MemoryStore<ManualClock>,
}

impl RemoteStore {
    /// Gives a memory store a task of its own.
    fn spawn(store: MemoryStore<ManualClock>) -> Self {
        let ((to, mut inbox), limits) = (mpsc::channel(16), store.clone());
        tokio::spawn(async move {
            while let Some(message) = inbox.recv().await {
                // A round trip.
                tokio::task::yield_now().await;
                match message {
                    Message::Decide(asks, answer) => {
                        let asks: Vec<_> = asks.iter().map(OwnedAsk::borrowed).collect();
                        // The caller may be gone; then the verdict is dropped, and its permits
                        let _ = answer.send(store.decide(&asks).await);
                    }
                    Message::Settle(verdict, actual, answer) => {
                        store.settle(*verdict, &actual).await;
                        let _ = answer.send(());
                    }
                    Message::Grant(limit, key, tokens, answer) => {
                        store.grant(&limit, &key, tokens);
                        let _ = answer.send(());
                    }
                    Message::Reset(limit, key, answer) => {
                        store.reset(&limit, &key);
                        let _ = answer.send(());
                    }
                }
            }
        });
        Self { to, limits }
    }

    /// Sends a request, and waits for its response.
    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> Message) -> T {
        let (answer, answered) = oneshot::channel();
        self.to
            .send(message(answer))
            .await
            .expect("the task is there");
        answered.await.expect("the task answers")
    }
}

impl Store for RemoteStore {
    fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimitsError> {
        self.limits.limit(name, limit)
    }

    fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimitsError> {
        self.limits.concurrency(name, limit)
    }

    fn set_limit(&self, handle: &LimitHandle, limit: Limit) {
        self.limits.set_limit(handle, limit);
    }

    fn set_concurrency(&self, handle: &LimitHandle, limit: u64) {
        self.limits.set_concurrency(handle, limit);
    }

    fn now(&self) -> Timestamp {
        self.limits.clock().now()
    }

    fn decide_within(
        &self,
        asks: &[Ask<'_>],
        _within: Option<Duration>,
    ) -> impl Future<Output = Verdict> + Send {
        let asks = asks.iter().map(OwnedAsk::of).collect();
        self.ask(|answer| Message::Decide(asks, answer))
    }

    fn settle(&self, verdict: Verdict, actual: &[u64]) -> impl Future<Output = ()> + Send {
        let actual = actual.to_vec();
        self.ask(|answer| Message::Settle(Box::new(verdict), actual, answer))
    }

    fn grant(
        &self,
        handle: &LimitHandle,
        key: &[u8],
        tokens: u64,
    ) -> impl Future<Output = ()> + Send {
        let (limit, key) = (handle.clone(), key.to_vec());
        self.ask(move |answer| Message::Grant(limit, key, tokens, answer))
    }

    fn reset(&self, handle: &LimitHandle, key: &[u8]) -> impl Future<Output = ()> + Send {
        let (limit, key) = (handle.clone(), key.to_vec());
        self.ask(|answer| Message::Reset(limit, key, answer))
    }

    fn key_stats(&self, _: &[LimitHandle]) -> Option<Vec<LimitKeyStats>> {
        // Not counted remotely.
        None
    }
}

/// What a verdict shows.
type VerdictFields = (
    bool,
    bool,
    Option<usize>,
    Option<Duration>,
    Duration,
    Vec<(AskOutcome, u64, Option<Duration>, Duration)>,
);

fn shown(verdict: &Verdict) -> VerdictFields {
    let statuses = verdict.results().map(|status| {
        let decision = status.decision();
        (
            status.outcome(),
            decision.remaining(),
            decision.retry_after(),
            decision.reset_after(),
        )
    });
    (
        verdict.is_allowed(),
        verdict.is_never(),
        verdict.binding(),
        verdict.retry_after(),
        verdict.delay(),
        statuses.collect(),
    )
}

/// Limits of every algorithm and one of permits, the same in every store.
fn limits(store: &impl Store) -> Vec<LimitHandle> {
    let rates = Algorithm::ALL.iter().map(|algorithm| {
        store
            .limit(algorithm.name(), Limit::per_second(4).algorithm(*algorithm))
            .unwrap()
    });
    rates
        .chain([store.concurrency("slots", 3).unwrap()])
        .collect()
}

/// A random workload on any store: random asks, some settled, some held for a while, some dropped;
/// now and then a grant, a reset key, a changed limit.
async fn work<S: Store>(store: &S, clock: &ManualClock) -> Vec<VerdictFields> {
    let limits = limits(store);
    let (mut seen, mut held, mut random) = (Vec::new(), Vec::new(), 7_u64);
    let mut next = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for _ in 0..3_000 {
        let count = 1 + next(10);
        let picks: Vec<_> = (0..count)
            .map(|_| (next(9) as usize, next(6), 1 + next(2), next(12)))
            .collect();
        let keys: Vec<_> = picks
            .iter()
            .map(|(_, key, ..)| format!("key-{key}"))
            .collect();
        let mut asks: Vec<Ask<'_>> = Vec::new();
        let mut known: Vec<(usize, u64)> = Vec::new();
        for ((limit, key, cost, how), name) in picks.iter().zip(&keys) {
            // One limit and key is asked in one mode; the same ask twice is merged.
            if known.contains(&(*limit, *key)) && *how != 0 {
                continue;
            }
            let how = if known.contains(&(*limit, *key)) {
                0
            } else {
                *how
            };
            known.push((*limit, *key));
            let ask = Ask::new(&limits[*limit], name).cost(*cost);
            asks.push(match how {
                1 => ask.mode(Mode::Shadow),
                2 => ask.mode(Mode::Peek),
                3 if *limit < 2 => ask.reserve(2),
                4 if *limit < 2 => ask.max_wait(Duration::from_secs(1)),
                _ => ask,
            });
        }
        let verdict = match next(2) {
            0 => store.decide(&asks).await,
            _ => {
                store
                    .decide_within(&asks, Some(Duration::from_secs(1)))
                    .await
            }
        };
        seen.push(shown(&verdict));
        match next(4) {
            0 => store.settle(verdict, &vec![next(2); asks.len()]).await,
            1 => held.push(verdict),
            _ => drop(verdict),
        }
        if held.len() > 4 {
            drop(held.remove(0));
        }
        let (limit, key) = (&limits[next(9) as usize], format!("key-{}", next(6)));
        match next(40) {
            0 => store.grant(limit, key.as_bytes(), next(4)).await,
            1 => store.reset(limit, key.as_bytes()).await,
            2 => store.set_limit(&limits[0], Limit::per_second(3 + next(3))),
            3 => store.set_concurrency(&limits[8], 2 + next(3)),
            _ => {}
        }
        clock.advance(Duration::from_millis(next(150)));
    }
    seen
}

fn memory() -> (MemoryStore<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (MemoryStore::builder().clock(clock.clone()).build(), clock)
}

#[tokio::test]
async fn code_for_any_store_gets_the_same_results_from_a_remote_one() {
    let ((near, near_clock), (far, far_clock)) = (memory(), memory());
    let here = work(&near, &near_clock).await;
    let there = work(&RemoteStore::spawn(far), &far_clock).await;
    let passed = here.iter().filter(|seen| seen.0).count();
    assert!((300..2_900).contains(&passed), "{passed} of 3,000");
    for (i, (here, there)) in here.iter().zip(&there).enumerate() {
        assert_eq!(here, there, "call {i}");
    }
}

#[tokio::test]
async fn a_store_as_a_trait_object_gives_the_same_results() {
    let ((plain, plain_clock), (wrapped, wrapped_clock)) = (memory(), memory());
    let expected = work(&plain, &plain_clock).await;
    let local = DynStore::new(wrapped);
    assert!(local.is_local());
    assert_eq!(work(&local, &wrapped_clock).await, expected);
    let limit = local.limit("settled", Limit::per_minute(1)).unwrap();
    let verdict = local.decide(&[Ask::new(&limit, "k")]).await;
    assert!(local.try_settle(verdict, &[0]).is_none());
    assert!(local.decide(&[Ask::new(&limit, "k")]).await.is_allowed());

    let (far, far_clock) = memory();
    let remote = DynStore::new(RemoteStore::spawn(far));
    assert!(!remote.is_local());
    assert_eq!(work(&remote, &far_clock).await, expected);
}

/// Many tasks on one remote store: still all or nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_share_a_remote_store() {
    let (store, clock) = memory();
    let (global, user) = (
        store.limit("global", Limit::per_hour(100)).unwrap(),
        store.limit("user", Limit::per_hour(7)).unwrap(),
    );
    let remote = std::sync::Arc::new(RemoteStore::spawn(store));
    let tasks: Vec<_> = (0..20)
        .map(|task| {
            let (remote, global, user) = (remote.clone(), global.clone(), user.clone());
            tokio::spawn(async move {
                let (mut passed, key) = (0, format!("user-{task}"));
                for _ in 0..20 {
                    let verdict = remote
                        .decide(&[Ask::new(&global, "all"), Ask::new(&user, &key)])
                        .await;
                    passed += u64::from(verdict.is_allowed());
                }
                passed
            })
        })
        .collect();
    let mut all = 0;
    for task in tasks {
        let passed = task.await.unwrap();
        assert!(passed <= 7);
        all += passed;
    }
    assert_eq!(all, 100);
    drop(clock);
}

/// A caller that goes away before the answer leaves no permit behind.
#[tokio::test]
async fn a_caller_that_is_dropped_holds_no_permit() {
    let remote = RemoteStore::spawn(memory().0);
    let slots = &remote.concurrency("slots", 3).unwrap();
    for _ in 0..10 {
        let asks = [Ask::new(slots, "k").cost(3)];
        let mut asked = Box::pin(remote.decide(&asks));
        let polled = poll_once(&mut asked);
        assert!(polled.is_pending(), "the answer is a round trip away");
        drop(asked);
    }
    let verdict = remote.decide(&[Ask::new(slots, "k").cost(3)]).await;
    assert!(verdict.is_allowed());
}

/// A store that always asks another process need not implement the methods for decisions without
/// waiting, options and counts.
#[tokio::test]
async fn a_remote_store_has_defaults() {
    let remote = RemoteStore::spawn(memory().0);
    let limit = remote.limit("limit", Limit::per_minute(1)).unwrap();
    let asks = [Ask::new(&limit, "k")];
    let mut verdict = Verdict::new(Source::Open);
    assert!(!remote.try_decide(&asks, remote.now(), &mut verdict));
    assert_eq!(verdict.source(), Source::Open, "not written");
    let verdict = remote.decide(&asks).await;
    assert!(verdict.is_allowed(), "nothing was charged");
    let verdict = remote.try_settle(verdict, &[0]).expect("it must be asked");
    assert!(
        !remote.decide(&asks).await.is_allowed(),
        "nothing was settled"
    );
    remote.settle(verdict, &[0]).await;
    assert!(remote.decide(&asks).await.is_allowed(), "it was settled");
    assert!(!remote.is_local());
    assert!(!remote.configure(&limit, LimitOptions::new()));
    assert_eq!(remote.key_stats(std::slice::from_ref(&limit)), None);
}
