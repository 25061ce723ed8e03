//! [`Clock`] and [`Timestamp`]: one timeline of nanoseconds that all clocks share, and the clocks
//! that read it.
//!
//! | clock | reads | for |
//! | --- | --- | --- |
//! | [`SystemClock`] | the monotonic clock of the operating system | the default |
//! | [`FastClock`] | the processor's time stamp counter (feature `fast-clock`) | hot loops |
//! | [`CoarseClock`] | the kernel's last tick, a few milliseconds old at most | the cheapest read |
//! | [`ManualClock`] | what you set | tests, simulations, replays, `no_std` |
//!
//! A clock may stall, jump or run backwards: a limiter judges each call at the instant it is given,
//! and an instant older than earlier ones can only be stricter.

#[cfg(feature = "std")]
mod coarse;
#[cfg(feature = "fast-clock")]
mod fast;
mod manual;
#[cfg(feature = "std")]
mod sleep;
mod system;

#[cfg(feature = "std")]
pub use coarse::CoarseClock;
#[cfg(feature = "fast-clock")]
pub use fast::FastClock;
pub use manual::ManualClock;
#[cfg(feature = "std")]
pub use sleep::Sleep;
pub use system::SystemClock;

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// A source of time, and of timers that run on it.
///
/// Only [`now`](Clock::now) is required. The timers have defaults that suit any clock which runs at
/// the speed of real time; a clock that does not (see [`ManualClock`]) provides its own.
pub trait Clock: Clone + Send + Sync + 'static {
    /// The current instant.
    fn now(&self) -> Timestamp;

    /// Blocks the calling thread until `at`, or until it is unparked. May return early.
    #[cfg(feature = "std")]
    fn park_until(&self, at: Timestamp) {
        std::thread::park_timeout(at.saturating_since(self.now()));
    }

    /// A future that is ready at `at`, or a little early.
    #[cfg(feature = "std")]
    fn sleep_until(&self, at: Timestamp) -> Sleep {
        Sleep::real(at.saturating_since(self.now()))
    }
}

/// A point in time: nanoseconds since the Unix epoch, on a timeline that never steps.
///
/// The operating system's monotonic clock is anchored to the wall clock once per process, so that
/// instants of all clocks compare and windows align across processes; a later change of the wall
/// clock has no effect. Arithmetic saturates.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::Timestamp;
///
/// let noon = Timestamp::from_unix(Duration::from_secs(1_700_000_000));
/// assert_eq!((noon + Duration::from_millis(5)) - noon, Duration::from_millis(5));
/// assert_eq!(noon - (noon + Duration::from_secs(1)), Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const UNIX_EPOCH: Self = Self(0);

    /// The instant `nanos` nanoseconds after the Unix epoch.
    pub const fn from_unix_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The instant `since_epoch` after the Unix epoch, at most 584 years.
    pub const fn from_unix(since_epoch: Duration) -> Self {
        Self(nanos(since_epoch))
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn as_unix_nanos(self) -> u64 {
        self.0
    }

    /// Time since the Unix epoch.
    pub const fn since_unix(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, after: Duration) -> Self {
        Self(self.0.saturating_add(nanos(after)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, before: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(before)))
    }
}

impl Sub for Timestamp {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_since(earlier)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Timestamp({}.{:09})",
            self.0 / NANOS_PER_SECOND,
            self.0 % NANOS_PER_SECOND
        )
    }
}

pub(crate) const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A duration in whole nanoseconds, clipped to what 64 bits hold (584 years).
pub(crate) const fn nanos(duration: Duration) -> u64 {
    let nanos = duration.as_nanos();
    if nanos > u64::MAX as u128 {
        u64::MAX
    } else {
        nanos as u64
    }
}
