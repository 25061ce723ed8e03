//! The info of one limit, as the headers tell them.

use super::header_values::{sf_integer, whole_seconds};
use ratekeeper::{Algorithm, Decision, Limit};
use ratekeeper_policy::engine::LimitStatus;
use std::fmt;
use std::time::Duration;

/// By what name a limit is told: its policy, and which of the policy's limits it is, counted from
/// 1.
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

/// `api`, and `api#2` for the second limit of that policy: on the wire a name stands for one limit.
impl fmt::Display for PolicyName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nth {
            0 | 1 => f.write_str(self.policy),
            nth => write!(f, "{}#{nth}", self.policy),
        }
    }
}

/// The info of one limit after a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LimitInfo<'a> {
    pub(crate) name: PolicyName<'a>,
    /// How much may come at once.
    pub(crate) capacity: u64,
    pub(crate) remaining: u64,
    /// The rate; none for what is in flight.
    pub(crate) rate: Option<&'a Limit>,
    /// Whether it counts what is in flight, of which nobody knows when it ends: its reset is now,
    /// and a denial's is when Retry-After says to try again.
    pub(crate) in_flight: bool,
    /// Its times take divisions: they are asked for where they are told.
    pub(super) decision: Decision,
}

impl<'a> LimitInfo<'a> {
    /// Of a limit of a policy; none if it is unlimited.
    pub(crate) fn of(status: &LimitStatus<'a>) -> Option<Self> {
        Self::new(
            status.policy().into(),
            status.limit().rate(),
            &status.decision(),
        )
    }

    /// Of a decision by a rate, or by a limit of what is in flight; none if it is unlimited.
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

    /// Of a decision by a rate that nobody asks for.
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
        // Where nothing fits nothing will ever be there, whatever its clock says.
        if self.capacity == 0 {
            Duration::MAX
        } else {
            self.decision.reset_after()
        }
    }

    /// How long until one more unit is there, at most; [`Duration::MAX`] if none ever comes.
    fn next_unit(&self) -> Duration {
        if self.capacity == 0 {
            Duration::MAX
        } else {
            self.decision.next_after()
        }
    }

    /// In how many seconds to come back for more, so that a client that spreads what remains over
    /// them keeps to the rate: r·w ≤ q·t. On a denial at most what Retry-After says. None if there
    /// is no such time.
    pub(super) fn t(&self, retry_after: Option<u64>) -> Option<u64> {
        let w = self.w()?;
        let next_unit = self.next_unit();
        if next_unit == Duration::MAX {
            return None;
        }
        let spread = match self.remaining {
            0 => 0,
            // Of the numbers as they are told; at most w, as no more remains than the limit.
            remaining => (u128::from(sf_integer(remaining)) * u128::from(w))
                .div_ceil(sf_integer(self.capacity).into()) as u64,
        };
        let t = whole_seconds(next_unit).max(spread).max(1);
        Some(retry_after.map_or(t, |after| t.min(after)))
    }

    /// In what time the limit is admitted at its rate, in whole seconds: the burst by the rate, or
    /// the window. None for what is in flight and where nothing refills.
    pub(super) fn w(&self) -> Option<u64> {
        self.rate
            .and_then(|rate| window(rate, self.capacity))
            .map(|window| whole_seconds(window).max(1))
    }

    /// How long until everything is available again, as far as anybody knows; none if it never is.
    #[inline]
    pub(super) fn resets_in(&self, retry_after: Option<u64>) -> Option<Duration> {
        match (self.in_flight, self.reset_after()) {
            (_, Duration::MAX) => None,
            (true, _) => Some(Duration::from_secs(retry_after.unwrap_or(0))),
            (false, reset) => Some(reset),
        }
    }
}

/// From the rate as it was written: what is decided with may be a few picoseconds slower, which
/// would round up to a second. `capacity` is what this caller may use of it at once, which may be
/// less than the limit has.
fn window(limit: &Limit, capacity: u64) -> Option<Duration> {
    let rate = limit.rate().filter(|rate| rate.count() > 0)?;
    match limit.algorithm_kind() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Pacing => {
            let nanos = u128::from(capacity) * rate.period().as_nanos();
            // Longer than 584 years is as good as that.
            Some(Duration::from_nanos(
                u64::try_from(nanos.div_ceil(u128::from(rate.count()))).unwrap_or(u64::MAX),
            ))
        }
        _ => Some(rate.period()),
    }
}
