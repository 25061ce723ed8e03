//! One limit of one key: the model of its rate, or the permits in flight.

use ratekeeper::{Algorithm, Outcome};
use ratekeeper_policy::PolicyLimit;
use ratekeeper_testkit::{DecisionInfo, Model, model::Call};
use std::time::Duration;

/// All requests ever allowed, and the number in flight.
#[derive(Clone, Debug)]
pub(crate) struct History {
    limit: PolicyLimit,
    /// None for permits.
    model: Option<Model>,
    in_flight: u64,
    /// Number of resets: charges before the last one cannot be refunded.
    pub(crate) resets: u64,
}

impl History {
    pub(crate) fn new(limit: PolicyLimit) -> Self {
        let model = match limit {
            PolicyLimit::Rate(rate) => Some(Model::new(rate)),
            PolicyLimit::Concurrent(_) => None,
        };
        Self {
            limit,
            model,
            in_flight: 0,
            resets: 0,
        }
    }

    pub(crate) fn reset(&mut self) {
        *self = Self {
            in_flight: self.in_flight,
            resets: self.resets + 1,
            ..Self::new(self.limit)
        };
    }

    pub(crate) fn look(&self, now: u64, call: Call) -> DecisionInfo {
        if let Some(model) = &self.model {
            return model.look(now, call);
        }
        let capacity = capacity(self.limit).saturating_sub(call.reserve);
        let outcome = match self.in_flight + call.cost {
            _ if call.cost > capacity => Outcome::Never,
            together if together <= capacity => Outcome::Allowed,
            _ => Outcome::Denied,
        };
        DecisionInfo {
            outcome,
            capacity,
            remaining: capacity.saturating_sub(self.in_flight),
            retry_after: None,
            reset_after: Duration::ZERO,
            delay: Duration::ZERO,
        }
    }

    /// Charges an allowed request; returns the number of its charge.
    pub(crate) fn charge(&mut self, now: u64, cost: u64) -> Option<usize> {
        match &mut self.model {
            Some(model) => model.charge(now, cost),
            None => {
                self.in_flight += 1;
                Some(0)
            }
        }
    }

    /// Releases a permit, or replaces the cost of a charge unless it was reset since.
    pub(crate) fn settle(&mut self, charged: usize, resets: u64, cost: u64) {
        match &mut self.model {
            None => self.in_flight -= 1,
            Some(model) if resets == self.resets => model.settle(charged, cost),
            Some(_) => {}
        }
    }
}

pub(crate) fn capacity(limit: PolicyLimit) -> u64 {
    match limit {
        PolicyLimit::Rate(limit) => limit.capacity(),
        PolicyLimit::Concurrent(permits) => permits,
    }
}

pub(crate) fn algorithm(limit: PolicyLimit) -> Option<Algorithm> {
    match limit {
        PolicyLimit::Rate(limit) => Some(limit.algorithm_kind()),
        PolicyLimit::Concurrent(_) => None,
    }
}

/// Whether the outcome is unspecified: for a request that takes nothing from a window in which
/// others left less than its reserve.
pub(crate) fn is_unspecified(limit: PolicyLimit, decision: &DecisionInfo, cost: u64) -> bool {
    let no_window = matches!(
        algorithm(limit),
        None | Some(Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Pacing)
    );
    !no_window && cost == 0 && decision.outcome == Outcome::Denied
}
