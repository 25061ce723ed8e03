//! Measurements of each algorithm.

use crate::traffic::{self, N, SECOND, W, admitted, in_window, most_in_any_window};
use ratekeeper::{Algorithm, Clock, Limit, Limiter, ManualClock};
use std::time::Duration;

/// The algorithms that decide differently; `leaky_bucket` is the token bucket under another name.
pub(crate) const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::TokenBucket,
    Algorithm::Pacing,
    Algorithm::FixedWindow,
    Algorithm::FixedWindowFirstHit,
    Algorithm::SlidingWindow,
    Algorithm::SlidingWindowStrict,
    Algorithm::SlidingLog,
];

/// N in W under `algorithm`.
pub(crate) fn limit(algorithm: Algorithm) -> Limit {
    Limit::of(N, Duration::from_nanos(W)).algorithm(algorithm)
}

pub(crate) struct Measured {
    /// The most that acted within W: attacked, and in the plotted traffic.
    pub(crate) worst: u64,
    pub(crate) in_the_plot: u64,
    /// Of the long traffic: admitted in all, and those of them that were more than N within W.
    pub(crate) admitted: usize,
    pub(crate) beyond: usize,
    /// Admitted a second while five times the limit is offered.
    pub(crate) under_overload: f64,
    /// Bytes on the heap once everything was admitted: N in W, and 10,000 in an hour.
    pub(crate) bytes: [u64; 2],
}

pub(crate) fn measure(algorithm: Algorithm) -> Measured {
    let limit = limit(algorithm);
    let times = admitted(limit, &traffic::bursty_for_long());
    let beyond = times
        .iter()
        .filter(|at| in_window(&times, **at) > N)
        .count();
    // The first ten seconds hold what had been saved up.
    let flood = admitted(limit, &traffic::steady(5 * N, 110 * SECOND));
    let settled = flood
        .iter()
        .filter(|at| (10 * SECOND..110 * SECOND).contains(*at))
        .count();
    Measured {
        worst: worst(limit),
        in_the_plot: most_in_any_window(&admitted(limit, &traffic::bursty())),
        admitted: times.len(),
        beyond,
        under_overload: settled as f64 / 100.0,
        bytes: [limit, Limit::per_hour(10_000).algorithm(algorithm)].map(bytes),
    }
}

/// The most that acts within W under attack: one call or none, then two floods, at all instants
/// that lie on a tenth of a window or 1 or 2 ns before it.
fn worst(limit: Limit) -> u64 {
    let tenth = W / 10;
    // One window in, so that there is room to go back from a tenth.
    let grid: Vec<u64> = (10..=32)
        .flat_map(|k| [-2, -1, 0].map(|d| (k * tenth).wrapping_add_signed(d)))
        .collect();
    let openings = (10..20).map(|k| Some(k * tenth)).chain([None]);
    let mut worst = 0;
    for opening in openings {
        for (i, first) in grid
            .iter()
            .enumerate()
            .take_while(|(_, first)| **first <= 2 * W)
        {
            if opening.is_some_and(|at| at > *first) {
                continue;
            }
            for second in &grid[i..] {
                worst = worst.max(attack(limit, opening, [*first, *second]));
            }
        }
    }
    worst
}

fn attack(limit: Limit, opening: Option<u64>, floods: [u64; 2]) -> u64 {
    let clock = ManualClock::new();
    let start = clock.now();
    let limiter = Limiter::with_clock(limit, clock);
    let mut times = Vec::new();
    let mut call = |at: u64| {
        let decision = limiter.at(start + Duration::from_nanos(at)).check();
        if decision.is_allowed() {
            times.push(at + decision.delay().as_nanos() as u64);
        }
        decision.is_allowed()
    };
    opening.map(&mut call);
    for at in floods {
        while call(at) {}
    }
    most_in_any_window(&times)
}

/// What a limiter holds on the heap once all it admits at once was admitted.
fn bytes(limit: Limit) -> u64 {
    let mut kept = None;
    let used = allocation_counter::measure(|| {
        let limiter = Limiter::new(limit);
        let _ = limiter.check_n(limit.capacity());
        kept = Some(limiter);
    });
    used.bytes_current as u64
}
