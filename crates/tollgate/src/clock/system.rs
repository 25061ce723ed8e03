//! The default clock, and the anchor that ties every real clock to the Unix epoch.

use super::{Clock, Instant, nanos};
use std::sync::OnceLock;
use std::time::{Instant as OsInstant, SystemTime};

/// The monotonic clock of the operating system: it never runs backwards and no change of the wall clock moves it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Instant {
        let anchor = anchor();
        // Seconds and nanoseconds of a `Duration` are added up in 64 bits: enough for 584 years of uptime.
        let up = OsInstant::now().saturating_duration_since(anchor.os);
        Instant(anchor.unix + up.as_secs() * super::NANOS_PER_SECOND + u64::from(up.subsec_nanos()))
    }
}

/// The one moment of this process at which the monotonic and the wall clock were read together.
pub(super) struct Anchor {
    pub(super) os: OsInstant,
    pub(super) unix: u64,
}

#[inline]
pub(super) fn anchor() -> &'static Anchor {
    static ANCHOR: OnceLock<Anchor> = OnceLock::new();
    ANCHOR.get_or_init(|| {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Anchor { os: OsInstant::now(), unix: nanos(wall) }
    })
}
