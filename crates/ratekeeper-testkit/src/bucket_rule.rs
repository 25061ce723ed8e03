//! [`BucketRule`]: a token bucket in exact rationals, and its guarantees (docs/spec/algorithms.md)
//! computed from the whole history.

use crate::auditor::tightest_interval::TightestInterval;
use crate::auditor::token_bucket::{self, Rate};
use crate::auditor::{Admission, Bound, Violation};
use ratekeeper::Limit;

/// A token bucket as a fraction: a nanosecond brings `per_nano` parts, a token is `token` parts, a
/// full bucket holds `burst` tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BucketRule {
    /// Parts in a nanosecond.
    pub per_nano: i128,
    /// Parts of a token.
    pub token: i128,
    /// Tokens in a full bucket.
    pub burst: i128,
}

/// A cost admitted at a time in nanoseconds, as the caller gave or got it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Event {
    /// The time.
    pub at: u64,
    /// The cost.
    pub cost: u64,
}

impl BucketRule {
    /// The rate as written.
    ///
    /// # Panics
    ///
    /// If the limit is unlimited.
    pub fn written(limit: &Limit) -> Self {
        let rate = limit.rate().expect("a finite rate");
        let (count, period) = (i128::from(rate.count()), rate.period().as_nanos() as i128);
        let divisor = gcd(count, period);
        Self {
            per_nano: count / divisor,
            token: period / divisor,
            burst: i128::from(limit.capacity()),
        }
    }

    /// The rate that decides: the written one, unless the limit says that it had to be rounded.
    ///
    /// # Panics
    ///
    /// If the limit is unlimited.
    pub fn decided(limit: &Limit) -> Self {
        match limit.effective() {
            None => Self::written(limit),
            Some(effective) => {
                let (token, per_nano) = effective.interval();
                Self {
                    per_nano: per_nano.into(),
                    token: token.into(),
                    burst: effective.burst().into(),
                }
            }
        }
    }

    /// A full bucket, in parts.
    pub fn capacity(&self) -> i128 {
        self.burst * self.token
    }

    /// Nanoseconds until `parts` have come, rounded up; none if they never do.
    pub fn nanos_for(&self, parts: i128) -> Option<i128> {
        match (parts, self.per_nano) {
            (..=0, _) => Some(0),
            (_, 0) => None,
            (_, per_nano) => Some(ceil(parts, per_nano)),
        }
    }

    /// The time of one token in whole nanoseconds, rounded up; a second if it never comes.
    pub fn token_nanos(&self) -> u64 {
        self.nanos_for(self.token)
            .map_or(1_000_000_000, |nanos| nanos.try_into().unwrap_or(u64::MAX))
    }

    /// Parts as whole tokens, none of them negative.
    ///
    /// # Panics
    ///
    /// If they are more than a cost can be.
    pub fn whole(&self, parts: i128) -> u64 {
        (parts.max(0) / self.token)
            .try_into()
            .expect("no more than a cost can be")
    }

    /// TB1, with times in nanoseconds.
    pub fn bound(&self) -> Bound {
        let narrow = |parts: i128| u64::try_from(parts).expect("a number of 64 bits");
        Bound::TokenBucket {
            count: narrow(self.per_nano),
            period: narrow(self.token),
            burst: narrow(self.burst),
        }
    }

    /// P1, TB1: an interval with A[s, t] > B + r·(t − s), if there is one.
    pub fn violation(&self, events: &[Event]) -> Option<Violation> {
        self.violation_beyond(events, 0)
    }

    /// The same for times that are rounded up to whole nanoseconds: [s, t] is then less than
    /// t − s + 1 long.
    pub fn violation_beyond_a_nano(&self, events: &[Event]) -> Option<Violation> {
        self.violation_beyond(events, (self.per_nano - 1).max(0))
    }

    /// The same with `slack` parts more in every interval.
    pub fn violation_beyond(&self, events: &[Event], slack: i128) -> Option<Violation> {
        let paid = events.iter().filter(|event| event.cost > 0);
        let trace: Vec<_> = paid
            .map(|event| Admission::at(event.at, event.cost))
            .collect();
        let rate = Rate {
            count: self.per_nano as u128,
            period: self.token as u128,
        };
        let full = (self.capacity() + slack).max(0) as u128;
        let mut tightest = TightestInterval::default();
        token_bucket::check(&trace, rate, full, &mut tightest);
        tightest.verdict("admitted", &self.bound(), 0).err()
    }

    /// TB2, in parts, for times in any order and `events` in the order of the calls: a call after an
    /// admission at s, at any time, has taken from what s left. At t: min(B, min over i of
    /// (B + r·(t − t_i) − all that was admitted from the i-th call on)). A cost of 0 takes nothing
    /// and leaves no trace.
    pub fn tokens(&self, events: &[Event], t: u64) -> i128 {
        let mut later = 0;
        let mut least = self.capacity();
        for event in events.iter().rev().filter(|event| event.cost > 0) {
            later += i128::from(event.cost);
            let earned = self.per_nano * (i128::from(t) - i128::from(event.at));
            least = least.min(self.capacity() + earned - later * self.token);
        }
        least
    }

    /// In parts, what could still be admitted at `a` with every interval [s, t] that holds `a`
    /// keeping P1; `events` may lie after `a`: reservations that have been promised.
    pub fn headroom(&self, events: &[Event], a: u64) -> i128 {
        let times = || events.iter().map(|event| event.at);
        let left = times()
            .filter(|s| *s <= a)
            .chain([a])
            .map(|s| self.per_nano * i128::from(a - s) - spent(events, s, a) * self.token)
            .min();
        let right = times()
            .filter(|t| *t > a)
            .map(|t| self.per_nano * i128::from(t - a) - spent(events, a + 1, t) * self.token)
            .min();
        self.capacity() + left.unwrap_or(0) + right.unwrap_or(0).min(0)
    }
}

/// The admitted cost with s ≤ time ≤ t.
fn spent(events: &[Event], s: u64, t: u64) -> i128 {
    events
        .iter()
        .filter(|event| s <= event.at && event.at <= t)
        .map(|event| i128::from(event.cost))
        .sum()
}

/// a/b, rounded up.
pub(crate) fn ceil(a: i128, b: i128) -> i128 {
    -(-a).div_euclid(b)
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { gcd(b, a % b) }
}
