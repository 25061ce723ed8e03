//! The experiments of choosing-numbers.md: bursts on a real server, queues and timeouts, herds at
//! the edge.

use crate::traffic::{MILLI, Rng, SECOND, decided};
use ratekeeper::{Algorithm, Clock, Decision, Limit, Limiter, ManualClock};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// What the server of the worked example serves in a second: 4 workers, 50 ms a request.
pub(crate) const SERVES: u64 = 80;
/// What it is given: three quarters of that.
const RATE: u64 = 60;
/// The wait at the server that its users accept.
pub(crate) const BUDGET: u64 = 250 * MILLI;
/// The bursts that are compared.
pub(crate) const BURSTS: [u64; 3] = [5, 20, 60];

/// One line of a chart.
pub(crate) struct Series {
    pub(crate) name: String,
    /// When a call came, and how long it waited.
    pub(crate) waits: Vec<(u64, u64)>,
    pub(crate) offered: usize,
}

impl Series {
    pub(crate) fn longest(&self) -> u64 {
        self.waits.iter().map(|(_, wait)| *wait).max().unwrap_or(0)
    }
}

/// A burst of 60 every two seconds on top of 20 a second, for 10 s; admitted by a token bucket,
/// then served.
pub(crate) fn bursts() -> Vec<Series> {
    let mut calls: Vec<u64> = (0..200).map(|call| call * 50 * MILLI).collect();
    calls.extend(
        (0..5).flat_map(|burst| (0..60).map(move |call| (1 + 2 * burst) * SECOND + call * 100_000)),
    );
    calls.sort_unstable();
    let series = |burst| {
        let limit = Limit::per_second(RATE).burst(burst);
        let admitted: Vec<u64> = decided(limit, &calls).into_iter().flatten().collect();
        // The server is a queue that turns nobody away.
        let server = Limit::per_second(SERVES).paced_max_wait(Duration::from_secs(3_600));
        let served = decided(server, &admitted).into_iter().flatten();
        let waits = admitted
            .iter()
            .zip(served)
            .map(|(came, began)| (*came, began - came))
            .collect();
        Series {
            name: limit.to_string(),
            waits,
            offered: calls.len(),
        }
    };
    BURSTS.map(series).into()
}

/// How long the callers of the queue experiment wait before they give up.
pub(crate) const TIMEOUT: u64 = 2 * SECOND;

/// 30 a second for 30 s into a queue that lets 20 a second out.
pub(crate) fn queues() -> Vec<Series> {
    let calls = crate::traffic::steady(30, 30 * SECOND);
    let series = |wait| {
        let limit = Limit::per_second(20).paced_max_wait(wait);
        let starts = decided(limit, &calls);
        let waits = calls
            .iter()
            .zip(starts)
            .filter_map(|(came, start)| Some((*came, start? - came)))
            .collect();
        Series {
            name: limit.to_string(),
            waits,
            offered: calls.len(),
        }
    };
    [500, 1_900, 10_000]
        .map(Duration::from_millis)
        .map(series)
        .into()
}

pub(crate) const CLIENTS: u64 = 100;
/// What is looked at, once every client has started.
pub(crate) const HERD_FROM: u64 = 10 * SECOND;
pub(crate) const HERD_TO: u64 = 50 * SECOND;
pub(crate) const SLICE: u64 = 100 * MILLI;

/// Clients that take all they may and come back when they were told to.
pub(crate) struct Herd {
    pub(crate) algorithm: Algorithm,
    /// Every client starts within this time.
    pub(crate) started_within: u64,
    /// Every client adds up to this to what it was told.
    pub(crate) jitter: u64,
}

impl Herd {
    pub(crate) const ALL: [Self; 6] = [
        Self::new(Algorithm::FixedWindow, 10, 0),
        Self::new(Algorithm::FixedWindow, 10, 5),
        Self::new(Algorithm::FixedWindowFirstHit, 10, 0),
        Self::new(Algorithm::FixedWindowFirstHit, 1, 0),
        Self::new(Algorithm::TokenBucket, 10, 0),
        Self::new(Algorithm::TokenBucket, 1, 0),
    ];

    const fn new(algorithm: Algorithm, started_within_s: u64, jitter_s: u64) -> Self {
        Self {
            algorithm,
            started_within: started_within_s * SECOND,
            jitter: jitter_s * SECOND,
        }
    }

    pub(crate) fn name(&self) -> String {
        let jitter = match self.jitter / SECOND {
            0 => String::new(),
            seconds => format!(", retries spread over {seconds} s"),
        };
        format!("{}{jitter}", self.algorithm)
    }

    /// Admitted calls of all clients in each slice of time.
    pub(crate) fn run(&self) -> Vec<u64> {
        let clock = ManualClock::new();
        let start = clock.now();
        let rng = &mut Rng(3);
        let limit = Limit::of(10, Duration::from_secs(10)).algorithm(self.algorithm);
        let limiters: Vec<_> = (0..CLIENTS)
            .map(|_| Limiter::with_clock(limit, clock.clone()))
            .collect();
        let mut due: BinaryHeap<_> = (0..limiters.len())
            .map(|client| Reverse((rng.below(self.started_within), client)))
            .collect();
        let mut slices = vec![0; ((HERD_TO - HERD_FROM) / SLICE) as usize];
        while let Some(Reverse((now, client))) = due.pop() {
            if now >= HERD_TO {
                break;
            }
            let decision = limiters[client]
                .at(start + Duration::from_nanos(now))
                .check();
            let next = match decision.retry_after() {
                Some(after) => after.as_nanos() as u64 + rng.below(self.jitter + 1),
                None => 10 * MILLI,
            };
            if decision.is_allowed() && now >= HERD_FROM {
                slices[((now - HERD_FROM) / SLICE) as usize] += 1;
            }
            due.push(Reverse((now + next, client)));
        }
        slices
    }
}

/// What the 61st call is told after 60 at once at 15 s past the minute, and how many pass when it
/// comes back then.
pub(crate) fn told(algorithm: Algorithm) -> (Decision, usize) {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(15));
    let limiter = Limiter::with_clock(Limit::per_minute(60).algorithm(algorithm), clock.clone());
    while limiter.check().is_allowed() {}
    let denied = limiter.check();
    clock.advance(denied.retry_after().unwrap_or_default());
    let pass = (0..100).filter(|_| limiter.check().is_allowed()).count();
    (denied, pass)
}
