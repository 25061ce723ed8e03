//! leaky-bucket with its default fairness, on tokio's clock, which is the operating system's.

use super::{OPEN_BURST, SHUT_INTERVAL, ready};
use leaky_bucket::RateLimiter;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

fn open() -> Arc<RateLimiter> {
    // Its finest interval is a millisecond: a million per millisecond is one per nanosecond.
    let burst = OPEN_BURST as usize;
    let interval = Duration::from_millis(1);
    Arc::new(
        RateLimiter::builder()
            .max(burst)
            .initial(burst)
            .refill(1_000_000)
            .interval(interval)
            .build(),
    )
}

pub(crate) fn allowed() -> impl Fn() -> bool + Clone + Sync {
    let limiter = open();
    move || black_box(&limiter).try_acquire(1)
}

pub(crate) fn denied() -> impl Fn() -> bool + Clone + Sync {
    let limiter = Arc::new(
        RateLimiter::builder()
            .max(1)
            .initial(1)
            .refill(1)
            .interval(SHUT_INTERVAL)
            .build(),
    );
    assert!(limiter.try_acquire(1));
    move || !black_box(&limiter).try_acquire(1)
}

pub(crate) fn wait_async() -> impl Fn() -> bool + Clone + Sync {
    let limiter = open();
    move || ready(black_box(&limiter).acquire(1))
}
