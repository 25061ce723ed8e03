//! [`Gradient2`]: follows latency relative to its long-term value.

use super::control::{Bounds, ControllerState, Sample, set};
use super::latency::{LatencyConfig, PROBE_SHARE};
use core::time::Duration;

/// Lets latency rise to 1.5 times its long-term value, and a few requests queue.
///
/// With every window, `gradient = clamp(0.5, 1, tolerance · long / short)` and `limit = (1 −
/// smoothing) · limit + smoothing · (gradient · limit + queue)`. In front of a service that works
/// on `n` requests at once it settles at about `tolerance · n + queue`. Unlike the original
/// (Netflix's concurrency-limits), drops shrink it, and the long-term latency cannot follow a queue
/// up: see the [module](crate::adaptive).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Gradient2 {
    tolerance: f64,
    smoothing: f64,
    queue: f64,
    pub(super) latency: LatencyConfig,
}

impl Default for Gradient2 {
    fn default() -> Self {
        Self {
            tolerance: 1.5,
            smoothing: 0.2,
            queue: 4.0,
            latency: LatencyConfig::default(),
        }
    }
}

impl Gradient2 {
    /// How far latency may rise over its long-term value; 1.5 unless set, 1 to 10.
    #[must_use]
    pub fn tolerance(mut self, times: f64) -> Self {
        set(&mut self.tolerance, times, 1.0, 10.0);
        self
    }

    /// The part of a step that is taken at once; 0.2 unless set, 0.01 to 1.
    #[must_use]
    pub fn smoothing(mut self, share: f64) -> Self {
        set(&mut self.smoothing, share, 0.01, 1.0);
        self
    }

    /// How many requests may queue, which is also how fast the limit grows; 4 unless set, 0 to
    /// 1000.
    #[must_use]
    pub fn queue(mut self, requests: f64) -> Self {
        set(&mut self.queue, requests, 0.0, 1_000.0);
        self
    }

    /// The factor applied to the limit after drops; 0.9 unless set, 0.1 to 0.99.
    #[must_use]
    pub fn backoff(mut self, share: f64) -> Self {
        self.latency.set_backoff(share);
        self
    }

    /// A request that takes longer counts as dropped; no timeout unless set.
    #[must_use]
    pub fn timeout(mut self, after: Duration) -> Self {
        self.latency.timeout = Some(after);
        self
    }

    /// The time over which the long-term latency is averaged; a minute unless set.
    #[must_use]
    pub fn memory(mut self, over: Duration) -> Self {
        self.latency.memory = over;
        self
    }

    /// How often a limit in full use is probed; every 10 seconds unless set, up to 8 times as
    /// rarely while nothing changes.
    #[must_use]
    pub fn probe_every(mut self, interval: Duration) -> Self {
        self.latency.probe_every = interval;
        self
    }

    /// The limit during a probe.
    pub(super) fn probe_limit(&self, limit: f64) -> f64 {
        PROBE_SHARE * self.unqueued(limit)
    }

    /// The concurrency of the service without a queue: at rest the limit is `tolerance · n +
    /// queue`, where `n` is what the service works on at once.
    fn unqueued(&self, limit: f64) -> f64 {
        (limit - self.queue) / self.tolerance
    }

    pub(super) fn step(&self, bounds: Bounds, state: &mut ControllerState, sample: &Sample) {
        let unqueued = self.unqueued(state.limit);
        self.latency.step(bounds, state, sample, unqueued, |state| {
            let gradient = (self.tolerance * state.baseline.long / state.short).clamp(0.5, 1.0);
            let aim = gradient * state.limit + self.queue;
            (1.0 - self.smoothing) * state.limit + self.smoothing * aim
        });
    }
}
