//! [`Sometimes`]: runs a closure on the first calls, on every n-th, once per interval, or any mix
//! of these.

mod const_mutex;

use crate::clock::{Clock, SystemClock, nanos};
use crate::sync::{AtomicU64, Ordering::Relaxed};
use const_mutex::ConstMutex;
use core::fmt;
use core::time::Duration;

/// Runs a closure only sometimes: on the first calls, on every n-th, once per interval, or any mix
/// of these.
///
/// A call runs if it is the very first, **or** one of the [`first`](Self::first) n, **or** its
/// number is a multiple of [`every`](Self::every) (calls are numbered from 0), **or** the last run
/// ended at least an [`interval`](Self::interval) ago. It can be built in a `static`:
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::Sometimes;
///
/// static REPORT: Sometimes = Sometimes::new().first(10).every(1000).interval(Duration::from_secs(3600));
///
/// REPORT.run(|| println!("the cache is full"));
/// ```
///
/// # One filter each
///
/// Without any filter it runs once:
///
/// ```
/// # use ratekeeper::Sometimes;
/// let once = Sometimes::new();
/// let ran: Vec<bool> = (0..4).map(|_| once.run(|| {}).is_some()).collect();
/// assert_eq!(ran, [true, false, false, false]);
/// ```
///
/// The first two times:
///
/// ```
/// # use ratekeeper::Sometimes;
/// let twice = Sometimes::new().first(2);
/// let ran: Vec<bool> = (0..4).map(|_| twice.run(|| {}).is_some()).collect();
/// assert_eq!(ran, [true, true, false, false]);
/// ```
///
/// Every second time:
///
/// ```
/// # use ratekeeper::Sometimes;
/// let half = Sometimes::new().every(2);
/// let ran: Vec<bool> = (0..4).map(|_| half.run(|| {}).is_some()).collect();
/// assert_eq!(ran, [true, false, true, false]);
/// ```
///
/// At most once a second:
///
/// ```
/// # use std::time::Duration;
/// # use ratekeeper::{ManualClock, Sometimes};
/// let clock = ManualClock::new();
/// let each_second = Sometimes::with_clock(clock.clone()).interval(Duration::from_secs(1));
/// assert!(each_second.run(|| {}).is_some());
/// clock.advance(Duration::from_millis(999));
/// assert!(each_second.run(|| {}).is_none());
/// clock.advance(Duration::from_millis(1));
/// assert!(each_second.run(|| {}).is_some());
/// ```
///
/// # A mix
///
/// One filter that matches is enough, and any run restarts the interval:
///
/// ```
/// # use std::time::Duration;
/// # use ratekeeper::{ManualClock, Sometimes};
/// let clock = ManualClock::new();
/// let mix = Sometimes::with_clock(clock.clone()).first(2).every(4).interval(Duration::from_secs(1));
/// let calls = |n: usize| -> Vec<bool> { (0..n).map(|_| mix.run(|| {}).is_some()).collect() };
/// assert_eq!(calls(4), [true, true, false, false]); // the first two
/// assert_eq!(calls(2), [true, false]); // the fifth is number 4
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(calls(3), [true, false, true]); // a second has passed; then number 8
/// ```
///
/// # Between threads
///
/// Runs never overlap: a call that is to run waits until the run before it has ended. A call that
/// skips takes no lock and never waits, even while another thread is inside its closure. With one
/// filter the counts are exact for any number of threads: n runs for `first(n)`, one in n (rounded
/// up) for `every(n)`, at most one per `interval`. An interval that elapses while another thread
/// runs does not count: it restarts when that run ends.
///
/// A closure that calls `run` of the same `Sometimes` deadlocks if that call is to run. Without
/// std, waiting spins.
///
/// # Panics
///
/// A call whose closure panics gives its number back, so the next call takes it, and does not
/// restart the interval. Calls that came while it ran keep their numbers: with `every`, a run that
/// panics beside them is not repeated.
pub struct Sometimes<C: Clock = SystemClock> {
    /// The number of the next call. Without `every` it stops at `first`.
    calls: AtomicU64,
    /// When the last run ended; [`NEVER`] before that. Written under `running`.
    ended: AtomicU64,
    /// In nanoseconds; 0 is none.
    interval: u64,
    /// At least 1: the very first call always runs.
    first: u32,
    /// 0 is none.
    every: u32,
    running: ConstMutex,
    clock: C,
}

/// An end that no instant is after, so that nothing has passed since.
const NEVER: u64 = u64::MAX;

/// # Constructors
#[cfg(all(feature = "std", not(ratekeeper_loom)))]
impl Sometimes {
    /// Runs once, on the first call, until filters are added.
    pub const fn new() -> Self {
        Self::with_clock(crate::clock::SystemClock)
    }
}

impl<C: Clock> Sometimes<C> {
    /// Runs once, on the first call, until filters are added; reads the time from `clock`.
    ///
    /// The clock is read only if there is an [`interval`](Self::interval).
    #[cfg(not(ratekeeper_loom))]
    pub const fn with_clock(clock: C) -> Self {
        let (calls, ended) = (AtomicU64::new(0), AtomicU64::new(NEVER));
        Self {
            calls,
            ended,
            interval: 0,
            first: 1,
            every: 0,
            running: ConstMutex::new(),
            clock,
        }
    }

    /// As above, not `const`: loom's types cannot be created in a constant.
    #[cfg(ratekeeper_loom)]
    pub fn with_clock(clock: C) -> Self {
        let (calls, ended) = (AtomicU64::new(0), AtomicU64::new(NEVER));
        Self {
            calls,
            ended,
            interval: 0,
            first: 1,
            every: 0,
            running: ConstMutex::new(),
            clock,
        }
    }

    /// Runs on the first `n` calls. 0 means 1.
    #[must_use]
    pub const fn first(mut self, n: u32) -> Self {
        self.first = if n == 0 { 1 } else { n };
        self
    }

    /// Runs on every `n`-th call, beginning with the first. 0 removes this filter.
    #[must_use]
    pub const fn every(mut self, n: u32) -> Self {
        self.every = n;
        self
    }

    /// Runs if the last run, whatever caused it, ended at least `interval` ago. Zero removes this
    /// filter.
    #[must_use]
    pub const fn interval(mut self, interval: Duration) -> Self {
        self.interval = nanos(interval);
        self
    }
}

/// # Running
impl<C: Clock> Sometimes<C> {
    /// Calls `f` if one of the filters matches, and returns its result; `None` if it did not run.
    #[inline]
    pub fn run<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        // Read first: reading a clock waits for what was written before it.
        let now = if self.interval > 0 {
            self.clock.now().as_unix_nanos()
        } else {
            0
        };
        let number = self.count();
        let reason = self.reason(number, now)?;
        self.run_slow(reason, number, f)
    }

    /// Takes the number of this call.
    #[inline]
    fn count(&self) -> u64 {
        if self.every > 0 {
            return self.calls.fetch_add(1, Relaxed);
        }
        // Past the first there is nothing to count, so nothing to write.
        let mut number = self.calls.load(Relaxed);
        while self.runs(number) {
            match self
                .calls
                .compare_exchange_weak(number, number + 1, Relaxed, Relaxed)
            {
                Ok(_) => break,
                Err(seen) => number = seen,
            }
        }
        number
    }

    /// The reason why this call runs, if it does.
    #[inline]
    fn reason(&self, number: u64, now: u64) -> Option<Reason> {
        if self.runs(number) {
            Some(Reason::Number)
        } else if self.is_interval_over(now) {
            Some(Reason::Interval { now })
        } else {
            None
        }
    }

    /// Whether the call with this number runs.
    #[inline]
    fn runs(&self, number: u64) -> bool {
        number < u64::from(self.first)
            || (self.every > 0 && number.is_multiple_of(u64::from(self.every)))
    }

    /// Whether there is an interval and the last run ended that long ago.
    #[inline]
    fn is_interval_over(&self, now: u64) -> bool {
        self.interval > 0 && now.saturating_sub(self.ended.load(Relaxed)) >= self.interval
    }

    #[cold]
    fn run_slow<R>(&self, reason: Reason, number: u64, f: impl FnOnce() -> R) -> Option<R> {
        let _guard = match reason {
            Reason::Number => self.running.lock(),
            // The interval restarts at the end of a run that is still in progress.
            Reason::Interval { now } => self
                .running
                .try_lock()
                .filter(|_| self.is_interval_over(now))?,
        };
        let panic_guard = PanicGuard {
            calls: &self.calls,
            counted: self.every > 0 || self.runs(number),
        };
        let result = f();
        core::mem::forget(panic_guard);
        if self.interval > 0 {
            self.ended.store(self.clock.now().as_unix_nanos(), Relaxed);
        }
        Some(result)
    }
}

/// Why a call runs.
#[derive(Clone, Copy)]
enum Reason {
    /// Its number matches `first` or `every`.
    Number,
    /// The last run ended an interval ago.
    Interval { now: u64 },
}

/// Gives the number of a call back when its closure panics; forgotten when it returns.
struct PanicGuard<'a> {
    calls: &'a AtomicU64,
    counted: bool,
}

impl Drop for PanicGuard<'_> {
    #[cold]
    fn drop(&mut self) {
        if self.counted {
            self.calls.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(all(feature = "std", not(ratekeeper_loom)))]
impl Default for Sometimes {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clock> fmt::Debug for Sometimes<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sometimes")
            .field("first", &self.first)
            .field("every", &self.every)
            .field("interval", &Duration::from_nanos(self.interval))
            .finish_non_exhaustive()
    }
}
