//! Clocks: adapters for the peers that take a clock, and clocks without cost.

use governor::clock::{Clock as GovernorClock, Reference};
use governor::nanos::Nanos;
use ratekeeper::{Clock, Timestamp};
use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Adapter of one of our clocks to a peer's clock trait.
#[derive(Clone)]
pub(crate) struct ClockAdapter<C>(C);

impl<C: Clock> ClockAdapter<C> {
    pub(crate) fn new(clock: C) -> Self {
        Self(clock)
    }
}

/// Adapter of our timestamp to governor's instant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Nanosecond(u64);

impl Add<Nanos> for Nanosecond {
    type Output = Self;

    #[inline]
    fn add(self, after: Nanos) -> Self {
        Self(self.0 + after.as_u64())
    }
}

impl Reference for Nanosecond {
    #[inline]
    fn duration_since(&self, earlier: Self) -> Nanos {
        self.0.saturating_sub(earlier.0).into()
    }

    #[inline]
    fn saturating_sub(&self, duration: Nanos) -> Self {
        Self(self.0.checked_sub(duration.as_u64()).unwrap_or(self.0))
    }
}

impl<C: Clock> GovernorClock for ClockAdapter<C> {
    type Instant = Nanosecond;

    #[inline]
    fn now(&self) -> Nanosecond {
        Nanosecond(self.0.now().as_unix_nanos())
    }
}

/// The first instant of the clocks below.
const START: u64 = 1_700_000_000_000_000_000;

/// A frozen clock without cost: only the limiter is measured.
#[derive(Clone, Copy)]
pub(crate) struct FrozenClock;

impl Clock for FrozenClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_nanos(START)
    }
}

/// A clock that advances by a microsecond each time it is read, for calls that are counted one by
/// one.
#[derive(Clone)]
pub(crate) struct SteppingClock(Arc<AtomicU64>);

impl SteppingClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(START)))
    }
}

impl Clock for SteppingClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let now = self.0.load(Ordering::Relaxed) + 1_000;
        self.0.store(now, Ordering::Relaxed);
        Timestamp::from_unix_nanos(now)
    }
}
