//! Measuring: short runs, the contestants in turn (A B C A B C …), so that noise hits all alike.
//!
//! On one thread the best run counts: whatever disturbs a run only makes it longer. On two threads that contend the
//! lower quartile counts: not the best, because a lucky round is one in which a thread starved the other, and not the
//! median, because virtual machines have long spells in which a cache line takes twice the time from core to core, and
//! who is hit by more of them is chance. Rounds in which a thread lost its core to somebody else are left out. Two
//! threads that only read do not contend, and the best counts again.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// One thread: this many runs of about this long each.
const RUNS: usize = 41;
const RUN: Duration = Duration::from_millis(2);

/// Two threads: this many undisturbed rounds of this length for each contestant, or as many as this time allows.
const ROUNDS: usize = 61;
const ROUND: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(20);

/// A round is undisturbed if both threads had their cores for at least this part of it, and ran for the same time but
/// for the rest: the one that started late, or was away, met less contention than it should.
const UNDISTURBED: f64 = 0.98;

/// How often a call is checked before anything is timed.
const WARM_UP: u64 = 20_000;

/// Calls between two looks at the stop flag.
const BATCH: u64 = 64;

/// Something to be called over and over. The call says whether it did what its row is about, and every single one is
/// held to it: no row can measure the wrong path. The branch is what a user of the answer has as well.
pub(crate) struct Contestant {
    pub(crate) who: String,
    times: Box<dyn Fn(u64)>,
    until: Box<dyn Fn(&AtomicBool) -> u64 + Sync>,
}

impl Contestant {
    pub(crate) fn new(who: impl Into<String>, call: impl Fn() -> bool + Clone + Sync + 'static) -> Self {
        Self::inside(who, |calls| calls(), call)
    }

    /// The same with something set up around each run of calls.
    pub(crate) fn inside(
        who: impl Into<String>,
        around: impl Fn(&mut dyn FnMut()) + Clone + Sync + 'static,
        call: impl Fn() -> bool + Clone + Sync + 'static,
    ) -> Self {
        // Both loops are compiled for this one call: nothing is called through a pointer inside them.
        let (again, outside) = (call.clone(), around.clone());
        let times = move |calls| {
            outside(&mut || (0..calls).for_each(|_| assert!(again(), "a call took another path than its row's")));
        };
        let until = move |stop: &AtomicBool| {
            let mut done = 0;
            around(&mut || {
                while !stop.load(Ordering::Relaxed) {
                    (0..BATCH).for_each(|_| assert!(call(), "a call took another path than its row's"));
                    done += BATCH;
                }
            });
            done
        };
        Self { who: who.into(), times: Box::new(times), until: Box::new(until) }
    }

    fn time(&self, calls: u64) -> Duration {
        let start = Instant::now();
        (self.times)(black_box(calls));
        start.elapsed()
    }

    /// How many calls fill a run.
    fn calibrate(&self) -> u64 {
        self.time(WARM_UP);
        let nanos = (0..3).map(|_| self.time(WARM_UP).as_nanos()).min().unwrap_or(1).max(1);
        (RUN.as_nanos() * u128::from(WARM_UP) / nanos).max(1) as u64
    }
}

/// Nanoseconds a call on one thread, best of [`RUNS`], in the order of the contestants.
pub(crate) fn one_thread(contestants: &[Contestant]) -> Vec<f64> {
    let calls: Vec<u64> = contestants.iter().map(Contestant::calibrate).collect();
    let mut best = vec![f64::INFINITY; contestants.len()];
    for _ in 0..RUNS {
        for (at, contestant) in contestants.iter().enumerate() {
            let nanos = contestant.time(calls[at]).as_nanos() as f64 / calls[at] as f64;
            best[at] = best[at].min(nanos);
        }
    }
    best
}

/// Two threads on one limiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contended {
    /// Nanoseconds a call and thread in the undisturbed rounds.
    pub(crate) best: f64,
    pub(crate) quartile: f64,
    pub(crate) median: f64,
    /// The part of all calls that the slower thread got: the median, and the least.
    pub(crate) share: f64,
    pub(crate) least_share: f64,
    /// How many rounds were undisturbed. If none was, the figures are those of all rounds.
    pub(crate) undisturbed: usize,
}

/// The contestants on two threads, in their order.
pub(crate) fn two_threads(contestants: &[Contestant]) -> Vec<Contended> {
    let mut rounds: Vec<Vec<Round>> = contestants.iter().map(|_| Vec::new()).collect();
    for contestant in contestants {
        contestant.time(WARM_UP);
    }
    let wanting = |rounds: &Vec<Round>| rounds.iter().filter(|round| round.undisturbed).count() < ROUNDS;
    let start = Instant::now();
    while start.elapsed() < PATIENCE && rounds.iter().any(wanting) {
        for (contestant, rounds) in contestants.iter().zip(&mut rounds) {
            if wanting(rounds) {
                rounds.push(round(contestant));
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

fn round(contestant: &Contestant) -> Round {
    let (stop, ready) = (AtomicBool::new(false), AtomicUsize::new(0));
    let until = &contestant.until;
    let worker = || {
        ready.fetch_add(1, Ordering::Relaxed);
        while ready.load(Ordering::Relaxed) < 2 {
            std::hint::spin_loop();
        }
        let (wall, cpu) = (Instant::now(), thread_time());
        let done = until(&stop);
        let wall = wall.elapsed();
        (done, wall, (thread_time() - cpu).as_secs_f64() / wall.as_secs_f64())
    };
    let (a, b) = std::thread::scope(|scope| {
        let (a, b) = (scope.spawn(worker), scope.spawn(worker));
        std::thread::sleep(ROUND);
        stop.store(true, Ordering::Relaxed);
        (a.join().expect("the assertion above"), b.join().expect("the assertion above"))
    });
    let total = (a.0 + b.0) as f64;
    Round {
        nanos: (a.1 + b.1).as_nanos() as f64 / total,
        share: a.0.min(b.0) as f64 / total,
        undisturbed: a.2.min(b.2) >= UNDISTURBED && a.1.min(b.1).div_duration_f64(a.1.max(b.1)) >= UNDISTURBED,
    }
}

fn summary(rounds: &[Round]) -> Contended {
    let clean: Vec<Round> = rounds.iter().copied().filter(|round| round.undisturbed).collect();
    let counted = if clean.is_empty() { rounds } else { &clean };
    let nanos = sorted(counted.iter().map(|round| round.nanos));
    let shares = sorted(counted.iter().map(|round| round.share));
    Contended {
        best: nanos[0],
        quartile: nanos[nanos.len() / 4],
        median: nanos[nanos.len() / 2],
        share: shares[shares.len() / 2],
        least_share: shares[0],
        undisturbed: clean.len(),
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Processor time of the calling thread.
#[cfg(unix)]
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Where it cannot be had, every round counts as undisturbed.
#[cfg(not(unix))]
fn thread_time() -> Duration {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    START.elapsed()
}
