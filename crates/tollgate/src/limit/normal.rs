//! The normal form: the integers that every backend decides with.
//!
//! A rate of n per P nanoseconds is kept in ticks of 1/n ns, so that a token is exactly P ticks and a nanosecond
//! exactly n. A word of 64 bits then counts ten years of ticks, beyond them a full bucket and a debt as large. Where n
//! is too large for that, n becomes the largest m that fits and P is rounded up: a token then costs less than one tick
//! more than written, which is under 17.3 ps while m is 58.

/// How far from its origin an instant may be before the word is counted from a new one.
pub(crate) const HORIZON: u64 = 10 * 365 * DAY;

/// The longest debt a word will carry, in ticks; a wait beyond it is never. At least 1.2 years, 73 where n is 1.
pub(crate) const LONGEST_DEBT: u64 = 1 << 61;

const DAY: u64 = 86_400 * 1_000_000_000;

/// Ticks a nanosecond, at most: the most that lets 64 bits count ten years.
const MOST_TICKS: u64 = 58;

/// An interval longer than this never comes round.
const LONGEST_INTERVAL: u64 = 1 << 62;

/// What may take this long to fill is as much as a bucket may hold: 142 years.
pub(super) const LONGEST_FILL: u64 = (1 << 52) * 1_000;

/// A token of a bucket that never refills: fine enough to keep the fraction of a token it froze with.
const FROZEN_TOKEN: u64 = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Tokens arrive with time.
    Bucket = 0,
    /// Rate 0: time stands still.
    Frozen = 1,
    Unlimited = 2,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Normal {
    /// Ticks a nanosecond: 1 to 58; 0 where time stands still.
    pub(crate) ticks: u64,
    /// Ticks a token, at least 1.
    pub(crate) token: u64,
    /// Ticks in a full bucket: whole tokens.
    pub(crate) capacity: u64,
    pub(crate) kind: Kind,
}

impl Normal {
    pub(super) const fn new(count: u64, period: u64, burst: u64) -> Self {
        if period == 0 {
            return Self { ticks: 0, token: FROZEN_TOKEN, capacity: 0, kind: Kind::Unlimited };
        }
        if count == 0 || period as u128 > count as u128 * LONGEST_INTERVAL as u128 {
            let token = if burst < 1 << 40 { FROZEN_TOKEN } else { 1 };
            let capacity = if burst < 1 << 60 { burst * token } else { 1 << 60 };
            return Self { ticks: 0, token, capacity, kind: Kind::Frozen };
        }
        let divisor = gcd(count, period);
        let (count, period) = (count / divisor, period / divisor);
        let mut ticks = if count < MOST_TICKS { count } else { MOST_TICKS };
        loop {
            let token = (ticks as u128 * period as u128).div_ceil(count as u128);
            let fill = LONGEST_FILL as u128 * ticks as u128;
            let wanted = burst as u128 * token;
            let capacity = if wanted <= fill { wanted } else { fill / token * token };
            let debt = if capacity > (DAY * ticks) as u128 { capacity } else { (DAY * ticks) as u128 };
            let most = HORIZON as u128 * ticks as u128 + capacity + debt;
            if most < u64::MAX as u128 {
                return Self { ticks, token: token as u64, capacity: capacity as u64, kind: Kind::Bucket };
            }
            // One tick a nanosecond always fits: 10 + 2 · 142 of 584 years.
            ticks -= 1;
        }
    }

    pub(crate) const fn burst(&self) -> u64 {
        self.capacity / self.token
    }

    /// Ticks as nanoseconds, rounded up: a caller told this is never early.
    pub(crate) const fn nanos_ceil(&self, ticks: u64) -> u64 {
        if self.ticks == 0 { u64::MAX } else { ticks.div_ceil(self.ticks) }
    }

    /// What `cost` tokens take in ticks; none if they can never fit.
    #[inline]
    pub(crate) const fn ticks_of(&self, cost: u64) -> Option<u64> {
        match cost.checked_mul(self.token) {
            Some(ticks) if ticks <= self.capacity => Some(ticks),
            _ => None,
        }
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
