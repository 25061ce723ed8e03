//! governor's keyed limiter with its defaults: a DashMap with std's hasher.

use super::KeyedLimit;
use crate::keys::Key;
use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use std::num::NonZeroU32;
use std::sync::Arc;

type Keyed<K, C> = RateLimiter<K, DashMapStateStore<K>, C, NoOpMiddleware<<C as Clock>::Instant>>;

pub(crate) fn allows<K: Key, C: Clock + Send + Sync + 'static>(
    numbers: KeyedLimit,
    clock: C,
) -> impl Fn(&K) -> bool + Clone + Send + Sync + 'static {
    let quota = Quota::with_period(numbers.interval).expect("not zero");
    let quota = quota.allow_burst(NonZeroU32::new(numbers.burst).expect("not zero"));
    let limiter: Arc<Keyed<K, C>> = Arc::new(RateLimiter::dashmap_with_clock(quota, clock));
    move |key| limiter.check_key(key).is_ok()
}
