//! [`SystemClock`]: the default clock, and the offset that ties every real clock to the Unix epoch.

use super::{Clock, Timestamp};

/// The monotonic clock of the operating system, the default clock: it never runs backwards and no
/// change of the wall clock moves it.
///
/// Without the feature `std` there is no such clock and no value of this type: give the limiter a
/// [`ManualClock`](super::ManualClock) or a [`Clock`] of your own.
#[cfg(feature = "std")]
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// The monotonic clock of the operating system, which needs the feature `std`: without it there is
/// no value of this type. Give the limiter a [`ManualClock`](super::ManualClock) or a [`Clock`] of
/// your own.
#[cfg(not(feature = "std"))]
#[derive(Clone, Copy, Debug)]
pub struct SystemClock(core::convert::Infallible);

#[cfg(not(feature = "std"))]
impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        match self.0 {}
    }
}

#[cfg(all(feature = "std", any(target_os = "linux", target_os = "android")))]
pub(super) use linux::{ClockId, read};

#[cfg(all(feature = "std", any(target_os = "linux", target_os = "android")))]
impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        read(ClockId::Monotonic)
    }
}

#[cfg(all(feature = "std", any(target_os = "linux", target_os = "android")))]
mod linux {
    use super::super::{NANOS_PER_SECOND, Timestamp, nanos};
    pub(crate) use rustix::time::ClockId;
    use rustix::time::clock_gettime;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::SystemTime;

    /// The offset of the kernel's monotonic clocks from the Unix epoch: determined once per
    /// process, 0 before. The fine and the coarse clock have the same zero.
    static OFFSET: AtomicU64 = AtomicU64::new(0);

    /// Read directly from the kernel: std would split the reading into a `Duration` and we would
    /// join it again.
    #[inline]
    pub(crate) fn read(clock: ClockId) -> Timestamp {
        let offset = match OFFSET.load(Ordering::Relaxed) {
            0 => learn_offset(),
            offset => offset,
        };
        Timestamp(offset.wrapping_add(since_boot(clock)))
    }

    #[inline]
    fn since_boot(clock: ClockId) -> u64 {
        let time = clock_gettime(clock);
        (time.tv_sec as u64)
            .wrapping_mul(NANOS_PER_SECOND)
            .wrapping_add(time.tv_nsec as u64)
    }

    #[cold]
    fn learn_offset() -> u64 {
        let wall = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let offset = nanos(wall)
            .wrapping_sub(since_boot(ClockId::Monotonic))
            .max(1);
        // The first thread decides for all.
        match OFFSET.compare_exchange(0, offset, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => offset,
            Err(first) => first,
        }
    }
}

#[cfg(all(feature = "std", not(any(target_os = "linux", target_os = "android"))))]
impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        use std::sync::OnceLock;
        use std::time::{Instant as OsInstant, SystemTime};

        static ANCHOR: OnceLock<(OsInstant, u64)> = OnceLock::new();
        let (os, unix) = ANCHOR.get_or_init(|| {
            let wall = SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default();
            (OsInstant::now(), super::nanos(wall))
        });
        Timestamp(unix.saturating_add(super::nanos(os.elapsed())))
    }
}
