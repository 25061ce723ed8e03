//! What a person writes: a rate, a burst, an algorithm.

mod float;
mod normal;
#[cfg(feature = "serde")]
mod serde;
mod text;

pub use float::NotARate;
pub(crate) use normal::{HORIZON, Kind, LONGEST_DEBT, Normal};
pub use text::{ParseLimitError, Problem};

use crate::clock::{NANOS_PER_SECOND, nanos};
use core::fmt;
use core::time::Duration;

/// How a limit decides. The names are the same in code, in text, in config and on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Algorithm {
    /// `token_bucket` (alias `gcra`): tokens arrive at the rate and gather up to the burst; the default.
    #[default]
    TokenBucket,
    /// `leaky_bucket`: the leaky bucket as a meter. It decides exactly as the token bucket does, counted from the
    /// other end.
    LeakyBucket,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 2] = [Self::TokenBucket, Self::LeakyBucket];

    /// The name users type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
        }
    }

    /// The algorithm of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "gcra" => Some(Self::TokenBucket),
            _ => Self::ALL.into_iter().find(|algorithm| algorithm.name() == name),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// So many in such a time: `10/s`, `5/15min`.
///
/// A rate alone says nothing of bursts; see [`Limit`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rate {
    count: u64,
    period: u64,
}

impl Rate {
    /// How many.
    pub const fn count(self) -> u64 {
        self.count
    }

    /// In what time.
    pub const fn period(self) -> Duration {
        Duration::from_nanos(self.period)
    }

    /// The same as a number, for display.
    pub fn per_second(self) -> f64 {
        self.count as f64 / self.period as f64 * NANOS_PER_SECOND as f64
    }
}

/// A limit: a rate, how much may come at once, and the algorithm that judges it.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Limit;
///
/// let limit = Limit::per_minute(100).burst(20);
/// assert_eq!(limit.to_string(), "100/min burst 20");
/// assert_eq!(limit, "100/min burst 20".parse()?);
///
/// Limit::per_second(10);                           // burst 10: what is not said is the count
/// Limit::of(5, Duration::from_secs(15 * 60));      // "5/15min"
/// Limit::every(Duration::from_millis(250));        // one at a time, four a second
/// Limit::per_second_f64(0.5)?;                     // one every two seconds
/// Limit::unlimited();                              // its own word, not a big number
/// Limit::none();                                   // nothing passes
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// Building a limit turns it into the integers every backend decides with; nothing is rounded unless it must be, and
/// then to the strict side. [`effective`](Self::effective) shows the result where it differs from what was written.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit {
    count: u64,
    period: u64,
    burst: u64,
    normal: Normal,
    algorithm: Algorithm,
}

/// # Writing a limit
impl Limit {
    /// `count` a second, all of them at once if they come at once.
    pub const fn per_second(count: u64) -> Self {
        Self::of_nanos(count, NANOS_PER_SECOND)
    }

    /// `count` a minute.
    pub const fn per_minute(count: u64) -> Self {
        Self::of_nanos(count, 60 * NANOS_PER_SECOND)
    }

    /// `count` an hour.
    pub const fn per_hour(count: u64) -> Self {
        Self::of_nanos(count, 3_600 * NANOS_PER_SECOND)
    }

    /// `count` a day.
    pub const fn per_day(count: u64) -> Self {
        Self::of_nanos(count, 86_400 * NANOS_PER_SECOND)
    }

    /// One every `interval`, one at a time. An interval of zero is [`unlimited`](Self::unlimited); one above 146 years
    /// never comes round, so what is in the bucket is all there is.
    pub const fn every(interval: Duration) -> Self {
        Self::of(1, interval)
    }

    /// `count` in each `period`, all of them at once if they come at once.
    ///
    /// A count of zero refills nothing. A period of zero is [`unlimited`](Self::unlimited).
    pub const fn of(count: u64, period: Duration) -> Self {
        Self::of_nanos(count, nanos(period))
    }

    /// Every call is admitted and nothing is counted.
    pub const fn unlimited() -> Self {
        Self::build(0, 0, 0, Algorithm::TokenBucket)
    }

    /// Nothing is admitted: rate 0, burst 0. With a [`burst`](Self::burst) it admits that many, once.
    pub const fn none() -> Self {
        Self::build(0, NANOS_PER_SECOND, 0, Algorithm::TokenBucket)
    }

    /// How much may come at once: the capacity of the bucket. Without it, the count of the rate.
    ///
    /// What would take longer than 142 years to fill is clipped to that. Ignored when unlimited.
    #[must_use]
    pub const fn burst(self, burst: u64) -> Self {
        if self.is_unlimited() {
            return self;
        }
        Self::build(self.count, self.period, burst, self.algorithm)
    }

    /// The same numbers, judged by another algorithm. Ignored when unlimited.
    #[must_use]
    pub const fn algorithm(self, algorithm: Algorithm) -> Self {
        match self.is_unlimited() {
            true => self,
            false => Self { algorithm, ..self },
        }
    }

    const fn of_nanos(count: u64, period: u64) -> Self {
        if period == 0 && count == 0 {
            return Self::none();
        }
        if period == 0 {
            return Self::unlimited();
        }
        Self::build(count, period, count, Algorithm::TokenBucket)
    }

    const fn build(count: u64, period: u64, burst: u64, algorithm: Algorithm) -> Self {
        Self { count, period, burst, normal: Normal::new(count, period, burst), algorithm }
    }
}

/// # Reading it
impl Limit {
    /// The rate as it was written; none when unlimited.
    pub const fn rate(&self) -> Option<Rate> {
        match self.is_unlimited() {
            true => None,
            false => Some(Rate { count: self.count, period: self.period }),
        }
    }

    /// How much may come at once, as it decides: [`u64::MAX`] when unlimited.
    pub const fn capacity(&self) -> u64 {
        match self.normal.kind {
            Kind::Unlimited => u64::MAX,
            _ => self.normal.burst(),
        }
    }

    /// The algorithm that judges it.
    pub const fn judged_by(&self) -> Algorithm {
        self.algorithm
    }

    /// Whether every call is admitted.
    pub const fn is_unlimited(&self) -> bool {
        matches!(self.normal.kind, Kind::Unlimited)
    }

    /// How long an empty bucket takes to fill; none if it never does, zero when unlimited.
    pub const fn fills_in(&self) -> Option<Duration> {
        match self.normal.kind {
            Kind::Unlimited => Some(Duration::ZERO),
            Kind::Frozen => None,
            Kind::Bucket => Some(Duration::from_nanos(self.normal.nanos_ceil(self.normal.capacity))),
        }
    }

    /// What is decided with, where that is not exactly what was written: a rate above 58 a nanosecond or with a
    /// count that does not reduce to 58 or less, an interval above 146 years, a burst that would take over 142 years
    /// to fill.
    ///
    /// ```
    /// use tollgate::Limit;
    ///
    /// assert!(Limit::per_second(1_000).effective().is_none()); // one every 1,000,000 ns: exact
    /// let odd = Limit::per_second(59).effective().unwrap();    // one every 16,949,152.542… ns: 58ths are as near as it gets
    /// assert_eq!(odd.to_string(), "1 every 16949152.55172 ns, burst 59");
    /// assert!(odd.per_second() > 58.999_999_9 && odd.per_second() <= 59.0);
    /// ```
    pub const fn effective(&self) -> Option<Effective> {
        if self.is_unlimited() {
            return None;
        }
        let Normal { ticks, token, .. } = self.normal;
        let exact_rate = ticks as u128 * self.period as u128 == token as u128 * self.count as u128 || self.count == 0;
        if exact_rate && self.normal.burst() == self.burst {
            return None;
        }
        Some(Effective { ticks, token, burst: self.normal.burst() })
    }

    pub(crate) const fn normal(&self) -> &Normal {
        &self.normal
    }

    /// The numbers as written, for a cell that stores them word by word.
    pub(crate) const fn written(&self) -> [u64; 3] {
        [self.count, self.period, self.burst]
    }

    pub(crate) const fn from_written([count, period, burst]: [u64; 3], algorithm: Algorithm) -> Self {
        Self::build(count, period, burst, algorithm)
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Limit({self})")
    }
}

/// What a limit decides with, where it could not be kept exactly; see [`Limit::effective`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effective {
    ticks: u64,
    token: u64,
    burst: u64,
}

impl Effective {
    /// The time of one token as a fraction: so many parts, each the so-many-th part of a nanosecond. The second number
    /// is zero if tokens never come.
    pub const fn interval(&self) -> (u64, u64) {
        (self.token, self.ticks)
    }

    /// The rate as a number, for display.
    pub fn per_second(&self) -> f64 {
        self.ticks as f64 / self.token as f64 * NANOS_PER_SECOND as f64
    }

    /// How much may come at once.
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
                // Cut, not rounded: five digits are finer than a 58th.
                let digits = rest * 100_000 / ticks;
                write!(f, "1 every {whole}.{digits:05} ns, burst {}", self.burst)
            }
        }
    }
}
