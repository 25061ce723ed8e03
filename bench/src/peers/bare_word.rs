//! Not a limiter: reading the clock and adding to one shared word. What is exact and shared cannot
//! cost less by much.

use ratekeeper::Clock;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Alone on its cache line, and on the one beside it that processors fetch with it.
#[repr(align(128))]
struct Word(AtomicU64);

pub(crate) fn add<C: Clock>(clock: C) -> impl Fn() -> bool + Clone + Sync {
    let word = Arc::new(Word(AtomicU64::new(0)));
    move || {
        black_box(clock.now());
        black_box(&word).0.fetch_add(1, Ordering::AcqRel) < u64::MAX
    }
}
