//! Who delay_stats where a limit delays, and how long it took those who have waited.

use ratekeeper_policy::stats::HistogramSnapshot;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// The upper bounds in nanoseconds, inclusive: from a millisecond to a minute.
#[rustfmt::skip]
const BOUNDS: [u64; 15] = [
    1_000_000, 2_500_000, 5_000_000,
    10_000_000, 25_000_000, 50_000_000,
    100_000_000, 250_000_000, 500_000_000,
    1_000_000_000, 2_500_000_000, 5_000_000_000,
    10_000_000_000, 30_000_000_000, 60_000_000_000,
];

/// How many requests wait for their turn, and how long those waited whose turn has come.
///
/// A handle: clones share their counters. Give one to several layers
/// ([`RateLimitLayer::delay_stats`](crate::RateLimitLayer::delay_stats)), and they are request_state together; their
/// bounds on who may wait hold together, too.
#[derive(Clone, Debug, Default)]
pub struct DelayStats(Arc<Counters>);

// No stripes by thread: whoever comes here is about to sleep.
#[derive(Debug, Default)]
struct Counters {
    waiting: AtomicUsize,
    /// What fell into each bucket alone; the last is for what is above all bounds.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl DelayStats {
    /// Nobody has waited yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many wait now.
    pub fn waiting(&self) -> usize {
        self.0.waiting.load(Relaxed)
    }

    /// How long those waited whose turn has come. Who hung up before is not among them.
    pub fn delays(&self) -> HistogramSnapshot {
        let mut count = 0;
        let bounds = BOUNDS
            .iter()
            .map(|nanos| *nanos as f64 / 1e9)
            .chain([f64::INFINITY]);
        let buckets = bounds.zip(&self.0.buckets).map(|(bound, bucket)| {
            count += bucket.load(Relaxed);
            (bound, count)
        });
        let buckets = buckets.collect();
        HistogramSnapshot {
            buckets,
            count,
            sum_seconds: self.0.nanos.load(Relaxed) as f64 / 1e9,
        }
    }

    /// A place among those who wait; none if so many have one.
    pub(super) fn start_wait(&self, most: usize, wait: Duration) -> Option<WaitGuard> {
        let entered = self
            .0
            .waiting
            .fetch_update(Relaxed, Relaxed, |now| (now < most).then_some(now + 1));
        entered.ok().map(|_| WaitGuard {
            delay_stats: self.clone(),
            wait,
        })
    }
}

/// A place among those who wait.
pub(super) struct WaitGuard {
    delay_stats: DelayStats,
    wait: Duration,
}

impl WaitGuard {
    /// Its turn has come.
    pub(super) fn end(self) {
        let nanos = u64::try_from(self.wait.as_nanos()).unwrap_or(u64::MAX);
        let counters = &self.delay_stats.0;
        counters.buckets[BOUNDS.partition_point(|bound| *bound < nanos)].fetch_add(1, Relaxed);
        counters.nanos.fetch_add(nanos, Relaxed);
    }
}

impl Drop for WaitGuard {
    fn drop(&mut self) {
        self.delay_stats.0.waiting.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_hangs_up_leaves_its_place_and_no_time() {
        let delay_stats = DelayStats::new();
        let wait = |ms| delay_stats.start_wait(2, Duration::from_millis(ms));
        let (one, two) = (wait(1).unwrap(), wait(2_000).unwrap());
        assert!(wait(1).is_none());
        assert_eq!(delay_stats.waiting(), 2);
        drop(one);
        two.end();
        assert_eq!(
            (
                delay_stats.waiting(),
                delay_stats.delays().count,
                delay_stats.delays().sum_seconds
            ),
            (0, 1, 2.0)
        );
    }

    #[test]
    fn a_bound_belongs_to_its_bucket_and_the_last_has_everything() {
        let delay_stats = DelayStats::new();
        for nanos in [1_000_000, 1_000_001, u64::MAX / 4] {
            delay_stats
                .start_wait(1, Duration::from_nanos(nanos))
                .unwrap()
                .end();
        }
        let buckets = delay_stats.delays().buckets;
        assert_eq!(
            (buckets[0], buckets[1], buckets[14]),
            ((0.001, 1), (0.0025, 2), (60.0, 2))
        );
        assert_eq!(buckets[15], (f64::INFINITY, 3));
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0));
    }
}
