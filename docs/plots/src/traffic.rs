//! The calls that are offered, as nanoseconds from the start, and what a limit makes of them.

use ratekeeper::{Clock, Limit, Limiter, ManualClock};
use std::time::Duration;

pub(crate) const MILLI: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MILLI;

/// The limit of every plot: N in a window of W.
pub(crate) const N: u64 = 20;
pub(crate) const W: u64 = SECOND;

/// How long the plotted traffic lasts.
pub(crate) const LENGTH: u64 = 8 * SECOND;

/// splitmix64 with a fixed seed: the same numbers on every machine.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// From, to (in ms) and how many calls, spread over it with a jitter.
const PHASES: [(u64, u64, u64); 6] = [
    // Hardly anything, then a burst across the edge of two windows.
    (0, 1_900, 5),
    (1_900, 2_100, 56),
    (2_100, 3_400, 4),
    // Three times the limit for two seconds, a pause, and a burst at once.
    (3_400, 5_400, 120),
    (6_500, 6_520, 30),
    (6_600, 8_000, 6),
];

/// The traffic that every algorithm is shown with.
pub(crate) fn bursty() -> Vec<u64> {
    pattern(&mut Rng(7))
}

/// The same pattern over and over for about 1,000 s, at all positions to the edges of windows.
pub(crate) fn bursty_for_long() -> Vec<u64> {
    let rng = &mut Rng(11);
    let mut start = 0;
    let mut calls = Vec::new();
    while start < 1_000 * SECOND {
        calls.extend(pattern(rng).into_iter().map(|at| start + at));
        start += LENGTH + rng.below(SECOND);
    }
    calls
}

/// Calls `per_second` apart.
pub(crate) fn steady(per_second: u64, length: u64) -> Vec<u64> {
    (0..length * per_second / SECOND)
        .map(|call| call * SECOND / per_second)
        .collect()
}

fn pattern(rng: &mut Rng) -> Vec<u64> {
    let mut calls = Vec::new();
    for (from, to, count) in PHASES {
        let gap = (to - from) * MILLI / count;
        calls.extend((0..count).map(|call| from * MILLI + call * gap + rng.below(gap)));
    }
    calls
}

/// When the admitted calls act, in order: at once, or when pacing told them to.
pub(crate) fn admitted(limit: Limit, calls: &[u64]) -> Vec<u64> {
    decided(limit, calls).into_iter().flatten().collect()
}

/// For each call when it acts; none if it was turned away.
pub(crate) fn decided(limit: Limit, calls: &[u64]) -> Vec<Option<u64>> {
    let clock = ManualClock::new();
    let start = clock.now();
    let limiter = Limiter::with_clock(limit, clock.clone());
    let decide = |at: &u64| {
        clock.set(start + Duration::from_nanos(*at));
        let decision = limiter.check();
        decision
            .is_allowed()
            .then(|| at + decision.delay().as_nanos() as u64)
    };
    calls.iter().map(decide).collect()
}

/// How many of the sorted `times` lie in (at − W, at].
pub(crate) fn in_window(times: &[u64], at: u64) -> u64 {
    let gone = times.partition_point(|time| time + W <= at);
    (times.partition_point(|time| *time <= at) - gone) as u64
}

/// The most of the sorted `times` in any window of W.
pub(crate) fn most_in_any_window(times: &[u64]) -> u64 {
    times
        .iter()
        .map(|at| in_window(times, *at))
        .max()
        .unwrap_or(0)
}

/// How many are in the window that ends at each instant: (instant, count) wherever that changes.
pub(crate) fn window_counts(times: &[u64]) -> Vec<(u64, u64)> {
    let mut changes: Vec<u64> = times.iter().flat_map(|time| [*time, time + W]).collect();
    changes.sort_unstable();
    changes.dedup();
    changes
        .into_iter()
        .map(|at| (at, in_window(times, at)))
        .collect()
}
