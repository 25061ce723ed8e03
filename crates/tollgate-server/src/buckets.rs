//! The buckets: one limiter for each (key, limit), in a map that never holds more than it may.
//!
//! Only what a fresh limiter would not know is kept. A bucket that has filled up again is as good as new, so it can be
//! dropped, and one that was only asked about is never put in.

use std::cmp::{Ordering, Reverse};
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tollgate::{Clock, Decision, Instant, Limit, Limiter};

/// How many buckets a server holds, until keyed limiters do it in bounded bytes.
pub(crate) const MOST_BUCKETS: usize = 100_000;

/// Buckets that each newcomer looks at, to drop those that are fresh: more than one, so that the map shrinks when it can.
const LOOKS: usize = 2;

/// And as many it looks at while there is no room: less than a millisecond, for which everybody waits.
const LOOKS_WHEN_FULL: usize = 1_000;

/// What names a bucket. The limit includes the algorithm and is what was meant, not how it was spelt.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Bucket {
    pub(crate) key: String,
    pub(crate) limit: Limit,
}

/// There is no room for another bucket: none that was looked at has filled up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full {
    /// None will before that; zero if there are some still to be looked at.
    pub(crate) retry_after: Duration,
}

pub(crate) struct Buckets<C: Clock> {
    most: usize,
    clock: C,
    table: Mutex<Table<C>>,
}

struct Table<C: Clock> {
    limiters: HashMap<Arc<Bucket>, Limiter<C>>,
    /// Every bucket once, the first that may be fresh on top.
    queue: BinaryHeap<Reverse<Queued>>,
}

/// A bucket that is not fresh before `at`. Calls since then may have put that off; whoever comes to it looks.
struct Queued {
    at: Instant,
    bucket: Arc<Bucket>,
}

impl<C: Clock> Buckets<C> {
    pub(crate) fn new(most: usize, clock: C) -> Self {
        let table = Table { limiters: HashMap::new(), queue: BinaryHeap::new() };
        Self { most, clock, table: Mutex::new(table) }
    }

    /// Charges `cost` to the bucket if it fits.
    pub(crate) fn check(&self, bucket: Bucket, cost: u64) -> Result<Decision, Full> {
        // Held while deciding: a limiter must not be dropped as fresh between being found and being charged.
        let mut table = self.lock();
        if let Some(limiter) = table.limiters.get(&bucket) {
            return Ok(limiter.check_n(cost));
        }
        let limiter = Limiter::with_clock(bucket.limit, self.clock.clone());
        let decision = limiter.check_n(cost);
        if decision.reset_after().is_zero() {
            return Ok(decision);
        }
        let now = self.clock.now();
        table.make_room(self.most, now)?;
        let bucket = Arc::new(bucket);
        table.queue.push(Reverse(Queued { at: now + decision.reset_after(), bucket: Arc::clone(&bucket) }));
        table.limiters.insert(bucket, limiter);
        Ok(decision)
    }

    /// What [`check`](Self::check) would say if there were room, without charging.
    pub(crate) fn peek(&self, bucket: &Bucket, cost: u64) -> Decision {
        match self.lock().limiters.get(bucket) {
            Some(limiter) => limiter.peek_n(cost),
            None => Limiter::with_clock(bucket.limit, self.clock.clone()).peek_n(cost),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table<C>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clock> Table<C> {
    /// Drops fresh buckets, in bounded time. A map that is full of buckets charged since they were queued may turn some
    /// away in vain, `most / LOOKS_WHEN_FULL` at the most: each leaves those it looked at queued for later.
    fn make_room(&mut self, most: usize, now: Instant) -> Result<(), Full> {
        for look in 0..LOOKS_WHEN_FULL {
            let enough = look >= LOOKS && self.limiters.len() < most;
            if enough || !self.look_at_the_first(now) {
                break;
            }
        }
        if self.limiters.len() < most {
            return Ok(());
        }
        let first = self.queue.peek().map_or(Duration::MAX, |Reverse(first)| first.at - now);
        Err(Full { retry_after: first })
    }

    /// Drops the first bucket of the queue if it is fresh and queues it anew if not; false if its time has not come.
    fn look_at_the_first(&mut self, now: Instant) -> bool {
        let Some(mut first) = self.queue.peek_mut().filter(|first| first.0.at <= now) else { return false };
        let limiter = self.limiters.get(&first.0.bucket);
        let left = limiter.map_or(Duration::ZERO, |limiter| limiter.peek_n(0).reset_after());
        if left.is_zero() {
            let Reverse(fresh) = PeekMut::pop(first);
            self.limiters.remove(&fresh.bucket);
        } else {
            first.0.at = now + left;
        }
        true
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Queued {}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::ManualClock;

    fn bucket(key: &str, limit: &str) -> Bucket {
        Bucket { key: key.to_owned(), limit: limit.parse().unwrap() }
    }

    fn buckets(most: usize) -> (Buckets<ManualClock>, ManualClock) {
        let clock = ManualClock::new();
        (Buckets::new(most, clock.clone()), clock)
    }

    fn held<C: Clock>(buckets: &Buckets<C>) -> usize {
        let table = buckets.lock();
        assert_eq!(table.limiters.len(), table.queue.len());
        table.limiters.len()
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_bucket_is_a_key_and_a_limit() {
        let (buckets, _) = buckets(10);
        let remaining = |key, limit| buckets.check(bucket(key, limit), 1).unwrap().remaining();
        assert_eq!(remaining("a", "60/min"), 59);
        assert_eq!(remaining("a", "60/60s"), 58);
        assert_eq!(remaining("a", "60/min burst 60 gcra"), 57);
        assert_eq!(remaining("b", "60/min"), 59);
        assert_eq!(remaining("a", "61/min"), 60);
        assert_eq!(remaining("a", "60/min leaky_bucket"), 59);
    }

    #[test]
    fn what_leaves_no_trace_takes_no_room() {
        let (buckets, _) = buckets(1);
        assert_eq!(buckets.peek(&bucket("a", "5/s"), 1).remaining(), 5);
        assert!(buckets.check(bucket("b", "5/s"), 0).unwrap().is_allowed());
        assert!(buckets.check(bucket("c", "5/s"), 6).unwrap().is_never());
        assert!(buckets.check(bucket("d", "unlimited"), 7).unwrap().is_allowed());
        assert!(buckets.check(bucket("e", "0"), 1).unwrap().is_never());
        assert_eq!(held(&buckets), 0);
    }

    #[test]
    fn a_full_map_turns_newcomers_away_and_says_until_when() {
        let (buckets, clock) = buckets(2);
        let _ = buckets.check(bucket("slow", "1/min"), 1).unwrap();
        let _ = buckets.check(bucket("quick", "1/s"), 1).unwrap();
        assert_eq!(buckets.check(bucket("new", "1/s"), 1), Err(Full { retry_after: seconds(1) }));
        // Who is in is still served, and a question needs no room.
        assert!(buckets.check(bucket("slow", "1/min"), 1).unwrap().is_denied());
        assert!(buckets.peek(&bucket("new", "1/s"), 1).is_allowed());

        clock.advance(seconds(1) - Duration::from_nanos(1));
        assert_eq!(buckets.check(bucket("new", "1/s"), 1), Err(Full { retry_after: Duration::from_nanos(1) }));
        clock.advance(Duration::from_nanos(1));
        assert!(buckets.check(bucket("new", "1/s"), 1).unwrap().is_allowed());
        assert_eq!(held(&buckets), 2);
    }

    #[test]
    fn only_fresh_buckets_are_dropped() {
        let (buckets, clock) = buckets(2);
        let _ = buckets.check(bucket("busy", "2/s"), 1).unwrap();
        let _ = buckets.check(bucket("done", "1/2s"), 1).unwrap();
        clock.advance(Duration::from_millis(1_900));
        // Queued as fresh after half a second, but charged since.
        let _ = buckets.check(bucket("busy", "2/s"), 2).unwrap();
        clock.advance(Duration::from_millis(100));
        assert!(buckets.check(bucket("new", "1/s"), 1).unwrap().is_allowed());
        let table = buckets.lock();
        let mut keys: Vec<_> = table.limiters.keys().map(|bucket| bucket.key.as_str()).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["busy", "new"]);
    }

    #[test]
    fn newcomers_make_the_map_smaller_when_it_can_be() {
        let (buckets, clock) = buckets(100);
        for key in 0..50 {
            let _ = buckets.check(bucket(&key.to_string(), "1/s"), 1).unwrap();
        }
        clock.advance(seconds(1));
        for key in 50..100 {
            let _ = buckets.check(bucket(&key.to_string(), "1/min"), 1).unwrap();
        }
        assert_eq!(held(&buckets), 50);
    }

    /// Everything queued is due and not fresh but the last: what a newcomer may find at worst.
    #[test]
    fn few_are_turned_away_in_vain() {
        let most = 3 * LOOKS_WHEN_FULL;
        let (buckets, clock) = buckets(most);
        let call = |key: usize| buckets.check(bucket(&key.to_string(), "2/2s"), 1);
        for key in 1..most {
            let _ = call(key).unwrap();
        }
        clock.advance(Duration::from_millis(1));
        let _ = call(0).unwrap();
        clock.advance(Duration::from_millis(998));
        for key in 1..most {
            let _ = call(key).unwrap();
        }
        clock.advance(Duration::from_millis(2));
        let in_vain = (0..).take_while(|_| call(most).is_err()).count();
        assert_eq!(in_vain, most / LOOKS_WHEN_FULL - 1);
        assert_eq!(held(&buckets), most);
    }

    #[test]
    fn what_never_refills_is_never_dropped() {
        let (buckets, clock) = buckets(1);
        assert!(buckets.check(bucket("a", "0 burst 2"), 1).unwrap().is_allowed());
        clock.advance(seconds(1_000_000_000));
        assert!(buckets.check(bucket("b", "1/s"), 1).is_err());
        assert_eq!(buckets.check(bucket("a", "0 burst 2"), 1).unwrap().remaining(), 0);
    }

    #[test]
    fn a_map_that_holds_nothing_turns_everyone_away() {
        let (buckets, _) = buckets(0);
        assert!(buckets.check(bucket("a", "1/s"), 1).is_err());
    }

    /// The bound of the module's promise: dropping and coming back admits no more than one bucket would.
    #[test]
    fn a_crowd_on_few_places_is_admitted_what_its_limits_say() {
        let (buckets, clock) = buckets(3);
        let mut admitted = [0u64; 7];
        for step in 0..10_000usize {
            let who = step * step % 7;
            if buckets.check(bucket(&who.to_string(), "2/s"), 1).is_ok_and(|decision| decision.is_allowed()) {
                admitted[who] += 1;
            }
            clock.advance(Duration::from_millis(37));
        }
        let most = 2 + 2 * 370;
        assert!(admitted.iter().all(|many| *many <= most), "{admitted:?}");
        assert!(admitted.iter().sum::<u64>() > 1_000, "{admitted:?}");
        assert!(held(&buckets) <= 3);
    }

    #[test]
    fn threads_share_a_bucket() {
        let (buckets, _) = buckets(10);
        let admitted: usize = std::thread::scope(|scope| {
            let call = || (0..100).filter(|_| buckets.check(bucket("a", "50/s"), 1).unwrap().is_allowed()).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(call)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, 50);
    }
}
