//! What has been seen since the last step: words that every finished request adds to, and one empties.

use crate::sync::{AtomicU64, Ordering};
use core::time::Duration;

/// The requests of the present window.
pub(super) struct Window {
    /// How many were measured (high bits) and how long they took together (low bits): one word, one add.
    measured: AtomicU64,
    dropped: AtomicU64,
    /// The most that were in flight when one began.
    peak: AtomicU64,
    /// When it may be closed, in nanoseconds since 1970.
    due: AtomicU64,
}

/// What a window held.
pub(super) struct Seen {
    pub(super) latency: Duration,
    pub(super) peak: u64,
    /// Requests dropped, and all.
    pub(super) dropped: u64,
    pub(super) all: u64,
}

/// Latencies are added up in units of 64 ns, in the low 44 bits: 18,000 requests of the longest.
const UNIT: u32 = 6;
const COUNT: u32 = 44;
const SUM: u64 = (1 << COUNT) - 1;
/// A latency counts as this at most.
const LONGEST: Duration = Duration::from_secs(60);
/// A window with fewer says too little.
const FEWEST: u64 = 10;
/// A window with more is closed whatever the time, long before its word is full.
const MOST: u64 = 4_096;

impl Window {
    pub(super) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self { measured: zero(), dropped: zero(), peak: zero(), due: zero() }
    }

    /// Adds a request that took `latency`, or one that was dropped. True if the window may be closed.
    pub(super) fn add(&self, latency: Option<Duration>, in_flight: u64, now: u64) -> bool {
        self.crowd(in_flight);
        let (measured, dropped) = match latency {
            Some(latency) => {
                let units = latency.min(LONGEST).as_nanos() as u64 >> UNIT;
                // Not nothing, which would say that none was measured.
                let one = (1 << COUNT) + units.max(1);
                (self.measured.fetch_add(one, Ordering::AcqRel) + one, self.dropped.load(Ordering::Relaxed))
            }
            None => (self.measured.load(Ordering::Relaxed), self.dropped.fetch_add(1, Ordering::AcqRel) + 1),
        };
        self.is_over((measured >> COUNT) + dropped, now)
    }

    /// Notes that so many were in flight, or would have been.
    pub(super) fn crowd(&self, in_flight: u64) {
        if in_flight > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(in_flight, Ordering::Relaxed);
        }
    }

    /// Whether it may be closed.
    pub(super) fn is_due(&self, now: u64) -> bool {
        let measured = self.measured.load(Ordering::Acquire) >> COUNT;
        self.is_over(measured + self.dropped.load(Ordering::Acquire), now)
    }

    fn is_over(&self, all: u64, now: u64) -> bool {
        all >= FEWEST && (now >= self.due.load(Ordering::Relaxed) || all >= MOST)
    }

    /// Empties it. What others add meanwhile is of this window or of the next.
    pub(super) fn take(&self) -> Seen {
        let measured = self.measured.swap(0, Ordering::AcqRel);
        let dropped = self.dropped.swap(0, Ordering::AcqRel);
        let (count, units) = (measured >> COUNT, measured & SUM);
        let latency = Duration::from_nanos(units.checked_div(count).unwrap_or(0) << UNIT);
        Seen { latency, peak: self.peak.swap(0, Ordering::AcqRel), dropped, all: count + dropped }
    }

    pub(super) fn open_until(&self, due: u64) {
        self.due.store(due, Ordering::Relaxed);
    }
}
