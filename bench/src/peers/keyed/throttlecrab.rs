//! throttlecrab: a maintained keyed GCRA limiter whose caller passes the time, so it can read the
//! same clock.
//!
//! Its keys are text, and a call borrows it mutably, so threads share it behind a lock. The store
//! is the one with a clean-up every minute: the adaptive one cleans up during calls and takes tens
//! of microseconds per call at 1 M keys.

use super::KeyedLimit;
use crate::keys::Key;
use ratekeeper::Clock;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};
use throttlecrab::{PeriodicStore, RateLimiter};

pub(crate) fn allows<K: Key, C: Clock>(
    numbers: KeyedLimit,
    clock: C,
) -> impl Fn(&K) -> bool + Clone + Send + Sync + 'static {
    let limiter = Arc::new(Mutex::new(RateLimiter::new(PeriodicStore::new())));
    let seconds = numbers.interval.as_secs() as i64;
    // It drops a key with a burst of one immediately.
    let burst = i64::from(numbers.burst.max(2));
    move |key| {
        let now = UNIX_EPOCH + Duration::from_nanos(clock.now().as_unix_nanos());
        let key = key.text().expect("text");
        let mut limiter = limiter.lock().expect("nothing panics under it");
        limiter
            .rate_limit(key, burst, 1, seconds, 1, now)
            .is_ok_and(|(admitted, _)| admitted)
    }
}
