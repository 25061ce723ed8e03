//! ratekeeper.

use super::KeyedLimit;
use crate::keys::Key;
use ratekeeper::{Clock, Keyed, Limit};

pub(crate) fn limiter<K: Key, C: Clock>(numbers: KeyedLimit, keys: u64, clock: C) -> Keyed<K, C> {
    let limit = Limit::every(numbers.interval).burst(numbers.burst.into());
    Keyed::builder(limit)
        .max_keys(keys as usize)
        .clock(clock)
        .build()
}

pub(crate) fn allows<K: Key, C: Clock>(
    limiter: Keyed<K, C>,
) -> impl Fn(&K) -> bool + Clone + Send + Sync + 'static {
    move |key| limiter.check(key).is_allowed()
}
