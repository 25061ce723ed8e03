//! Keeps a few in the queue, as latency shows it.

use super::by_latency::{ByLatency, PROBED_SHARE};
use super::control::{Bounds, Sample, State};
use core::time::Duration;

/// Takes `limit · (1 − long / short)` for what is queueing, and keeps that between 3 and 6 times the logarithm of the limit.
///
/// Before a service that works on `n` at once it settles a few above `n`: closer than [`Gradient2`](super::Gradient2), and
/// so more easily fooled where latency is uneven by itself.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Vegas {
    pub(super) by: ByLatency,
}

/// How many may queue at least and at most, in units of the logarithm of the limit.
const FEW: f64 = 3.0;
const MANY: f64 = 6.0;
/// How much of what queues too much is taken off with each step. Less than all: what is seen is a window old.
const TAKEN_OFF: f64 = 0.5;

impl Vegas {
    /// What is left of the limit after drops; 0.9 unless set, 0.1 to 0.99.
    #[must_use]
    pub fn backoff(mut self, share: f64) -> Self {
        self.by.set_backoff(share);
        self
    }

    /// A request that takes longer counts as dropped; none does unless set.
    #[must_use]
    pub fn timeout(mut self, after: Duration) -> Self {
        self.by.timeout = Some(after);
        self
    }

    /// Over how long the long-term latency is averaged; a minute unless set.
    #[must_use]
    pub fn memory(mut self, over: Duration) -> Self {
        self.by.memory = over;
        self
    }

    /// How often a limit in full use is probed; every 10 seconds unless set, up to 8 times as rarely while nothing changes.
    #[must_use]
    pub fn probe_every(mut self, interval: Duration) -> Self {
        self.by.probe_every = interval;
        self
    }

    /// What a probe lets in.
    pub(super) fn probed_at(&self, limit: f64) -> f64 {
        PROBED_SHARE * self.alone(limit)
    }

    /// At rest a few queue; the others are worked on.
    fn alone(&self, limit: f64) -> f64 {
        limit - MANY * unit(limit)
    }

    pub(super) fn step(&self, bounds: Bounds, state: &mut State, sample: &Sample) {
        let alone = self.alone(state.limit);
        self.by.step(bounds, state, sample, alone, |state| state.limit + correction(state));
    }
}

fn correction(state: &State) -> f64 {
    let unit = unit(state.limit);
    let queue = state.limit * (1.0 - state.baseline.long / state.short).max(0.0);
    if queue <= unit {
        MANY * unit
    } else if queue < FEW * unit {
        unit
    } else if queue > MANY * unit {
        -(TAKEN_OFF * (queue - MANY * unit)).max(unit)
    } else {
        0.0
    }
}

/// The logarithm of a limit to base 10, in whole numbers, at least 1.
fn unit(limit: f64) -> f64 {
    f64::from((limit as u64).checked_ilog10().unwrap_or(0).max(1))
}
