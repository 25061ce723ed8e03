//! [`CoarseClock`]: the time of the kernel's last tick, the cheapest to read and a few milliseconds
//! old at most.

use super::{Clock, Timestamp};

/// The time of the kernel's last timer tick (Linux, Android): cheaper to read than any other clock
/// and up to one tick (1 to 10 ms) behind. Elsewhere it is the [`SystemClock`](super::SystemClock).
///
/// A limiter on this clock is as exact as on any other, on coarse time: tokens arrive one tick at a
/// time.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoarseClock;

impl Clock for CoarseClock {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[inline]
    fn now(&self) -> Timestamp {
        super::system::read(super::system::ClockId::MonotonicCoarse)
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    #[inline]
    fn now(&self) -> Timestamp {
        super::SystemClock.now()
    }
}
