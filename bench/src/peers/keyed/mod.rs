//! The keyed contestants: one file each, a decision for a key as a call that says whether it was
//! admitted.
//!
//! All of them get the same numbers, and they know their keys before anything is timed.

pub(crate) mod by_hash;
pub(crate) mod governor;
pub(crate) mod ours;
pub(crate) mod throttlecrab;

use std::time::Duration;

/// One token every `interval`, at most `burst` of them.
#[derive(Clone, Copy)]
pub(crate) struct Numbers {
    pub(crate) interval: Duration,
    pub(crate) burst: u32,
    pub(crate) text: &'static str,
}

/// Always admitted: no row here calls a key ten million times. A key that was called stays away
/// from full for ten seconds a call, so that the tables are full of keys that must not be
/// forgotten.
pub(crate) const OPEN: Numbers = Numbers {
    interval: Duration::from_secs(10),
    burst: 10_000_000,
    text: "1 every 10 s, burst 10000000",
};

/// Always denied once the first is taken.
pub(crate) const SHUT: Numbers = Numbers {
    interval: Duration::from_secs(86_400),
    burst: 1,
    text: "1 every 1 d, burst 1, emptied first",
};
