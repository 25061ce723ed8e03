//! The peers: one file each, every verb as a call that returns whether it had the expected outcome.
//!
//! All of them have the same two limits, so that every call of a row takes the same path.

pub(crate) mod bare_word;
pub(crate) mod clocks;
pub(crate) mod governor;
pub(crate) mod keyed;
pub(crate) mod lua_bucket;
pub(crate) mod ours;

use std::time::Duration;

/// Always allowed: a token per nanosecond refills faster than any loop here takes it, with a burst
/// of four seconds' worth. Every allowed call still writes.
pub(crate) const OPEN_INTERVAL: Duration = Duration::from_nanos(1);
pub(crate) const OPEN_BURST: u32 = u32::MAX;
pub(crate) const ALWAYS_ALLOWED: &str = "1 every 1 ns, burst 4294967295";

/// Always denied once the first is taken.
pub(crate) const SHUT_INTERVAL: Duration = Duration::from_secs(86_400);
pub(crate) const ALWAYS_DENIED: &str = "1 every 1 d, burst 1, emptied first";
