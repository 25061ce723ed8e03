//! The state of one limit, as rate limit headers describe it.

use super::header_values::{sf_integer, whole_seconds};
use ratekeeper::{Algorithm, Decision, Limit};
use ratekeeper_policy::engine::LimitStatus;
use std::fmt;
use std::time::Duration;

/// The name of a limit in headers: its policy, and its number among the policy's limits, from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PolicyName<'a> {
    pub(crate) policy: &'a str,
    pub(crate) nth: u32,
}

impl<'a> From<&'a str> for PolicyName<'a> {
    fn from(policy: &'a str) -> Self {
        Self { policy, nth: 1 }
    }
}

/// `api`, and `api#2` for the second limit of that policy: in headers each name is one limit.
impl fmt::Display for PolicyName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nth {
            0 | 1 => f.write_str(self.policy),
            nth => write!(f, "{}#{nth}", self.policy),
        }
    }
}

/// The state of one limit after a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LimitInfo<'a> {
    pub(crate) name: PolicyName<'a>,
    /// How much may come at once.
    pub(crate) capacity: u64,
    pub(crate) remaining: u64,
    /// The rate; `None` for a concurrency limit.
    pub(crate) rate: Option<&'a Limit>,
    /// Whether it is a concurrency limit, whose reset is unknown: it is now, and on a denial the
    /// time of Retry-After.
    pub(crate) in_flight: bool,
    /// Times are computed from it when they are written, because they take divisions.
    pub(super) decision: Decision,
}

impl<'a> LimitInfo<'a> {
    /// A limit of a policy; `None` if it is unlimited.
    pub(crate) fn of(status: &LimitStatus<'a>) -> Option<Self> {
        Self::new(
            status.policy().into(),
            status.limit().rate(),
            &status.decision(),
        )
    }

    /// From a decision by a rate, or by a concurrency limit; `None` if it is unlimited.
    #[inline]
    pub(crate) fn new(
        name: PolicyName<'a>,
        rate: Option<&'a Limit>,
        decision: &Decision,
    ) -> Option<Self> {
        if rate.is_some_and(Limit::is_unlimited) {
            return None;
        }
        Some(Self {
            rate,
            in_flight: rate.is_none(),
            ..Self::of_decision(name, decision)?
        })
    }

    /// From a decision by a rate, without the rate; `None` if it is unlimited.
    #[inline]
    pub(crate) fn of_decision(name: PolicyName<'a>, decision: &Decision) -> Option<Self> {
        if decision.is_unlimited() {
            return None;
        }
        let capacity = decision.capacity();
        let remaining = decision.remaining().min(capacity);
        Some(Self {
            name,
            capacity,
            remaining,
            rate: None,
            in_flight: false,
            decision: *decision,
        })
    }

    /// How long until everything is available again; [`Duration::MAX`] if it never is.
    #[inline]
    fn reset_after(&self) -> Duration {
        // With a capacity of zero nothing will ever be available, whatever the decision contains.
        if self.capacity == 0 {
            Duration::MAX
        } else {
            self.decision.reset_after()
        }
    }

    /// How long until one more unit is available, at most; [`Duration::MAX`] if never.
    fn next_unit(&self) -> Duration {
        if self.capacity == 0 {
            Duration::MAX
        } else {
            self.decision.next_after()
        }
    }

    /// The parameter `t`: in how many seconds to come back for more, so that a client that spreads
    /// what remains over them keeps to the rate: r·w ≤ q·t. On a denial at most the value of
    /// Retry-After. `None` if there is no time to come back.
    pub(super) fn t(&self, retry_after: Option<u64>) -> Option<u64> {
        let w = self.w()?;
        let next_unit = self.next_unit();
        if next_unit == Duration::MAX {
            return None;
        }
        let spread = match self.remaining {
            0 => 0,
            // Computed from the numbers as they are written; at most `w`, because `remaining` is at
            // most the capacity.
            remaining => (u128::from(sf_integer(remaining)) * u128::from(w))
                .div_ceil(sf_integer(self.capacity).into()) as u64,
        };
        let t = whole_seconds(next_unit).max(spread).max(1);
        Some(retry_after.map_or(t, |after| t.min(after)))
    }

    /// The parameter `w`: the time in which the rate allows the capacity, in whole seconds: the
    /// burst at the rate, or the window. `None` for concurrency limits and where nothing refills.
    pub(super) fn w(&self) -> Option<u64> {
        self.rate
            .and_then(|rate| window(rate, self.capacity))
            .map(|window| whole_seconds(window).max(1))
    }

    /// How long until everything is available again, if that is known; `None` if it never is.
    #[inline]
    pub(super) fn resets_in(&self, retry_after: Option<u64>) -> Option<Duration> {
        match (self.in_flight, self.reset_after()) {
            (_, Duration::MAX) => None,
            (true, _) => Some(Duration::from_secs(retry_after.unwrap_or(0))),
            (false, reset) => Some(reset),
        }
    }
}

/// The window of a limit, by its rate as configured: the rate used for deciding may be a few
/// picoseconds slower, which would round up to a second. `capacity` is what this caller may use at
/// once, which may be less than the limit has.
fn window(limit: &Limit, capacity: u64) -> Option<Duration> {
    let rate = limit.rate().filter(|rate| rate.count() > 0)?;
    match limit.algorithm_kind() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Pacing => {
            let nanos = u128::from(capacity) * rate.period().as_nanos();
            // Saturates at 584 years.
            Some(Duration::from_nanos(
                u64::try_from(nanos.div_ceil(u128::from(rate.count()))).unwrap_or(u64::MAX),
            ))
        }
        _ => Some(rate.period()),
    }
}
