//! ratekeeper.

use super::KeyedLimit;
use crate::keys::Key;
use ratekeeper::{Clock, Keyed, Limit};

pub(crate) fn allows<K: Key, C: Clock>(
    numbers: KeyedLimit,
    keys: u64,
    clock: C,
) -> impl Fn(&K) -> bool + Clone + Send + Sync + 'static {
    let limit = Limit::every(numbers.interval).burst(numbers.burst.into());
    let builder = Keyed::builder(limit).max_keys(keys as usize).clock(clock);
    let limiter: Keyed<K, C> = builder.build();
    move |key| limiter.check(key).is_allowed()
}
