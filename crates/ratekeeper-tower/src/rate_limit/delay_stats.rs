//! Statistics of the requests that wait because a limit delays them.

use ratekeeper_policy::stats::HistogramSnapshot;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// The histogram's upper bounds in nanoseconds, inclusive: from a millisecond to a minute.
#[rustfmt::skip]
const BOUNDS: [u64; 15] = [
    1_000_000, 2_500_000, 5_000_000,
    10_000_000, 25_000_000, 50_000_000,
    100_000_000, 250_000_000, 500_000_000,
    1_000_000_000, 2_500_000_000, 5_000_000_000,
    10_000_000_000, 30_000_000_000, 60_000_000_000,
];

/// Statistics of delayed requests: how many are waiting, and how long the others waited.
///
/// A handle: clones share their counters. Give one to several layers
/// ([`RateLimitLayer::delay_stats`](crate::RateLimitLayer::delay_stats)), and they count together;
/// then [`max_waiting`](crate::RateLimitLayer::max_waiting) also bounds them together.
#[derive(Clone, Debug, Default)]
pub struct DelayStats(Arc<Counters>);

// Not sharded by thread: a task that updates these counters is about to sleep.
#[derive(Debug, Default)]
struct Counters {
    waiting: AtomicUsize,
    /// Not cumulative; the last bucket is for values above all bounds.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl DelayStats {
    /// Counters that start at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of requests that are waiting now.
    pub fn waiting(&self) -> usize {
        self.0.waiting.load(Relaxed)
    }

    /// A histogram of the time that requests waited before they went on. Those that hung up earlier
    /// are not included.
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

    /// Counts a request as waiting until the guard is dropped; `None` if `max` are waiting
    /// already.
    pub(super) fn start_wait(&self, max: usize, wait: Duration) -> Option<WaitGuard> {
        let entered = self
            .0
            .waiting
            .fetch_update(Relaxed, Relaxed, |now| (now < max).then_some(now + 1));
        entered.ok().map(|_| WaitGuard {
            delay_stats: self.clone(),
            wait,
        })
    }
}

/// Counts a request as waiting until it is dropped.
pub(super) struct WaitGuard {
    delay_stats: DelayStats,
    wait: Duration,
}

impl WaitGuard {
    /// Records the wait: the request goes on.
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
    fn hanging_up_is_not_recorded() {
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
