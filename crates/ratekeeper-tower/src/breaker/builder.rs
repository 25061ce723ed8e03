//! Every number of a breaker, and what is wrong with those that make no sense.

use super::CircuitBreaker;
use ratekeeper::{Clock, clock::SystemClock};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Makes a [`CircuitBreaker`]; what [`CircuitBreaker::builder`] returns.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper_tower::CircuitBreaker;
///
/// let breaker = CircuitBreaker::builder()
///     .failure_percent(25)
///     .slow_after(Duration::from_secs(2))
///     .open_for(Duration::from_secs(1))
///     .build()?;
/// # Ok::<_, ratekeeper_tower::breaker::InvalidBreaker>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct CircuitBreakerBuilder<C: Clock = SystemClock> {
    pub(super) failure_percent: u32,
    pub(super) slow_percent: u32,
    pub(super) slow_after: Option<Duration>,
    pub(super) min_calls: u64,
    pub(super) buckets: usize,
    pub(super) bucket_length: Duration,
    pub(super) open_for: Duration,
    pub(super) max_open_for: Duration,
    pub(super) jitter_percent: u32,
    pub(super) probes: usize,
    pub(super) probe_timeout: Duration,
    pub(super) seed: u64,
    pub(super) clock: C,
}

impl Default for CircuitBreakerBuilder {
    fn default() -> Self {
        Self {
            failure_percent: 50,
            slow_percent: 80,
            slow_after: None,
            min_calls: 20,
            buckets: 10,
            bucket_length: Duration::from_secs(1),
            open_for: Duration::from_secs(5),
            max_open_for: Duration::from_secs(60),
            jitter_percent: 10,
            probes: 3,
            probe_timeout: Duration::from_secs(10),
            // The standard library's hasher is seeded anew for each: randomness without a crate for
            // it.
            seed: RandomState::new().hash_one(0u8),
            clock: SystemClock,
        }
    }
}

impl<C: Clock> CircuitBreakerBuilder<C> {
    /// Opens when so many in a hundred calls fail; 50 if not said.
    pub fn failure_percent(mut self, percent: u32) -> Self {
        self.failure_percent = percent;
        self
    }

    /// Opens when so many in a hundred calls are slow; 80 if not said. None is unless
    /// [`slow_after`](Self::slow_after) is set.
    pub fn slow_percent(mut self, percent: u32) -> Self {
        self.slow_percent = percent;
        self
    }

    /// A call that takes longer is slow, whether it fails or not, and a slow probe has failed. No
    /// call is slow if not said.
    pub fn slow_after(mut self, longest: Duration) -> Self {
        self.slow_after = Some(longest);
        self
    }

    /// Never opens on fewer calls; 20 if not said.
    pub fn min_calls(mut self, calls: u64) -> Self {
        self.min_calls = calls;
        self
    }

    /// Looks back over so many buckets; 10 if not said.
    pub fn buckets(mut self, buckets: usize) -> Self {
        self.buckets = buckets;
        self
    }

    /// How long a bucket is; a second if not said.
    pub fn bucket_length(mut self, length: Duration) -> Self {
        self.bucket_length = length;
        self
    }

    /// How long it is open at first; 5 seconds if not said. Doubles each time that the probes fail.
    pub fn open_for(mut self, time: Duration) -> Self {
        self.open_for = time;
        self
    }

    /// Where the doubling ends; 60 seconds if not said.
    pub fn max_open_for(mut self, time: Duration) -> Self {
        self.max_open_for = time;
        self
    }

    /// How much longer it is open at random, so that many breakers do not probe all at once; up to
    /// 10 % if not said.
    pub fn jitter_percent(mut self, percent: u32) -> Self {
        self.jitter_percent = percent;
        self
    }

    /// How many probes half-open lets through, all of which must succeed; 3 if not said.
    pub fn probes(mut self, probes: usize) -> Self {
        self.probes = probes;
        self
    }

    /// A probe that is not answered by then makes room for another; 10 seconds if not said. Its
    /// answer still counts when it comes.
    pub fn probe_timeout(mut self, time: Duration) -> Self {
        self.probe_timeout = time;
        self
    }

    /// Where the jitter begins: the same seed, the same times. Random if not said.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Takes time from a clock of your choice.
    pub fn clock<D: Clock>(self, clock: D) -> CircuitBreakerBuilder<D> {
        CircuitBreakerBuilder {
            failure_percent: self.failure_percent,
            slow_percent: self.slow_percent,
            slow_after: self.slow_after,
            min_calls: self.min_calls,
            buckets: self.buckets,
            bucket_length: self.bucket_length,
            open_for: self.open_for,
            max_open_for: self.max_open_for,
            jitter_percent: self.jitter_percent,
            probes: self.probes,
            probe_timeout: self.probe_timeout,
            seed: self.seed,
            clock,
        }
    }

    /// Makes it, closed.
    pub fn build(self) -> Result<CircuitBreaker<C>, CircuitBreakerError> {
        self.check()?;
        Ok(CircuitBreaker::from_builder(self))
    }

    fn check(&self) -> Result<(), CircuitBreakerError> {
        let number = |setting, given: u64, min, max| match given < min || given > max {
            true => Err(CircuitBreakerError::Number {
                setting,
                given,
                min,
                max,
            }),
            false => Ok(()),
        };
        let time = |setting, given: Duration| match given < MIN_TIME || given > MAX_TIME {
            true => Err(CircuitBreakerError::Time { setting, given }),
            false => Ok(()),
        };
        number("failure_percent", self.failure_percent.into(), 1, 100)?;
        number("slow_percent", self.slow_percent.into(), 1, 100)?;
        number("jitter_percent", self.jitter_percent.into(), 0, 100)?;
        number("min_calls", self.min_calls, 1, u64::MAX)?;
        number("buckets", self.buckets as u64, 1, MAX_BUCKETS)?;
        number("probes", self.probes as u64, 1, MAX_PROBES)?;
        time("bucket_length", self.bucket_length)?;
        time("open_for", self.open_for)?;
        time("max_open_for", self.max_open_for)?;
        time("probe_timeout", self.probe_timeout)?;
        match self.max_open_for < self.open_for {
            true => Err(CircuitBreakerError::MaxOpenForTooShort {
                open_for: self.open_for,
                max_open_for: self.max_open_for,
            }),
            false => Ok(()),
        }
    }
}

/// Each call reads every bucket, and each rejection in half-open every probe.
const MAX_BUCKETS: u64 = 1_000;
const MAX_PROBES: u64 = 1_000;
/// Times are kept in milliseconds.
const MIN_TIME: Duration = Duration::from_millis(1);
/// A year, so that a sum of times stays far from what the words hold.
const MAX_TIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Why there is no such breaker.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CircuitBreakerError {
    /// A number out of its range.
    #[non_exhaustive]
    Number {
        /// The builder's method.
        setting: &'static str,
        /// What it was given.
        given: u64,
        /// The least it takes.
        min: u64,
        /// The most it takes.
        max: u64,
    },
    /// A time below a millisecond or above a year.
    #[non_exhaustive]
    Time {
        /// The builder's method.
        setting: &'static str,
        /// What it was given.
        given: Duration,
    },
    /// The first time it is open is longer than the longest.
    #[non_exhaustive]
    MaxOpenForTooShort {
        /// How long at first.
        open_for: Duration,
        /// How long at most.
        max_open_for: Duration,
    },
}

impl fmt::Display for CircuitBreakerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number {
                setting,
                given,
                min,
                max: u64::MAX,
            } => {
                write!(f, "{setting} is {given}; it must be {min} or more")
            }
            Self::Number {
                setting,
                given,
                min,
                max,
            } => {
                write!(f, "{setting} is {given}; it must be from {min} to {max}")
            }
            Self::Time { setting, given } => {
                write!(
                    f,
                    "{setting} is {given:?}; it must be from a millisecond to a year"
                )
            }
            Self::MaxOpenForTooShort {
                open_for,
                max_open_for,
            } => {
                write!(
                    f,
                    "open_for is {open_for:?}; it must not be longer than max_open_for, {max_open_for:?}"
                )
            }
        }
    }
}

impl std::error::Error for CircuitBreakerError {}
