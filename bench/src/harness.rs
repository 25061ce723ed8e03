//! The measuring harness: short runs, alternating between the contestants (A B C A B C …), so that
//! noise affects all alike.
//!
//! On one thread the best run counts: a disturbance only makes a run longer. On two threads that
//! contend the lower quartile counts: not the best, because a lucky round is one in which a thread
//! starved the other, and not the median, because virtual machines have long spells in which a
//! cache line takes twice the time from core to core, and which contestant meets more of them is
//! chance. Rounds in which a thread lost its core to another process are left out. Two threads that
//! only read do not contend, and the best counts again.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How often and how long.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    /// One thread: this many runs of about this length each.
    pub(crate) runs: usize,
    pub(crate) run: Duration,
    /// Two threads: this many undisturbed rounds of this length for each contestant, or as many as
    /// `timeout` allows.
    pub(crate) rounds: usize,
    pub(crate) round: Duration,
    pub(crate) timeout: Duration,
}

/// Whether `--quick` was asked for: fewer runs, and only what its ten rows need.
static QUICK: AtomicBool = AtomicBool::new(false);

pub(crate) fn set_quick() {
    QUICK.store(true, Ordering::Relaxed);
}

pub(crate) fn is_quick() -> bool {
    QUICK.load(Ordering::Relaxed)
}

impl Pace {
    /// For data that stays in the nearest cache.
    pub(crate) const SHORT: Self = Self {
        runs: 41,
        run: Duration::from_millis(2),
        rounds: 61,
        round: Duration::from_millis(2),
        timeout: Duration::from_secs(20),
    };
}

/// A round is undisturbed if both threads had their cores for at least this part of it, and their
/// run times differ by no more than the rest: a thread that started late, or was away, met less
/// contention than it should.
const MIN_CORE_SHARE: f64 = 0.98;

/// An undisturbed round also needs both threads to run for at least this part of its length.
const MIN_ROUND_SHARE: f64 = 0.9;

/// How often a call is checked before anything is timed.
const WARM_UP_CALLS: u64 = 20_000;

/// Calls between two reads of the stop flag.
pub(crate) const BATCH: u64 = 64;

/// A function to be called repeatedly. Each call returns whether it had the outcome of its row, and
/// every one is checked: no row can measure the wrong path. A user of the result has the same
/// branch.
pub(crate) struct Contestant {
    pub(crate) name: String,
    times: Box<TimedCalls>,
    until: Box<CallsUntil>,
}

/// Makes this many calls; returns how long they took.
type TimedCalls = dyn Fn(u64) -> Duration;

/// Calls until the flag is set; returns how many calls, and how long they took.
type CallsUntil = dyn Fn(&AtomicBool) -> (u64, Duration) + Sync;

impl Contestant {
    pub(crate) fn new(
        name: impl Into<String>,
        call: impl Fn() -> bool + Clone + Sync + 'static,
    ) -> Self {
        Self::inside(name, |calls| calls(), call)
    }

    /// Creates a contestant with something set up around each run of calls.
    pub(crate) fn inside(
        name: impl Into<String>,
        around: impl Fn(&mut dyn FnMut()) + Clone + Sync + 'static,
        call: impl Fn() -> bool + Clone + Sync + 'static,
    ) -> Self {
        // Both loops are compiled for this one call: there is no call through a pointer inside
        // them.
        let (again, outside) = (call.clone(), around.clone());
        let times = move |calls| {
            let start = Instant::now();
            outside(&mut || {
                (0..calls)
                    .for_each(|_| assert!(again(), "a call took another path than its row's"));
            });
            start.elapsed()
        };
        let until = move |stop: &AtomicBool| {
            let (mut done, start) = (0, Instant::now());
            around(&mut || {
                while !stop.load(Ordering::Relaxed) {
                    (0..BATCH)
                        .for_each(|_| assert!(call(), "a call took another path than its row's"));
                    done += BATCH;
                }
            });
            (done, start.elapsed())
        };
        Self::timed(name, times, until)
    }

    /// Creates a contestant from two loops, one for a number of calls and one until stopped, which
    /// return how long they took.
    pub(crate) fn timed(
        name: impl Into<String>,
        times: impl Fn(u64) -> Duration + 'static,
        until: impl Fn(&AtomicBool) -> (u64, Duration) + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            times: Box::new(times),
            until: Box::new(until),
        }
    }

    fn time(&self, calls: u64) -> Duration {
        (self.times)(black_box(calls))
    }

    /// Returns how many calls fill a run.
    fn calibrate(&self, run: Duration) -> u64 {
        self.time(WARM_UP_CALLS);
        let nanos = (0..3)
            .map(|_| self.time(WARM_UP_CALLS).as_nanos())
            .min()
            .unwrap_or(1)
            .max(1);
        (run.as_nanos() * u128::from(WARM_UP_CALLS) / nanos).max(1) as u64
    }
}

/// Returns nanoseconds per call on one thread, the best run of each, in the order of the
/// contestants.
pub(crate) fn one_thread(contestants: &[Contestant]) -> Vec<f64> {
    one_thread_at(Pace::SHORT, contestants)
}

pub(crate) fn one_thread_at(pace: Pace, contestants: &[Contestant]) -> Vec<f64> {
    let calls: Vec<u64> = contestants
        .iter()
        .map(|contestant| contestant.calibrate(pace.run))
        .collect();
    let mut best = vec![f64::INFINITY; contestants.len()];
    for _ in 0..pace.runs {
        for (at, contestant) in contestants.iter().enumerate() {
            let nanos = contestant.time(calls[at]).as_nanos() as f64 / calls[at] as f64;
            best[at] = best[at].min(nanos);
        }
    }
    best
}

/// The result of two threads on one limiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TwoThreadResult {
    /// Nanoseconds per call and thread in the undisturbed rounds.
    pub(crate) best: f64,
    pub(crate) quartile: f64,
    pub(crate) median: f64,
    /// The slower thread's share of all calls: the median, and the least.
    pub(crate) share: f64,
    pub(crate) least_share: f64,
    /// How many rounds were undisturbed. If none was, the values are those of all rounds.
    pub(crate) undisturbed: usize,
}

/// Measures the contestants on two threads, in their order.
pub(crate) fn two_threads(contestants: &[Contestant]) -> Vec<TwoThreadResult> {
    two_threads_at(Pace::SHORT, contestants)
}

pub(crate) fn two_threads_at(pace: Pace, contestants: &[Contestant]) -> Vec<TwoThreadResult> {
    let mut rounds: Vec<Vec<Round>> = contestants.iter().map(|_| Vec::new()).collect();
    for contestant in contestants {
        contestant.time(WARM_UP_CALLS);
    }
    let wanting =
        |rounds: &Vec<Round>| rounds.iter().filter(|round| round.undisturbed).count() < pace.rounds;
    let start = Instant::now();
    while start.elapsed() < pace.timeout && rounds.iter().any(wanting) {
        for (contestant, rounds) in contestants.iter().zip(&mut rounds) {
            if wanting(rounds) {
                rounds.push(round(contestant, pace.round));
            }
        }
    }
    rounds.iter().map(|rounds| summary(rounds)).collect()
}

#[derive(Clone, Copy)]
struct Round {
    nanos: f64,
    share: f64,
    undisturbed: bool,
}

fn round(contestant: &Contestant, length: Duration) -> Round {
    let (stop, ready) = (AtomicBool::new(false), AtomicUsize::new(0));
    let until = &contestant.until;
    let worker = || {
        ready.fetch_add(1, Ordering::Relaxed);
        while ready.load(Ordering::Relaxed) < 2 {
            std::hint::spin_loop();
        }
        let (wall, cpu) = (Instant::now(), thread_time());
        let (done, timed) = until(&stop);
        let wall = wall.elapsed();
        (
            done,
            wall,
            (thread_time() - cpu).as_secs_f64() / wall.as_secs_f64(),
            timed,
        )
    };
    let (a, b) = std::thread::scope(|scope| {
        let (a, b) = (scope.spawn(worker), scope.spawn(worker));
        std::thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        (
            a.join().expect("the assertion above"),
            b.join().expect("the assertion above"),
        )
    });
    let total = (a.0 + b.0) as f64;
    // Not those that began when the round was nearly over.
    let ran = total > 0.0 && a.1.min(b.1).div_duration_f64(length) >= MIN_ROUND_SHARE;
    let had_cores = a.2.min(b.2) >= MIN_CORE_SHARE
        && a.1.min(b.1).div_duration_f64(a.1.max(b.1)) >= MIN_CORE_SHARE;
    Round {
        nanos: if total > 0.0 {
            (a.3 + b.3).as_nanos() as f64 / total
        } else {
            f64::INFINITY
        },
        share: a.0.min(b.0) as f64 / total.max(1.0),
        undisturbed: ran && had_cores,
    }
}

fn summary(rounds: &[Round]) -> TwoThreadResult {
    let clean: Vec<Round> = rounds
        .iter()
        .copied()
        .filter(|round| round.undisturbed)
        .collect();
    let counted = if clean.is_empty() { rounds } else { &clean };
    let nanos = sorted(counted.iter().map(|round| round.nanos));
    let shares = sorted(counted.iter().map(|round| round.share));
    TwoThreadResult {
        best: nanos[0],
        quartile: nanos[nanos.len() / 4],
        median: nanos[nanos.len() / 2],
        share: shares[shares.len() / 2],
        least_share: shares[0],
        undisturbed: clean.len(),
    }
}

/// Of at least one value; of an even number of values, the upper one of the two in the middle.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let values = sorted(values);
    values[values.len() / 2]
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the processor time of the calling thread.
#[cfg(unix)]
pub(crate) fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Where it is not available, every round counts as undisturbed.
#[cfg(not(unix))]
pub(crate) fn thread_time() -> Duration {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    START.elapsed()
}
