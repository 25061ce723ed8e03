//! [`AdaptivePermit`]: a permit of an adaptive limit, and the outcome of its request.

use super::adaptive_concurrency::AdaptiveConcurrency;
use super::partitions::Partition;
use super::window::Measurement;
use crate::clock::{Clock, SystemClock, Timestamp};
use core::fmt;

/// The outcome of a request, as far as it says something about the service.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RequestOutcome {
    /// It was served: its latency counts.
    Success,
    /// It was dropped, or it failed as requests fail under overload: a timeout, a refused
    /// connection, a 503.
    Dropped,
    /// It says nothing about the service, for example if the client hung up or sent an invalid
    /// request.
    Ignored,
}

/// A permit to be in flight under an adaptive limit. [`finish`](Self::finish) it with the outcome
/// of the request; a permit that is dropped counts as [`RequestOutcome::Ignored`].
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct AdaptivePermit<C: Clock = SystemClock> {
    limit: AdaptiveConcurrency<C>,
    partition: Option<Partition>,
    /// How many were in flight when it began, itself included.
    in_flight: u64,
    /// `None` if it is not measured.
    measured: Option<Measurement>,
}

impl<C: Clock> AdaptivePermit<C> {
    pub(super) fn new(
        limit: AdaptiveConcurrency<C>,
        partition: Option<Partition>,
        in_flight: u64,
        measured: Option<Measurement>,
    ) -> Self {
        Self {
            limit,
            partition,
            in_flight,
            measured,
        }
    }

    /// Gives the permit back. Its latency is the time since it was taken, so call this at the very
    /// end: of the body, not of the head of a response.
    pub fn finish(self, outcome: RequestOutcome) {
        match (outcome, self.measured) {
            (RequestOutcome::Ignored, _) => {}
            (RequestOutcome::Success, None) => self.limit.record_unmeasured(self.in_flight),
            _ => {
                let now = self.limit.clock().now();
                self.finish_at(outcome, now);
            }
        }
    }

    /// [`finish`](Self::finish) at a time that you have already read, for a permit that was
    /// [acquired so](AdaptiveConcurrency::try_acquire_at).
    pub fn finish_at(self, outcome: RequestOutcome, now: Timestamp) {
        if outcome != RequestOutcome::Ignored {
            self.limit
                .record(outcome, self.in_flight, self.measured, now);
        }
    }

    /// Restarts its latency at `now`, for a permit that was granted while its owner still waited
    /// for it.
    pub fn restart_at(&mut self, now: Timestamp) {
        if let Some(measured) = &mut self.measured {
            measured.start = now;
        }
    }
}

impl<C: Clock> Drop for AdaptivePermit<C> {
    fn drop(&mut self) {
        self.limit.give_back(self.partition);
    }
}

impl<C: Clock> fmt::Debug for AdaptivePermit<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptivePermit")
            .field("in_flight", &self.in_flight)
            .finish_non_exhaustive()
    }
}
