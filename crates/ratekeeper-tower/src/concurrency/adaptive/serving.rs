//! A request in flight under an adaptive limit: its permit, and whoever waits for it.

use ratekeeper::adaptive::{AdaptiveQueue, RequestOutcome};
use ratekeeper::{Clock, adaptive::AdaptivePermit};

/// Dropping it is a client that hung up, which says nothing.
pub(super) struct Serving<C: Clock> {
    permit: Option<AdaptivePermit<C>>,
    line: Option<AdaptiveQueue<C>>,
}

impl<C: Clock> Serving<C> {
    #[inline]
    pub(super) fn new(permit: AdaptivePermit<C>, line: Option<AdaptiveQueue<C>>) -> Self {
        Self {
            permit: Some(permit),
            line,
        }
    }

    #[inline]
    pub(super) fn finish(mut self, outcome: RequestOutcome) {
        if let Some(permit) = self.permit.take() {
            permit.finish(outcome);
        }
    }
}

impl<C: Clock> Drop for Serving<C> {
    #[inline]
    fn drop(&mut self) {
        // Whoever waits for it looks after it is back.
        drop(self.permit.take());
        if let Some(line) = &self.line {
            line.serve();
        }
    }
}
