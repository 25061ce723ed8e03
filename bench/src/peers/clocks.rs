//! Our clocks, dressed for the peers that take a clock, and a clock that costs nothing.

use governor::clock::{Clock as GovernorClock, ReasonablyRealtime, Reference};
use governor::nanos::Nanos;
use ratekeeper::{Clock, Timestamp};
use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One of our clocks as a peer's.
#[derive(Clone)]
pub(crate) struct Ours<C> {
    clock: C,
    start: Timestamp,
}

impl<C: Clock> Ours<C> {
    pub(crate) fn new(clock: C) -> Self {
        Self {
            start: clock.now(),
            clock,
        }
    }
}

/// Our instant as governor's.
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

impl<C: Clock> GovernorClock for Ours<C> {
    type Instant = Nanosecond;

    #[inline]
    fn now(&self) -> Nanosecond {
        Nanosecond(self.clock.now().as_unix_nanos())
    }
}

impl<C: Clock> ReasonablyRealtime for Ours<C> {}

impl<C: Clock> ratelimit::Clock for Ours<C> {
    #[inline]
    fn elapsed(&self) -> Duration {
        self.clock.now() - self.start
    }
}

/// Where the clocks below begin.
const START: u64 = 1_700_000_000_000_000_000;

/// A clock that stands still and costs nothing: what is left is the limiter.
#[derive(Clone, Copy)]
pub(crate) struct Still;

impl Clock for Still {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_nanos(START)
    }
}

/// A clock that is a microsecond further each time it is read, for what is called one by one.
#[derive(Clone)]
pub(crate) struct Stepping(Arc<AtomicU64>);

impl Stepping {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(START)))
    }
}

impl Clock for Stepping {
    #[inline]
    fn now(&self) -> Timestamp {
        let now = self.0.load(Ordering::Relaxed) + 1_000;
        self.0.store(now, Ordering::Relaxed);
        Timestamp::from_unix_nanos(now)
    }
}
