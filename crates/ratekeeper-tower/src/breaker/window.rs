//! The sliding window of recent calls, failures and slow calls: buckets of atomic counters.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Counts of the recent calls by which a breaker opens, see
/// [`CircuitBreaker::recent`](super::CircuitBreaker::recent).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct WindowStats {
    /// Calls that succeeded or failed.
    pub calls: u64,
    /// Calls that failed.
    pub failures: u64,
    /// Calls that were slow, whether they failed or not.
    pub slow: u64,
}

/// A ring of buckets. A bucket is three words, each with the period and the generation that it
/// counts for, so that buckets need not be cleared.
pub(super) struct Window {
    buckets: Box<[Bucket]>,
    /// Nanoseconds per bucket.
    length: u64,
}

#[derive(Default)]
struct Bucket {
    calls: Count,
    failures: Count,
    slow: Count,
}

/// The period of a bucket and the generation of the breaker.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    period: u32,
    generation: u8,
}

/// From the low end: count (24 bits), generation (8), period (32).
#[derive(Default)]
struct Count(AtomicU64);

const COUNT_MAX: u64 = (1 << 24) - 1;

impl Window {
    pub(super) fn new(buckets: usize, length: u64) -> Self {
        Self {
            buckets: (0..buckets).map(|_| Bucket::default()).collect(),
            length,
        }
    }

    /// Counts one call, `now` nanoseconds after the breaker was made.
    pub(super) fn add(&self, generation: u16, now: u64, failed: bool, slow: bool) {
        let stamp = self.stamp(generation, now);
        let bucket = &self.buckets[stamp.period as usize % self.buckets.len()];
        // The call before its failure: concurrent readers see a lower share, never a higher one.
        bucket.calls.add(stamp);
        if failed {
            bucket.failures.add(stamp);
        }
        if slow {
            bucket.slow.add(stamp);
        }
    }

    /// The sums over all buckets in the window.
    pub(super) fn sums(&self, generation: u16, now: u64) -> WindowStats {
        let stamp = self.stamp(generation, now);
        let mut sums = WindowStats::default();
        for bucket in &self.buckets {
            sums.failures += bucket.failures.read(stamp, self.buckets.len());
            sums.slow += bucket.slow.read(stamp, self.buckets.len());
            sums.calls += bucket.calls.read(stamp, self.buckets.len());
        }
        sums
    }

    /// Eight bits of the generation are enough: a bucket's period is too short for 256 changes of
    /// state.
    fn stamp(&self, generation: u16, now: u64) -> Stamp {
        Stamp {
            period: (now / self.length) as u32,
            generation: generation as u8,
        }
    }
}

impl Count {
    fn add(&self, stamp: Stamp) {
        let counted = |word: u64| {
            let (stored, count) = unpack(word);
            if stored == stamp {
                return (count != COUNT_MAX).then_some(word + 1);
            }
            // A newer generation may have begun in this bucket: this call is not part of it.
            let is_outdated = stored.period == stamp.period
                && count > 0
                && is_newer(stored.generation, stamp.generation);
            (!is_outdated).then(|| pack(stamp, 1))
        };
        let _ = self.0.fetch_update(SeqCst, SeqCst, counted);
    }

    fn read(&self, at: Stamp, buckets: usize) -> u64 {
        let (stored, count) = unpack(self.0.load(SeqCst));
        let age = at.period.wrapping_sub(stored.period) as usize;
        if stored.generation == at.generation && age < buckets {
            count
        } else {
            0
        }
    }
}

fn is_newer(a: u8, b: u8) -> bool {
    (a.wrapping_sub(b) as i8) > 0
}

fn pack(stamp: Stamp, count: u64) -> u64 {
    u64::from(stamp.period) << 32 | u64::from(stamp.generation) << 24 | count
}

fn unpack(word: u64) -> (Stamp, u64) {
    (
        Stamp {
            period: (word >> 32) as u32,
            generation: (word >> 24) as u8,
        },
        word & COUNT_MAX,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn sums(window: &Window, generation: u16, now: u64) -> (u64, u64, u64) {
        let WindowStats {
            calls,
            failures,
            slow,
        } = window.sums(generation, now);
        (calls, failures, slow)
    }

    #[test]
    fn a_call_counts_until_its_bucket_is_as_old_as_the_window() {
        let window = Window::new(10, SECOND);
        window.add(0, 0, true, false);
        window.add(0, SECOND - 1, false, true);
        window.add(0, SECOND, false, false);
        assert_eq!(sums(&window, 0, 10 * SECOND - 1), (3, 1, 1));
        assert_eq!(sums(&window, 0, 10 * SECOND), (1, 0, 0));
        assert_eq!(sums(&window, 0, 11 * SECOND), (0, 0, 0));
        // The first bucket is reused, and only its new call counts.
        window.add(0, 10 * SECOND, false, false);
        assert_eq!(sums(&window, 0, 10 * SECOND), (2, 0, 0));
    }

    #[test]
    fn generations_do_not_mix_in_one_bucket() {
        let window = Window::new(10, SECOND);
        window.add(254, 0, true, true);
        window.add(257, 1, false, false);
        assert_eq!(sums(&window, 257, 2), (1, 0, 0));
        // Late, and of the older generation.
        window.add(254, 3, true, true);
        assert_eq!(sums(&window, 257, 4), (1, 0, 0));
    }

    #[test]
    fn a_full_bucket_stays_full() {
        let count = Count::default();
        let stamp = Stamp {
            period: 7,
            generation: 3,
        };
        count.0.store(pack(stamp, COUNT_MAX - 1), SeqCst);
        count.add(stamp);
        count.add(stamp);
        assert_eq!(count.read(stamp, 1), COUNT_MAX);
    }
}
