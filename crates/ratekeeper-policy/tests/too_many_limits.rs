//! A store that takes no more limits: a reload that needs one fails as a whole, and changes nothing
//! in the store.

use ratekeeper::{
    Ask, Limit, ManualClock, MemoryStore, Store, Timestamp, Verdict, keyed::TooManyLimitsError,
    store::LimitHandle, store::LimitKeyStats, store::LimitOptions, store::OnFailure,
};
use ratekeeper_policy::{Attribute, Engine, EngineError, Policies, Policy, PolicyLimit, Subject};
use ratekeeper_testkit::poll::assert_ready;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// A store with a maximum number of limits, which records all other calls.
struct BoundedStore {
    inner: MemoryStore<ManualClock>,
    room: AtomicU64,
    calls: Mutex<Vec<String>>,
}

impl BoundedStore {
    fn with_max_limits(limits: u64) -> Self {
        let inner = MemoryStore::builder()
            .max_keys(1_000)
            .clock(ManualClock::new())
            .build();
        Self {
            inner,
            room: AtomicU64::new(limits),
            calls: Mutex::default(),
        }
    }

    fn record(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }

    fn register(&self) -> Result<(), TooManyLimitsError> {
        match self
            .room
            .fetch_update(SeqCst, SeqCst, |room| room.checked_sub(1))
        {
            Ok(_) => Ok(()),
            Err(_) => Err(TooManyLimitsError::new()),
        }
    }
}

impl Store for BoundedStore {
    fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimitsError> {
        self.register()?;
        self.inner.limit(name, limit)
    }

    fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimitsError> {
        self.register()?;
        self.inner.concurrency(name, limit)
    }

    fn set_limit(&self, handle: &LimitHandle, limit: Limit) {
        self.record(format!("set_limit {limit}"));
        self.inner.set_limit(handle, limit);
    }

    fn set_concurrency(&self, handle: &LimitHandle, limit: u64) {
        self.record(format!("set_concurrency {limit}"));
        self.inner.set_concurrency(handle, limit);
    }

    fn now(&self) -> Timestamp {
        Store::now(&self.inner)
    }

    async fn decide_within(&self, asks: &[Ask<'_>], within: Option<Duration>) -> Verdict {
        self.inner.decide_within(asks, within).await
    }

    fn try_decide(&self, asks: &[Ask<'_>], now: Timestamp, verdict: &mut Verdict) -> bool {
        self.inner.try_decide(asks, now, verdict)
    }

    fn is_local(&self) -> bool {
        true
    }

    fn configure(&self, _: &LimitHandle, options: LimitOptions) -> bool {
        if let Some(then) = options.changed_on_failure() {
            self.record(format!("on_failure {then}"));
        }
        if let Some(staleness) = options.changed_lease() {
            self.record(format!("lease {staleness:?}"));
        }
        if let Some(name) = options.changed_shared_name() {
            self.record(format!("set_shared_name {name}"));
        }
        if let Some(prefix) = options.changed_shard_prefix() {
            self.record(format!("set_shard_prefix {}", prefix.is_some()));
        }
        true
    }

    fn try_settle(&self, verdict: Verdict, actual: &[u64]) -> Option<Verdict> {
        self.inner.try_settle(verdict, actual)
    }

    async fn settle(&self, verdict: Verdict, actual: &[u64]) {
        Store::settle(&self.inner, verdict, actual).await;
    }

    async fn grant(&self, handle: &LimitHandle, key: &[u8], tokens: u64) {
        Store::grant(&self.inner, handle, key, tokens).await;
    }

    async fn reset(&self, handle: &LimitHandle, key: &[u8]) {
        Store::reset(&self.inner, handle, key).await;
    }

    fn key_stats(&self, limits: &[LimitHandle]) -> Option<Vec<LimitKeyStats>> {
        Store::key_stats(&self.inner, limits)
    }
}

fn by_user(name: &str) -> Policy {
    Policy::new(name).key(Attribute::User)
}

fn before() -> Policies {
    Policies::new()
        .policy(by_user("a").limit(Limit::per_hour(10)))
        .policy(by_user("b").limit(PolicyLimit::Concurrent(5)))
}

/// Other settings in every policy, and two new limits.
fn after() -> Policies {
    Policies::new()
        .policy(
            by_user("a")
                .limit(Limit::per_hour(100))
                .on_failure(OnFailure::Closed)
                .leased(Duration::from_secs(1)),
        )
        .policy(by_user("b").limit(PolicyLimit::Concurrent(50)))
        .policy(by_user("c").limit(Limit::per_hour(3)))
        .policy(by_user("d").limit(Limit::per_hour(4)))
}

#[test]
fn a_reload_with_too_many_limits_changes_nothing() {
    let engine = Engine::new(BoundedStore::with_max_limits(3), before()).unwrap();
    let ann = Subject::new().user("ann");
    let left = || -> Vec<u64> {
        let verdict = assert_ready(engine.peek(&ann.clone().cost(0)));
        verdict
            .limits()
            .map(|limit| limit.decision().remaining())
            .collect()
    };
    assert!(assert_ready(engine.decide(&ann)).is_allowed());
    assert_eq!(left(), [9, 5]);
    engine.store().calls.lock().unwrap().clear();

    // The limit of `c` fits, that of `d` does not.
    assert_eq!(
        engine.set_policies(after()).unwrap_err(),
        EngineError::TooManyLimits
    );
    assert_eq!(engine.policies(), before());
    assert_eq!(*engine.store().calls.lock().unwrap(), [""; 0]);
    assert_eq!((left(), engine.stats().reloads()), (vec![9, 5], 0));
    // A reload of the same policies changes nothing.
    engine.set_policies(before()).unwrap();
    assert_eq!(left(), [9, 5]);

    // With one more limit the reload succeeds as a whole; the limit of `c` is the one from the
    // attempt before.
    engine.store().room.store(1, SeqCst);
    engine.set_policies(after()).unwrap();
    assert_eq!(engine.store().room.load(SeqCst), 0);
    assert_eq!(
        left(),
        [9, 50, 3, 4],
        "a limit that changes keeps the tokens that are left"
    );
    let calls = engine.store().calls.lock().unwrap();
    for call in [
        "set_limit 100/h",
        "set_concurrency 50",
        "on_failure closed",
        "lease Some(1s)",
    ] {
        assert!(
            calls.iter().any(|done| done == call),
            "{call} is not among {calls:?}"
        );
    }
}
