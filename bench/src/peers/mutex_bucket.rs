//! The hand-written limiter: a token bucket in floating point behind a Mutex.

use super::{OPEN_BURST, OPEN_INTERVAL, SHUT_INTERVAL};
use ratekeeper::{Clock, Timestamp};
use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::Duration;

struct Bucket<C> {
    rate: f64,
    burst: f64,
    clock: C,
    state: Mutex<(f64, Timestamp)>,
}

impl<C: Clock> Bucket<C> {
    fn new(interval: Duration, burst: u32, clock: C) -> Arc<Self> {
        let burst = f64::from(burst);
        let state = Mutex::new((burst, clock.now()));
        Arc::new(Self {
            rate: interval.as_secs_f64().recip(),
            burst,
            clock,
            state,
        })
    }

    /// Takes one token, if there is one; returns whether it did.
    fn check(&self) -> bool {
        self.with_tokens(|tokens| {
            let fits = *tokens >= 1.0;
            if fits {
                *tokens -= 1.0;
            }
            fits
        })
    }

    /// Takes one token; returns how long until it is available.
    fn reserve(&self) -> Duration {
        self.with_tokens(|tokens| {
            *tokens -= 1.0;
            Duration::from_secs_f64((-*tokens / self.rate).max(0.0))
        })
    }

    fn wait(&self) {
        let delay = self.reserve();
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
    }

    fn with_tokens<T>(&self, verb: impl FnOnce(&mut f64) -> T) -> T {
        let mut state = self.state.lock().expect("nothing panics under it");
        // Read under the lock: a time older than the state would create tokens.
        let now = self.clock.now();
        let (tokens, last) = &mut *state;
        *tokens = (*tokens + (now - *last).as_secs_f64() * self.rate).min(self.burst);
        *last = now;
        verb(tokens)
    }
}

pub(crate) fn allowed<C: Clock>(clock: C) -> impl Fn() -> bool + Clone + Sync {
    let bucket = Bucket::new(OPEN_INTERVAL, OPEN_BURST, clock);
    move || black_box(&bucket).check()
}

pub(crate) fn denied<C: Clock>(clock: C) -> impl Fn() -> bool + Clone + Sync {
    let bucket = Bucket::new(SHUT_INTERVAL, 1, clock);
    assert!(bucket.check());
    move || !black_box(&bucket).check()
}

pub(crate) fn reserve<C: Clock>(clock: C) -> impl Fn() -> bool + Clone + Sync {
    let bucket = Bucket::new(OPEN_INTERVAL, OPEN_BURST, clock);
    move || black_box(black_box(&bucket).reserve()).is_zero()
}

pub(crate) fn wait_blocking<C: Clock>(clock: C) -> impl Fn() -> bool + Clone + Sync {
    let bucket = Bucket::new(OPEN_INTERVAL, OPEN_BURST, clock);
    move || {
        black_box(&bucket).wait();
        true
    }
}
