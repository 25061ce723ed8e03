//! Buckets of `POST /v1/throttle`, one for each (key, limit).
//!
//! A store never forgets a limit. So that new limits are always accepted, limits are registered
//! with *generations*: a generation with `max_limits` limits is retired, and the next one has its
//! own store. In memory the counts of a retired generation still matter: until its limits have had
//! time to refill, calls are charged in both, and allowed if both allow them. Then all older counts
//! have expired, and the retired store is dropped: decisions are the same as with one store (but a
//! window that begins with the first hit may end later). On Redis the counts are not in the
//! generation, and a retired one can be dropped at once.
//!
//! The number of generations is bounded. With one more the least recently used is evicted, whether
//! its limits have refilled or not: `evicted` counts those that have not, and each of their keys
//! may get one more burst.

use crate::config::StoreConfig;
use crate::store::AnyStore;
use ratekeeper::{
    Algorithm, Ask, Clock, Decision, Limit, Limiter, ManualClock, MemoryStore, Mode, Store,
    Timestamp, store::LimitHandle, store::Source,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

/// Number of different limits in one generation.
pub(crate) const MAX_LIMITS: usize = 65_536;
/// Number of retired generations. Those in use are not evicted, so limits in use stay exact as
/// long as there are not too many of them.
const MAX_RETIRED: usize = 3;
/// Stores of later generations are smaller than the shared store by this factor.
const STORE_SIZE_DIVISOR: usize = 4;

/// Earlier than any call.
const EPOCH: Timestamp = Timestamp::from_unix_nanos(0);

/// The identity of a bucket. The limit includes the algorithm; different spellings of a limit are
/// equal.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Bucket {
    pub(crate) key: String,
    pub(crate) limit: Limit,
}

/// A decision and its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ThrottleDecision {
    pub(crate) decision: Decision,
    pub(crate) source: Source,
}

/// A limit could not be registered, because no store could be created for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyLimitsError;

pub(crate) struct Buckets<C: Clock> {
    /// The last one registers new limits; the others are retired, oldest first.
    generations: RwLock<Vec<Generation<C>>>,
    max_limits: usize,
    max_keys: usize,
    max_bytes: Option<usize>,
    allowed: AtomicU64,
    denied: AtomicU64,
    evicted: AtomicU64,
}

struct Generation<C: Clock> {
    store: AnyStore<C>,
    limits: HashMap<Limit, RegisteredLimit>,
    /// Whether a newer generation registers new limits.
    is_retired: bool,
    /// The latest of its limits' `matters_until`.
    matters_until: Timestamp,
    /// Last decision on a limit that no older generation has, in nanoseconds; set once the
    /// generation is retired.
    last_used: AtomicU64,
}

struct RegisteredLimit {
    handle: LimitHandle,
    refill_time: Duration,
    /// When the counts in this generation and older ones have expired; set once the generation is
    /// retired.
    matters_until: Timestamp,
}

/// A registered limit and the store that counts it.
type BucketHandle<C> = (AnyStore<C>, LimitHandle);

/// Handles of one limit in the generations that count it.
struct BucketHandles<C: Clock> {
    newest: Option<BucketHandle<C>>,
    /// In retired generations whose counts still matter, oldest first.
    retired: Vec<BucketHandle<C>>,
}

impl<C: Clock> BucketHandles<C> {
    const NONE: Self = Self {
        newest: None,
        retired: Vec::new(),
    };

    /// All handles, oldest generation first.
    fn iter(&self) -> impl Iterator<Item = &BucketHandle<C>> {
        self.retired.iter().chain(&self.newest)
    }
}

impl<C: Clock> Buckets<C> {
    /// Buckets in the shared store; `config` bounds the stores of later generations.
    pub(crate) fn new(store: AnyStore<C>, max_limits: usize, config: &StoreConfig) -> Self {
        let smaller = |cap: u64| usize::try_from(cap).unwrap_or(usize::MAX) / STORE_SIZE_DIVISOR;
        Self {
            generations: RwLock::new(vec![Generation::new(store)]),
            max_limits,
            max_keys: smaller(config.max_keys).max(1),
            max_bytes: config.max_bytes.map(smaller),
            allowed: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Number of allowed and denied calls, without peeks.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.allowed.load(Relaxed), self.denied.load(Relaxed))
    }

    /// Number of limits evicted before their buckets had time to refill: each of their keys may
    /// have got one more burst.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    /// Charges `cost` to the bucket if allowed; `peek` decides without charging.
    pub(crate) async fn check(
        &self,
        bucket: &Bucket,
        cost: u64,
        peek: bool,
    ) -> Result<ThrottleDecision, TooManyLimitsError> {
        let throttle = self.decide(bucket, cost, peek).await?;
        if !peek {
            if throttle.decision.is_allowed() {
                &self.allowed
            } else {
                &self.denied
            }
            .fetch_add(1, Relaxed);
        }
        Ok(throttle)
    }

    async fn decide(
        &self,
        bucket: &Bucket,
        cost: u64,
        peek: bool,
    ) -> Result<ThrottleDecision, TooManyLimitsError> {
        let Bucket { key, limit } = bucket;
        let mut handles = self.find(limit);
        if handles.newest.is_none()
            && handles.retired.is_empty()
            && let Some(decision) = self.decide_unregistered(limit, cost, peek)
        {
            return Ok(ThrottleDecision {
                decision,
                source: Source::Memory,
            });
        }
        if !handles.retired.is_empty() {
            // All generations are charged, or none.
            for handle in handles.iter() {
                let throttle = ask(handle, key, cost, Mode::Peek).await;
                if !throttle.decision.is_allowed() {
                    return Ok(throttle);
                }
            }
        }
        // Denials and peeks change no state and need no registration.
        if handles.newest.is_none() && (!peek || handles.retired.is_empty()) {
            handles = self.register(limit)?;
        }
        let mut handles = handles.iter();
        let Some(oldest) = handles.next() else {
            return Err(TooManyLimitsError);
        };
        let mode = if peek { Mode::Peek } else { Mode::Enforce };
        // The oldest has counted the most: its decision applies unless a newer one denies.
        let mut throttle = ask(oldest, key, cost, mode).await;
        if throttle.decision.is_allowed() {
            for handle in handles {
                let newer = ask(handle, key, cost, mode).await;
                if !newer.decision.is_allowed() {
                    throttle = newer;
                }
            }
        }
        Ok(throttle)
    }

    /// The decision on a bucket that was never charged in memory, if it changes no state: then its
    /// limit need not be registered.
    fn decide_unregistered(&self, limit: &Limit, cost: u64, peek: bool) -> Option<Decision> {
        let generations = self
            .generations
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let AnyStore::Memory(store) = &generations.last()?.store else {
            return None;
        };
        let decision = Limiter::with_clock(*limit, store.clock().clone()).peek_n(cost);
        (peek || cost == 0 || limit.is_unlimited() || decision.is_denied()).then_some(decision)
    }

    fn find(&self, limit: &Limit) -> BucketHandles<C> {
        let generations = self
            .generations
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let Some((newest, retired)) = generations.split_last() else {
            return BucketHandles::NONE;
        };
        BucketHandles {
            newest: newest.find_limit(limit),
            retired: find_retired(retired, limit),
        }
    }

    /// Registers a limit in the newest generation.
    fn register(&self, limit: &Limit) -> Result<BucketHandles<C>, TooManyLimitsError> {
        let mut generations = self
            .generations
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let is_full =
            |newest: &Generation<C>| newest.limits.len() >= self.max_limits && !newest.knows(limit);
        let mut dropped = Vec::new();
        if generations.last().is_some_and(is_full) {
            dropped = self.begin_generation(&mut generations)?;
        }
        let register = |generations: &mut Vec<Generation<C>>| {
            let newest = generations.last_mut().ok_or(TooManyLimitsError)?;
            newest.register(limit)
        };
        let newest = match register(&mut generations) {
            Ok(newest) => newest,
            // The first store also has other limits, so it may be full before its generation.
            Err(_) => {
                dropped.extend(self.begin_generation(&mut generations)?);
                register(&mut generations)?
            }
        };
        let retired = &generations[..generations.len() - 1];
        let handles = BucketHandles {
            newest: Some(newest),
            retired: find_retired(retired, limit),
        };
        // Dropping a store with many limits takes a while: not under the lock.
        drop(generations);
        drop(dropped);
        Ok(handles)
    }

    /// Retires the newest generation and begins another. Returns the generations to drop: the
    /// expired ones, and if there are still too many, the least recently used.
    fn begin_generation(
        &self,
        generations: &mut Vec<Generation<C>>,
    ) -> Result<Vec<Generation<C>>, TooManyLimitsError> {
        let newest = generations.last_mut().ok_or(TooManyLimitsError)?;
        let now = newest.store.now();
        let store = match &newest.store {
            AnyStore::Memory(store) => {
                let builder = MemoryStore::builder()
                    .max_keys(self.max_keys)
                    .clock(store.clock().clone());
                let builder = match self.max_bytes {
                    Some(bytes) => builder.max_bytes(bytes),
                    None => builder,
                };
                builder.try_build().map(AnyStore::Memory)
            }
            AnyStore::Redis(store) => store.with_own_limits().map(AnyStore::Redis),
        };
        let store = store.map_err(|_| TooManyLimitsError)?;
        let is_expired = |generation: &mut Generation<C>| {
            generation.is_retired && generation.matters_until <= now
        };
        let mut dropped: Vec<_> = generations.extract_if(.., is_expired).collect();
        if generations.len() > MAX_RETIRED {
            let retired = &generations[..generations.len() - 1];
            let last_used = |at: &usize| retired[*at].last_used.load(Relaxed);
            if let Some(at) = (0..retired.len()).min_by_key(last_used) {
                let evicted = generations.remove(at);
                let live = evicted.hand_over(&mut generations[..at], now);
                self.evicted.fetch_add(live, Relaxed);
                dropped.push(evicted);
            }
        }
        if let Some(newest) = generations.last_mut() {
            newest.retire(now);
        }
        generations.push(Generation::new(store));
        Ok(dropped)
    }
}

impl<C: Clock> Generation<C> {
    fn new(store: AnyStore<C>) -> Self {
        Self {
            store,
            limits: HashMap::new(),
            is_retired: false,
            matters_until: EPOCH,
            last_used: AtomicU64::new(0),
        }
    }

    /// Retires this generation. The store that counted during a Redis outage charges it afterwards,
    /// so the last one on Redis is retired as well, although its counts no longer matter.
    fn retire(&mut self, now: Timestamp) {
        self.is_retired = true;
        self.last_used = AtomicU64::new(now.as_unix_nanos());
        if matches!(self.store, AnyStore::Memory(_)) {
            for registered in self.limits.values_mut() {
                registered.matters_until = now + registered.refill_time;
                self.matters_until = self.matters_until.max(registered.matters_until);
            }
        }
    }

    /// Hands the limits of this evicted generation over to `older` generations that have them:
    /// those count them for as long as they would have mattered here. Returns the number of live
    /// limits that no older one has.
    fn hand_over(&self, older: &mut [Self], now: Timestamp) -> u64 {
        let mut live = 0;
        let still_matter = |(_, registered): &(_, &RegisteredLimit)| registered.matters_until > now;
        for (limit, registered) in self.limits.iter().filter(still_matter) {
            let until = registered.matters_until;
            let is_handed_over = older
                .iter_mut()
                .any(|older| older.extend(limit, now, until));
            live += u64::from(!is_handed_over);
        }
        live
    }

    /// Extends a limit that still matters until at least `until`; false if it does not matter.
    fn extend(&mut self, limit: &Limit, now: Timestamp, until: Timestamp) -> bool {
        let Some(registered) = self
            .limits
            .get_mut(limit)
            .filter(|registered| registered.matters_until > now)
        else {
            return false;
        };
        registered.matters_until = registered.matters_until.max(until);
        self.matters_until = self.matters_until.max(until);
        true
    }

    fn knows(&self, limit: &Limit) -> bool {
        self.limits.contains_key(limit)
    }

    fn find_limit(&self, limit: &Limit) -> Option<BucketHandle<C>> {
        Some((self.store.clone(), self.limits.get(limit)?.handle.clone()))
    }

    fn register(&mut self, limit: &Limit) -> Result<BucketHandle<C>, TooManyLimitsError> {
        if let Some(handle) = self.find_limit(limit) {
            return Ok(handle);
        }
        // On all nodes the name is the text of the limit.
        let handle = self
            .store
            .limit(&format!("throttle {limit}"), *limit)
            .map_err(|_| TooManyLimitsError)?;
        self.limits.insert(
            *limit,
            RegisteredLimit {
                handle: handle.clone(),
                refill_time: refill_time(limit),
                matters_until: EPOCH,
            },
        );
        Ok((self.store.clone(), handle))
    }
}

/// Handles in retired generations whose counts of a limit still matter. The oldest of them has
/// counted all of it and is marked as used.
fn find_retired<C: Clock>(retired: &[Generation<C>], limit: &Limit) -> Vec<BucketHandle<C>> {
    let mut handles = Vec::new();
    for generation in retired {
        let Some(registered) = generation.limits.get(limit) else {
            continue;
        };
        let now = generation.store.now();
        if now >= registered.matters_until {
            continue;
        }
        if handles.is_empty() {
            generation.last_used.store(now.as_unix_nanos(), Relaxed);
        }
        handles.extend(generation.find_limit(limit));
    }
    handles
}

/// Time in which an exhausted bucket becomes full; [`Duration::MAX`] if it never refills.
fn refill_time(limit: &Limit) -> Duration {
    // At the beginning of every window.
    let clock = ManualClock::starting_at(Timestamp::from_unix_nanos(0));
    let limiter = Limiter::with_clock(*limit, clock);
    // The refill time of a log is its window, whatever the cost; a large cost would be slow.
    let cost = if limit.algorithm_kind() == Algorithm::SlidingLog {
        1
    } else {
        limiter.peek().capacity()
    };
    limiter.check_n(cost).reset_after()
}

async fn ask<C: Clock>(
    (store, handle): &BucketHandle<C>,
    key: &str,
    cost: u64,
    mode: Mode,
) -> ThrottleDecision {
    let verdict = store
        .decide(&[Ask::new(handle, key).cost(cost).mode(mode)])
        .await;
    let decision = verdict
        .results()
        .next()
        .expect("one ask has one status")
        .decision();
    ThrottleDecision {
        decision,
        source: verdict.source(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use ratekeeper_redis::RedisStore;
    use ratekeeper_testkit::RedisServer;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn bucket(key: &str, limit: &str) -> Bucket {
        Bucket {
            key: key.to_owned(),
            limit: limit.parse().unwrap(),
        }
    }

    /// Polls once: in memory every call is ready at once.
    fn checked(
        buckets: &Buckets<ManualClock>,
        bucket: &Bucket,
        cost: u64,
        peek: bool,
    ) -> Result<Decision, TooManyLimitsError> {
        match pin!(buckets.check(bucket, cost, peek)).poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(checked) => checked.map(|checked| checked.decision),
            Poll::Pending => unreachable!(),
        }
    }

    fn buckets(max_keys: usize, max_limits: usize) -> (Buckets<ManualClock>, ManualClock) {
        let clock = ManualClock::new();
        let store = MemoryStore::builder()
            .max_keys(max_keys)
            .clock(clock.clone())
            .build();
        let mut config = Config::default().store;
        config.max_keys = (max_keys * STORE_SIZE_DIVISOR) as u64;
        (
            Buckets::new(AnyStore::Memory(store), max_limits, &config),
            clock,
        )
    }

    #[test]
    fn a_bucket_is_a_key_and_a_limit() {
        let (buckets, _) = buckets(10, 10);
        let remaining = |key, limit| {
            checked(&buckets, &bucket(key, limit), 1, false)
                .unwrap()
                .remaining()
        };
        assert_eq!(remaining("a", "60/min"), 59);
        assert_eq!(remaining("a", "60/60s"), 58);
        assert_eq!(remaining("a", "60/min burst 60 gcra"), 57);
        assert_eq!(remaining("b", "60/min"), 59);
        assert_eq!(remaining("a", "61/min"), 60);
        assert_eq!(remaining("a", "60/min leaky_bucket"), 59);
    }

    #[test]
    fn calls_that_change_no_state_register_no_limit() {
        let (buckets, _) = buckets(1, 10);
        assert_eq!(
            checked(&buckets, &bucket("a", "5/s"), 1, true)
                .unwrap()
                .remaining(),
            5
        );
        assert!(
            checked(&buckets, &bucket("b", "5/s"), 0, false)
                .unwrap()
                .is_allowed()
        );
        assert!(
            checked(&buckets, &bucket("c", "5/s"), 6, false)
                .unwrap()
                .is_never()
        );
        assert!(
            checked(&buckets, &bucket("d", "unlimited"), 7, false)
                .unwrap()
                .is_allowed()
        );
        assert!(
            checked(&buckets, &bucket("e", "0"), 1, false)
                .unwrap()
                .is_never()
        );
        let limits = || {
            buckets
                .generations
                .read()
                .unwrap()
                .iter()
                .map(|one| one.limits.len())
                .sum::<usize>()
        };
        assert_eq!(limits(), 0);
        assert!(
            checked(&buckets, &bucket("f", "5/s"), 1, false)
                .unwrap()
                .is_allowed()
        );
        assert_eq!(limits(), 1);
    }

    fn is_allowed(buckets: &Buckets<ManualClock>, key: &str, limit: &str) -> bool {
        checked(buckets, &bucket(key, limit), 1, false)
            .unwrap()
            .is_allowed()
    }

    /// Calls each limit once with another key.
    fn flood(buckets: &Buckets<ManualClock>, limits: impl Iterator<Item = String>) {
        for limit in limits {
            assert!(is_allowed(buckets, "stranger", &limit), "{limit}");
        }
    }

    /// With one limit a generation, three retired generations, and limits that take a minute to
    /// refill.
    #[test]
    fn with_too_many_limits_the_least_recently_used_is_evicted() {
        let (buckets, clock) = buckets(10, 1);
        let limits = [
            "1/min",
            "2/min burst 1",
            "3/min burst 1",
            "1/min fixed_window",
        ];
        for limit in limits {
            assert!(is_allowed(&buckets, "a", limit));
            assert!(!is_allowed(&buckets, "a", limit));
            clock.advance(Duration::from_nanos(1));
        }
        assert!(!is_allowed(&buckets, "a", limits[0]));
        assert_eq!(buckets.evicted(), 0);
        clock.advance(Duration::from_secs(15));
        assert!(is_allowed(&buckets, "a", "1/s"));
        assert_eq!(buckets.evicted(), 1);
        for limit in [limits[0], limits[2], limits[3]] {
            assert!(!is_allowed(&buckets, "a", limit), "{limit}");
        }
        // That one has one more burst.
        assert!(is_allowed(&buckets, "a", limits[1]));
        assert!(!is_allowed(&buckets, "a", limits[1]));
        clock.advance(Duration::from_secs(120));
        let before = buckets.evicted();
        for n in 1..100 {
            assert!(is_allowed(&buckets, "a", &format!("{n}/s burst 1")));
            clock.advance(Duration::from_secs(1));
        }
        assert_eq!(buckets.evicted(), before, "refilled limits are not counted");
    }

    #[test]
    fn limits_that_never_refill_are_evicted() {
        let (buckets, _) = buckets(10_000, 100);
        flood(&buckets, (1..=10_000).map(|n| format!("0/s burst {n}")));
        let generations = buckets.generations.read().unwrap();
        assert_eq!(generations.len(), MAX_RETIRED + 1);
        let registered: usize = generations.iter().map(|one| one.limits.len()).sum();
        assert_eq!(buckets.evicted() as usize, 10_000 - registered);
    }

    #[test]
    fn a_limit_in_use_is_not_evicted() {
        let (buckets, clock) = buckets(10_000, 100);
        let slow = "5/30d";
        assert!((0..5).all(|_| is_allowed(&buckets, "a", slow)));
        for round in 0..1_000 {
            clock.advance(Duration::from_millis(1));
            assert!(!is_allowed(&buckets, "a", slow), "round {round}");
            // A new key is counted from now on.
            assert!(is_allowed(
                &buckets,
                &format!("key {}", round % 100),
                "1000/d"
            ));
            let limits = (0..20).map(|n| format!("0/s burst {}", 1 + 20 * round + n));
            flood(&buckets, limits);
        }
        let left = checked(&buckets, &bucket("key 7", "1000/d"), 0, true);
        assert_eq!(left.unwrap().remaining(), 1_000 - 10);
        assert!(buckets.generations.read().unwrap().len() <= MAX_RETIRED + 1);
    }

    /// Each generation but the first counts a part of the charges of a limit in use, and most of
    /// them are evicted. The counts of the first one expire after an hour.
    #[test]
    fn older_generations_keep_counts_of_evicted_ones() {
        let (buckets, clock) = buckets(1_000, 10);
        let slow = "30/h burst 30";
        let reference = Limiter::with_clock(slow.parse().unwrap(), clock.clone());
        for minute in 0..300 {
            let decision = checked(&buckets, &bucket("a", slow), 1, false).unwrap();
            assert_eq!(decision, reference.check(), "minute {minute}");
            let limits = (0..11).map(|n| format!("0/s burst {}", 1 + 11 * minute + n));
            flood(&buckets, limits);
            clock.advance(Duration::from_secs(60));
        }
    }

    #[test]
    fn an_evicted_live_limit_gets_one_more_burst() {
        let (buckets, clock) = buckets(10_000, 100);
        let slow = "5/30d";
        assert!((0..5).all(|_| is_allowed(&buckets, "a", slow)));
        assert!(!is_allowed(&buckets, "a", slow));
        clock.advance(Duration::from_millis(1));
        flood(&buckets, (1..=1_000).map(|n| format!("0/s burst {n}")));
        let allowed = (0..100).filter(|_| is_allowed(&buckets, "a", slow)).count();
        assert_eq!(allowed, 5);
        assert!(buckets.evicted() >= 1);
    }

    /// A slow limit in use does not keep the other limits of its generation.
    #[test]
    fn a_slow_limit_pins_no_others() {
        let (buckets, clock) = buckets(10_000, 100);
        for n in 1..=10_000 {
            assert!(is_allowed(&buckets, "a", "1000000/30d"));
            assert!(is_allowed(&buckets, "a", &format!("{n}/s burst 1")));
            clock.advance(Duration::from_millis(20));
        }
        assert_eq!(buckets.evicted(), 0);
        let left = checked(&buckets, &bucket("a", "1000000/30d"), 0, true).unwrap();
        // 77 of them refill in 200 s.
        assert!((990_000..=990_100).contains(&left.remaining()), "{left:?}");
    }

    /// On Redis only registrations are dropped; the counts stay.
    #[test]
    fn on_redis_dropped_generations_lose_no_counts() {
        let redis = RedisServer::start();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let store = RedisStore::builder(redis.url())
                .timeout(Duration::from_secs(60))
                .max_keys(1_000)
                .connect()
                .await
                .unwrap();
            let store: AnyStore<ManualClock> = AnyStore::Redis(store);
            let buckets = Buckets::new(store, 50, &Config::default().store);
            let is_allowed = async |key: &str, limit: &str| {
                let checked = buckets.check(&bucket(key, limit), 1, false).await.unwrap();
                assert_eq!(checked.source, Source::Redis);
                checked.decision.is_allowed()
            };
            for _ in 0..5 {
                assert!(is_allowed("a", "5/30d").await);
            }
            for n in 1..=1_000 {
                assert!(
                    is_allowed("stranger", &format!("0/s burst {n}")).await,
                    "{n}"
                );
                let generations = buckets.generations.read().unwrap().len();
                assert!(generations <= 2, "{generations} generations after {n}");
            }
            assert_eq!(buckets.evicted(), 0);
            // Its registration was dropped long ago.
            assert!(!is_allowed("a", "5/30d").await);
        });
    }

    /// Compared with a single store, with limits that stay in use and new ones. (A window that
    /// begins with the first hit is left out: it begins again in the next generation, so it may
    /// end later.)
    #[test]
    fn replacing_generations_changes_no_decision() {
        let algorithms = [
            "burst 2",
            "burst 4",
            "fixed_window",
            "sliding_window",
            "sliding_window_strict",
            "sliding_log",
            "wait 2s",
        ];
        let (buckets, clock) = buckets(1_000, 20);
        let reference = MemoryStore::builder()
            .max_keys(1_000)
            .clock(clock.clone())
            .build();
        let mut handles: HashMap<String, LimitHandle> = HashMap::new();
        let mut random = fastrand::Rng::with_seed(7);
        let mut dropped = 0;
        for step in 0..40_000 {
            // Some limits stay in use, others are new.
            let rate = if random.u8(..3) == 0 {
                2 + random.usize(..2)
            } else {
                4 + step / 100
            };
            let limit = format!("{rate}/s {}", algorithms[random.usize(..algorithms.len())]);
            let bucket = bucket(["a", "b"][random.usize(..2)], &limit);
            let (cost, peek) = (random.u64(..3), random.u8(..4) == 0);
            clock.advance(Duration::from_millis(random.u64(..300)));
            let state = || {
                let generations = buckets.generations.read().unwrap();
                (generations.len(), generations.last().unwrap().limits.len())
            };
            let before = state();
            let decision = checked(&buckets, &bucket, cost, peek).unwrap();
            // A generation has begun, and their number did not grow.
            dropped += usize::from(state().1 < before.1 && state().0 <= before.0);
            let handle = handles
                .entry(limit)
                .or_insert_with(|| reference.limit("", bucket.limit).unwrap());
            let mode = if peek { Mode::Peek } else { Mode::Enforce };
            let ask = Ask::new(handle, &bucket.key).cost(cost).mode(mode);
            let expected = reference.decide_now(&[ask], clock.now());
            assert_eq!(
                decision,
                expected.results().next().unwrap().decision(),
                "step {step}: {bucket:?} {cost} {peek}"
            );
        }
        assert_eq!(buckets.evicted(), 0, "all had time to refill");
        assert!(dropped > 10, "{dropped} times some were dropped");
        assert!(buckets.generations.read().unwrap().len() <= MAX_RETIRED + 1);
    }

    #[test]
    fn a_bucket_is_full_again_after_its_refill_time() {
        let seconds = |limit: &str| refill_time(&limit.parse().unwrap()).as_secs_f64();
        for (limit, expected) in [
            ("10/s burst 20", 2.0),
            ("1/min burst 5", 300.0),
            ("5/min fixed_window", 60.0),
            ("5/min sliding_window", 120.0),
            ("1000000000/min sliding_log", 60.0),
            ("10/s queue 20", 2.1),
            ("43/s sliding_window_strict", 1.1),
        ] {
            assert!(
                (seconds(limit) - expected).abs() < 1e-6,
                "{limit}: {}",
                seconds(limit)
            );
        }
    }

    /// Keys that are evicted and return are allowed no more than their limit.
    #[test]
    fn more_keys_than_the_store_holds_stay_within_their_limits() {
        let (buckets, clock) = buckets(2, 1);
        let mut admitted = [0u64; 7];
        for step in 0..10_000usize {
            let key = step * step % 7;
            let decision = checked(&buckets, &bucket(&key.to_string(), "2/s"), 1, false).unwrap();
            admitted[key] += u64::from(decision.is_allowed());
            clock.advance(Duration::from_millis(37));
        }
        let max = 2 + 2 * 370;
        assert!(admitted.iter().all(|count| *count <= max), "{admitted:?}");
        assert!(admitted.iter().sum::<u64>() > 1_000, "{admitted:?}");
    }

    #[test]
    fn threads_share_a_bucket() {
        let (buckets, _) = buckets(10, 1);
        let admitted: usize = std::thread::scope(|scope| {
            let call = || {
                let passed = |_: &i32| {
                    checked(&buckets, &bucket("a", "50/s"), 1, false)
                        .unwrap()
                        .is_allowed()
                };
                (0..100).filter(passed).count()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(call)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert_eq!(admitted, 50);
    }
}
