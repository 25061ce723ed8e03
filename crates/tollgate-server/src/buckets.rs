//! The buckets of `POST /v1/throttle`: one for each (key, limit), all in one table of fixed size.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};
use tollgate::{Ask, Clock, Decision, Limit, LimitHandle, Limiter, MemoryStore, Mode};

/// How many different limits are told apart. Each is remembered for as long as the server runs.
pub(crate) const MOST_LIMITS: usize = 65_536;

/// What names a bucket. The limit includes the algorithm and is what was meant, not how it was spelt.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Bucket {
    pub(crate) key: String,
    pub(crate) limit: Limit,
}

/// As many different limits as are told apart have been used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyLimits;

pub(crate) struct Buckets<C: Clock> {
    store: MemoryStore<C>,
    most_limits: usize,
    limits: RwLock<HashMap<Limit, LimitHandle>>,
    allowed: AtomicU64,
    denied: AtomicU64,
}

impl<C: Clock> Buckets<C> {
    pub(crate) fn new(store: MemoryStore<C>, most_limits: usize) -> Self {
        let zero = || AtomicU64::new(0);
        Self { store, most_limits, limits: RwLock::default(), allowed: zero(), denied: zero() }
    }

    /// How many calls passed, and how many were turned away. Peeks are not among them.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.allowed.load(Relaxed), self.denied.load(Relaxed))
    }

    /// Charges `cost` to the bucket if it fits; with `peek` it only says whether it would.
    pub(crate) fn check(&self, bucket: &Bucket, cost: u64, peek: bool) -> Result<Decision, TooManyLimits> {
        let decision = self.judge(bucket, cost, peek)?;
        if !peek {
            if decision.is_allowed() { &self.allowed } else { &self.denied }.fetch_add(1, Relaxed);
        }
        Ok(decision)
    }

    fn judge(&self, bucket: &Bucket, cost: u64, peek: bool) -> Result<Decision, TooManyLimits> {
        let Bucket { key, limit } = bucket;
        let Some(handle) = self.known(limit) else {
            let fresh = Limiter::with_clock(*limit, self.store.clock().clone());
            let would = fresh.peek_n(cost);
            // What leaves no trace need not be remembered.
            if peek || cost == 0 || limit.is_unlimited() || would.is_denied() {
                return Ok(would);
            }
            return Ok(self.decide(&self.register(limit)?, key, cost, peek));
        };
        Ok(self.decide(&handle, key, cost, peek))
    }

    fn decide(&self, handle: &LimitHandle, key: &str, cost: u64, peek: bool) -> Decision {
        let mode = if peek { Mode::Peek } else { Mode::Enforce };
        let ask = Ask::new(handle, key).cost(cost).mode(mode);
        let verdict = self.store.decide_now(&[ask], self.store.clock().now());
        verdict.statuses().next().expect("one ask has one status").decision()
    }

    fn known(&self, limit: &Limit) -> Option<LimitHandle> {
        self.limits.read().unwrap_or_else(PoisonError::into_inner).get(limit).cloned()
    }

    fn register(&self, limit: &Limit) -> Result<LimitHandle, TooManyLimits> {
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = limits.get(limit) {
            return Ok(handle.clone());
        }
        if limits.len() >= self.most_limits {
            return Err(TooManyLimits);
        }
        let handle = self.store.limit("throttle", *limit).map_err(|_| TooManyLimits)?;
        limits.insert(*limit, handle.clone());
        Ok(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tollgate::ManualClock;

    fn bucket(key: &str, limit: &str) -> Bucket {
        Bucket { key: key.to_owned(), limit: limit.parse().unwrap() }
    }

    fn buckets(most_keys: usize, most_limits: usize) -> (Buckets<ManualClock>, ManualClock) {
        let clock = ManualClock::new();
        let store = MemoryStore::builder().max_keys(most_keys).clock(clock.clone()).build();
        (Buckets::new(store, most_limits), clock)
    }

    #[test]
    fn a_bucket_is_a_key_and_a_limit() {
        let (buckets, _) = buckets(10, 10);
        let remaining = |key, limit| buckets.check(&bucket(key, limit), 1, false).unwrap().remaining();
        assert_eq!(remaining("a", "60/min"), 59);
        assert_eq!(remaining("a", "60/60s"), 58);
        assert_eq!(remaining("a", "60/min burst 60 gcra"), 57);
        assert_eq!(remaining("b", "60/min"), 59);
        assert_eq!(remaining("a", "61/min"), 60);
        assert_eq!(remaining("a", "60/min leaky_bucket"), 59);
    }

    #[test]
    fn what_leaves_no_trace_takes_no_room() {
        let (buckets, _) = buckets(1, 0);
        assert_eq!(buckets.check(&bucket("a", "5/s"), 1, true).unwrap().remaining(), 5);
        assert!(buckets.check(&bucket("b", "5/s"), 0, false).unwrap().is_allowed());
        assert!(buckets.check(&bucket("c", "5/s"), 6, false).unwrap().is_never());
        assert!(buckets.check(&bucket("d", "unlimited"), 7, false).unwrap().is_allowed());
        assert!(buckets.check(&bucket("e", "0"), 1, false).unwrap().is_never());
        assert_eq!(buckets.check(&bucket("f", "5/s"), 1, false), Err(TooManyLimits));
    }

    #[test]
    fn limits_that_are_known_go_on_when_there_are_too_many() {
        let (buckets, _) = buckets(10, 1);
        assert!(buckets.check(&bucket("a", "1/s"), 1, false).unwrap().is_allowed());
        assert_eq!(buckets.check(&bucket("a", "2/s"), 1, false), Err(TooManyLimits));
        assert!(buckets.check(&bucket("b", "1/s"), 1, false).unwrap().is_allowed());
    }

    /// Forgetting and coming back admits no more than one bucket would.
    #[test]
    fn a_crowd_on_few_places_is_admitted_what_its_limits_say() {
        let (buckets, clock) = buckets(2, 1);
        let mut admitted = [0u64; 7];
        for step in 0..10_000usize {
            let who = step * step % 7;
            let decision = buckets.check(&bucket(&who.to_string(), "2/s"), 1, false).unwrap();
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
                let passed = |_: &i32| buckets.check(&bucket("a", "50/s"), 1, false).unwrap().is_allowed();
                (0..100).filter(passed).count()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(call)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, 50);
    }
}
