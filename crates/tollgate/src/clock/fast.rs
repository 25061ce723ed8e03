//! The time stamp counter of the processor.

use super::{Clock, Instant, SystemClock};
use std::sync::OnceLock;

/// The processor's time stamp counter, calibrated against the operating system's clock on first use (feature
/// `fast-clock`). Where the processor has no steady counter it reads the operating system's clock.
///
/// About twice as fast to read as [`SystemClock`]. The calibration is good to some parts in a million, so the two
/// drift apart by that much; a limiter sees one clock only and does not mind.
#[derive(Clone, Copy, Debug, Default)]
pub struct FastClock;

impl Clock for FastClock {
    #[inline]
    fn now(&self) -> Instant {
        let anchor = anchor();
        let up = anchor.counter.delta_as_nanos(anchor.start, anchor.counter.raw());
        Instant(anchor.unix.wrapping_add(up))
    }
}

struct Anchor {
    counter: quanta::Clock,
    /// The counter and the line of all clocks, read together.
    start: u64,
    unix: u64,
}

#[inline]
fn anchor() -> &'static Anchor {
    static ANCHOR: OnceLock<Anchor> = OnceLock::new();
    ANCHOR.get_or_init(|| {
        let counter = quanta::Clock::new();
        let start = counter.raw();
        Anchor { start, unix: SystemClock.now().as_unix_nanos(), counter }
    })
}
