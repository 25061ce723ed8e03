//! [`Concurrency`]: a limit on calls in flight, with permits that are given back when they are
//! dropped.

use crate::clock::{Clock, SystemClock};
use crate::sync::{Arc, AtomicU64, Ordering};
use core::fmt;

#[cfg(feature = "std")]
mod acquire;
#[cfg(feature = "std")]
pub use acquire::{Acquire, AcquireError};

/// A limit on how many calls are in flight at once. It has no rate and no time: a permit comes back
/// when it is dropped.
///
/// This is a handle: clones share the permits.
///
/// ```
/// use ratekeeper::Concurrency;
///
/// let slots = Concurrency::new(2);
/// let first = slots.try_acquire()?;
/// let second = slots.try_acquire()?;
/// let busy = slots.try_acquire().unwrap_err();
/// assert_eq!(busy.to_string(), "concurrency limit reached (2 of 2 in flight)");
/// drop(first);
/// assert!(slots.try_acquire().is_ok());
/// # Ok::<_, ratekeeper::concurrency::BusyError>(())
/// ```
///
/// Waiters are served in order, and no new call passes them:
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::Concurrency;
///
/// let slots = Concurrency::new(2);
/// let permit = slots.acquire_n(2).within(Duration::from_secs(1)).blocking()?; // or .await
/// # Ok::<_, ratekeeper::concurrency::AcquireError>(())
/// ```
pub struct Concurrency<C: Clock = SystemClock> {
    shared: Arc<ConcurrencyState<C>>,
}

struct ConcurrencyState<C> {
    in_flight: AtomicU64,
    limit: AtomicU64,
    #[cfg(feature = "std")]
    wait_list: acquire::PermitQueue,
    /// For deadlines, which only waits have.
    #[cfg_attr(not(feature = "std"), expect(dead_code))]
    clock: C,
}

#[cfg(feature = "std")]
impl Concurrency {
    /// Creates a limit of `limit` in flight.
    pub fn new(limit: u64) -> Self {
        Self::with_clock(limit, crate::clock::SystemClock)
    }
}

impl<C: Clock> Concurrency<C> {
    /// Creates a limit on a clock of your choice, which only deadlines read.
    pub fn with_clock(limit: u64, clock: C) -> Self {
        Self {
            shared: Arc::new(ConcurrencyState {
                in_flight: AtomicU64::new(0),
                limit: AtomicU64::new(limit),
                #[cfg(feature = "std")]
                wait_list: Default::default(),
                clock,
            }),
        }
    }

    /// Takes one permit if one is free and there are no waiters.
    pub fn try_acquire(&self) -> Result<Permit<C>, BusyError> {
        self.try_acquire_n(1)
    }

    /// Takes `cost` permits if all of them are free and there are no waiters.
    pub fn try_acquire_n(&self, cost: u64) -> Result<Permit<C>, BusyError> {
        #[cfg(feature = "std")]
        let blocked = cost > 0 && !self.shared.wait_list.is_empty();
        #[cfg(not(feature = "std"))]
        let blocked = false;
        if !blocked && self.shared.take(cost) {
            Ok(self.permit(cost))
        } else {
            Err(BusyError {
                in_flight: self.in_flight(),
                limit: self.limit(),
                cost,
            })
        }
    }

    /// How many permits are in flight.
    pub fn in_flight(&self) -> u64 {
        self.shared.in_flight.load(Ordering::Relaxed)
    }

    /// How many permits may be in flight.
    pub fn limit(&self) -> u64 {
        self.shared.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. Permits in flight stay valid: above a lower limit none is given until
    /// enough have come back.
    pub fn set_limit(&self, limit: u64) {
        self.shared.limit.store(limit, Ordering::SeqCst);
        self.shared.serve_waiters();
    }

    fn permit(&self, cost: u64) -> Permit<C> {
        Permit {
            concurrency: self.clone(),
            cost,
        }
    }
}

impl<C> ConcurrencyState<C> {
    fn take(&self, cost: u64) -> bool {
        let limit = self.limit.load(Ordering::SeqCst);
        let fits = |in_flight: u64| in_flight.checked_add(cost).filter(|sum| *sum <= limit);
        self.in_flight
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits)
            .is_ok()
    }

    fn give_back(&self, cost: u64) {
        // Sequentially consistent with joining the queue: one of the two sees the other.
        self.in_flight.fetch_sub(cost, Ordering::SeqCst);
        self.serve_waiters();
    }

    fn serve_waiters(&self) {
        #[cfg(feature = "std")]
        self.wait_list.serve(|cost| self.take(cost));
    }
}

impl<C: Clock> Clone for Concurrency<C> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<C: Clock> fmt::Debug for Concurrency<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Concurrency")
            .field("in_flight", &self.in_flight())
            .field("limit", &self.limit())
            .finish()
    }
}

/// A permit to be in flight; dropping it gives it back.
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct Permit<C: Clock = SystemClock> {
    concurrency: Concurrency<C>,
    cost: u64,
}

impl<C: Clock> Permit<C> {
    /// How many units it holds.
    pub fn cost(&self) -> u64 {
        self.cost
    }
}

impl<C: Clock> Drop for Permit<C> {
    fn drop(&mut self) {
        if self.cost > 0 {
            self.concurrency.shared.give_back(self.cost);
        }
    }
}

impl<C: Clock> fmt::Debug for Permit<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("cost", &self.cost).finish()
    }
}

/// Error: no permit is free now. When one comes back is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BusyError {
    in_flight: u64,
    limit: u64,
    cost: u64,
}

impl BusyError {
    #[cfg(feature = "std")]
    pub(crate) fn new(in_flight: u64, limit: u64, cost: u64) -> Self {
        Self {
            in_flight,
            limit,
            cost,
        }
    }

    /// How many were in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// How many permits may be in flight.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether waiting will not help: more was requested than may ever be in flight.
    pub fn is_never(&self) -> bool {
        self.cost > self.limit
    }

    /// Always none: a permit comes back when its holder is done, at an unknown time. HTTP responses
    /// say one second.
    pub fn retry_after(&self) -> Option<core::time::Duration> {
        None
    }
}

impl fmt::Display for BusyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_never() {
            write!(
                f,
                "a cost of {} never fits a limit of {} in flight; ask for less",
                self.cost, self.limit
            )
        } else {
            write!(
                f,
                "concurrency limit reached ({} of {} in flight)",
                self.in_flight, self.limit
            )
        }
    }
}

impl core::error::Error for BusyError {}
