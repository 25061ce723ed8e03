//! How a request ended.

use super::Rule;
use ratekeeper::adaptive::RequestOutcome;

/// How a request ended, for the policies that count only some, and for those whose cost is known
/// only then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    status: Option<u16>,
    failed: Option<bool>,
    cost: Option<u64>,
    cut_off: bool,
}

impl Completion {
    /// With this HTTP status, whose sense is up to each policy.
    pub fn status(status: u16) -> Self {
        Self {
            status: Some(status),
            ..Self::default()
        }
    }

    /// It failed, whatever the policies take for a failure.
    pub fn failed() -> Self {
        Self {
            failed: Some(true),
            ..Self::default()
        }
    }

    /// It succeeded.
    pub fn succeeded() -> Self {
        Self {
            failed: Some(false),
            ..Self::default()
        }
    }

    /// Nobody knows: it counts.
    pub fn unknown() -> Self {
        Self::default()
    }
}

/// # What it really cost
impl Completion {
    /// So much, for the policies that do not have a fixed cost; for all, if [a cost was
    /// reserved](super::Engine::reserve).
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = Some(cost);
        self
    }

    /// Whether it failed, where statuses from 400 on are failures; none if nobody knows.
    pub fn is_failure(&self) -> Option<bool> {
        self.failed
            .or_else(|| self.status.map(|status| status >= 400))
    }

    /// It came to no end of its own, as when the client hung up: how long it took says nothing of
    /// the service.
    #[must_use]
    pub fn cut_off(mut self) -> Self {
        self.cut_off = true;
        self
    }

    pub(super) fn failed_in(&self, rule: &Rule) -> Option<bool> {
        self.failed_with(|status| rule.policy.is_failure(status))
    }

    /// Whether it failed, by what is taken for a failure.
    pub(super) fn failed_with(&self, is_failure: impl FnOnce(u16) -> bool) -> Option<bool> {
        self.failed.or_else(|| self.status.map(is_failure))
    }

    pub(super) fn true_cost(&self) -> Option<u64> {
        self.cost
    }

    /// What it says of the service.
    pub(super) fn outcome(&self) -> RequestOutcome {
        match (self.cut_off, self.failed_with(is_overload)) {
            (true, _) | (_, None) => RequestOutcome::Ignored,
            (_, Some(true)) => RequestOutcome::Dropped,
            // An error that comes quickly would look like a service with time to spare; a 429
            // speaks of who asked.
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

/// Whether that is how services and gateways fail under too much: turned away, no answer, no
/// connection.
fn is_overload(status: u16) -> bool {
    matches!(status, 502..=504)
}
