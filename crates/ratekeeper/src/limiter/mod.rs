//! [`Limiter`]: a rate limiter for one subject, shared by any number of threads.

pub(crate) mod at;
mod generations;

pub use crate::adjustments::Adjustments;
pub use crate::charge::Charge;
pub use crate::generation::Carry;
pub use crate::reservation::Reservation;
#[cfg(feature = "std")]
pub use crate::wait::{Wait, WaitError};
pub use at::At;

use crate::clock::{Clock, SystemClock, Timestamp};
use crate::decision::{Decision, DeniedError, ReserveError};
use crate::limit::Limit;
use crate::sync::Arc;
use core::fmt;
use core::time::Duration;
use generations::Generations;

/// A rate limiter for one subject: one atomic word, shared by any number of threads.
///
/// A limiter is a handle: clones share the bucket. [`check`](Self::check) takes no lock and a
/// denied call writes nothing.
///
/// ```
/// use ratekeeper::{Limit, Limiter};
///
/// let limiter = Limiter::new(Limit::per_second(2).burst(5));
/// let passed = (0..7).filter(|_| limiter.check().is_allowed()).count();
/// assert_eq!(passed, 5);
/// ```
///
/// [`at`](Self::at) gives the same methods with a time that you supply.
pub struct Limiter<C: Clock = SystemClock> {
    pub(crate) shared: Arc<Generations<C>>,
}

/// # Constructors
#[cfg(feature = "std")]
impl Limiter {
    /// Creates a limiter on the operating system's monotonic clock, with a full bucket.
    pub fn new(limit: Limit) -> Self {
        Self::with_clock(limit, SystemClock)
    }
}

impl<C: Clock> Limiter<C> {
    /// Creates a limiter on a clock of your choice, with a full bucket.
    pub fn with_clock(limit: Limit, clock: C) -> Self {
        Self {
            shared: Arc::new(Generations::new(limit, clock)),
        }
    }

    /// Sets the number of tokens in the bucket, for a cold or a warm start. Without it the bucket
    /// starts full.
    ///
    /// ```
    /// use ratekeeper::{Limit, Limiter};
    ///
    /// let limiter = Limiter::new(Limit::per_hour(10)).starting_with(2);
    /// assert_eq!(limiter.peek().remaining(), 2);
    /// ```
    #[must_use]
    pub fn starting_with(self, tokens: u64) -> Self {
        self.now().fill_to(tokens);
        self
    }

    /// The clock the limiter runs on.
    pub fn clock(&self) -> &C {
        self.shared.clock()
    }

    /// Returns the same methods at an instant of your choice: for tests, batches and replays.
    ///
    /// An instant older than that of earlier calls makes the limiter stricter, never looser. An
    /// instant more than five years older than the limiter is denied: to replay such data, give the
    /// limiter a [`ManualClock`](crate::ManualClock) that starts there.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratekeeper::{Clock, Limit, Limiter, clock::SystemClock};
    ///
    /// let limiter = Limiter::new(Limit::per_second(1));
    /// let start = SystemClock.now();
    /// let minute = (0..600).map(|i| start + Duration::from_millis(100) * i);
    /// assert_eq!(minute.filter(|t| limiter.at(*t).check().is_allowed()).count(), 60);
    /// ```
    #[inline]
    pub fn at(&self, now: Timestamp) -> At<'_, C> {
        At::new(self, now)
    }

    #[inline]
    fn now(&self) -> At<'_, C> {
        self.at(self.shared.clock().now())
    }
}

/// # Decisions
impl<C: Clock> Limiter<C> {
    /// Charges one unit if it fits. The charge is final.
    #[inline(always)]
    pub fn check(&self) -> Decision {
        self.check_n(1)
    }

    /// Charges `cost` units if all of them fit. The charge is final. A cost of 0 charges nothing
    /// and is denied only while the bucket is in debt.
    // Always inlined: a caller that only uses `is_allowed()` then never builds the rest of the
    // decision.
    #[inline(always)]
    pub fn check_n(&self, cost: u64) -> Decision {
        self.now().check_n(cost)
    }

    /// The decision that [`check`](Self::check) would return, without charging.
    pub fn peek(&self) -> Decision {
        self.peek_n(1)
    }

    /// The decision that [`check_n`](Self::check_n) would return, without charging.
    pub fn peek_n(&self, cost: u64) -> Decision {
        self.now().peek_n(cost)
    }

    /// Charges `cost` units for work whose actual cost is known later; see [`Charge`].
    #[inline]
    pub fn take(&self, cost: u64) -> Result<Charge<C>, DeniedError> {
        self.now().take(cost)
    }

    /// Reserves the next free slot for `cost` units, however far ahead; see [`Reservation`].
    #[inline]
    pub fn reserve(&self, cost: u64) -> Result<Reservation<C>, ReserveError> {
        self.now().reserve(cost)
    }

    /// Reserves the next free slot if it is at most `max_wait` away; otherwise takes nothing.
    #[inline]
    pub fn reserve_within(
        &self,
        cost: u64,
        max_wait: Duration,
    ) -> Result<Reservation<C>, ReserveError> {
        self.now().reserve_within(cost, max_wait)
    }

    /// The tokens in the bucket; negative while reservations are ahead of it. For display:
    /// decisions are made in integers.
    pub fn tokens(&self) -> f64 {
        self.now().tokens()
    }
}

/// # Live changes
impl<C: Clock> Limiter<C> {
    /// The current limit.
    pub fn limit(&self) -> Limit {
        self.shared.current().1.limit()
    }

    /// The current burst: how much is allowed at once. [`u64::MAX`] when unlimited.
    pub fn burst(&self) -> u64 {
        self.limit().capacity()
    }

    /// Changes the limit for all clones of this limiter and keeps the tokens in the bucket.
    ///
    /// Tokens earned so far count at the old rate; debt stays debt; a reservation keeps its time.
    /// Each change keeps about a hundred bytes until the limiter is dropped. Setting the current
    /// limit again does nothing.
    pub fn set_limit(&self, limit: Limit) {
        self.set_limit_with(limit, Carry::Keep);
    }

    /// Changes the limit; `carry` says what happens to the tokens in the bucket.
    pub fn set_limit_with(&self, limit: Limit, carry: Carry) {
        self.shared
            .change(&limit, carry, || self.shared.clock().now());
    }

    /// Changes only the burst.
    pub fn set_burst(&self, burst: u64) {
        self.set_limit(self.limit().burst(burst));
    }

    /// Fills the bucket. Charges and reservations made before give nothing back.
    pub fn reset(&self) {
        self.set_limit_with(self.limit(), Carry::Reset);
    }

    /// Adds `tokens`, up to a full bucket, on behalf of an operator. They come on top of what the
    /// limit promises, and are counted in [`adjustments`](Self::adjustments).
    pub fn grant(&self, tokens: u64) {
        self.now().grant(tokens);
    }

    /// Counters of units that came on top of the limit's promise, or that were not given back.
    pub fn adjustments(&self) -> Adjustments {
        self.shared.adjustments()
    }
}

impl<C: Clock> Clone for Limiter<C> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<C: Clock> fmt::Debug for Limiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("limit", &self.limit())
            .field("tokens", &self.tokens())
            .finish()
    }
}
