//! [`TickLimit`]: a limit as the integers that every backend decides with.
//!
//! A rate of n per P nanoseconds is stored in ticks of 1/n ns, so that a token is exactly P ticks
//! and a nanosecond exactly n. A word of 64 bits then counts ten years of ticks, beyond them a full
//! bucket and a debt as large. Where n is too large for that, n becomes the largest m that fits and
//! P is rounded up: a token then costs less than one tick more than written, which is under 17.3 ps
//! while m is 58.

use super::{Algorithm, BurstSpec};
use crate::algorithm::WindowLimit;

/// How far an instant may be from the origin of a word before the word needs a new origin.
pub(crate) const HORIZON: u64 = 10 * 365 * DAY;

/// The longest debt in ticks; a longer wait is never allowed. At least 1.2 years, 73 where n is 1.
pub(crate) const MAX_DEBT: u64 = 1 << 61;

const DAY: u64 = 86_400 * 1_000_000_000;

/// Maximum ticks per nanosecond: the most with which 64 bits count ten years.
const MAX_TICKS: u64 = 58;

/// An interval longer than this never elapses.
const MAX_INTERVAL: u64 = 1 << 62;

/// The longest time that a bucket may take to fill: 142 years.
pub(crate) const MAX_FILL: u64 = (1 << 52) * 1_000;

/// The most times that a log stores.
const MAX_LOG: u64 = 1 << 32;

/// Ticks per token of a bucket that never refills: fine enough to keep the fraction of a token it
/// froze with.
const FROZEN_TOKEN: u64 = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Tokens arrive with time.
    Bucket = 0,
    /// Rate 0: no tokens arrive.
    Frozen = 1,
    Unlimited = 2,
    Pacing = 3,
    FixedWindow = 4,
    FirstHit = 5,
    SlidingWindow = 6,
    Strict = 7,
    Log = 8,
    /// A token bucket in which every charge is settled.
    Refundable = 9,
    /// A concurrency limit instead of a rate: `capacity` is how many may be in flight.
    InFlight = 10,
}

impl Kind {
    #[inline]
    pub(crate) const fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::Bucket,
            1 => Self::Frozen,
            2 => Self::Unlimited,
            3 => Self::Pacing,
            4 => Self::FixedWindow,
            5 => Self::FirstHit,
            6 => Self::SlidingWindow,
            7 => Self::Strict,
            8 => Self::Log,
            9 => Self::Refundable,
            _ => Self::InFlight,
        }
    }
}

/// The integers of a limit. For windows and logs, `token` is the window in nanoseconds, `capacity`
/// the count, and `ticks` how many bits a packed state gives to a count (0: it does not fit one
/// word).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TickLimit {
    /// Ticks per nanosecond: 1 to 58; 0 if no tokens arrive.
    pub(crate) ticks: u64,
    /// Ticks per token, at least 1.
    pub(crate) token: u64,
    /// Ticks in a full bucket, whole tokens; or the longest wait of pacing.
    pub(crate) capacity: u64,
    pub(crate) kind: Kind,
}

impl TickLimit {
    pub(super) const fn new(
        count: u64,
        period: u64,
        burst: BurstSpec,
        algorithm: Algorithm,
        refundable: bool,
    ) -> Self {
        if period == 0 {
            return Self {
                ticks: 0,
                token: FROZEN_TOKEN,
                capacity: 0,
                kind: Kind::Unlimited,
            };
        }
        match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => Self::rate(
                count,
                period,
                burst,
                if refundable {
                    Kind::Refundable
                } else {
                    Kind::Bucket
                },
            ),
            Algorithm::Pacing => Self::rate(count, period, burst, Kind::Pacing),
            Algorithm::FixedWindow => Self::window(count, period, Kind::FixedWindow),
            Algorithm::FixedWindowFirstHit => Self::window(count, period, Kind::FirstHit),
            Algorithm::SlidingWindow => Self::window(count, period, Kind::SlidingWindow),
            Algorithm::SlidingWindowStrict => Self::window(count, period, Kind::Strict),
            Algorithm::SlidingLog => Self::window(count, period, Kind::Log),
        }
    }

    const fn window(count: u64, period: u64, kind: Kind) -> Self {
        let limit = WindowLimit {
            max: count,
            window: period,
            shift: 0,
        };
        let shift = match kind {
            Kind::FixedWindow => limit.shift_for(1),
            Kind::SlidingWindow => limit.shift_for(2),
            _ => 0,
        };
        // A log stores each time: 32 GiB of them is more than anybody wants.
        let most = if matches!(kind, Kind::Log) && count > MAX_LOG {
            MAX_LOG
        } else {
            count
        };
        Self {
            ticks: shift as u64,
            token: period,
            capacity: most,
            kind,
        }
    }

    const fn rate(count: u64, period: u64, burst: BurstSpec, kind: Kind) -> Self {
        let (burst, max_wait) = match burst {
            BurstSpec::Burst(burst) => (burst, 0),
            BurstSpec::Queue(queue) => (queue, 0),
            BurstSpec::Wait(wait) => (0, wait),
        };
        if count == 0 || period as u128 > count as u128 * MAX_INTERVAL as u128 {
            // Nothing leaves a queue of rate 0, so nothing may enter it.
            let burst = if matches!(kind, Kind::Pacing) {
                0
            } else {
                burst
            };
            let token = if burst < 1 << 40 { FROZEN_TOKEN } else { 1 };
            let capacity = if burst < 1 << 60 {
                burst * token
            } else {
                1 << 60
            };
            return Self {
                ticks: 0,
                token,
                capacity,
                kind: Kind::Frozen,
            };
        }
        let divisor = gcd(count, period);
        let (count, period) = (count / divisor, period / divisor);
        let mut ticks = if count < MAX_TICKS { count } else { MAX_TICKS };
        loop {
            let token = (ticks as u128 * period as u128).div_ceil(count as u128);
            let fill = MAX_FILL as u128 * ticks as u128;
            let wanted = burst as u128 * token + max_wait as u128 * ticks as u128;
            let capacity = if wanted <= fill {
                wanted
            } else {
                fill / token * token
            };
            let debt = if capacity > (DAY * ticks) as u128 {
                capacity
            } else {
                (DAY * ticks) as u128
            };
            let most = HORIZON as u128 * ticks as u128 + capacity + debt;
            if most < u64::MAX as u128 {
                return Self {
                    ticks,
                    token: token as u64,
                    capacity: capacity as u64,
                    kind,
                };
            }
            // One tick per nanosecond always fits: 10 + 2 · 142 of 584 years.
            ticks -= 1;
        }
    }

    /// How much is allowed at once.
    pub(crate) const fn burst(&self) -> u64 {
        match self.kind {
            Kind::Bucket | Kind::Refundable | Kind::Frozen | Kind::Unlimited => {
                self.capacity / self.token
            }
            Kind::Pacing => self.capacity / self.token + 1,
            _ => self.capacity,
        }
    }

    /// Whether it counts events in windows of nanoseconds.
    pub(crate) const fn is_windowed(&self) -> bool {
        self.kind as u8 >= Kind::FixedWindow as u8 && self.kind as u8 <= Kind::Log as u8
    }

    /// Whether its state is that of a [`StateMachine`](crate::algorithm::StateMachine) or a log,
    /// and its instants are nanoseconds since the Unix epoch.
    pub(crate) const fn is_machine(&self) -> bool {
        self.kind as u8 >= Kind::FixedWindow as u8 && self.kind as u8 <= Kind::Refundable as u8
    }

    /// Whether a state fits one word.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) const fn fits_a_word(&self) -> bool {
        match self.kind {
            Kind::FirstHit | Kind::Strict | Kind::Log | Kind::Refundable => false,
            // `ticks` is the shift of the packed state.
            Kind::FixedWindow | Kind::SlidingWindow => self.ticks > 0,
            _ => true,
        }
    }

    /// The numbers of a window or log.
    #[inline]
    pub(crate) const fn windowed(&self) -> WindowLimit {
        WindowLimit {
            max: self.capacity,
            window: self.token,
            shift: self.ticks as u32,
        }
    }

    /// Ticks as nanoseconds, rounded up: a caller that waits this long is never early.
    pub(crate) const fn nanos_ceil(&self, ticks: u64) -> u64 {
        if self.ticks == 0 {
            u64::MAX
        } else {
            ticks.div_ceil(self.ticks)
        }
    }

    /// The ticks of `cost` tokens; `None` if a bucket can never hold them.
    #[inline]
    pub(crate) const fn ticks_of(&self, cost: u64) -> Option<u64> {
        match cost.checked_mul(self.token) {
            Some(ticks) if ticks <= self.capacity => Some(ticks),
            _ => None,
        }
    }

    /// Whether a call of `cost` could ever be allowed, judging by its size alone.
    #[cfg(feature = "std")]
    pub(crate) const fn could_hold(&self, cost: u64) -> bool {
        match self.kind {
            Kind::Unlimited => true,
            Kind::Bucket | Kind::Refundable | Kind::Frozen => self.ticks_of(cost).is_some(),
            _ => cost <= self.burst(),
        }
    }
}

pub(crate) const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
