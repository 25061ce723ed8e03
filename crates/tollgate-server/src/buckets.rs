//! The buckets of `POST /v1/throttle`: one for each (key, limit), all in one table of fixed size.

use crate::store::AnyStore;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};
use tollgate::{Ask, Clock, Decision, Limit, LimitHandle, Limiter, Mode, Source, Store};

/// How many different limits are told apart. Each is remembered for as long as the server runs.
pub(crate) const MOST_LIMITS: usize = 65_536;

/// What names a bucket. The limit includes the algorithm and is what was meant, not how it was spelt.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Bucket {
    pub(crate) key: String,
    pub(crate) limit: Limit,
}

/// What came of a call, and who decided it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Checked {
    pub(crate) decision: Decision,
    pub(crate) source: Source,
}

/// As many different limits as are told apart have been used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyLimits;

pub(crate) struct Buckets<C: Clock> {
    store: AnyStore<C>,
    most_limits: usize,
    limits: RwLock<HashMap<Limit, LimitHandle>>,
    allowed: AtomicU64,
    denied: AtomicU64,
}

impl<C: Clock> Buckets<C> {
    pub(crate) fn new(store: AnyStore<C>, most_limits: usize) -> Self {
        let zero = || AtomicU64::new(0);
        Self { store, most_limits, limits: RwLock::default(), allowed: zero(), denied: zero() }
    }

    /// How many calls passed, and how many were turned away. Peeks are not among them.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.allowed.load(Relaxed), self.denied.load(Relaxed))
    }

    /// Charges `cost` to the bucket if it fits; with `peek` it only says whether it would.
    pub(crate) async fn check(&self, bucket: &Bucket, cost: u64, peek: bool) -> Result<Checked, TooManyLimits> {
        let checked = self.judge(bucket, cost, peek).await?;
        if !peek {
            if checked.decision.is_allowed() { &self.allowed } else { &self.denied }.fetch_add(1, Relaxed);
        }
        Ok(checked)
    }

    async fn judge(&self, bucket: &Bucket, cost: u64, peek: bool) -> Result<Checked, TooManyLimits> {
        let Bucket { key, limit } = bucket;
        let handle = match (self.known(limit), &self.store) {
            (Some(handle), _) => handle,
            // Nobody else can have used it.
            (None, AnyStore::Memory(store)) => {
                let decision = Limiter::with_clock(*limit, store.clock().clone()).peek_n(cost);
                // What leaves no trace need not be remembered.
                if peek || cost == 0 || limit.is_unlimited() || decision.is_denied() {
                    return Ok(Checked { decision, source: Source::Memory });
                }
                self.register(limit)?
            }
            (None, AnyStore::Redis(_)) => self.register(limit)?,
        };
        let mode = if peek { Mode::Peek } else { Mode::Enforce };
        let verdict = self.store.decide(&[Ask::new(&handle, key).cost(cost).mode(mode)]).await;
        let decision = verdict.statuses().next().expect("one ask has one status").decision();
        Ok(Checked { decision, source: verdict.source() })
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
        // Other nodes know it by what it says.
        let handle = self.store.limit(&format!("throttle {limit}"), *limit).map_err(|_| TooManyLimits)?;
        limits.insert(*limit, handle.clone());
        Ok(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;
    use tollgate::{ManualClock, MemoryStore};

    fn bucket(key: &str, limit: &str) -> Bucket {
        Bucket { key: key.to_owned(), limit: limit.parse().unwrap() }
    }

    /// In memory there is nothing to wait for.
    fn checked(
        buckets: &Buckets<ManualClock>,
        bucket: &Bucket,
        cost: u64,
        peek: bool,
    ) -> Result<Decision, TooManyLimits> {
        match pin!(buckets.check(bucket, cost, peek)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(checked) => checked.map(|checked| checked.decision),
            Poll::Pending => unreachable!(),
        }
    }

    fn buckets(most_keys: usize, most_limits: usize) -> (Buckets<ManualClock>, ManualClock) {
        let clock = ManualClock::new();
        let store = MemoryStore::builder().max_keys(most_keys).clock(clock.clone()).build();
        (Buckets::new(AnyStore::Memory(store), most_limits), clock)
    }

    #[test]
    fn a_bucket_is_a_key_and_a_limit() {
        let (buckets, _) = buckets(10, 10);
        let remaining = |key, limit| checked(&buckets, &bucket(key, limit), 1, false).unwrap().remaining();
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
        assert_eq!(checked(&buckets, &bucket("a", "5/s"), 1, true).unwrap().remaining(), 5);
        assert!(checked(&buckets, &bucket("b", "5/s"), 0, false).unwrap().is_allowed());
        assert!(checked(&buckets, &bucket("c", "5/s"), 6, false).unwrap().is_never());
        assert!(checked(&buckets, &bucket("d", "unlimited"), 7, false).unwrap().is_allowed());
        assert!(checked(&buckets, &bucket("e", "0"), 1, false).unwrap().is_never());
        assert_eq!(checked(&buckets, &bucket("f", "5/s"), 1, false), Err(TooManyLimits));
    }

    #[test]
    fn limits_that_are_known_go_on_when_there_are_too_many() {
        let (buckets, _) = buckets(10, 1);
        assert!(checked(&buckets, &bucket("a", "1/s"), 1, false).unwrap().is_allowed());
        assert_eq!(checked(&buckets, &bucket("a", "2/s"), 1, false), Err(TooManyLimits));
        assert!(checked(&buckets, &bucket("b", "1/s"), 1, false).unwrap().is_allowed());
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
                let passed = |_: &i32| checked(&buckets, &bucket("a", "50/s"), 1, false).unwrap().is_allowed();
                (0..100).filter(passed).count()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(call)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, 50);
    }
}
