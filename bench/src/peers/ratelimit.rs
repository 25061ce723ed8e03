//! ratelimit: an atomic count of tokens, refilled at most once per microsecond.

use super::{OPEN_BURST, SHUT_INTERVAL};
use ratelimit::{Builder, Clock};
use std::hint::black_box;
use std::sync::Arc;

pub(crate) fn allowed<C: Clock + Send + Sync>(clock: C) -> impl Fn() -> bool + Clone + Sync {
    // A rate of 10^9 in its default period, a second: one per nanosecond.
    let builder = Builder::with_clock(1_000_000_000, clock);
    let builder = builder
        .max_tokens(OPEN_BURST.into())
        .initial_available(OPEN_BURST.into());
    let limiter = Arc::new(builder.build().expect("valid"));
    move || black_box(&limiter).try_wait().is_ok()
}

pub(crate) fn denied<C: Clock + Send + Sync>(clock: C) -> impl Fn() -> bool + Clone + Sync {
    let builder = Builder::with_clock(1, clock)
        .period(SHUT_INTERVAL)
        .initial_available(1);
    let limiter = Arc::new(builder.build().expect("valid"));
    assert!(limiter.try_wait().is_ok());
    move || black_box(&limiter).try_wait().is_err()
}
