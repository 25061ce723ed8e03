//! A request in flight under an adaptive limit: its permit, and whoever waits for it.

use ratekeeper::adaptive::{AdaptiveQueue, RequestOutcome};
use ratekeeper::{Clock, adaptive::AdaptivePermit};

/// Dropping it is a client that hung up, which says nothing.
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
        // Whoever waits for it looks after it is back.
        drop(self.permit.take());
        if let Some(queue) = &self.queue {
            queue.serve();
        }
    }
}
