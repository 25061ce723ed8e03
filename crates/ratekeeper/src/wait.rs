//! [`Wait`]: waiting for tokens, FIFO, with a deadline, on a runtime or without one.
//!
//! If the algorithm can assign slots ahead of time (token bucket, pacing), a waiter owns its slot
//! from the moment it starts to wait, so a large cost cannot starve and a waiter that is not polled
//! delays no other. The order is that of the slots, and each waiter needs only a timer. Windows and
//! logs cannot assign slots: there waiters form a FIFO queue, of which the first sleeps until it
//! may be allowed, tries, and wakes the next when it succeeds. All waiters are registered so that
//! closing the limiter wakes them.

use crate::algorithm::token_bucket::Step;
use crate::clock::{Clock, Timestamp, nanos};
use crate::decision::{Decision, ReserveError};
use crate::keyed::Key;
use crate::limit::TickLimit;
use crate::limiter::Limiter;
use crate::limiter::at::{AdmitError, MaxWait};
use crate::reservation::Reservation;
use crate::wait_list::{NO_TIMER, Ticket, thread_waker};
use crate::waiters::Waiters;
use core::fmt;
use core::task::Waker;
use core::time::Duration;
use std::boxed::Box;

/// Why a wait ended without its tokens. Nothing was taken, or what was taken has been given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WaitError {
    /// The cost is more than the burst: no wait is long enough.
    ExceedsBurst {
        /// The requested cost.
        cost: u64,
        /// The most that is allowed at once.
        burst: u64,
    },
    /// The limiter was closed.
    Closed,
    /// The slot would come after the deadline.
    Deadline {
        /// How long the wait would have been.
        delay: Duration,
    },
    /// The limit refills nothing, or so slowly that the slot lies beyond what a clock can count.
    Never,
    /// There is no timer to wait with: the future was polled outside a tokio runtime, or on one
    /// built without `enable_time()`.
    NoTimer,
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExceedsBurst { cost, burst } => {
                write!(
                    f,
                    "a cost of {cost} never fits a burst of {burst}; raise the burst or ask for less at a time"
                )
            }
            Self::Closed => f.write_str("the limiter was closed"),
            Self::Deadline { delay } => {
                write!(f, "the wait of {delay:?} would end after the deadline")
            }
            Self::Never => f.write_str("the limit refills nothing: no wait is long enough"),
            Self::NoTimer => f.write_str(NO_TIMER),
        }
    }
}

impl core::error::Error for WaitError {}

/// # Waiting
impl<C: Clock> Limiter<C> {
    /// Waits until one unit fits: `.await` it (feature `tokio`), or call
    /// [`blocking`](Wait::blocking).
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratekeeper::{Limit, Limiter};
    ///
    /// let limiter = Limiter::new(Limit::per_second(1_000).burst(1));
    /// for _ in 0..5 {
    ///     limiter.wait().blocking()?; // one every millisecond
    /// }
    /// limiter.wait_n(1).within(Duration::from_secs(2)).blocking()?;
    /// # Ok::<_, ratekeeper::limiter::WaitError>(())
    /// ```
    #[inline]
    pub fn wait(&self) -> Wait<'_, C> {
        self.wait_n(1)
    }

    /// Waits until `cost` units fit.
    #[inline]
    pub fn wait_n(&self, cost: u64) -> Wait<'_, C> {
        Wait {
            target: WaitTarget::One(self),
            cost,
            deadline: Deadline::None,
            slot: None,
        }
    }

    /// Ends every current and future wait with [`WaitError::Closed`]. The other methods keep
    /// working.
    pub fn close(&self) {
        self.shared.cold().waiters.close();
    }

    /// Whether [`close`](Self::close) was called.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.shared
            .cold_if_any()
            .is_some_and(|cold| cold.waiters.is_closed())
    }
}

/// A wait for tokens; what [`Limiter::wait`] returns.
///
/// It takes its slot when it is first polled (or [`blocking`](Self::blocking) is called); slots are
/// assigned in the order of these first polls. Dropping it gives back its tokens, except those that
/// later waiters count on.
#[must_use = "a wait does nothing until it is awaited or blocking() is called"]
pub struct Wait<'a, C: Clock> {
    target: WaitTarget<'a, C>,
    cost: u64,
    deadline: Deadline,
    /// Boxed: most waits never need one, and a wait is moved before it is polled.
    slot: Option<Box<Slot<C>>>,
}

/// What is waited for: a limiter or one key of a keyed limiter.
enum WaitTarget<'a, C: Clock> {
    One(&'a Limiter<C>),
    Key(Key<'a, C>),
}

impl<C: Clock> WaitTarget<'_, C> {
    #[inline]
    fn clock(&self) -> &C {
        match self {
            Self::One(limiter) => limiter.clock(),
            Self::Key(key) => key.inner().table.clock(),
        }
    }

    #[inline]
    fn is_closed(&self) -> bool {
        match self {
            Self::One(limiter) => limiter.is_closed(),
            Self::Key(key) => key.inner().waiters.is_closed(),
        }
    }

    fn waiters(&self) -> &Waiters {
        match self {
            Self::One(limiter) => &limiter.shared.cold().waiters,
            Self::Key(key) => &key.inner().waiters,
        }
    }

    /// The queue it would wait in.
    fn queue(&self) -> u64 {
        match self {
            Self::One(_) => 0,
            Self::Key(key) => key.hash(),
        }
    }

    fn is_queue_empty(&self) -> bool {
        match self {
            Self::One(limiter) => limiter
                .shared
                .cold_if_any()
                .is_none_or(|cold| cold.waiters.is_queue_empty(0)),
            Self::Key(key) => key.inner().waiters.is_queue_empty(key.hash()),
        }
    }

    fn limit(&self) -> TickLimit {
        match self {
            Self::One(limiter) => limiter.shared.current().1.tick_limit(),
            Self::Key(key) => key.version().normal,
        }
    }

    fn check(&self, now: Timestamp, cost: u64) -> Decision {
        match self {
            Self::One(limiter) => limiter.at(now).check_n(cost),
            Self::Key(key) => key.at(now).check_n(cost),
        }
    }

    /// Takes the next slot; `None` if its time has already come.
    fn slot(
        &self,
        now: Timestamp,
        cost: u64,
        max_wait: u64,
    ) -> Result<Option<Reservation<C>>, AdmitError> {
        match self {
            Self::One(limiter) => match limiter.at(now).admit(cost, MaxWait::Slot(max_wait))? {
                admitted if admitted.wait == 0 => Ok(None),
                admitted => Ok(Some(Reservation::new(limiter, &admitted, cost, now))),
            },
            Self::Key(key) => match key.slot(now, cost, max_wait) {
                Ok(slot) => Ok(Some(slot).filter(|slot| slot.act_at() > now)),
                Err(ReserveError::Denied(denied)) => Err(AdmitError::Denied(denied.decision())),
                Err(ReserveError::NoSlots(algorithm)) => Err(AdmitError::NoSlots(algorithm)),
            },
        }
    }

    /// How long the wait would be without a deadline.
    fn delay_at(&self, now: Timestamp, cost: u64) -> Duration {
        match self {
            Self::One(limiter) => limiter.at(now).peek_slot(cost),
            Self::Key(key) => key.peek_slot(now, cost),
        }
    }
}

enum Deadline {
    None,
    /// Nanoseconds.
    Within(u64),
    Until(Timestamp),
}

/// The state of a wait that has begun and not ended.
struct Slot<C: Clock> {
    /// None: it is in a queue.
    reservation: Option<Reservation<C>>,
    deadline: Timestamp,
    ticket: Option<Ticket>,
    /// The timer, and when it fires.
    #[cfg(feature = "tokio")]
    sleep: Option<(Timestamp, crate::clock::Sleep)>,
}

/// The result of polling a wait.
enum WaitPoll {
    Ended(Result<(), WaitError>),
    /// Nothing to do before that time, unless woken.
    Until(Timestamp),
}

/// A time that never comes: the waiter is woken by another.
const FOREVER: Timestamp = Timestamp::from_unix_nanos(u64::MAX);

impl<'a, C: Clock> Wait<'a, C> {
    pub(crate) fn of_key(key: Key<'a, C>, cost: u64) -> Self {
        Self {
            target: WaitTarget::Key(key),
            cost,
            deadline: Deadline::None,
            slot: None,
        }
    }

    /// Waits at most this long, counted from when the wait begins. If the slot comes later, the
    /// wait fails at once and takes nothing.
    pub fn within(mut self, max_wait: Duration) -> Self {
        self.deadline = Deadline::Within(nanos(max_wait));
        self
    }

    /// Waits until `deadline` at the latest. If the slot comes later, the wait fails at once and
    /// takes nothing.
    pub fn until(mut self, deadline: Timestamp) -> Self {
        self.deadline = Deadline::Until(deadline);
        self
    }

    /// Blocks this thread until the tokens are there. Needs no runtime.
    #[inline]
    pub fn blocking(self) -> Result<(), WaitError> {
        if self.try_fast() {
            Ok(())
        } else {
            self.blocking_slow()
        }
    }

    #[cold]
    fn blocking_slow(mut self) -> Result<(), WaitError> {
        if let Some(ended) = self.start() {
            return ended;
        }
        let waker = thread_waker();
        loop {
            match self.poll_once(&waker) {
                WaitPoll::Ended(ended) => return ended,
                WaitPoll::Until(at) => self.target.clock().park_until(at),
            }
        }
    }

    /// The fast path: takes the tokens if they are there already. False if it takes nothing.
    #[inline(always)]
    fn try_fast(&self) -> bool {
        let WaitTarget::One(limiter) = self.target else {
            return false;
        };
        let now = limiter.clock().now();
        let expired = matches!(self.deadline, Deadline::Until(deadline) if deadline < now);
        !expired
            && !limiter.is_closed()
            && limiter
                .shared
                .probable()
                .1
                .decide_fast(now, self.cost)
                .is_some_and(|fast| matches!(fast.step, Step::Admit { .. }))
    }

    /// Takes the slot, or joins the queue; returns the result if there is nothing to wait for.
    fn start(&mut self) -> Option<Result<(), WaitError>> {
        let (target, cost) = (&self.target, self.cost);
        let limit = target.limit();
        if !limit.could_hold(cost) {
            return Some(Err(WaitError::ExceedsBurst {
                cost,
                burst: limit.burst(),
            }));
        }
        if target.is_closed() {
            return Some(Err(WaitError::Closed));
        }
        let now = target.clock().now();
        let deadline = match self.deadline {
            Deadline::None => FOREVER,
            Deadline::Within(max_wait) => now + Duration::from_nanos(max_wait),
            Deadline::Until(deadline) if deadline < now => {
                return Some(Err(WaitError::Deadline {
                    delay: Duration::ZERO,
                }));
            }
            Deadline::Until(deadline) => deadline,
        };
        let max_wait = if deadline == FOREVER {
            u64::MAX
        } else {
            nanos(deadline - now)
        };
        let reservation = match target.slot(now, cost, max_wait) {
            Ok(None) => return Some(Ok(())),
            Ok(slot) => slot,
            Err(AdmitError::NoSlots(_)) => {
                // The queue is empty and the call is allowed: no need to wait.
                if target.is_queue_empty() && target.check(now, cost).is_allowed() {
                    return Some(Ok(()));
                }
                None
            }
            Err(AdmitError::Denied(denied)) => {
                return Some(Err(match denied.retry_after() {
                    Some(_) => WaitError::Deadline {
                        delay: target.delay_at(now, cost),
                    },
                    None => WaitError::Never,
                }));
            }
        };
        let mut ticket = None;
        if reservation.is_none() && !target.waiters().enqueue(&mut ticket, target.queue()) {
            return Some(Err(WaitError::Closed));
        }
        let slot = Slot {
            reservation,
            deadline,
            ticket,
            #[cfg(feature = "tokio")]
            sleep: None,
        };
        self.slot = Some(Box::new(slot));
        None
    }

    /// Checks whether the wait is over; if not, `waker` is woken when the limiter is closed or the
    /// queue moves on.
    fn poll_once(&mut self, waker: &Waker) -> WaitPoll {
        let (target, waiters) = (&self.target, self.target.waiters());
        let Some(slot) = &mut self.slot else {
            return WaitPoll::Ended(Ok(()));
        };
        if !waiters.register(&mut slot.ticket, waker) {
            self.give_up_slot(true);
            return WaitPoll::Ended(Err(WaitError::Closed));
        }
        let now = target.clock().now();
        let ended = match &slot.reservation {
            Some(reservation) if now < reservation.act_at() => {
                return WaitPoll::Until(reservation.act_at());
            }
            Some(_) => Ok(()),
            None if !waiters.is_first(&slot.ticket, target.queue()) => {
                if now < slot.deadline {
                    return WaitPoll::Until(slot.deadline);
                }
                Err(WaitError::Deadline {
                    delay: Duration::ZERO,
                })
            }
            None => {
                let decision = target.check(now, self.cost);
                match decision.retry_after() {
                    _ if decision.is_allowed() => Ok(()),
                    None => Err(WaitError::Never),
                    Some(delay) if now + delay > slot.deadline => {
                        Err(WaitError::Deadline { delay })
                    }
                    Some(delay) => return WaitPoll::Until(now + delay),
                }
            }
        };
        self.give_up_slot(ended.is_err());
        WaitPoll::Ended(ended)
    }
}

#[cfg(feature = "tokio")]
mod asynchronous {
    use super::{Wait, WaitError, WaitPoll};
    use crate::clock::Clock;
    use core::future::Future;
    use core::pin::Pin;
    use core::task::{Context, Poll};

    // Nothing in it needs to stay pinned: the timer has a box of its own.
    impl<C: Clock> Unpin for Wait<'_, C> {}

    impl<C: Clock> Future for Wait<'_, C> {
        type Output = Result<(), WaitError>;

        #[inline(always)]
        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
            if self.slot.is_none() && self.try_fast() {
                Poll::Ready(Ok(()))
            } else {
                self.get_mut().poll_slow(cx)
            }
        }
    }

    impl<C: Clock> Wait<'_, C> {
        #[cold]
        fn poll_slow(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WaitError>> {
            if self.slot.is_none()
                && let Some(ended) = self.start()
            {
                return Poll::Ready(ended);
            }
            loop {
                let at = match self.poll_once(cx.waker()) {
                    WaitPoll::Ended(ended) => return Poll::Ready(ended),
                    WaitPoll::Until(at) => at,
                };
                let Some(slot) = &mut self.slot else {
                    return Poll::Ready(Ok(()));
                };
                let sleep = match &mut slot.sleep {
                    Some((until, sleep)) if *until == at => sleep,
                    other => &mut other.insert((at, self.target.clock().sleep_until(at))).1,
                };
                match Pin::new(sleep).poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(false) => {
                        self.give_up_slot(true);
                        return Poll::Ready(Err(WaitError::NoTimer));
                    }
                    // The timer's clock and ours may differ by a little: check again, and sleep the
                    // rest.
                    Poll::Ready(true) => slot.sleep = None,
                }
            }
        }
    }
}

impl<C: Clock> Wait<'_, C> {
    /// Leaves the waiter registry and the queue; with `cancel`, gives the slot back.
    #[cold]
    fn give_up_slot(&mut self, cancel: bool) {
        if let Some(mut slot) = self.slot.take() {
            self.target.waiters().remove(&mut slot.ticket);
            if let (true, Some(reservation)) = (cancel, slot.reservation) {
                reservation.cancel();
            }
        }
    }
}

impl<C: Clock> Drop for Wait<'_, C> {
    #[inline]
    fn drop(&mut self) {
        if self.slot.is_some() {
            self.give_up_slot(true);
        }
    }
}

impl<C: Clock> fmt::Debug for Wait<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait")
            .field("cost", &self.cost)
            .field("waiting", &self.slot.is_some())
            .finish()
    }
}
