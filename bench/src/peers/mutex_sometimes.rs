//! Go's `rate.Sometimes`, ported line by line, with a Mutex as there.

use std::sync::Mutex;
use std::time::{Duration, Instant};

pub(crate) struct Sometimes {
    pub(crate) first: u64,
    pub(crate) every: u64,
    pub(crate) interval: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    count: u64,
    last: Option<Instant>,
}

impl Sometimes {
    pub(crate) fn new(first: u64, every: u64, interval: Duration) -> Self {
        Self {
            first,
            every,
            interval,
            state: Mutex::default(),
        }
    }

    /// Calls `f` if it is due; returns whether it did.
    pub(crate) fn run(&self, f: impl FnOnce()) -> bool {
        let mut state = self.state.lock().expect("nothing panics under it");
        let runs = state.count == 0
            || (self.first > 0 && state.count < self.first)
            || (self.every > 0 && state.count.is_multiple_of(self.every))
            || (self.interval > Duration::ZERO
                && state
                    .last
                    .is_none_or(|last| last.elapsed() >= self.interval));
        if runs {
            f();
            if self.interval > Duration::ZERO {
                state.last = Some(Instant::now());
            }
        }
        state.count += 1;
        runs
    }
}
