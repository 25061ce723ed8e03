//! [`LatencyConfig`]: the settings and steps that latency-based controllers share: when to learn,
//! when to move, when to probe.

use super::control::{Bounds, ControllerState, Sample, set};
use core::time::Duration;

/// The settings of a latency-based controller.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct LatencyConfig {
    /// The factor applied to the limit after drops.
    backoff: f64,
    /// The time over which latency is averaged.
    pub(super) memory: Duration,
    /// How often a limit in full use is probed.
    pub(super) probe_every: Duration,
    /// The latency from which a request counts as dropped.
    pub(super) timeout: Option<Duration>,
}

impl Default for LatencyConfig {
    fn default() -> Self {
        let (memory, probe_every) = (Duration::from_secs(60), Duration::from_secs(10));
        Self {
            backoff: 0.9,
            memory,
            probe_every,
            timeout: None,
        }
    }
}

/// The limit during a probe, as a share of the concurrency without a queue. Enough below 1 that a
/// baseline that is too high comes down by a quarter with each probe.
pub(super) const PROBE_SHARE: f64 = 0.5;

/// The limit is in full use from this share of it. Not 1: the requests measured now began under a
/// slightly smaller limit.
const FULL_USE: f64 = 0.9;

impl LatencyConfig {
    pub(super) fn set_backoff(&mut self, share: f64) {
        set(&mut self.backoff, share, 0.1, 0.99);
    }

    /// Handles one sample. `unqueued` is the concurrency of the service without a queue; `next`
    /// returns the new limit, if it moves.
    pub(super) fn step(
        &self,
        bounds: Bounds,
        state: &mut ControllerState,
        sample: &Sample,
        unqueued: f64,
        next: impl FnOnce(&ControllerState) -> f64,
    ) {
        let short = sample.latency.as_nanos() as f64;
        if short > 0.0 {
            state.short = short;
        }
        if sample.dropped {
            state.limit *= self.backoff;
            return state.baseline.end_if_expired(sample.now);
        }
        if short == 0.0 {
            return;
        }
        let probe_limit = bounds.whole(PROBE_SHARE * unqueued);
        if state.baseline.is_probing() {
            return state.baseline.probe(sample, short, probe_limit);
        }
        state.baseline.begin(self, short, sample.now);
        if state.is_idle(sample) {
            return state.baseline.learn(self, short, sample.now);
        }
        state.baseline.catch_up(short);
        let in_full_use = sample.in_flight as f64 >= FULL_USE * state.limit;
        state.limit = bounds.clamp(next(state));
        if in_full_use {
            state.baseline.probe_if_due(
                self,
                sample,
                short,
                probe_limit < bounds.whole(state.limit),
            );
        }
    }
}
