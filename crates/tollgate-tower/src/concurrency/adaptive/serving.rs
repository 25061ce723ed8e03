//! A request in flight under an adaptive limit: its permit, and whoever waits for it.

use tollgate::adaptive::{Line, Outcome};
use tollgate::{AdaptivePermit, Clock};

/// Dropping it is a client that hung up, which says nothing; but what is known to be dropped stays so.
pub(super) struct Serving<C: Clock> {
    permit: Option<AdaptivePermit<C>>,
    /// If it is dropped now.
    pub(super) outcome: Outcome,
    /// If it ends as its head says.
    pub(super) promised: Outcome,
    line: Option<Line<C>>,
}

impl<C: Clock> Serving<C> {
    #[inline]
    pub(super) fn new(permit: AdaptivePermit<C>, line: Option<Line<C>>) -> Self {
        Self { permit: Some(permit), outcome: Outcome::Ignored, promised: Outcome::Ignored, line }
    }

    #[inline]
    pub(super) fn finish(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl<C: Clock> Drop for Serving<C> {
    #[inline]
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            permit.finish(self.outcome);
        }
        // Whoever waits for it looks after it is back.
        if let Some(line) = &self.line {
            line.serve();
        }
    }
}
