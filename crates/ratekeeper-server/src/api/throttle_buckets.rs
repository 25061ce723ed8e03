//! The buckets of `POST /v1/throttle`: one for each (key, limit).
//!
//! A store knows a limit for as long as it lives. So that callers with ever new limits do not run
//! out of them, limits are registered with *generations*: when one has as many limits as it takes,
//! it is retired, and the next one has a store of its own. In memory a retired generation has
//! counts that still matter: until its limits have had time to refill, their calls are charged in
//! both, and allowed if both allow them. Whatever was counted before the change is then over, and
//! the retired store is dropped: no decision is another than with one store (but a window that
//! begins with the first hit may end later). On Redis the counts are not in the generation, and
//! nothing has to be waited for.
//!
//! There are a few generations at most. With one more the least recently used is evicted, whether
//! its limits have refilled or not: those that have not are counted, and each of their keys may get
//! one more burst.

use crate::store::AnyStore;
use ratekeeper::{
    Algorithm, Ask, Clock, Decision, Limit, Limiter, ManualClock, MemoryStore, Mode, Store,
    Timestamp, store::LimitHandle, store::Source,
};
use ratekeeper_policy::config::StoreConfig;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

/// How many different limits one generation tells apart.
pub(crate) const MAX_LIMITS: usize = 65_536;
/// How many generations may be retired and not yet dropped. Those that are used are kept, so
/// limits that are in use stay exact as long as there are not too many of them.
const MAX_RETIRED: usize = 3;
/// The stores of later generations are smaller by this factor than the store that all keys share.
const SMALLER: usize = 4;

/// Earlier than any call.
const BEFORE: Timestamp = Timestamp::from_unix_nanos(0);

/// What names a bucket. The limit includes the algorithm and is what was meant, not how it was
/// spelt.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Bucket {
    pub(crate) key: String,
    pub(crate) limit: Limit,
}

/// A decision, and which store made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ThrottleDecision {
    pub(crate) decision: Decision,
    pub(crate) source: Source,
}

/// A limit could not be registered: no store could be made for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyLimitsError;

pub(crate) struct Buckets<C: Clock> {
    /// The last one takes new limits; the others are retired, oldest first.
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
    limits: HashMap<Limit, Registered>,
    /// Whether the next one has taken over.
    is_retired: bool,
    /// The latest of its limits' `matters_until`.
    matters_until: Timestamp,
    /// When a limit was decided on of which no older generation knows: in nanoseconds, and known
    /// once the generation is retired.
    last_used: AtomicU64,
}

struct Registered {
    handle: LimitHandle,
    refill_time: Duration,
    /// When all that only this generation and those before it have counted is over. It is known
    /// once the generation is retired.
    matters_until: Timestamp,
}

/// A registered limit, and the store that counts it.
type Place<C> = (AnyStore<C>, LimitHandle);

/// The generations that count a limit.
struct Counted<C: Clock> {
    newest: Option<Place<C>>,
    /// Retired generations whose counts still matter, oldest first.
    retired: Vec<Place<C>>,
}

impl<C: Clock> Counted<C> {
    const NOWHERE: Self = Self {
        newest: None,
        retired: Vec::new(),
    };

    /// All of them, the oldest first.
    fn places(&self) -> impl Iterator<Item = &Place<C>> {
        self.retired.iter().chain(&self.newest)
    }
}

impl<C: Clock> Buckets<C> {
    /// Buckets in the store that is shared with all else; `config` bounds the stores that come
    /// after it.
    pub(crate) fn new(store: AnyStore<C>, max_limits: usize, config: &StoreConfig) -> Self {
        let smaller = |cap: u64| usize::try_from(cap).unwrap_or(usize::MAX) / SMALLER;
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

    /// How many calls were allowed, and how many were denied. Peeks are not among them.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.allowed.load(Relaxed), self.denied.load(Relaxed))
    }

    /// How many limits were evicted before their buckets had time to refill: each key of theirs may
    /// have got one more burst.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    /// Charges `cost` to the bucket if it fits; with `peek` it only says whether it would.
    pub(crate) async fn check(
        &self,
        bucket: &Bucket,
        cost: u64,
        peek: bool,
    ) -> Result<ThrottleDecision, TooManyLimitsError> {
        let checked = self.decide(bucket, cost, peek).await?;
        if !peek {
            if checked.decision.is_allowed() {
                &self.allowed
            } else {
                &self.denied
            }
            .fetch_add(1, Relaxed);
        }
        Ok(checked)
    }

    async fn decide(
        &self,
        bucket: &Bucket,
        cost: u64,
        peek: bool,
    ) -> Result<ThrottleDecision, TooManyLimitsError> {
        let Bucket { key, limit } = bucket;
        let mut counted = self.find(limit);
        if counted.newest.is_none()
            && counted.retired.is_empty()
            && let Some(decision) = self.decide_untouched(limit, cost, peek)
        {
            return Ok(ThrottleDecision {
                decision,
                source: Source::Memory,
            });
        }
        if !counted.retired.is_empty() {
            // All of them are charged, or none.
            for place in counted.places() {
                let checked = ask(place, key, cost, Mode::Peek).await;
                if !checked.decision.is_allowed() {
                    return Ok(checked);
                }
            }
        }
        // What is denied leaves no trace, and so does a peek.
        if counted.newest.is_none() && (!peek || counted.retired.is_empty()) {
            counted = self.register(limit)?;
        }
        let mut places = counted.places();
        let Some(oldest) = places.next() else {
            return Err(TooManyLimitsError);
        };
        let mode = if peek { Mode::Peek } else { Mode::Enforce };
        // The oldest has counted the most: its decision holds unless a younger one denies.
        let mut checked = ask(oldest, key, cost, mode).await;
        if checked.decision.is_allowed() {
            for place in places {
                let younger = ask(place, key, cost, mode).await;
                if !younger.decision.is_allowed() {
                    checked = younger;
                }
            }
        }
        Ok(checked)
    }

    /// The decision of a bucket that has never been charged in memory, if it leaves no trace: then
    /// its limit need not be registered.
    fn decide_untouched(&self, limit: &Limit, cost: u64, peek: bool) -> Option<Decision> {
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

    fn find(&self, limit: &Limit) -> Counted<C> {
        let generations = self
            .generations
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let Some((newest, retired)) = generations.split_last() else {
            return Counted::NOWHERE;
        };
        Counted {
            newest: newest.place(limit),
            retired: places(retired, limit),
        }
    }

    /// Makes the newest generation count a limit.
    fn register(&self, limit: &Limit) -> Result<Counted<C>, TooManyLimitsError> {
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
            // The first store has limits of others as well: it may be full before it is.
            Err(_) => {
                dropped.extend(self.begin_generation(&mut generations)?);
                register(&mut generations)?
            }
        };
        let retired = &generations[..generations.len() - 1];
        let counted = Counted {
            newest: Some(newest),
            retired: places(retired, limit),
        };
        // A store with many limits takes a while to drop: nobody waits for that.
        drop(generations);
        drop(dropped);
        Ok(counted)
    }

    /// Retires the newest generation and begins another. Returns those that are dropped for it:
    /// those that are over, and if there are still too many, the least recently used.
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
        let is_over = |generation: &mut Generation<C>| {
            generation.is_retired && generation.matters_until <= now
        };
        let mut dropped: Vec<_> = generations.extract_if(.., is_over).collect();
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
            matters_until: BEFORE,
            last_used: AtomicU64::new(0),
        }
    }

    /// Another takes over. What a node has spent while Redis was away is charged by the store that
    /// counted it, so the last one on Redis is kept as well, though nothing in it matters any more.
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

    /// It is evicted: what an `older` generation has counted as well, that one goes on counting for
    /// as long as it would have mattered here. Returns how many limits are live and in no older one.
    fn hand_over(&self, older: &mut [Self], now: Timestamp) -> u64 {
        let mut live = 0;
        let still_matter = |(_, registered): &(_, &Registered)| registered.matters_until > now;
        for (limit, registered) in self.limits.iter().filter(still_matter) {
            let until = registered.matters_until;
            let is_handed_over = older
                .iter_mut()
                .any(|older| older.extend(limit, now, until));
            live += u64::from(!is_handed_over);
        }
        live
    }

    /// A limit that matters now matters until then, at least; false if it does not.
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

    fn place(&self, limit: &Limit) -> Option<Place<C>> {
        Some((self.store.clone(), self.limits.get(limit)?.handle.clone()))
    }

    fn register(&mut self, limit: &Limit) -> Result<Place<C>, TooManyLimitsError> {
        if let Some(place) = self.place(limit) {
            return Ok(place);
        }
        // Other nodes know it by what it says.
        let registered = self.store.limit(&format!("throttle {limit}"), *limit);
        let handle = registered.map_err(|_| TooManyLimitsError)?;
        let (refill_time, matters_until) = (refill_time(limit), BEFORE);
        self.limits.insert(
            *limit,
            Registered {
                handle: handle.clone(),
                refill_time,
                matters_until,
            },
        );
        Ok((self.store.clone(), handle))
    }
}

/// Where retired generations count a limit, if that still matters. The oldest of them has counted
/// all of it, and is in use by it.
fn places<C: Clock>(retired: &[Generation<C>], limit: &Limit) -> Vec<Place<C>> {
    let mut places = Vec::new();
    for generation in retired {
        let Some(registered) = generation.limits.get(limit) else {
            continue;
        };
        let now = generation.store.now();
        if now >= registered.matters_until {
            continue;
        }
        if places.is_empty() {
            generation.last_used.store(now.as_unix_nanos(), Relaxed);
        }
        places.extend(generation.place(limit));
    }
    places
}

/// How long a bucket takes from the fullest use to unused; [`Duration::MAX`] if it never refills.
fn refill_time(limit: &Limit) -> Duration {
    // At the beginning of every window.
    let clock = ManualClock::starting_at(Timestamp::from_unix_nanos(0));
    let limiter = Limiter::with_clock(*limit, clock);
    // A log is as long as its window, however much is in it, and would have to be written down.
    let most = if limit.algorithm_kind() == Algorithm::SlidingLog {
        1
    } else {
        limiter.peek().capacity()
    };
    limiter.check_n(most).reset_after()
}

async fn ask<C: Clock>(
    (store, handle): &Place<C>,
    key: &str,
    cost: u64,
    mode: Mode,
) -> ThrottleDecision {
    let verdict = store
        .decide(&[Ask::new(handle, key).cost(cost).mode(mode)])
        .await;
    let decision = verdict
        .statuses()
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
    use ratekeeper_policy::config::Config;
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

    /// In memory there is nothing to wait for.
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

    fn buckets(most_keys: usize, most_limits: usize) -> (Buckets<ManualClock>, ManualClock) {
        let clock = ManualClock::new();
        let store = MemoryStore::builder()
            .max_keys(most_keys)
            .clock(clock.clone())
            .build();
        let mut config = Config::default().store;
        config.max_keys = (most_keys * SMALLER) as u64;
        (
            Buckets::new(AnyStore::Memory(store), most_limits, &config),
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
    fn what_leaves_no_trace_takes_no_room() {
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

    /// Each of these is a stranger's, who never comes back.
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
        assert_eq!(buckets.evicted(), before, "those that refill are no loss");
    }

    #[test]
    fn limits_that_never_refill_never_fill_the_endpoint() {
        let (buckets, _) = buckets(10_000, 100);
        flood(&buckets, (1..=10_000).map(|n| format!("0/s burst {n}")));
        let generations = buckets.generations.read().unwrap();
        assert_eq!(generations.len(), MAX_RETIRED + 1);
        let kept: usize = generations.iter().map(|one| one.limits.len()).sum();
        assert_eq!(buckets.evicted() as usize, 10_000 - kept);
    }

    #[test]
    fn a_limit_in_use_outlives_any_flood() {
        let (buckets, clock) = buckets(10_000, 100);
        let slow = "5/30d";
        assert!((0..5).all(|_| is_allowed(&buckets, "a", slow)));
        for round in 0..1_000 {
            clock.advance(Duration::from_millis(1));
            assert!(!is_allowed(&buckets, "a", slow), "round {round}");
            // A key that comes only now is counted from now on.
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

    /// Each generation but the first counts a part of what a limit in use was charged, and most of
    /// them are evicted. What the first one counted is over after an hour.
    #[test]
    fn what_an_evicted_generation_counted_as_well_is_not_lost() {
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
    fn a_live_limit_that_is_evicted_is_worth_one_more_burst() {
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

    /// A slow limit that is in use does not keep those that came with it.
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
        // 200 s bring back 77 of them.
        assert!((990_000..=990_100).contains(&left.remaining()), "{left:?}");
    }

    /// On a Redis of its own: the counts are there, and only registrations go.
    #[test]
    fn on_redis_retired_limits_are_forgotten_and_no_count_is_lost() {
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
            // It was forgotten long ago.
            assert!(!is_allowed("a", "5/30d").await);
        });
    }

    /// Against a store that never forgets a limit, with limits that stay in use and ever new ones.
    /// (A window that begins with the first hit is left out: it begins again in the next
    /// generation, so it may end later.)
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
            // Some limits all the time, and ever new ones.
            let rate = if random.u8(..3) == 0 {
                2 + random.usize(..2)
            } else {
                4 + step / 100
            };
            let limit = format!("{rate}/s {}", algorithms[random.usize(..algorithms.len())]);
            let bucket = bucket(["a", "b"][random.usize(..2)], &limit);
            let (cost, peek) = (random.u64(..3), random.u8(..4) == 0);
            clock.advance(Duration::from_millis(random.u64(..300)));
            let kept = || {
                let generations = buckets.generations.read().unwrap();
                (generations.len(), generations.last().unwrap().limits.len())
            };
            let before = kept();
            let decision = checked(&buckets, &bucket, cost, peek).unwrap();
            // One more generation has begun, and there are no more of them.
            dropped += usize::from(kept().1 < before.1 && kept().0 <= before.0);
            let handle = handles
                .entry(limit)
                .or_insert_with(|| reference.limit("", bucket.limit).unwrap());
            let mode = if peek { Mode::Peek } else { Mode::Enforce };
            let ask = Ask::new(handle, &bucket.key).cost(cost).mode(mode);
            let expected = reference.decide_now(&[ask], clock.now());
            assert_eq!(
                decision,
                expected.statuses().next().unwrap().decision(),
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

    /// Forgetting and coming back admits no more than one bucket would.
    #[test]
    fn a_crowd_on_few_places_is_admitted_what_its_limits_say() {
        let (buckets, clock) = buckets(2, 1);
        let mut admitted = [0u64; 7];
        for step in 0..10_000usize {
            let who = step * step % 7;
            let decision = checked(&buckets, &bucket(&who.to_string(), "2/s"), 1, false).unwrap();
            admitted[who] += u64::from(decision.is_allowed());
            clock.advance(Duration::from_millis(37));
        }
        let most = 2 + 2 * 370;
        assert!(admitted.iter().all(|many| *many <= most), "{admitted:?}");
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
