//! Histogram of durations in fixed buckets, from 100 ns to a second.

use super::stripes::Striped;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The upper bounds in nanoseconds, inclusive.
#[rustfmt::skip]
const BOUNDS: [u64; 22] = [
    100, 250, 500,
    1_000, 2_500, 5_000,
    10_000, 25_000, 50_000,
    100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000,
    10_000_000, 25_000_000, 50_000_000,
    100_000_000, 250_000_000, 500_000_000,
    1_000_000_000,
];

/// A histogram of durations; recording takes no lock and no memory.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    stripes: Striped<Stripe>,
}

/// Three cache lines.
#[derive(Debug, Default)]
struct Stripe {
    /// The count of each bucket alone; the last is for durations above all bounds.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

/// Cumulative counts of a histogram of decision times.
#[derive(Clone, PartialEq, Debug)]
pub struct HistogramSnapshot {
    /// Upper bounds in seconds, ascending, each with the number of durations up to it. The last
    /// bound is infinite.
    pub buckets: Vec<(f64, u64)>,
    /// The number of durations.
    pub count: u64,
    /// The sum of the durations. It wraps to 0 after 584 years.
    pub sum_seconds: f64,
}

impl Histogram {
    /// Creates an empty histogram.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Records a duration.
    #[inline]
    pub(crate) fn record(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let stripe = self.stripes.current();
        stripe.buckets[BOUNDS.partition_point(|bound| *bound < nanos)].fetch_add(1, Relaxed);
        stripe.nanos.fetch_add(nanos, Relaxed);
    }

    /// The counts so far. `count` is that of the last bucket, whatever is recorded meanwhile.
    pub(crate) fn read(&self) -> HistogramSnapshot {
        let sum = |of: &dyn Fn(&Stripe) -> &AtomicU64| {
            self.stripes
                .iter()
                .map(|stripe| of(stripe).load(Relaxed))
                .fold(0, u64::wrapping_add)
        };
        let mut count = 0;
        let bounds = BOUNDS
            .iter()
            .map(|nanos| *nanos as f64 / 1e9)
            .chain([f64::INFINITY]);
        let buckets = bounds.enumerate().map(|(bucket, bound)| {
            count += sum(&|stripe| &stripe.buckets[bucket]);
            (bound, count)
        });
        let buckets = buckets.collect();
        HistogramSnapshot {
            buckets,
            count,
            sum_seconds: sum(&|stripe| &stripe.nanos) as f64 / 1e9,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up_to(counts: &HistogramSnapshot, bound: f64) -> u64 {
        counts
            .buckets
            .iter()
            .find(|bucket| bucket.0 == bound)
            .expect("no such bound")
            .1
    }

    #[test]
    fn an_empty_histogram_has_all_buckets() {
        let counts = Histogram::new().read();
        assert_eq!(counts.buckets.len(), 23);
        assert!(counts.buckets.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(
            (counts.buckets[0], counts.buckets[1], counts.buckets[21]),
            ((1e-7, 0), (2.5e-7, 0), (1.0, 0))
        );
        assert_eq!(counts.buckets[22], (f64::INFINITY, 0));
        assert_eq!((counts.count, counts.sum_seconds), (0, 0.0));
    }

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        for (bucket, bound) in BOUNDS.iter().enumerate() {
            let histogram = Histogram::new();
            histogram.record(Duration::from_nanos(*bound));
            histogram.record(Duration::from_nanos(*bound + 1));
            let counts = histogram.read();
            assert!(counts.buckets[..bucket].iter().all(|bucket| bucket.1 == 0));
            assert_eq!(
                (counts.buckets[bucket].1, counts.buckets[bucket + 1].1),
                (1, 2)
            );
        }
    }

    #[test]
    fn buckets_are_cumulative() {
        let histogram = Histogram::new();
        for took in [
            Duration::ZERO,
            Duration::from_nanos(300),
            Duration::from_millis(3),
            Duration::from_secs(2),
        ] {
            histogram.record(took);
        }
        let counts = histogram.read();
        assert_eq!(
            (
                up_to(&counts, 1e-7),
                up_to(&counts, 5e-7),
                up_to(&counts, 0.0025)
            ),
            (1, 2, 2)
        );
        assert_eq!(
            (
                up_to(&counts, 0.005),
                up_to(&counts, 1.0),
                up_to(&counts, f64::INFINITY)
            ),
            (3, 3, 4)
        );
        assert_eq!((counts.count, counts.sum_seconds), (4, 2.0030003));
        histogram.record(Duration::MAX);
        assert_eq!(histogram.read().count, 5);
    }

    #[test]
    fn threads_lose_nothing() {
        let histogram = Histogram::new();
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| (0..1_000).for_each(|n| histogram.record(Duration::from_nanos(n))));
            }
        });
        let counts = histogram.read();
        assert_eq!(
            (counts.count, up_to(&counts, 1e-7), up_to(&counts, 5e-7)),
            (16_000, 16 * 101, 16 * 501)
        );
        assert_eq!(counts.sum_seconds, 0.007_992);
    }

    #[test]
    fn a_stripe_is_three_cache_lines() {
        assert_eq!(size_of::<Stripe>(), 3 * 64);
    }
}
