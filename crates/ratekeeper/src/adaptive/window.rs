//! [`Window`]: measurements since the controller's last step, in atomic words that every measured
//! request adds to and the step empties.

use crate::clock::Timestamp;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

/// The measurements of the current window.
pub(super) struct Window {
    /// How many requests were measured (high bits) and the sum of their latencies (low bits): one
    /// word, one add.
    measured: AtomicU64,
    dropped: AtomicU64,
    /// Unmeasured requests, as counted by the measured ones that stand for them: served, and too
    /// late.
    unmeasured: AtomicU64,
    unmeasured_late: AtomicU64,
    /// The most requests in flight when one began.
    peak: AtomicU64,
    /// When the window may be closed, in nanoseconds since 1970.
    due: AtomicU64,
    /// One in 2^`sampling_shift` requests is measured: if more come than a window holds, that many
    /// are enough.
    sampling_shift: AtomicU32,
    /// The phase of the sampling sequence.
    phase: AtomicU32,
}

/// A request that is being measured.
#[derive(Clone, Copy)]
pub(super) struct Measurement {
    pub(super) start: Timestamp,
    /// It stands for 2^`sampling_shift` requests.
    pub(super) sampling_shift: u32,
}

/// The end of a request, as a window counts it.
#[derive(Clone, Copy)]
pub(super) enum RequestEnd {
    /// Served after this latency; stands for so many requests.
    In(Duration, u64),
    /// Served too late to count as served; stands for so many requests.
    TooLate(u64),
    /// It was not served.
    Dropped,
}

/// The totals of a window.
pub(super) struct WindowSample {
    pub(super) latency: Duration,
    pub(super) peak: u64,
    /// Requests dropped.
    pub(super) dropped: u64,
    pub(super) all: u64,
}

/// Latencies are added up in units of 64 ns, in the low 44 bits: 18,000 requests of the longest.
const UNIT: u32 = 6;
const COUNT: u32 = 44;
const SUM: u64 = (1 << COUNT) - 1;
/// A latency counts as this at most.
const MAX_LATENCY: Duration = Duration::from_secs(60);
/// A window with fewer requests says too little.
const MIN_REQUESTS: u64 = 10;
/// A window with more requests is closed before its time, long before its word is full.
const MAX_REQUESTS: u64 = 4_096;
/// At least one in 64 is measured.
const MAX_SAMPLING_SHIFT: u32 = 6;

impl Window {
    pub(super) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            measured: zero(),
            dropped: zero(),
            unmeasured: zero(),
            unmeasured_late: zero(),
            peak: zero(),
            due: zero(),
            sampling_shift: AtomicU32::new(0),
            phase: AtomicU32::new(0),
        }
    }

    /// Whether the next request is to be measured, and the `sampling_shift` that it stands for.
    #[inline]
    pub(super) fn sample_next(&self) -> Option<u32> {
        let sampling_shift = self.sampling_shift.load(Ordering::Relaxed);
        if sampling_shift == 0 {
            return Some(0);
        }
        // By the golden ratio: evenly spread, and out of step with anything periodic. If two
        // threads take the same phase, no harm is done.
        let phase = self.phase.load(Ordering::Relaxed).wrapping_add(0x9e37_79b9);
        self.phase.store(phase, Ordering::Relaxed);
        (phase >> (u32::BITS - sampling_shift) == 0).then_some(sampling_shift)
    }

    /// Adds a request. True if the window may be closed.
    pub(super) fn add(&self, finished: RequestEnd, in_flight: u64, now: u64) -> bool {
        self.record_peak(in_flight);
        let stands_for = |word: &AtomicU64, many: u64| {
            if many > 1 {
                word.fetch_add(many - 1, Ordering::Relaxed);
            }
        };
        let drop = || {
            (
                self.measured.load(Ordering::Relaxed),
                self.dropped.fetch_add(1, Ordering::AcqRel) + 1,
            )
        };
        let (measured, dropped) = match finished {
            RequestEnd::In(latency, many) => {
                stands_for(&self.unmeasured, many);
                let units = latency.min(MAX_LATENCY).as_nanos() as u64 >> UNIT;
                // Not zero, which would mean that none was measured.
                let one = (1 << COUNT) + units.max(1);
                (
                    self.measured.fetch_add(one, Ordering::AcqRel) + one,
                    self.dropped.load(Ordering::Relaxed),
                )
            }
            RequestEnd::TooLate(many) => {
                stands_for(&self.unmeasured_late, many);
                drop()
            }
            RequestEnd::Dropped => drop(),
        };
        let all = (measured >> COUNT) + dropped;
        // Few requests come by now: measure each of them.
        if all < MIN_REQUESTS && now >= self.due.load(Ordering::Relaxed) {
            self.sampling_shift.store(0, Ordering::Relaxed);
        }
        self.is_over(all, now)
    }

    /// Records a number of requests in flight, or that would have been.
    pub(super) fn record_peak(&self, in_flight: u64) {
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
        all >= MIN_REQUESTS && (now >= self.due.load(Ordering::Relaxed) || all >= MAX_REQUESTS)
    }

    /// Empties the window and returns its totals. Additions by other threads meanwhile count in
    /// this window or the next.
    pub(super) fn take(&self, now: u64) -> WindowSample {
        let measured = self.measured.swap(0, Ordering::AcqRel);
        let dropped = self.dropped.swap(0, Ordering::AcqRel);
        let (count, units) = (measured >> COUNT, measured & SUM);
        let latency = Duration::from_nanos(units.checked_div(count).unwrap_or(0) << UNIT);
        let served = count + self.unmeasured.swap(0, Ordering::Relaxed);
        let late = self.unmeasured_late.swap(0, Ordering::Relaxed);
        let sampling_shift = self.sampling_shift.load(Ordering::Relaxed);
        let next = if now < self.due.load(Ordering::Relaxed) {
            sampling_shift + u32::from(count >= MAX_REQUESTS / 2)
        } else {
            (served / (MAX_REQUESTS / 2)).checked_ilog2().unwrap_or(0)
        };
        self.sampling_shift
            .store(next.min(MAX_SAMPLING_SHIFT), Ordering::Relaxed);
        let dropped = dropped + late;
        WindowSample {
            latency,
            peak: self.peak.swap(0, Ordering::AcqRel),
            dropped,
            all: served + dropped,
        }
    }

    pub(super) fn set_due(&self, due: u64) {
        self.due.store(due, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(ratekeeper_loom)))]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_millis(1);
    const LENGTH: u64 = 50_000_000;

    /// Runs 20 windows of `requests` requests each: returns how many requests per window were
    /// measured in the last 10, and the totals of the last window.
    fn pass(window: &Window, requests: u64) -> (u64, WindowSample) {
        let (mut measured, mut last) = (0, window.take(0));
        window.set_due(LENGTH);
        for at in 0..20 * requests {
            let now = LENGTH * at / requests;
            if let Some(sampling_shift) = window.sample_next() {
                measured += u64::from(at >= 10 * requests);
                if window.add(RequestEnd::In(TOOK, 1 << sampling_shift), 1, now) {
                    last = window.take(now);
                    window.set_due(now + LENGTH);
                }
            }
        }
        (measured / 10, last)
    }

    #[test]
    fn all_requests_that_a_window_holds_are_measured() {
        let (measured, seen) = pass(&Window::new(), 4_000);
        assert_eq!((measured, seen.all), (4_000, 4_000));
    }

    #[test]
    fn beyond_that_requests_are_sampled_so_that_a_window_lasts_its_time() {
        let window = Window::new();
        // One in 32 of them, which is between half of what a window holds and all of it.
        let (measured, seen) = pass(&window, 100_000);
        assert!((3_120..3_130).contains(&measured), "{measured}");
        assert!((99_800..100_200).contains(&seen.all), "{}", seen.all);
        assert!(TOOK - seen.latency < Duration::from_nanos(1 << UNIT));
        // All of them again when fewer come.
        assert_eq!(pass(&window, 1_000).0, 1_000);
    }

    #[test]
    fn a_late_request_stands_for_the_unmeasured_ones() {
        let window = Window::new();
        window.add(RequestEnd::TooLate(32), 1, 0);
        window.add(RequestEnd::Dropped, 1, 0);
        // It does not make the window any fuller.
        assert!(!window.is_due(u64::MAX));
        for _ in 0..98 {
            window.add(RequestEnd::In(TOOK, 1), 1, 0);
        }
        let seen = window.take(u64::MAX);
        assert_eq!((seen.dropped, seen.all), (32 + 1, 32 + 1 + 98));
    }

    #[test]
    fn after_a_fall_of_traffic_the_next_is_measured_once_the_window_is_due() {
        let window = Window::new();
        pass(&window, 100_000);
        window.take(0);
        window.set_due(LENGTH);
        window.add(RequestEnd::In(TOOK, 32), 1, LENGTH);
        assert!((0..100).all(|_| window.sample_next() == Some(0)));
    }

    #[test]
    fn drops_alone_do_not_start_sampling() {
        let window = Window::new();
        window.set_due(LENGTH);
        for _ in 0..3 * MAX_REQUESTS {
            if window.add(RequestEnd::Dropped, 1, 0) {
                window.take(0);
            }
        }
        assert_eq!(window.sample_next(), Some(0));
    }
}
