//! [`MicrosLimit`]: a limit as integers for a store that counts in whole microseconds and keeps its
//! integers in doubles (Redis).
//!
//! The ratio is the same as in `TickLimit`: 1,000·n units per microsecond, P per token, reduced.
//! Where a full bucket would not fit 52 bits of such units, they are made coarser and the token
//! rounded up, down to whole microseconds: never more is allowed than written.

use crate::algorithm::sliding_window_strict::steps;
use crate::decision::{Decision, Outcome};
use crate::limit::{Kind, Limit, TickLimit, gcd};

/// Integers below this are exact in a double, and so is the sum of two.
const MAX_INTEGER: u128 = 1 << 52;

/// A limit as integers for a store that counts in microseconds; see [`Limit::in_micros`].
///
/// Times and windows are microseconds. Buckets and queues are counted in *units*.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MicrosLimit {
    /// No limit: nothing is counted.
    Unlimited,
    /// A token bucket.
    Bucket {
        /// Units that arrive per microsecond; 0 if none ever do.
        per_micro: u64,
        /// Units per token.
        token: u64,
        /// Units in a full bucket.
        capacity: u64,
        /// Whether every charge is settled: see [`Limit::refundable`].
        refundable: bool,
    },
    /// A pacing queue: calls start one interval apart.
    Pacing {
        /// Units that leave per microsecond.
        per_micro: u64,
        /// Units per call.
        token: u64,
        /// The maximum units ahead of a call.
        max_ahead: u64,
    },
    /// A window or log: at most so many events in each window.
    Window {
        /// How events are counted.
        count: WindowCounter,
        /// The window in microseconds.
        window: u64,
        /// The maximum events per window.
        max: u64,
    },
    /// A concurrency limit.
    InFlight {
        /// The maximum in flight.
        max: u64,
    },
}

/// How a window counts events.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WindowCounter {
    /// In windows aligned to the Unix epoch.
    Fixed,
    /// In windows that start with the first call.
    FirstHit,
    /// In two windows, the older weighted by the share of it that is still inside, measured in
    /// grains of so many microseconds.
    Sliding {
        /// A power of ten: 1 unless the numbers are huge.
        grain: u64,
    },
    /// In steps, of which the oldest counts in full.
    Strict {
        /// Steps per window.
        steps: u64,
    },
    /// Each event by its time.
    Log,
}

impl Limit {
    /// Converts the limit to the integers for a store that counts in microseconds.
    ///
    /// ```
    /// use ratekeeper::{store::backend::MicrosLimit, Limit};
    ///
    /// let MicrosLimit::Bucket { per_micro, token, capacity, .. } = Limit::per_second(3).burst(5).in_micros() else { panic!() };
    /// assert_eq!((per_micro, token, capacity), (3, 1_000_000, 5_000_000)); // a token is a third of a second, exactly
    /// ```
    pub fn in_micros(&self) -> MicrosLimit {
        let tick_limit = self.tick_limit();
        let max = tick_limit.capacity.min((MAX_INTEGER - 1) as u64);
        let window = tick_limit.token.div_ceil(1_000);
        let count = match tick_limit.kind {
            Kind::Unlimited => return MicrosLimit::Unlimited,
            Kind::Frozen => {
                let capacity = tick_limit.burst().min(MAX_INTEGER as u64 / 2);
                return MicrosLimit::Bucket {
                    per_micro: 0,
                    token: 1,
                    capacity,
                    refundable: false,
                };
            }
            Kind::Bucket | Kind::Refundable => {
                let (per_micro, token) =
                    finest_units(tick_limit, |token| u128::from(tick_limit.burst()) * token);
                let burst = tick_limit.burst().min((MAX_INTEGER - 2) as u64 / token);
                let refundable = matches!(tick_limit.kind, Kind::Refundable);
                return MicrosLimit::Bucket {
                    per_micro,
                    token,
                    capacity: burst * token,
                    refundable,
                };
            }
            Kind::Pacing => {
                let units = |per_micro: u128| {
                    u128::from(tick_limit.capacity) * per_micro / per_micro_of(tick_limit)
                };
                // Up to twice the longest wait, and one more call, may be ahead.
                let (per_micro, token) = finest_units(tick_limit, |token| {
                    2 * (u128::from(tick_limit.burst()) + 1) * token
                });
                let max_ahead = units(u128::from(per_micro)).min(MAX_INTEGER / 4) as u64;
                return MicrosLimit::Pacing {
                    per_micro,
                    token,
                    max_ahead,
                };
            }
            Kind::InFlight => return MicrosLimit::InFlight { max },
            Kind::FixedWindow => WindowCounter::Fixed,
            Kind::FirstHit => WindowCounter::FirstHit,
            Kind::SlidingWindow => WindowCounter::Sliding {
                grain: grain(max, window),
            },
            Kind::Strict => WindowCounter::Strict {
                steps: steps(window),
            },
            Kind::Log => WindowCounter::Log,
        };
        let max = if matches!(count, WindowCounter::Sliding { .. }) {
            max.min((MAX_INTEGER / 2) as u64)
        } else {
            max
        };
        MicrosLimit::Window { count, window, max }
    }
}

/// Units per microsecond, before they are reduced.
fn per_micro_of(tick_limit: &TickLimit) -> u128 {
    u128::from(tick_limit.ticks) * 1_000
}

/// The finest units, per microsecond and per token, of which `full` of a bucket fits.
fn finest_units(tick_limit: &TickLimit, full: impl Fn(u128) -> u128) -> (u64, u64) {
    let (per_micro, token) = (per_micro_of(tick_limit), u128::from(tick_limit.token));
    let divisor = u128::from(gcd(per_micro as u64, tick_limit.token));
    let fits = |units: u128| full((units * token).div_ceil(per_micro)) + units < MAX_INTEGER;
    let (mut low, mut high) = (1, per_micro / divisor);
    if fits(high) {
        low = high;
    }
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    (low as u64, (low * token).div_ceil(per_micro) as u64)
}

/// The finest grain in which three times the count times the window is exact in a double.
fn grain(max: u64, window: u64) -> u64 {
    let fits =
        |grain: &u64| 3 * u128::from(max) * u128::from(window.div_ceil(*grain)) < 2 * MAX_INTEGER;
    (0..19)
        .map(|power| 10_u64.pow(power))
        .find(fits)
        .unwrap_or(10_u64.pow(18))
}

impl MicrosLimit {
    /// The limit for a caller that may not use the last `reserve` units; `None` if nothing is left
    /// for it.
    #[must_use]
    pub fn with_reserve(self, reserve: u64) -> Option<Self> {
        if reserve == 0 {
            return Some(self);
        }
        let rest = |from: u64, reserved: u64| from.saturating_sub(reserved);
        let burst = match self {
            Self::Unlimited => return Some(self),
            Self::Bucket {
                token, capacity, ..
            } => capacity / token,
            Self::Pacing {
                token, max_ahead, ..
            } => max_ahead / token + 1,
            Self::Window { max, .. } | Self::InFlight { max } => max,
        };
        (reserve < burst).then(|| match self {
            Self::Bucket {
                per_micro,
                token,
                capacity,
                refundable,
            } => Self::Bucket {
                per_micro,
                token,
                capacity: rest(capacity, reserve * token),
                refundable,
            },
            Self::Pacing {
                per_micro,
                token,
                max_ahead,
            } => Self::Pacing {
                per_micro,
                token,
                max_ahead: rest(max_ahead, reserve * token),
            },
            Self::Window { count, window, max } => Self::Window {
                count,
                window,
                max: rest(max, reserve),
            },
            Self::InFlight { max } => Self::InFlight {
                max: rest(max, reserve),
            },
            Self::Unlimited => self,
        })
    }

    /// The decision of a bucket or a queue whose state after the call is `ahead` units ahead of the
    /// clock (the whole capacity: it is empty). `wait`: units until the call's slot, or until the
    /// same call is allowed.
    pub fn bucket_decision(&self, outcome: Outcome, ahead: u64, wait: u64) -> Decision {
        let (per_micro, token, capacity, kind) = match *self {
            Self::Bucket {
                per_micro: 0,
                token,
                capacity,
                ..
            } => (0, token, capacity, Kind::Frozen),
            Self::Bucket {
                per_micro,
                token,
                capacity,
                ..
            } => (per_micro, token, capacity, Kind::Bucket),
            Self::Pacing {
                per_micro,
                token,
                max_ahead,
            } => (per_micro, token, max_ahead, Kind::Pacing),
            _ => (0, 1, 0, Kind::Unlimited),
        };
        Decision::in_micros(
            kind,
            outcome,
            [ahead, wait, token, capacity],
            per_micro as u32,
        )
    }

    /// The decision of a window or a concurrency limit: what `remain`s after the call, and the
    /// microseconds until everything is available again and until the same call is allowed.
    pub fn window_decision(
        &self,
        outcome: Outcome,
        remaining: u64,
        reset_after: u64,
        retry_after: u64,
    ) -> Decision {
        let (kind, max) = match *self {
            Self::Window { count, max, .. } => (count.kind(), max),
            Self::InFlight { max } => (Kind::InFlight, max),
            _ => (Kind::Unlimited, 0),
        };
        Decision::in_micros(kind, outcome, [reset_after, retry_after, remaining, max], 1)
    }

    /// The decision if nothing is left for the caller, or there is no such limit.
    pub fn no_capacity() -> Decision {
        Decision::in_micros(Kind::InFlight, Outcome::Never, [0, 0, 0, 0], 1)
    }
}

impl WindowCounter {
    const fn kind(self) -> Kind {
        match self {
            Self::Fixed => Kind::FixedWindow,
            Self::FirstHit => Kind::FirstHit,
            Self::Sliding { .. } => Kind::SlidingWindow,
            Self::Strict { .. } => Kind::Strict,
            Self::Log => Kind::Log,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_token_never_costs_less_than_written_and_a_full_bucket_fits(
            count in 1_u64..=u64::MAX, period in 1_u64..=u64::MAX, burst in 0_u64..=u64::MAX,
        ) {
            let limit = Limit::of(count, core::time::Duration::from_nanos(period)).burst(burst);
            let MicrosLimit::Bucket { per_micro, token, capacity, .. } = limit.in_micros() else { panic!() };
            let tick_limit = limit.tick_limit();
            prop_assert!(u128::from(capacity) + u128::from(per_micro) < MAX_INTEGER);
            prop_assert!(capacity / token <= tick_limit.burst() && capacity % token == 0);
            if per_micro > 0 {
                let (ours, theirs) = (u128::from(token) * per_micro_of(tick_limit), u128::from(tick_limit.token) * u128::from(per_micro));
                prop_assert!(ours >= theirs);
                // Rounded by less than a unit.
                prop_assert!(ours - theirs < per_micro_of(tick_limit));
            }
        }
    }

    #[test]
    fn limits_that_fit_are_exact() {
        let exact = |text: &str| text.parse::<Limit>().unwrap().in_micros();
        assert_eq!(
            exact("10/s burst 20"),
            MicrosLimit::Bucket {
                per_micro: 1,
                token: 100_000,
                capacity: 2_000_000,
                refundable: false
            }
        );
        assert_eq!(
            exact("7/s"),
            MicrosLimit::Bucket {
                per_micro: 7,
                token: 1_000_000,
                capacity: 7_000_000,
                refundable: false
            }
        );
        assert_eq!(
            exact("10/s wait 2s"),
            MicrosLimit::Pacing {
                per_micro: 1,
                token: 100_000,
                max_ahead: 2_000_000
            }
        );
        let window = |count| MicrosLimit::Window {
            count,
            window: 60_000_000,
            max: 100,
        };
        assert_eq!(exact("100/min fixed_window"), window(WindowCounter::Fixed));
        assert_eq!(
            exact("100/min sliding_window"),
            window(WindowCounter::Sliding { grain: 1 })
        );
        assert_eq!(
            exact("100/min sliding_window_strict"),
            window(WindowCounter::Strict { steps: 10 })
        );
        assert_eq!(exact("100/min sliding_log"), window(WindowCounter::Log));
        assert_eq!(
            exact("0"),
            MicrosLimit::Bucket {
                per_micro: 0,
                token: 1,
                capacity: 0,
                refundable: false
            }
        );
        assert_eq!(exact("unlimited"), MicrosLimit::Unlimited);
        let MicrosLimit::Window {
            count: WindowCounter::Sliding { grain },
            ..
        } = exact("1000000/d sliding_window")
        else {
            panic!()
        };
        assert_eq!(grain, 100);
    }
}
