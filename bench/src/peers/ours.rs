//! ratekeeper.

use super::{OPEN_BURST, OPEN_INTERVAL, SHUT_INTERVAL};
use ratekeeper::{Clock, Limit, Limiter};
use std::hint::black_box;

fn open<C: Clock>(clock: C) -> Limiter<C> {
    Limiter::with_clock(Limit::every(OPEN_INTERVAL).burst(OPEN_BURST.into()), clock)
}

pub(crate) fn allowed<C: Clock>(clock: C) -> impl Fn() -> bool + Clone + Sync {
    let limiter = open(clock);
    move || black_box(&limiter).check().is_allowed()
}

pub(crate) fn denied<C: Clock>(clock: C) -> impl Fn() -> bool + Clone + Sync {
    let limiter = Limiter::with_clock(Limit::every(SHUT_INTERVAL), clock);
    assert!(limiter.check().is_allowed());
    move || black_box(&limiter).check().is_denied()
}

pub(crate) fn reserve<C: Clock>(clock: C) -> impl Fn() -> bool + Clone + Sync {
    let limiter = open(clock);
    move || black_box(black_box(&limiter).reserve(1)).is_ok()
}
