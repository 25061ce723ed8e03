//! A limiter for one subject, shared by any number of threads.

pub(crate) mod at;
pub(crate) mod change;
mod charge;
pub(crate) mod generation;
mod generations;
mod reservation;
#[cfg(feature = "std")]
mod wait;
#[cfg(feature = "std")]
mod waiters;
pub(crate) mod windows;

pub use at::At;
pub use change::Carry;
pub use charge::Charge;
pub use generations::Adjustments;
pub use reservation::Reservation;
#[cfg(feature = "std")]
pub(crate) use wait::NO_TIMER;
#[cfg(feature = "std")]
pub use wait::{Wait, WaitError};
#[cfg(feature = "std")]
pub(crate) use waiters::{Waiters, thread_waker};

#[cfg(feature = "std")]
use crate::clock::SystemClock;
use crate::clock::{Clock, DefaultClock, Timestamp};
use crate::decision::{Decision, DeniedError, ReserveError};
use crate::limit::Limit;
use crate::sync::Arc;
use core::fmt;
use core::time::Duration;
use generations::Generations;

/// A limiter for one subject: one atomic word, shared by any number of threads.
///
/// A limiter is a handle: clones share the bucket. [`check`](Self::check) takes no lock and a
/// denial writes nothing.
///
/// ```
/// use ratekeeper::{Limit, Limiter};
///
/// let limiter = Limiter::new(Limit::per_second(2).burst(5));
/// let passed = (0..7).filter(|_| limiter.check().is_allowed()).count();
/// assert_eq!(passed, 5);
/// ```
///
/// Every verb has a twin on [`at`](Self::at), which takes the time from you.
pub struct Limiter<C: Clock = DefaultClock> {
    shared: Arc<Generations<C>>,
}

/// # Making one
#[cfg(feature = "std")]
impl Limiter {
    /// A limiter on the operating system's monotonic clock, starting with a full bucket.
    pub fn new(limit: Limit) -> Self {
        Self::with_clock(limit, SystemClock)
    }
}

impl<C: Clock> Limiter<C> {
    /// A limiter on a clock of your choice, starting with a full bucket.
    pub fn with_clock(limit: Limit, clock: C) -> Self {
        Self {
            shared: Arc::new(Generations::new(limit, clock)),
        }
    }

    /// The same limiter with `tokens` in its bucket instead of a full one: a cold start, or a warm
    /// one.
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

    /// The clock it runs on.
    pub fn clock(&self) -> &C {
        self.shared.clock()
    }

    /// The same verbs at an instant of your choice: for tests, batches and replays.
    ///
    /// An instant that is older than others is stricter, never looser. What is more than five years
    /// older than the limiter is turned away: to replay it, give the limiter a
    /// [`ManualClock`](crate::ManualClock) that starts there.
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

/// # Deciding
impl<C: Clock> Limiter<C> {
    /// Charges one unit if it fits, and forgets.
    #[inline(always)]
    pub fn check(&self) -> Decision {
        self.check_n(1)
    }

    /// Charges `cost` units if all of them fit, and forgets. A cost of 0 asks whether there is debt
    /// and charges nothing.
    // Always: in line a caller that only asks `is_allowed()` never builds the rest of the decision.
    #[inline(always)]
    pub fn check_n(&self, cost: u64) -> Decision {
        self.now().check_n(cost)
    }

    /// What [`check`](Self::check) would say, without charging.
    pub fn peek(&self) -> Decision {
        self.peek_n(1)
    }

    /// What [`check_n`](Self::check_n) would say, without charging.
    pub fn peek_n(&self, cost: u64) -> Decision {
        self.now().peek_n(cost)
    }

    /// Charges `cost` units for work whose true cost is known later; see [`Charge`].
    #[inline]
    pub fn take(&self, cost: u64) -> Result<Charge<C>, DeniedError> {
        self.now().take(cost)
    }

    /// Takes the next free slot for `cost` units, however far ahead; see [`Reservation`].
    #[inline]
    pub fn reserve(&self, cost: u64) -> Result<Reservation<C>, ReserveError> {
        self.now().reserve(cost)
    }

    /// Takes the next free slot if it is at most `longest` away; otherwise takes nothing.
    #[inline]
    pub fn reserve_within(
        &self,
        cost: u64,
        max_wait: Duration,
    ) -> Result<Reservation<C>, ReserveError> {
        self.now().reserve_within(cost, max_wait)
    }

    /// What is in the bucket; negative while reservations are ahead of it. For display: decisions
    /// are made in integers.
    pub fn tokens(&self) -> f64 {
        self.now().tokens()
    }
}

/// # Changing it live
impl<C: Clock> Limiter<C> {
    /// The limit in force.
    pub fn limit(&self) -> Limit {
        self.shared.current().1.limit()
    }

    /// The burst in force: how much may come at once. [`u64::MAX`] when unlimited.
    pub fn burst(&self) -> u64 {
        self.limit().capacity()
    }

    /// Changes the limit for everyone who shares this limiter, keeping the tokens that are in it.
    ///
    /// What was earned so far is settled at the old rate; debt stays debt; a reservation keeps its
    /// time. Each change keeps about a hundred bytes until the limiter is dropped. Setting the
    /// limit that is in force does nothing.
    pub fn set_limit(&self, limit: Limit) {
        self.set_limit_with(limit, Carry::Keep);
    }

    /// Changes the limit and says what becomes of the tokens that are in it.
    pub fn set_limit_with(&self, limit: Limit, carry: Carry) {
        self.shared
            .change(&limit, carry, || self.shared.clock().now());
    }

    /// Changes the burst only.
    pub fn set_burst(&self, burst: u64) {
        self.set_limit(self.limit().burst(burst));
    }

    /// Fills the bucket. Older charges and reservations give nothing back.
    pub fn reset(&self) {
        self.set_limit_with(self.limit(), Carry::Reset);
    }

    /// An operator's gift: `tokens` more, up to a full bucket. It is counted, and comes on top of
    /// what the limit promises.
    pub fn grant(&self, tokens: u64) {
        self.now().grant(tokens);
    }

    /// What came on top of the limit's promise, or was not given back: every such unit is counted.
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
