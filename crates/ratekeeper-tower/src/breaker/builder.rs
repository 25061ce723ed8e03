//! The builder of a circuit breaker, and the errors of invalid settings.

use super::CircuitBreaker;
use ratekeeper::{Clock, clock::SystemClock};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Builds a [`CircuitBreaker`]; made by [`CircuitBreaker::builder`].
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
/// # Ok::<_, ratekeeper_tower::breaker::CircuitBreakerError>(())
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
            // The standard library seeds each hasher anew: randomness without a dependency.
            seed: RandomState::new().hash_one(0u8),
            clock: SystemClock,
        }
    }
}

impl<C: Clock> CircuitBreakerBuilder<C> {
    /// Opens when this percentage of calls fails; 50 unless set.
    pub fn failure_percent(mut self, percent: u32) -> Self {
        self.failure_percent = percent;
        self
    }

    /// Opens when this percentage of calls is slow; 80 unless set. Has no effect unless
    /// [`slow_after`](Self::slow_after) is set.
    pub fn slow_percent(mut self, percent: u32) -> Self {
        self.slow_percent = percent;
        self
    }

    /// A call that takes longer is slow, whether it fails or not; a slow probe has failed. No call
    /// is slow unless set.
    pub fn slow_after(mut self, time: Duration) -> Self {
        self.slow_after = Some(time);
        self
    }

    /// Does not open on fewer calls; 20 unless set.
    pub fn min_calls(mut self, calls: u64) -> Self {
        self.min_calls = calls;
        self
    }

    /// The number of buckets in the window; 10 unless set.
    pub fn buckets(mut self, buckets: usize) -> Self {
        self.buckets = buckets;
        self
    }

    /// The length of a bucket; a second unless set.
    pub fn bucket_length(mut self, length: Duration) -> Self {
        self.bucket_length = length;
        self
    }

    /// How long it stays open at first; 5 seconds unless set. Doubles each time that the probes
    /// fail.
    pub fn open_for(mut self, time: Duration) -> Self {
        self.open_for = time;
        self
    }

    /// The maximum of the doubling; 60 seconds unless set.
    pub fn max_open_for(mut self, time: Duration) -> Self {
        self.max_open_for = time;
        self
    }

    /// Adds up to this percentage to the open time at random, so that many breakers do not probe at
    /// once; 10 unless set.
    pub fn jitter_percent(mut self, percent: u32) -> Self {
        self.jitter_percent = percent;
        self
    }

    /// How many probes it allows while half-open, all of which must succeed; 3 unless set.
    pub fn probes(mut self, probes: usize) -> Self {
        self.probes = probes;
        self
    }

    /// A probe without an outcome after this time frees its slot for another; 10 seconds unless
    /// set. Its outcome still counts when it comes.
    pub fn probe_timeout(mut self, time: Duration) -> Self {
        self.probe_timeout = time;
        self
    }

    /// The seed of the jitter: the same seed gives the same times. Random unless set.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the clock.
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

    /// Builds the breaker, closed.
    pub fn build(self) -> Result<CircuitBreaker<C>, CircuitBreakerError> {
        self.check()?;
        Ok(CircuitBreaker::from_builder(self))
    }

    fn check(&self) -> Result<(), CircuitBreakerError> {
        let number = |setting, given: u64, min, max| {
            if given < min || given > max {
                Err(CircuitBreakerError::Number {
                    setting,
                    given,
                    min,
                    max,
                })
            } else {
                Ok(())
            }
        };
        let time = |setting, given: Duration| {
            if given < MIN_TIME || given > MAX_TIME {
                Err(CircuitBreakerError::Time { setting, given })
            } else {
                Ok(())
            }
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
        if self.max_open_for < self.open_for {
            Err(CircuitBreakerError::MaxOpenForTooShort {
                open_for: self.open_for,
                max_open_for: self.max_open_for,
            })
        } else {
            Ok(())
        }
    }
}

/// Each call reads every bucket, and each rejection while half-open every probe.
const MAX_BUCKETS: u64 = 1_000;
const MAX_PROBES: u64 = 1_000;
/// Times are stored in milliseconds.
const MIN_TIME: Duration = Duration::from_millis(1);
/// A year, so that sums of times cannot overflow their bits.
const MAX_TIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The error of invalid settings.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CircuitBreakerError {
    /// A number is out of range.
    #[non_exhaustive]
    Number {
        /// The method of the builder.
        setting: &'static str,
        /// The given number.
        given: u64,
        /// The minimum.
        min: u64,
        /// The maximum.
        max: u64,
    },
    /// A time is below a millisecond or above a year.
    #[non_exhaustive]
    Time {
        /// The method of the builder.
        setting: &'static str,
        /// The given time.
        given: Duration,
    },
    /// `open_for` is longer than `max_open_for`.
    #[non_exhaustive]
    MaxOpenForTooShort {
        /// The first open time.
        open_for: Duration,
        /// The maximum open time.
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
