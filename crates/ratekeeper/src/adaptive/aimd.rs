//! [`Aimd`]: additive increase, multiplicative decrease, as TCP adapts its window.

use super::control::{ControllerState, Sample, set};
use core::time::Duration;

/// Grows by 1 while requests succeed, and shrinks to nine tenths when they are dropped or take too
/// long.
///
/// It detects overload only by drops and timeouts, so the timeout is its most important setting.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Aimd {
    backoff: f64,
    pub(super) timeout: Option<Duration>,
}

impl Default for Aimd {
    fn default() -> Self {
        Self {
            backoff: 0.9,
            timeout: Some(Duration::from_secs(5)),
        }
    }
}

impl Aimd {
    /// The factor applied to the limit after drops; 0.9 unless set, 0.1 to 0.99.
    #[must_use]
    pub fn backoff(mut self, share: f64) -> Self {
        set(&mut self.backoff, share, 0.1, 0.99);
        self
    }

    /// A request that takes longer counts as dropped; 5 seconds unless set.
    #[must_use]
    pub fn timeout(mut self, after: Duration) -> Self {
        self.timeout = Some(after);
        self
    }

    pub(super) fn step(&self, state: &mut ControllerState, sample: &Sample) {
        let late = self
            .timeout
            .is_some_and(|timeout| sample.latency >= timeout);
        if sample.dropped || late {
            state.limit *= self.backoff;
        } else if !state.is_idle(sample) {
            state.limit += 1.0;
        }
        if !sample.latency.is_zero() {
            state.short = sample.latency.as_nanos() as f64;
        }
    }
}
