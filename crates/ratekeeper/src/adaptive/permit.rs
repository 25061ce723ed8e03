//! The right to be in flight, and how it ended.

use super::adaptive_concurrency::AdaptiveConcurrency;
use super::partitions::Partition;
use super::window::Measurement;
use crate::clock::{Clock, DefaultClock, Timestamp};
use core::fmt;

/// How a request ended, as far as it says something of the service.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RequestOutcome {
    /// It was served: how long it took counts.
    Success,
    /// It was dropped, or it failed as things fail under too much load: a timeout, a refused
    /// connection, a 503.
    Dropped,
    /// It says nothing of the service, as when a client hangs up or sends nonsense.
    Ignored,
}

/// The right to be in flight under an adaptive limit. [`finish`](Self::finish) it and say how it
/// went; a permit that is dropped counts as [`Outcome::Ignored`].
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct AdaptivePermit<C: Clock = DefaultClock> {
    gate: AdaptiveConcurrency<C>,
    partition: Option<Partition>,
    /// How many were in flight with it when it began.
    in_flight: u64,
    /// None if nobody measures it.
    measured: Option<Measurement>,
}

impl<C: Clock> AdaptivePermit<C> {
    pub(super) fn new(
        gate: AdaptiveConcurrency<C>,
        partition: Option<Partition>,
        in_flight: u64,
        measured: Option<Measurement>,
    ) -> Self {
        Self {
            gate,
            partition,
            in_flight,
            measured,
        }
    }

    /// Gives it back. Its latency is the time since it was taken, so call this at the very end: of
    /// the body, not of the head of a response.
    pub fn finish(self, outcome: RequestOutcome) {
        match (outcome, self.measured) {
            (RequestOutcome::Ignored, _) => {}
            (RequestOutcome::Success, None) => self.gate.record_unmeasured(self.in_flight),
            _ => {
                let now = self.gate.clock().now();
                self.finish_at(outcome, now);
            }
        }
    }

    /// The same at a time that you know already, for a permit that was
    /// [taken so](AdaptiveConcurrency::try_acquire_at).
    pub fn finish_at(self, outcome: RequestOutcome, now: Timestamp) {
        if outcome != RequestOutcome::Ignored {
            self.gate
                .record(outcome, self.in_flight, self.measured, now);
        }
    }

    /// Its latency counts from then on, as of a permit that was handed over while its owner waited
    /// for it.
    pub fn restart_at(&mut self, now: Timestamp) {
        if let Some(measured) = &mut self.measured {
            measured.start = now;
        }
    }
}

impl<C: Clock> Drop for AdaptivePermit<C> {
    fn drop(&mut self) {
        self.gate.give_back(self.partition);
    }
}

impl<C: Clock> fmt::Debug for AdaptivePermit<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptivePermit")
            .field("in_flight", &self.in_flight)
            .finish_non_exhaustive()
    }
}
