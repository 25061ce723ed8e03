//! `PermitGuard`: the permit of a request in flight, which serves the queue when it is released.

use ratekeeper::adaptive::{AdaptiveQueue, RequestOutcome};
use ratekeeper::{Clock, adaptive::AdaptivePermit};

/// Dropping it without an outcome, as when a client hangs up, is ignored by the limit.
pub(super) struct PermitGuard<C: Clock> {
    permit: Option<AdaptivePermit<C>>,
    queue: Option<AdaptiveQueue<C>>,
}

impl<C: Clock> PermitGuard<C> {
    #[inline]
    pub(super) fn new(permit: AdaptivePermit<C>, queue: Option<AdaptiveQueue<C>>) -> Self {
        Self {
            permit: Some(permit),
            queue,
        }
    }

    #[inline]
    pub(super) fn finish(mut self, outcome: RequestOutcome) {
        if let Some(permit) = self.permit.take() {
            permit.finish(outcome);
        }
    }
}

impl<C: Clock> Drop for PermitGuard<C> {
    #[inline]
    fn drop(&mut self) {
        // The queue is served after the permit is back.
        drop(self.permit.take());
        if let Some(queue) = &self.queue {
            queue.serve();
        }
    }
}
