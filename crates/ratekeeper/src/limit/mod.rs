//! [`Limit`]: a rate, a burst and an algorithm, as a user writes them.

mod float;
#[cfg(feature = "serde")]
mod serde;
mod text;
mod ticks;

pub use float::RateError;
pub use text::{ParseLimitError, ParseLimitErrorKind};
pub(crate) use ticks::{HORIZON, Kind, MAX_DEBT, TickLimit};
#[cfg(feature = "std")]
pub(crate) use ticks::{MAX_FILL, gcd};

use crate::clock::{NANOS_PER_SECOND, nanos};
use core::fmt;
use core::time::Duration;

/// The algorithm of a limit. The names are the same in code, in text, in configuration and on the
/// wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Algorithm {
    /// `token_bucket` (alias `gcra`): tokens arrive at the rate and accumulate up to the burst; the
    /// default.
    #[default]
    TokenBucket,
    /// `leaky_bucket`: the leaky bucket as a meter. It decides exactly as the token bucket does,
    /// counted from the other end.
    LeakyBucket,
    /// `pacing`: the leaky bucket as a queue. Calls start one interval apart; a call that would
    /// have to wait too long is denied.
    Pacing,
    /// `fixed_window`: at most N in each window, windows aligned to the Unix epoch. Up to 2 N are
    /// allowed around the boundary of two windows.
    FixedWindow,
    /// `fixed_window_first_hit`: a fixed window that starts with the first call after the last one
    /// ended.
    FixedWindowFirstHit,
    /// `sliding_window`: two counters; the previous window counts by the share of it that is still
    /// inside.
    SlidingWindow,
    /// `sliding_window_strict`: never more than N in any window, at the price of an effective
    /// window that is up to a tenth longer.
    SlidingWindowStrict,
    /// `sliding_log`: never more than N in any window, exactly; stores the time of each unit.
    SlidingLog,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 8] = [
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Pacing,
        Self::FixedWindow,
        Self::FixedWindowFirstHit,
        Self::SlidingWindow,
        Self::SlidingWindowStrict,
        Self::SlidingLog,
    ];

    /// The name, as in text and configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::Pacing => "pacing",
            Self::FixedWindow => "fixed_window",
            Self::FixedWindowFirstHit => "fixed_window_first_hit",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingWindowStrict => "sliding_window_strict",
            Self::SlidingLog => "sliding_log",
        }
    }

    /// Whether it has a burst apart from its count: the token bucket, under either name.
    const fn has_burst(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }

    /// The algorithm with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "gcra" => Some(Self::TokenBucket),
            _ => Self::ALL
                .into_iter()
                .find(|algorithm| algorithm.name() == name),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A count per period: `10/s`, `5/15min`.
///
/// A rate alone does not limit bursts; see [`Limit`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rate {
    count: u64,
    period: u64,
}

impl Rate {
    /// The count.
    pub const fn count(self) -> u64 {
        self.count
    }

    /// The period.
    pub const fn period(self) -> Duration {
        Duration::from_nanos(self.period)
    }

    /// The rate per second as a number, for display.
    pub fn per_second(self) -> f64 {
        self.count as f64 / self.period as f64 * NANOS_PER_SECOND as f64
    }
}

/// A limit: a rate, a burst (how much is allowed at once) and an algorithm.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{Algorithm, Limit};
///
/// let limit = Limit::per_minute(100).burst(20);
/// assert_eq!(limit.to_string(), "100/min burst 20");
/// assert_eq!(limit, "100/min burst 20".parse()?);
///
/// Limit::per_second(10);                           // burst 10: the default is the count
/// Limit::of(5, Duration::from_secs(15 * 60));      // "5/15min"
/// Limit::every(Duration::from_millis(250));        // one at a time, four a second
/// Limit::per_second_f64(0.5)?;                     // one every two seconds
/// Limit::per_second(10).paced_max_queue(20);           // paced: one every 100 ms, 20 may wait
/// Limit::per_hour(100).algorithm(Algorithm::SlidingLog);
/// Limit::unlimited();                              // no limit
/// Limit::deny_all();                               // denies everything
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// Building a limit converts it to the integers that every backend decides with; nothing is rounded
/// unless it must be, and then to the strict side. [`effective`](Self::effective) shows the result
/// where it differs from what was written.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit {
    count: u64,
    period: u64,
    /// The value of its [`BurstSpec`].
    burst_value: u64,
    burst_tag: u8,
    tick_limit: TickLimit,
    algorithm: Algorithm,
}

/// Bit of `burst_tag` that is set for a refundable limit.
const REFUNDABLE_BIT: u8 = 0x80;

/// How much is allowed at once, in the units of the algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum BurstSpec {
    /// A full bucket; the count, for an algorithm without a burst of its own.
    Burst(u64),
    /// The longest wait in nanoseconds (pacing).
    Wait(u64),
    /// The longest queue (pacing).
    Queue(u64),
}

/// # Constructors
impl Limit {
    /// `count` per second, with a burst of `count`.
    pub const fn per_second(count: u64) -> Self {
        Self::of_nanos(count, NANOS_PER_SECOND)
    }

    /// `count` per minute, with a burst of `count`.
    pub const fn per_minute(count: u64) -> Self {
        Self::of_nanos(count, 60 * NANOS_PER_SECOND)
    }

    /// `count` per hour, with a burst of `count`.
    pub const fn per_hour(count: u64) -> Self {
        Self::of_nanos(count, 3_600 * NANOS_PER_SECOND)
    }

    /// `count` per day, with a burst of `count`.
    pub const fn per_day(count: u64) -> Self {
        Self::of_nanos(count, 86_400 * NANOS_PER_SECOND)
    }

    /// One every `interval`, with a burst of 1. An interval of zero is
    /// [`unlimited`](Self::unlimited); one above 146 years never elapses, so only what is in the
    /// bucket is allowed.
    pub const fn every(interval: Duration) -> Self {
        Self::of(1, interval)
    }

    /// `count` per `period`, with a burst of `count`.
    ///
    /// A count of zero refills nothing. A period of zero is [`unlimited`](Self::unlimited).
    pub const fn of(count: u64, period: Duration) -> Self {
        Self::of_nanos(count, nanos(period))
    }

    /// Every call is allowed and nothing is counted.
    pub const fn unlimited() -> Self {
        Self::build(0, 0, BurstSpec::Burst(0), Algorithm::TokenBucket, false)
    }

    /// Every call is denied: rate 0, burst 0. With a [`burst`](Self::burst) it allows that many,
    /// once.
    pub const fn deny_all() -> Self {
        Self::build(
            0,
            NANOS_PER_SECOND,
            BurstSpec::Burst(0),
            Algorithm::TokenBucket,
            false,
        )
    }

    /// Sets how much is allowed at once: the capacity of the bucket. Unless set, it is the count of
    /// the rate.
    ///
    /// A burst that would take longer than 142 years to fill is clipped to that. Ignored when
    /// unlimited, and by the algorithms that have no burst.
    #[must_use]
    pub const fn burst(self, burst: u64) -> Self {
        if self.is_unlimited() || !self.algorithm.has_burst() {
            return self;
        }
        Self::build(
            self.count,
            self.period,
            BurstSpec::Burst(burst),
            self.algorithm,
            self.is_refundable(),
        )
    }

    /// Paced: calls start one interval apart, and one that would have to wait longer than
    /// `max_wait` is denied. Replaces the algorithm and the burst.
    #[must_use]
    pub const fn paced_max_wait(self, max_wait: Duration) -> Self {
        if self.is_unlimited() {
            return self;
        }
        Self::build(
            self.count,
            self.period,
            BurstSpec::Wait(nanos(max_wait)),
            Algorithm::Pacing,
            false,
        )
    }

    /// Paced: calls start one interval apart, and at most `max_queue` wait; more are denied.
    /// Replaces the algorithm and the burst.
    #[must_use]
    pub const fn paced_max_queue(self, max_queue: u64) -> Self {
        if self.is_unlimited() {
            return self;
        }
        Self::build(
            self.count,
            self.period,
            BurstSpec::Queue(max_queue),
            Algorithm::Pacing,
            false,
        )
    }

    /// The same rate with another algorithm. Pacing queues up to the count unless
    /// [`paced_max_queue`](Self::paced_max_queue) or [`paced_max_wait`](Self::paced_max_wait) set
    /// another maximum; windows and logs allow the count in each period. Ignored when unlimited.
    #[must_use]
    pub const fn algorithm(self, algorithm: Algorithm) -> Self {
        if self.is_unlimited() {
            return self;
        }
        let burst = match (self.burst_spec(), algorithm) {
            (BurstSpec::Wait(_) | BurstSpec::Queue(_), Algorithm::Pacing) => self.burst_spec(),
            (_, Algorithm::Pacing) => BurstSpec::Queue(self.count),
            (BurstSpec::Burst(_), _) if algorithm.has_burst() && self.algorithm.has_burst() => {
                self.burst_spec()
            }
            _ => BurstSpec::Burst(self.count),
        };
        Self::build(
            self.count,
            self.period,
            burst,
            algorithm,
            self.is_refundable(),
        )
    }

    /// Makes the bucket refundable: every charge is settled once its actual cost is known
    /// ([`Charge::settle`](crate::Charge::settle)), and the unused part comes back in full.
    ///
    /// A plain token bucket settles with a single number, and withholds what time may have refilled
    /// already: several charges that are pending at once can each withhold the same time. A
    /// refundable bucket counts what was used apart from what is pending: with nothing used and
    /// less than a burst pending it never denies. It takes a lock and 11 words per key, where a
    /// plain bucket takes one atomic operation and one word, and like a window it has no
    /// reservations. A charge that is never settled counts in full. Windows and logs give back in
    /// full anyway: for them, and for pacing, this changes nothing.
    ///
    /// ```
    /// use ratekeeper::{Limit, Limiter};
    ///
    /// // At most 5 failures an hour, and at most 5 attempts at once.
    /// let failures = Limiter::new(Limit::per_hour(5).refundable());
    /// for _ in 0..1_000 {
    ///     let charge = failures.take(1)?;
    ///     // … it succeeds …
    ///     charge.settle(0);
    /// }
    /// # Ok::<_, ratekeeper::decision::DeniedError>(())
    /// ```
    #[must_use]
    pub const fn refundable(self) -> Self {
        if self.is_unlimited() {
            return self;
        }
        Self::build(
            self.count,
            self.period,
            self.burst_spec(),
            self.algorithm,
            true,
        )
    }

    /// The share of one of `nodes` nodes that cannot reach each other: the rate and the burst
    /// divided by `nodes`, the burst at least 1; for a window its count, at least 1. A pacing queue
    /// keeps its longest wait.
    ///
    /// ```
    /// use ratekeeper::Limit;
    ///
    /// assert_eq!(Limit::per_second(10).burst(20).share(4).to_string(), "10/4s burst 5");
    /// ```
    #[must_use]
    pub const fn share(self, nodes: u64) -> Self {
        if self.is_unlimited() || nodes <= 1 {
            return self;
        }
        match (self.burst_spec(), self.algorithm) {
            (BurstSpec::Burst(burst), Algorithm::TokenBucket | Algorithm::LeakyBucket) => {
                let period = self.period.saturating_mul(nodes);
                Self::build(
                    self.count,
                    period,
                    BurstSpec::Burst(divide(burst, nodes)),
                    self.algorithm,
                    self.is_refundable(),
                )
            }
            (BurstSpec::Queue(queue), _) => {
                let period = self.period.saturating_mul(nodes);
                Self::build(
                    self.count,
                    period,
                    BurstSpec::Queue(queue / nodes),
                    self.algorithm,
                    false,
                )
            }
            (BurstSpec::Wait(_), _) => Self::build(
                self.count,
                self.period.saturating_mul(nodes),
                self.burst_spec(),
                self.algorithm,
                false,
            ),
            _ => {
                let count = divide(self.count, nodes);
                Self::build(
                    count,
                    self.period,
                    BurstSpec::Burst(count),
                    self.algorithm,
                    false,
                )
            }
        }
    }

    const fn of_nanos(count: u64, period: u64) -> Self {
        if period == 0 && count == 0 {
            return Self::deny_all();
        }
        if period == 0 {
            return Self::unlimited();
        }
        Self::build(
            count,
            period,
            BurstSpec::Burst(count),
            Algorithm::TokenBucket,
            false,
        )
    }

    const fn build(
        count: u64,
        period: u64,
        burst: BurstSpec,
        algorithm: Algorithm,
        refundable: bool,
    ) -> Self {
        let tick_limit = TickLimit::new(count, period, burst, algorithm, refundable);
        let (burst_value, burst_tag) = match burst {
            BurstSpec::Burst(burst) => (burst, 0),
            BurstSpec::Wait(max_wait) => (max_wait, 1),
            BurstSpec::Queue(max_queue) => (max_queue, 2),
        };
        let burst_tag = if matches!(tick_limit.kind, Kind::Refundable) {
            burst_tag | REFUNDABLE_BIT
        } else {
            burst_tag
        };
        Self {
            count,
            period,
            burst_value,
            burst_tag,
            tick_limit,
            algorithm,
        }
    }

    const fn burst_spec(&self) -> BurstSpec {
        match self.burst_tag & !REFUNDABLE_BIT {
            0 => BurstSpec::Burst(self.burst_value),
            1 => BurstSpec::Wait(self.burst_value),
            _ => BurstSpec::Queue(self.burst_value),
        }
    }
}

/// # Getters
impl Limit {
    /// The rate as it was written; none when unlimited.
    pub const fn rate(&self) -> Option<Rate> {
        if self.is_unlimited() {
            None
        } else {
            Some(Rate {
                count: self.count,
                period: self.period,
            })
        }
    }

    /// How much is allowed at once, as it decides: the burst, the length of a pacing queue, or the
    /// count of a window. [`u64::MAX`] when unlimited.
    pub const fn capacity(&self) -> u64 {
        match self.tick_limit.kind {
            Kind::Unlimited => u64::MAX,
            _ => self.tick_limit.burst(),
        }
    }

    /// The algorithm.
    pub const fn algorithm_kind(&self) -> Algorithm {
        self.algorithm
    }

    /// Whether every call is allowed.
    pub const fn is_unlimited(&self) -> bool {
        matches!(self.tick_limit.kind, Kind::Unlimited)
    }

    /// Whether the bucket is [refundable](Self::refundable). False where that changes nothing.
    pub const fn is_refundable(&self) -> bool {
        matches!(self.tick_limit.kind, Kind::Refundable)
    }

    /// How long until everything is available again after all of it was used at once; `None` if it
    /// never is, zero when unlimited.
    pub const fn fills_in(&self) -> Option<Duration> {
        match self.tick_limit.kind {
            Kind::Unlimited => Some(Duration::ZERO),
            Kind::Frozen => None,
            Kind::Bucket | Kind::Refundable | Kind::Pacing => Some(Duration::from_nanos(
                self.tick_limit.nanos_ceil(self.tick_limit.capacity),
            )),
            _ => Some(Duration::from_nanos(self.period)),
        }
    }

    /// What the limit decides with, if that is not exactly what was written: a rate above 58 per
    /// nanosecond or with a count that does not reduce to 58 or less, an interval above 146 years,
    /// a burst that would take over 142 years to fill.
    ///
    /// ```
    /// use ratekeeper::Limit;
    ///
    /// assert!(Limit::per_second(1_000).effective().is_none()); // one every 1,000,000 ns: exact
    /// let odd = Limit::per_second(59).effective().unwrap();    // one every 16,949,152.542… ns: 58ths are as near as it gets
    /// assert_eq!(odd.to_string(), "1 every 16949152.55172 ns, burst 59");
    /// assert!(odd.per_second() > 58.999_999_9 && odd.per_second() <= 59.0);
    /// ```
    pub const fn effective(&self) -> Option<Effective> {
        if self.is_unlimited() || self.tick_limit.is_windowed() {
            return None;
        }
        let TickLimit { ticks, token, .. } = self.tick_limit;
        let exact_rate = ticks as u128 * self.period as u128 == token as u128 * self.count as u128
            || self.count == 0;
        let exact_burst = match self.burst_spec() {
            BurstSpec::Burst(burst) => self.tick_limit.burst() == burst,
            BurstSpec::Queue(max_queue) => self.tick_limit.burst() == max_queue.saturating_add(1),
            BurstSpec::Wait(max_wait) => {
                self.tick_limit.capacity as u128 == max_wait as u128 * ticks as u128
            }
        };
        if exact_rate && (exact_burst || self.count == 0) {
            return None;
        }
        Some(Effective {
            ticks,
            token,
            burst: self.tick_limit.burst(),
        })
    }

    /// Whether the burst as written would take longer to fill than a bucket may.
    const fn is_clipped(&self) -> bool {
        let max_fill = ticks::MAX_FILL as u128 * self.count as u128;
        match self.burst_spec() {
            BurstSpec::Wait(max_wait) => max_wait > ticks::MAX_FILL,
            BurstSpec::Burst(burst) | BurstSpec::Queue(burst) => {
                burst as u128 * self.period as u128 > max_fill
            }
        }
    }

    pub(crate) const fn tick_limit(&self) -> &TickLimit {
        &self.tick_limit
    }

    /// The numbers as written, for storage word by word: count, period, burst value, and the burst
    /// tag.
    pub(crate) const fn as_written(&self) -> ([u64; 3], u8) {
        ([self.count, self.period, self.burst_value], self.burst_tag)
    }

    pub(crate) const fn from_written(
        [count, period, burst_value]: [u64; 3],
        burst_tag: u8,
        algorithm: Algorithm,
    ) -> Self {
        let refundable = burst_tag & REFUNDABLE_BIT != 0;
        let burst = match burst_tag & !REFUNDABLE_BIT {
            0 => BurstSpec::Burst(burst_value),
            1 => BurstSpec::Wait(burst_value),
            _ => BurstSpec::Queue(burst_value),
        };
        Self::build(count, period, burst, algorithm, refundable)
    }
}

/// `whole` divided by `parts`, at least 1 unless `whole` is 0.
const fn divide(whole: u64, parts: u64) -> u64 {
    if whole == 0 || whole >= parts {
        whole / parts
    } else {
        1
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Limit({self})")
    }
}

/// What a limit decides with, if it is not exactly as written; see [`Limit::effective`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effective {
    ticks: u64,
    token: u64,
    burst: u64,
}

impl Effective {
    /// The time per token in nanoseconds, as numerator and denominator. The denominator is zero if
    /// tokens never come.
    pub const fn interval(&self) -> (u64, u64) {
        (self.token, self.ticks)
    }

    /// The rate per second as a number, for display.
    pub fn per_second(&self) -> f64 {
        self.ticks as f64 / self.token as f64 * NANOS_PER_SECOND as f64
    }

    /// How much is allowed at once.
    pub const fn burst(&self) -> u64 {
        self.burst
    }
}

impl fmt::Display for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ticks {
            0 => write!(f, "no refill, burst {}", self.burst),
            ticks => {
                let (whole, rest) = (self.token / ticks, self.token % ticks);
                // Truncated, not rounded: five digits are finer than a 58th.
                let digits = rest * 100_000 / ticks;
                write!(f, "1 every {whole}.{digits:05} ns, burst {}", self.burst)
            }
        }
    }
}
