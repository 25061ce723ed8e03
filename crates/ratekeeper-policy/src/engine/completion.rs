//! How a request ended: status, failure and actual cost.

use super::Rule;
use ratekeeper::adaptive::RequestOutcome;

/// How a request ended, for policies that count only some requests, and for policies whose cost is
/// known only at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    status: Option<u16>,
    failed: Option<bool>,
    cost: Option<u64>,
    cut_off: bool,
    cancelled: bool,
}

impl Completion {
    /// Ended with this HTTP status; each policy decides whether it is a failure.
    pub fn status(status: u16) -> Self {
        Self {
            status: Some(status),
            ..Self::default()
        }
    }

    /// Failed, whatever the policies count as a failure.
    pub fn failed() -> Self {
        Self {
            failed: Some(true),
            ..Self::default()
        }
    }

    /// Succeeded.
    pub fn succeeded() -> Self {
        Self {
            failed: Some(false),
            ..Self::default()
        }
    }

    /// Ended before it reached what the limits protect: everything it was charged is refunded.
    pub fn cancelled() -> Self {
        Self {
            cancelled: true,
            ..Self::default()
        }
    }

    /// Ended in an unknown way: it counts.
    pub fn unknown() -> Self {
        Self::default()
    }
}

/// # Actual cost
impl Completion {
    /// Sets the actual cost, for policies without a fixed cost; for all policies if [a cost was
    /// reserved](super::Engine::reserve).
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = Some(cost);
        self
    }

    /// Whether it failed, with statuses from 400 on as failures; `None` if it is unknown.
    pub fn is_failure(&self) -> Option<bool> {
        self.failed
            .or_else(|| self.status.map(|status| status >= 400))
    }

    /// Marks it as cut off, as when the client hung up: its duration is no measure of the service.
    #[must_use]
    pub fn cut_off(mut self) -> Self {
        self.cut_off = true;
        self
    }

    pub(super) fn failed_in(&self, rule: &Rule) -> Option<bool> {
        self.failed_with(|status| rule.policy.is_failure(status))
    }

    /// Whether it failed, by this definition of a failure.
    pub(super) fn failed_with(&self, is_failure: impl FnOnce(u16) -> bool) -> Option<bool> {
        self.failed.or_else(|| self.status.map(is_failure))
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    pub(super) fn true_cost(&self) -> Option<u64> {
        self.cost
    }

    /// The outcome for adaptive limits.
    pub(super) fn outcome(&self) -> RequestOutcome {
        match (self.cut_off, self.failed_with(is_overload)) {
            (true, _) | (_, None) => RequestOutcome::Ignored,
            (_, Some(true)) => RequestOutcome::Dropped,
            // A fast error would look like a service with spare capacity; a 429 is about the
            // client.
            (_, Some(false))
                if self
                    .status
                    .is_some_and(|status| status == 429 || status >= 500) =>
            {
                RequestOutcome::Ignored
            }
            (_, Some(false)) => RequestOutcome::Success,
        }
    }
}

/// Whether this status is how services and gateways fail under overload: bad gateway, unavailable,
/// timeout.
fn is_overload(status: u16) -> bool {
    matches!(status, 502..=504)
}
