//! Run something only sometimes: the first times, every so often, once an interval, or any mix of these.

mod turn;

use crate::clock::{Clock, DefaultClock, nanos};
use crate::sync::{AtomicU64, Ordering::Relaxed};
use core::fmt;
use core::time::Duration;
use turn::Turn;

/// Runs a closure only sometimes: on the first calls, on every n-th, once an interval, or any mix of these.
///
/// A call runs if it is the very first, **or** one of the [`first`](Self::first) n, **or** its number is a multiple of
/// [`every`](Self::every) (calls are numbered from 0), **or** the last run ended at least an
/// [`interval`](Self::interval) ago. It can be built in a `static`:
///
/// ```
/// use std::time::Duration;
/// use tollgate::Sometimes;
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
/// # use tollgate::Sometimes;
/// let once = Sometimes::new();
/// let ran: Vec<bool> = (0..4).map(|_| once.run(|| {}).is_some()).collect();
/// assert_eq!(ran, [true, false, false, false]);
/// ```
///
/// The first two times:
///
/// ```
/// # use tollgate::Sometimes;
/// let twice = Sometimes::new().first(2);
/// let ran: Vec<bool> = (0..4).map(|_| twice.run(|| {}).is_some()).collect();
/// assert_eq!(ran, [true, true, false, false]);
/// ```
///
/// Every second time:
///
/// ```
/// # use tollgate::Sometimes;
/// let half = Sometimes::new().every(2);
/// let ran: Vec<bool> = (0..4).map(|_| half.run(|| {}).is_some()).collect();
/// assert_eq!(ran, [true, false, true, false]);
/// ```
///
/// At most once a second:
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::{ManualClock, Sometimes};
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
/// One filter that says run is enough, and any run starts the interval anew:
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::{ManualClock, Sometimes};
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
/// Runs never overlap: a caller whose turn it is waits for the run before it. A caller that skips takes no lock and
/// never waits, also not while another thread is inside its closure. With one filter the counts are exact for any
/// number of threads: n runs for `first(n)`, one in n (rounded up) for `every(n)`, at most one an `interval`. An interval
/// that is over while another thread runs is not: it starts anew when that run ends.
///
/// A closure that calls `run` of the same `Sometimes` waits for itself if it is told to run. Without std, waiting spins.
///
/// # Panics
///
/// If the closure panics the call does not count: the next one is in its place. (If others came while it ran, the next
/// one that would have skipped is.)
pub struct Sometimes<C: Clock = DefaultClock> {
    /// The number of the next call, and above [`NUMBER`] how many runs are owed. Without `every` it stops at `first`.
    calls: AtomicU64,
    /// When the last run ended; [`NEVER`] before that. Written by whoever has the turn.
    ended: AtomicU64,
    /// In nanoseconds; 0 is none.
    interval: u64,
    /// At least 1: the very first call always runs.
    first: u32,
    /// 0 is none.
    every: u32,
    turn: Turn,
    clock: C,
}

/// The bits of `calls` that hold the number: nine years of calls a nanosecond apart.
const NUMBER: u64 = OWED - 1;
/// One run that is owed: it panicked while others came, and a call that would have skipped makes up for it.
const OWED: u64 = 1 << 58;

/// An end that no instant is after, so that nothing has passed since.
const NEVER: u64 = u64::MAX;

/// # Making one
#[cfg(all(feature = "std", not(tollgate_loom)))]
impl Sometimes {
    /// Runs once, on the first call, until you say more.
    pub const fn new() -> Self {
        Self::with_clock(crate::clock::SystemClock)
    }
}

impl<C: Clock> Sometimes<C> {
    /// Runs once, on the first call, until you say more; takes the time from `clock`.
    ///
    /// The clock is read only if there is an [`interval`](Self::interval).
    #[cfg(not(tollgate_loom))]
    pub const fn with_clock(clock: C) -> Self {
        let (calls, ended) = (AtomicU64::new(0), AtomicU64::new(NEVER));
        Self { calls, ended, interval: 0, first: 1, every: 0, turn: Turn::new(), clock }
    }

    /// The same; what loom watches cannot be made in a constant.
    #[cfg(tollgate_loom)]
    pub fn with_clock(clock: C) -> Self {
        let (calls, ended) = (AtomicU64::new(0), AtomicU64::new(NEVER));
        Self { calls, ended, interval: 0, first: 1, every: 0, turn: Turn::new(), clock }
    }

    /// Runs on the first `n` calls. 0 is as good as 1.
    #[must_use]
    pub const fn first(mut self, n: u32) -> Self {
        self.first = if n == 0 { 1 } else { n };
        self
    }

    /// Runs on every `n`-th call, beginning with the first. 0 takes this filter away.
    #[must_use]
    pub const fn every(mut self, n: u32) -> Self {
        self.every = n;
        self
    }

    /// Runs if the last run, whatever caused it, ended at least `interval` ago. Zero takes this filter away.
    #[must_use]
    pub const fn interval(mut self, interval: Duration) -> Self {
        self.interval = nanos(interval);
        self
    }
}

/// # Running
impl<C: Clock> Sometimes<C> {
    /// Calls `f` if one of the filters says so, and returns what it returned; `None` if it did not run.
    #[inline]
    pub fn run<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        // First of all: reading a clock waits for what was written before it.
        let now = if self.interval > 0 { self.clock.now().as_unix_nanos() } else { 0 };
        let calls = self.count();
        let reason = self.reason(calls, now)?;
        self.run_for(reason, calls & NUMBER, f)
    }

    /// Takes the number of this call; returns it together with the runs that are owed.
    #[inline]
    fn count(&self) -> u64 {
        if self.every > 0 {
            return self.calls.fetch_add(1, Relaxed);
        }
        // Past the first there is nothing to count, so nothing to write.
        let mut number = self.calls.load(Relaxed);
        while self.runs(number) {
            match self.calls.compare_exchange_weak(number, number + 1, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(seen) => number = seen,
            }
        }
        number
    }

    /// Why this call is to run, if it is.
    #[inline]
    fn reason(&self, calls: u64, now: u64) -> Option<Reason> {
        if self.runs(calls & NUMBER) {
            Some(Reason::Number)
        } else if calls > NUMBER && self.make_up() {
            Some(Reason::Owed)
        } else if self.is_over(now) {
            Some(Reason::Interval { now })
        } else {
            None
        }
    }

    /// Whether the call with this number runs.
    #[inline]
    fn runs(&self, number: u64) -> bool {
        number < u64::from(self.first) || (self.every > 0 && number.is_multiple_of(u64::from(self.every)))
    }

    /// Whether there is an interval and the last run ended that long ago.
    #[inline]
    fn is_over(&self, now: u64) -> bool {
        self.interval > 0 && now.saturating_sub(self.ended.load(Relaxed)) >= self.interval
    }

    /// Whether a run is owed, which this call then makes up for.
    #[cold]
    fn make_up(&self) -> bool {
        self.calls.fetch_update(Relaxed, Relaxed, |calls| calls.checked_sub(OWED)).is_ok()
    }

    #[cold]
    fn run_for<R>(&self, reason: Reason, number: u64, f: impl FnOnce() -> R) -> Option<R> {
        let _turn = match reason {
            Reason::Number | Reason::Owed => self.turn.take(),
            // If another thread has the turn its run is still to end, and the interval with it.
            Reason::Interval { now } => self.turn.try_take().filter(|_| self.is_over(now))?,
        };
        let give_back = GiveBack { to: self, reason, number };
        let result = f();
        core::mem::forget(give_back);
        if self.interval > 0 {
            self.ended.store(self.clock.now().as_unix_nanos(), Relaxed);
        }
        Some(result)
    }
}

/// Why a call runs.
#[derive(Clone, Copy)]
enum Reason {
    /// Its number says so.
    Number,
    /// It makes up for one that panicked.
    Owed,
    /// The last run ended an interval ago.
    Interval { now: u64 },
}

/// Makes a call not have been; forgotten if the closure returns.
struct GiveBack<'a, C: Clock> {
    to: &'a Sometimes<C>,
    reason: Reason,
    number: u64,
}

impl<C: Clock> Drop for GiveBack<'_, C> {
    #[cold]
    fn drop(&mut self) {
        let _ = self.to.calls.fetch_update(Relaxed, Relaxed, |calls| {
            let is_last = calls & NUMBER == self.number + 1;
            match self.reason {
                // For the next call the interval is still over. It takes the number, if nobody has come in between.
                Reason::Interval { .. } => is_last.then(|| calls - 1),
                // Without `every` all that take a number run: any of them will do.
                Reason::Number if is_last || self.to.every == 0 => Some(calls - 1),
                Reason::Owed if is_last => (calls - 1).checked_add(OWED),
                Reason::Number | Reason::Owed => calls.checked_add(OWED),
            }
        });
    }
}

#[cfg(all(feature = "std", not(tollgate_loom)))]
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
