//! The guarantees of docs/spec/algorithms.md, computed from the whole history in exact rationals.
//! Nothing here depends on how the crate stores its state.

use ratekeeper::Limit;

/// One part in 10^12 of a second, as parts of a nanosecond.
pub(crate) const PICOS_PER_NANO: i128 = 1_000;

/// A token bucket as a fraction: a nanosecond brings `per_nano` parts, a token is `token` parts, a
/// full bucket holds `burst` tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rule {
    pub(crate) per_nano: i128,
    pub(crate) token: i128,
    pub(crate) burst: i128,
}

impl Rule {
    /// The rate as written.
    pub(crate) fn written(limit: &Limit) -> Self {
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
    pub(crate) fn decided(limit: &Limit) -> Self {
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

    pub(crate) fn capacity(&self) -> i128 {
        self.burst * self.token
    }

    /// Nanoseconds until `parts` have come, rounded up; none if they never do.
    pub(crate) fn nanos_for(&self, parts: i128) -> Option<i128> {
        match (parts, self.per_nano) {
            (..=0, _) => Some(0),
            (_, 0) => None,
            (_, per_nano) => Some(ceil(parts, per_nano)),
        }
    }

    /// The time of one token in whole nanoseconds, rounded up; a second if it never comes.
    pub(crate) fn token_nanos(&self) -> u64 {
        self.nanos_for(self.token)
            .map_or(1_000_000_000, |nanos| nanos.try_into().unwrap_or(u64::MAX))
    }

    /// Parts as whole tokens, none of them negative.
    pub(crate) fn whole(&self, parts: i128) -> u64 {
        (parts.max(0) / self.token)
            .try_into()
            .expect("as many as a cost can say")
    }
}

/// A cost admitted at a time in nanoseconds, as the caller gave or got it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Event {
    pub(crate) at: u64,
    pub(crate) cost: u64,
}

/// The admitted cost with s ≤ time ≤ t.
pub(crate) fn spent(events: &[Event], s: u64, t: u64) -> i128 {
    events
        .iter()
        .filter(|event| s <= event.at && event.at <= t)
        .map(|event| i128::from(event.cost))
        .sum()
}

/// An interval that holds more than it may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BoundViolation {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) spent: i128,
    pub(crate) at_most: i128,
}

/// P1, TB1: an interval [s, t] with A[s, t] > B + r·(t − s), if there is one. Every interval
/// counts; those that matter begin and end with an event.
pub(crate) fn broken(rule: &Rule, events: &[Event]) -> Option<BoundViolation> {
    broken_beyond(rule, events, 0)
}

/// The same for times that are rounded up to whole nanoseconds: [s, t] is then less than t − s + 1
/// long.
pub(crate) fn broken_by_a_nano(rule: &Rule, events: &[Event]) -> Option<BoundViolation> {
    broken_beyond(rule, events, (rule.per_nano - 1).max(0))
}

/// The same with `on_top` parts more.
pub(crate) fn broken_beyond(rule: &Rule, events: &[Event], slack: i128) -> Option<BoundViolation> {
    let mut sorted = events.to_vec();
    sorted.sort_unstable();
    for (i, first) in sorted.iter().enumerate() {
        let mut spent = 0;
        for last in &sorted[i..] {
            spent += i128::from(last.cost);
            let length = i128::from(last.at - first.at);
            let most = rule
                .capacity()
                .saturating_add(rule.per_nano.saturating_mul(length))
                .saturating_add(slack);
            if spent.saturating_mul(rule.token) > most {
                return Some(BoundViolation {
                    from: first.at,
                    to: last.at,
                    spent,
                    at_most: most / rule.token,
                });
            }
        }
    }
    None
}

/// TB2, in parts: min(B, min over admitted s ≤ t of (B + r·(t − s) − A[s, t])). For times that do
/// not decrease.
pub(crate) fn tokens(rule: &Rule, events: &[Event], t: u64) -> i128 {
    witness(rule, events, t).map_or(rule.capacity(), |(_, left)| left.min(rule.capacity()))
}

/// The s that leaves the fewest parts at t, and those parts.
pub(crate) fn witness(rule: &Rule, events: &[Event], t: u64) -> Option<(u64, i128)> {
    let mut from = events
        .iter()
        .map(|event| event.at)
        .filter(|s| *s <= t)
        .collect::<Vec<_>>();
    from.dedup();
    from.into_iter()
        .map(|s| {
            let earned = rule.per_nano * i128::from(t - s);
            (
                s,
                rule.capacity() + earned - spent(events, s, t) * rule.token,
            )
        })
        .min_by_key(|(_, left)| *left)
}

/// The same for times in any order, `events` in the order of the calls: a call after an admission
/// at s, at any time, has taken from what s left. At t: min(B, min over i of (B + r·(t − t_i) − all
/// that was admitted from the i-th call on)). A cost of 0 takes nothing and leaves no trace.
pub(crate) fn tokens_in_call_order(rule: &Rule, events: &[Event], t: u64) -> i128 {
    let mut later = 0;
    let mut least = rule.capacity();
    for event in events.iter().rev().filter(|event| event.cost > 0) {
        later += i128::from(event.cost);
        let earned = rule.per_nano * (i128::from(t) - i128::from(event.at));
        least = least.min(rule.capacity() + earned - later * rule.token);
    }
    least
}

/// In parts, what could still be admitted at `a` with every interval [s, t] that holds `a` keeping
/// P1; `events` may lie after `a`: reservations that have been promised.
pub(crate) fn headroom(rule: &Rule, events: &[Event], a: u64) -> i128 {
    let before = events
        .iter()
        .map(|event| event.at)
        .filter(|s| *s <= a)
        .chain([a]);
    let after = events.iter().map(|event| event.at).filter(|t| *t > a);
    let left = before
        .map(|s| rule.per_nano * i128::from(a - s) - spent(events, s, a) * rule.token)
        .min();
    let right = after
        .map(|t| rule.per_nano * i128::from(t - a) - spent(events, a + 1, t) * rule.token)
        .min();
    rule.capacity() + left.unwrap_or(0) + right.unwrap_or(0).min(0)
}

pub(crate) fn ceil(a: i128, b: i128) -> i128 {
    -(-a).div_euclid(b)
}

pub(crate) fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { gcd(b, a % b) }
}
