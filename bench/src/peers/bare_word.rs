//! The floor, not a limiter: reads the clock and adds to one shared word. Nothing exact and shared
//! can cost much less.

use ratekeeper::Clock;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Alone on its cache line, and on the adjacent one, which processors fetch with it.
#[repr(align(128))]
struct Word(AtomicU64);

pub(crate) fn add<C: Clock>(clock: C) -> impl Fn() -> bool + Clone + Sync {
    let word = Arc::new(Word(AtomicU64::new(0)));
    move || {
        black_box(clock.now());
        black_box(&word).0.fetch_add(1, Ordering::AcqRel) < u64::MAX
    }
}
