//! The kernel's last tick: the cheapest time there is, a few milliseconds old at most.

use super::{Clock, Instant};

/// The time of the kernel's last timer tick (Linux, Android): cheaper to read than any other clock and up to one tick
/// (1 to 10 ms) behind. Elsewhere it is the [`SystemClock`](super::SystemClock).
///
/// A limiter on this clock is as exact as on any other, on coarse time: tokens arrive a tick at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoarseClock;

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Clock for CoarseClock {
    #[inline]
    fn now(&self) -> Instant {
        let offset = offset();
        Instant(offset.wrapping_add(ticks()))
    }
}

/// What the tick counter must be raised by to be on the line of all clocks; learnt once a process.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[inline]
fn offset() -> u64 {
    use std::sync::OnceLock;

    static OFFSET: OnceLock<u64> = OnceLock::new();
    *OFFSET.get_or_init(|| {
        // The fine and the coarse reading of the same kernel clock share their zero: only that zero is wanted here.
        let fine = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        super::SystemClock.now().as_unix_nanos().wrapping_sub(as_nanos(fine))
    })
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[inline]
fn ticks() -> u64 {
    as_nanos(rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[inline]
fn as_nanos(time: rustix::time::Timespec) -> u64 {
    (time.tv_sec as u64).wrapping_mul(super::NANOS_PER_SECOND).wrapping_add(time.tv_nsec as u64)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl Clock for CoarseClock {
    #[inline]
    fn now(&self) -> Instant {
        super::SystemClock.now()
    }
}
