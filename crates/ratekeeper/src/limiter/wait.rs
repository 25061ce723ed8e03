//! Waiting for a slot: FIFO, with a deadline, on a runtime or without one.
//!
//! Where the algorithm knows slots ahead of time (token bucket, pacing), a waiter owns its slot
//! from the moment it starts to wait, so a large cost cannot starve and a waiter that is not polled
//! holds up nobody. Order is the order of the slots; what is left is one timer each. Windows and
//! logs know no slots: there waiters stand in a line, the first of it sleeps until it may pass and
//! tries, and wakes the next when it has. All of them are in a list of who to wake when the limiter
//! is closed.

use super::view::{MaxWait, NotAdmitted};
use super::waiters::{Ticket, Waiters, thread_waker};
use super::{Limiter, Reservation};
use crate::clock::{Clock, Timestamp, nanos};
use crate::decision::{Decision, ReserveError};
use crate::keyed::Key;
use crate::limit::TickLimit;
use core::fmt;
use core::task::Waker;
use core::time::Duration;
use std::boxed::Box;

/// The message of [`WaitError::NoTimer`] and of `AcquireError::NoTimer`.
pub(crate) const NO_TIMER: &str = "no timer to wait with: poll the future inside a tokio runtime with timers (`enable_time()` on its \
                                   builder), or use blocking()";

/// Why a wait ended without its tokens. Nothing was taken, or what was taken has been given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WaitError {
    /// The cost is more than the burst: no wait is long enough.
    ExceedsBurst {
        /// What was asked for.
        cost: u64,
        /// The most that can come at once.
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
            who: WaitTarget::One(self),
            cost,
            deadline: Deadline::None,
            slot: None,
        }
    }

    /// Ends every wait, now and later, with [`WaitError::Closed`]. The other verbs go on.
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
/// It takes its slot when it is first polled (or [`blocking`](Self::blocking) is called), in that
/// order. Dropping it gives back what no later waiter has been promised.
#[must_use = "a wait does nothing until it is awaited or blocking() is called"]
pub struct Wait<'a, C: Clock> {
    who: WaitTarget<'a, C>,
    cost: u64,
    deadline: Deadline,
    /// In a box: most waits never have one, and a wait is moved before it is polled.
    slot: Option<Box<Slot<C>>>,
}

/// What is waited for.
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

    fn normal(&self) -> TickLimit {
        match self {
            Self::One(limiter) => limiter.shared.current().1.normal(),
            Self::Key(key) => key.version().normal,
        }
    }

    fn check(&self, now: Timestamp, cost: u64) -> Decision {
        match self {
            Self::One(limiter) => limiter.at(now).check_n(cost),
            Self::Key(key) => key.at(now).check_n(cost),
        }
    }

    /// Takes the next slot; none if it is there already.
    fn slot(
        &self,
        now: Timestamp,
        cost: u64,
        longest: u64,
    ) -> Result<Option<Reservation<C>>, NotAdmitted> {
        match self {
            Self::One(limiter) => match limiter.at(now).admit(cost, MaxWait::Slot(longest))? {
                admitted if admitted.wait == 0 => Ok(None),
                admitted => Ok(Some(Reservation::new(limiter, &admitted, cost, now))),
            },
            Self::Key(key) => match key.slot(now, cost, longest) {
                Ok(slot) => Ok(Some(slot).filter(|slot| slot.act_at() > now)),
                Err(ReserveError::Denied(denied)) => Err(NotAdmitted::Denied(denied.decision())),
                Err(ReserveError::NoSlots(algorithm)) => Err(NotAdmitted::NoSlots(algorithm)),
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

/// A wait that has begun and not ended.
struct Slot<C: Clock> {
    /// None: in line.
    reservation: Option<Reservation<C>>,
    deadline: Timestamp,
    ticket: Ticket,
    /// The timer, and when it rings.
    #[cfg(feature = "tokio")]
    sleep: Option<(Timestamp, crate::clock::Sleep)>,
}

/// What a look at a wait came to.
enum WaitPoll {
    Ended(Result<(), WaitError>),
    /// Nothing to do before that, unless woken.
    Until(Timestamp),
}

/// Longer than any wait: whoever waits for another to wake it.
const FOR_EVER: Timestamp = Timestamp::from_unix_nanos(u64::MAX);

impl<'a, C: Clock> Wait<'a, C> {
    pub(crate) fn of_key(key: Key<'a, C>, cost: u64) -> Self {
        Self {
            who: WaitTarget::Key(key),
            cost,
            deadline: Deadline::None,
            slot: None,
        }
    }

    /// Waits at most this long, counted from when the wait begins. A slot that comes later is an
    /// error at once, and takes nothing.
    pub fn within(mut self, longest: Duration) -> Self {
        self.deadline = Deadline::Within(nanos(longest));
        self
    }

    /// Waits until `deadline` at the latest. A slot that comes later is an error at once, and takes
    /// nothing.
    pub fn until(mut self, deadline: Timestamp) -> Self {
        self.deadline = Deadline::Until(deadline);
        self
    }

    /// Blocks this thread until the tokens are there. Needs no runtime.
    #[inline]
    pub fn blocking(self) -> Result<(), WaitError> {
        if self.at_once() {
            Ok(())
        } else {
            self.blocking_on()
        }
    }

    #[cold]
    fn blocking_on(mut self) -> Result<(), WaitError> {
        if let Some(ended) = self.begin() {
            return ended;
        }
        let waker = thread_waker();
        loop {
            match self.look(&waker) {
                WaitPoll::Ended(ended) => return ended,
                WaitPoll::Until(at) => self.who.clock().park_until(at),
            }
        }
    }

    /// Takes what is there already, if nothing is out of the ordinary; otherwise nothing.
    #[inline(always)]
    fn at_once(&self) -> bool {
        let WaitTarget::One(limiter) = self.who else {
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
                .is_some_and(|quick| quick.wait == 0)
    }

    /// Takes the slot, or a place in line; the result if there is nothing to wait for.
    fn begin(&mut self) -> Option<Result<(), WaitError>> {
        let (who, cost) = (&self.who, self.cost);
        let normal = who.normal();
        if !normal.could_hold(cost) {
            return Some(Err(WaitError::ExceedsBurst {
                cost,
                burst: normal.burst(),
            }));
        }
        if who.is_closed() {
            return Some(Err(WaitError::Closed));
        }
        let now = who.clock().now();
        let deadline = match self.deadline {
            Deadline::None => FOR_EVER,
            Deadline::Within(longest) => now + Duration::from_nanos(longest),
            Deadline::Until(deadline) if deadline < now => {
                return Some(Err(WaitError::Deadline {
                    delay: Duration::ZERO,
                }));
            }
            Deadline::Until(deadline) => deadline,
        };
        let patience = if deadline == FOR_EVER {
            u64::MAX
        } else {
            nanos(deadline - now)
        };
        let reservation = match who.slot(now, cost, patience) {
            Ok(None) => return Some(Ok(())),
            Ok(slot) => slot,
            Err(NotAdmitted::NoSlots(_)) => {
                // Nobody in line and room: no need to stand in it.
                if who.is_queue_empty() && who.check(now, cost).is_allowed() {
                    return Some(Ok(()));
                }
                None
            }
            Err(NotAdmitted::Denied(denied)) => {
                return Some(Err(match denied.retry_after() {
                    Some(_) => WaitError::Deadline {
                        delay: who.delay_at(now, cost),
                    },
                    None => WaitError::Never,
                }));
            }
        };
        let mut ticket = Ticket::default();
        if reservation.is_none() && !who.waiters().enqueue(&mut ticket, who.queue()) {
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

    /// Sees whether the wait is over; if not, `waker` is woken when the limiter is closed or the
    /// line moves on.
    fn look(&mut self, waker: &Waker) -> WaitPoll {
        let (who, waiters) = (&self.who, self.who.waiters());
        let Some(slot) = &mut self.slot else {
            return WaitPoll::Ended(Ok(()));
        };
        if !waiters.register(&mut slot.ticket, waker) {
            self.give_up_slot(true);
            return WaitPoll::Ended(Err(WaitError::Closed));
        }
        let now = who.clock().now();
        let ended = match &slot.reservation {
            Some(reservation) if now < reservation.act_at() => {
                return WaitPoll::Until(reservation.act_at());
            }
            Some(_) => Ok(()),
            None if !waiters.is_first(&slot.ticket, who.queue()) => match now < slot.deadline {
                true => return WaitPoll::Until(slot.deadline),
                false => Err(WaitError::Deadline {
                    delay: Duration::ZERO,
                }),
            },
            None => {
                let decision = who.check(now, self.cost);
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

    // Nothing in it is pinned in place: the timer sits in a box of its own.
    impl<C: Clock> Unpin for Wait<'_, C> {}

    impl<C: Clock> Future for Wait<'_, C> {
        type Output = Result<(), WaitError>;

        #[inline(always)]
        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
            if self.slot.is_none() && self.at_once() {
                Poll::Ready(Ok(()))
            } else {
                self.get_mut().poll_on(cx)
            }
        }
    }

    impl<C: Clock> Wait<'_, C> {
        #[cold]
        fn poll_on(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WaitError>> {
            if self.slot.is_none()
                && let Some(ended) = self.begin()
            {
                return Poll::Ready(ended);
            }
            loop {
                let at = match self.look(cx.waker()) {
                    WaitPoll::Ended(ended) => return Poll::Ready(ended),
                    WaitPoll::Until(at) => at,
                };
                let Some(slot) = &mut self.slot else {
                    return Poll::Ready(Ok(()));
                };
                let sleep = match &mut slot.sleep {
                    Some((until, sleep)) if *until == at => sleep,
                    other => &mut other.insert((at, self.who.clock().sleep_until(at))).1,
                };
                match Pin::new(sleep).poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(false) => {
                        self.give_up_slot(true);
                        return Poll::Ready(Err(WaitError::NoTimer));
                    }
                    // The timer's clock and ours may differ by a little: look again, and sleep the
                    // rest.
                    Poll::Ready(true) => slot.sleep = None,
                }
            }
        }
    }
}

impl<C: Clock> Wait<'_, C> {
    /// Leaves the list of waiters and the line; with `cancel`, gives the slot back.
    #[cold]
    fn give_up_slot(&mut self, cancel: bool) {
        if let Some(mut slot) = self.slot.take() {
            self.who.waiters().remove(&mut slot.ticket);
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
