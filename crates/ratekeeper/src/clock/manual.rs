//! [`ManualClock`]: a clock that moves only when it is set, and wakes the waiters that sleep on it.

use super::{Clock, Timestamp, nanos};
use crate::sync::{Arc, AtomicU64, Ordering};
use core::fmt;
use core::time::Duration;

/// A clock that stands still until it is moved: for tests, simulations and replays, and as the
/// clock of `no_std` programs that have a tick of their own.
///
/// Clones show the same time. Moving it wakes the waiters that are due, earliest first.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{Limit, Limiter, ManualClock};
///
/// let clock = ManualClock::new();
/// let limiter = Limiter::with_clock(Limit::per_second(1), clock.clone());
/// assert!(limiter.check().is_allowed());
/// assert!(limiter.check().is_denied());
/// clock.advance(Duration::from_secs(1));
/// assert!(limiter.check().is_allowed());
/// ```
#[derive(Clone)]
pub struct ManualClock {
    shared: Arc<ManualClockState>,
}

struct ManualClockState {
    now: AtomicU64,
    #[cfg(feature = "std")]
    sleepers: sleepers::Sleepers,
}

/// 2020-01-01 00:00 UTC: a whole day, so that every window that divides a day begins here.
const START: Duration = Duration::from_secs(1_577_836_800);

impl ManualClock {
    /// A clock that shows 2020-01-01 00:00 UTC.
    pub fn new() -> Self {
        Self::starting_at(Timestamp::from_unix(START))
    }

    /// A clock that shows `start`.
    pub fn starting_at(start: Timestamp) -> Self {
        let shared = ManualClockState {
            now: AtomicU64::new(start.as_unix_nanos()),
            #[cfg(feature = "std")]
            sleepers: Default::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Moves the time forward and wakes the waiters that are due.
    pub fn advance(&self, by: Duration) {
        let by = nanos(by);
        let mut now = self.shared.now.load(Ordering::Relaxed);
        loop {
            let next = now.saturating_add(by);
            match self.shared.now.compare_exchange_weak(
                now,
                next,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(seen) => now = seen,
            }
        }
        self.wake();
    }

    /// Sets the time, also backwards, and wakes the waiters that are due.
    pub fn set(&self, now: Timestamp) {
        self.shared
            .now
            .store(now.as_unix_nanos(), Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        #[cfg(feature = "std")]
        self.shared.sleepers.wake_until(self.now());
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_nanos(self.shared.now.load(Ordering::Acquire))
    }

    #[cfg(feature = "std")]
    fn park_until(&self, at: Timestamp) {
        let mut sleeper = sleepers::SleeperId::default();
        if !self
            .shared
            .sleepers
            .arm(&mut sleeper, at, &crate::wait_list::thread_waker(), || {
                self.now()
            })
        {
            std::thread::park();
        }
        self.shared.sleepers.disarm(&mut sleeper);
    }

    #[cfg(feature = "std")]
    fn sleep_until(&self, at: Timestamp) -> super::Sleep {
        super::Sleep::manual(self.clone(), at)
    }
}

#[cfg(feature = "std")]
impl ManualClock {
    /// The number of waiters that sleep on this clock: a test can let them fall asleep before it
    /// moves the time.
    pub fn sleepers(&self) -> usize {
        self.shared.sleepers.len()
    }

    /// When the next sleeper wakes; a simulation can jump to that time.
    pub fn next_wake(&self) -> Option<Timestamp> {
        self.shared.sleepers.first()
    }
}

#[cfg(feature = "std")]
impl ManualClock {
    pub(super) fn arm(
        &self,
        sleeper: &mut sleepers::SleeperId,
        at: Timestamp,
        waker: &core::task::Waker,
    ) -> bool {
        self.shared.sleepers.arm(sleeper, at, waker, || self.now())
    }

    pub(super) fn disarm(&self, sleeper: &mut sleepers::SleeperId) {
        self.shared.sleepers.disarm(sleeper);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManualClock").field(&self.now()).finish()
    }
}

#[cfg(feature = "std")]
pub(super) mod sleepers {
    //! Sleepers on a manual clock, ordered by the time to wake.

    use crate::clock::Timestamp;
    use core::task::Waker;
    use std::collections::BTreeMap;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    #[derive(Default)]
    pub(crate) struct Sleepers {
        queue: Mutex<SleeperQueue>,
    }

    #[derive(Default)]
    struct SleeperQueue {
        by_time: BTreeMap<(Timestamp, u64), Waker>,
        next_id: u64,
    }

    /// A sleeper's key in the queue; none when it is not queued.
    #[derive(Default)]
    pub(crate) struct SleeperId(Option<(Timestamp, u64)>);

    impl Sleepers {
        /// Wakes `waker` at `at`; true, and nothing is queued, if that time has already come.
        pub(crate) fn arm(
            &self,
            sleeper: &mut SleeperId,
            at: Timestamp,
            waker: &Waker,
            now: impl FnOnce() -> Timestamp,
        ) -> bool {
            let mut queue = self.lock();
            if let Some(entry) = sleeper.0.take() {
                queue.by_time.remove(&entry);
            }
            // The time is read under the lock: a thread that moves it takes the lock afterwards and
            // finds this entry.
            if now() >= at {
                return true;
            }
            let entry = (at, queue.next_id);
            queue.next_id += 1;
            queue.by_time.insert(entry, waker.clone());
            sleeper.0 = Some(entry);
            false
        }

        pub(crate) fn disarm(&self, sleeper: &mut SleeperId) {
            if let Some(entry) = sleeper.0.take() {
                self.lock().by_time.remove(&entry);
            }
        }

        pub(crate) fn wake_until(&self, now: Timestamp) {
            loop {
                let due = {
                    let mut queue = self.lock();
                    match queue.by_time.first_key_value() {
                        Some((&(at, _), _)) if at <= now => queue.by_time.pop_first(),
                        _ => None,
                    }
                };
                // Wakers run outside the lock: they may use this clock.
                match due {
                    Some((_, waker)) => waker.wake(),
                    None => break,
                }
            }
        }

        pub(crate) fn len(&self) -> usize {
            self.lock().by_time.len()
        }

        pub(crate) fn first(&self) -> Option<Timestamp> {
            self.lock()
                .by_time
                .first_key_value()
                .map(|(&(at, _), _)| at)
        }

        fn lock(&self) -> MutexGuard<'_, SleeperQueue> {
            self.queue.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
