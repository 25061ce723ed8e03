//! The keyed contestants: one file each, a decision for a key as a call that returns whether it was
//! allowed.
//!
//! All of them have the same limit, and all keys are inserted before anything is timed.

pub(crate) mod governor;
pub(crate) mod ours;

use std::time::Duration;

/// One token per `interval`, at most `burst` of them.
#[derive(Clone, Copy)]
pub(crate) struct KeyedLimit {
    pub(crate) interval: Duration,
    pub(crate) burst: u32,
    pub(crate) text: &'static str,
}

/// Always allowed: no row here calls a key ten million times. A call keeps its key from full for
/// ten seconds, so that the tables are full of keys that must not be evicted.
pub(crate) const ALWAYS_ALLOWED: KeyedLimit = KeyedLimit {
    interval: Duration::from_secs(10),
    burst: 10_000_000,
    text: "1 every 10 s, burst 10000000",
};

/// Always denied once the first is taken.
pub(crate) const ALWAYS_DENIED: KeyedLimit = KeyedLimit {
    interval: Duration::from_secs(86_400),
    burst: 1,
    text: "1 every 1 d, burst 1, emptied first",
};
