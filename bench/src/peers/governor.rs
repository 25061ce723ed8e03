//! governor, on any clock.

use super::{OPEN_BURST, OPEN_INTERVAL, SHUT_INTERVAL};
use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

type Direct<C> =
    Arc<RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<<C as Clock>::Instant>>>;

fn limiter<C: Clock>(interval: Duration, burst: u32, clock: C) -> Direct<C> {
    let quota = Quota::with_period(interval).expect("not zero");
    let quota = quota.allow_burst(NonZeroU32::new(burst).expect("not zero"));
    Arc::new(RateLimiter::direct_with_clock(quota, clock))
}

pub(crate) fn allowed<C: Clock + Send + Sync>(clock: C) -> impl Fn() -> bool + Clone + Sync {
    let limiter = limiter(OPEN_INTERVAL, OPEN_BURST, clock);
    move || black_box(&limiter).check().is_ok()
}

pub(crate) fn denied<C: Clock + Send + Sync>(clock: C) -> impl Fn() -> bool + Clone + Sync {
    let limiter = limiter(SHUT_INTERVAL, 1, clock);
    assert!(limiter.check().is_ok());
    move || black_box(&limiter).check().is_err()
}
