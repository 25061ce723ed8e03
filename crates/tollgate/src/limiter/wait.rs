//! Waiting for a slot: FIFO, with a deadline, on a runtime or without one.
//!
//! A waiter owns its slot from the moment it starts to wait, so a large cost cannot starve and a waiter that is not
//! polled holds up nobody. Order is the order of the slots. What is left is one timer each, and a list of who to wake
//! when the limiter is closed.

use super::{Limiter, Reservation};
use crate::clock::{Clock, Instant, nanos};
use crate::limit::Kind;
use core::fmt;
use core::task::Waker;
use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

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
    /// There is no timer to wait with: the future was polled outside a tokio runtime.
    NoTimer,
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExceedsBurst { cost, burst } => {
                write!(f, "a cost of {cost} never fits a burst of {burst}; raise the burst or ask for less at a time")
            }
            Self::Closed => f.write_str("the limiter was closed"),
            Self::Deadline { delay } => write!(f, "the wait of {delay:?} would end after the deadline"),
            Self::Never => f.write_str("the limit refills nothing: no wait is long enough"),
            Self::NoTimer => f.write_str("no timer: poll the wait inside a tokio runtime, or use blocking()"),
        }
    }
}

impl core::error::Error for WaitError {}

/// # Waiting
impl<C: Clock> Limiter<C> {
    /// Waits until one unit fits: `.await` it (feature `tokio`), or call [`blocking`](Wait::blocking).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::new(Limit::per_second(1_000).burst(1));
    /// for _ in 0..5 {
    ///     limiter.wait().blocking()?; // one every millisecond
    /// }
    /// limiter.wait_n(1).within(Duration::from_secs(2)).blocking()?;
    /// # Ok::<_, tollgate::WaitError>(())
    /// ```
    pub fn wait(&self) -> Wait<'_, C> {
        self.wait_n(1)
    }

    /// Waits until `cost` units fit.
    pub fn wait_n(&self, cost: u64) -> Wait<'_, C> {
        Wait { limiter: self, cost, deadline: Deadline::None, slot: None }
    }

    /// Ends every wait, now and later, with [`WaitError::Closed`]. The other verbs go on.
    pub fn close(&self) {
        self.shared.cold().waiters.close();
    }

    /// Whether [`close`](Self::close) was called.
    pub fn is_closed(&self) -> bool {
        self.shared.cold_if_any().is_some_and(|cold| cold.waiters.is_closed())
    }
}

/// A wait for tokens; what [`Limiter::wait`] returns.
///
/// It takes its slot when it is first polled (or [`blocking`](Self::blocking) is called), in that order. Dropping it
/// gives back what no later waiter has been promised.
#[must_use = "a wait does nothing until it is awaited or blocking() is called"]
pub struct Wait<'a, C: Clock> {
    limiter: &'a Limiter<C>,
    cost: u64,
    deadline: Deadline,
    slot: Option<Slot<C>>,
}

enum Deadline {
    None,
    Within(Duration),
    Until(Instant),
}

/// A slot that has not come yet.
struct Slot<C: Clock> {
    reservation: Reservation<C>,
    seat: Seat,
    #[cfg(feature = "tokio")]
    sleep: crate::clock::Sleep,
}

impl<'a, C: Clock> Wait<'a, C> {
    /// Waits at most this long, counted from when the wait begins. A slot that comes later is an error at once, and
    /// takes nothing.
    pub fn within(mut self, longest: Duration) -> Self {
        self.deadline = Deadline::Within(longest);
        self
    }

    /// Waits until `deadline` at the latest. A slot that comes later is an error at once, and takes nothing.
    pub fn until(mut self, deadline: Instant) -> Self {
        self.deadline = Deadline::Until(deadline);
        self
    }

    /// Blocks this thread until the tokens are there. Needs no runtime.
    pub fn blocking(mut self) -> Result<(), WaitError> {
        let Some(reservation) = self.begin()? else { return Ok(()) };
        let act = reservation.act_at();
        let clock = self.limiter.clock();
        let waiters = &self.limiter.shared.cold().waiters;
        let (mut seat, waker) = (Seat::default(), thread_waker());
        let ended = loop {
            if !waiters.sit(&mut seat, &waker) {
                break Err(WaitError::Closed);
            }
            if clock.now() >= act {
                break Ok(());
            }
            clock.park_until(act);
        };
        waiters.leave(&mut seat);
        if ended.is_err() {
            reservation.cancel();
        }
        ended
    }

    /// Takes the slot; none if there is nothing to wait for.
    fn begin(&mut self) -> Result<Option<Reservation<C>>, WaitError> {
        let limiter = self.limiter;
        let normal = limiter.shared.current().1.normal();
        if normal.kind != Kind::Unlimited && normal.ticks_of(self.cost).is_none() {
            return Err(WaitError::ExceedsBurst { cost: self.cost, burst: normal.burst() });
        }
        if limiter.is_closed() {
            return Err(WaitError::Closed);
        }
        let now = limiter.clock().now();
        let patience = match self.deadline {
            Deadline::None => u64::MAX,
            Deadline::Within(longest) => nanos(longest),
            Deadline::Until(deadline) if deadline < now => return Err(WaitError::Deadline { delay: Duration::ZERO }),
            Deadline::Until(deadline) => nanos(deadline - now),
        };
        match limiter.at(now).admit(self.cost, patience) {
            Ok(admitted) if admitted.wait == 0 => Ok(None),
            Ok(admitted) => Ok(Some(Reservation::new(limiter, &admitted, self.cost, now))),
            Err(denied) => Err(match denied.retry_after() {
                Some(delay) => WaitError::Deadline { delay },
                None => WaitError::Never,
            }),
        }
    }
}

#[cfg(feature = "tokio")]
mod asynchronous {
    use super::{Seat, Slot, Wait, WaitError};
    use crate::clock::Clock;
    use core::future::Future;
    use core::pin::Pin;
    use core::task::{Context, Poll};

    // Nothing in it is pinned in place: the timer sits in a box of its own.
    impl<C: Clock> Unpin for Wait<'_, C> {}

    impl<C: Clock> Future for Wait<'_, C> {
        type Output = Result<(), WaitError>;

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
            if self.slot.is_none() {
                let Some(reservation) = self.begin()? else { return Poll::Ready(Ok(())) };
                let sleep = self.limiter.clock().sleep_until(reservation.act_at());
                self.slot = Some(Slot { reservation, seat: Seat::default(), sleep });
            }
            let ended = self.poll_slot(cx);
            if let Poll::Ready(ended) = ended {
                self.give_up_slot(ended.is_err());
            }
            ended
        }
    }

    impl<C: Clock> Wait<'_, C> {
        fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WaitError>> {
            let (clock, waiters) = (self.limiter.clock(), &self.limiter.shared.cold().waiters);
            let Some(slot) = &mut self.slot else { return Poll::Ready(Ok(())) };
            if !waiters.sit(&mut slot.seat, cx.waker()) {
                return Poll::Ready(Err(WaitError::Closed));
            }
            let act = slot.reservation.act_at();
            while clock.now() < act {
                match Pin::new(&mut slot.sleep).poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(false) => return Poll::Ready(Err(WaitError::NoTimer)),
                    // The timer's clock and ours differ by a little: sleep the rest.
                    Poll::Ready(true) => slot.sleep = clock.sleep_until(act),
                }
            }
            Poll::Ready(Ok(()))
        }
    }
}

impl<C: Clock> Wait<'_, C> {
    /// Leaves the list of waiters; with `cancel`, gives the slot back.
    fn give_up_slot(&mut self, cancel: bool) {
        if let Some(mut slot) = self.slot.take() {
            self.limiter.shared.cold().waiters.leave(&mut slot.seat);
            if cancel {
                slot.reservation.cancel();
            }
        }
    }
}

impl<C: Clock> Drop for Wait<'_, C> {
    fn drop(&mut self) {
        self.give_up_slot(true);
    }
}

impl<C: Clock> fmt::Debug for Wait<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait")
            .field("cost", &self.cost)
            .field("slot", &self.slot.as_ref().map(|s| &s.reservation))
            .finish()
    }
}

/// Who waits, to be woken when the limiter is closed.
#[derive(Default)]
pub(super) struct Waiters {
    /// Written under the lock of the list, read without it by those who do not have to wait.
    closed: AtomicBool,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    seats: Vec<Option<Waker>>,
    free: Vec<usize>,
}

/// A waiter's place in the list; none while it is not in it.
#[derive(Default)]
pub(super) struct Seat(Option<usize>);

impl Waiters {
    /// Takes a seat, or keeps the one it has; false if the limiter is closed.
    fn sit(&self, seat: &mut Seat, waker: &Waker) -> bool {
        let mut list = self.lock();
        if self.is_closed() {
            return false;
        }
        let at = *seat.0.get_or_insert_with(|| {
            list.free.pop().unwrap_or_else(|| {
                list.seats.push(None);
                list.seats.len() - 1
            })
        });
        match &mut list.seats[at] {
            Some(known) if known.will_wake(waker) => {}
            place => *place = Some(waker.clone()),
        }
        true
    }

    fn leave(&self, seat: &mut Seat) {
        if let Some(at) = seat.0.take() {
            let mut list = self.lock();
            list.seats[at] = None;
            list.free.push(at);
        }
    }

    fn close(&self) {
        let wakers: Vec<Waker> = {
            let mut list = self.lock();
            self.closed.store(true, Ordering::Release);
            list.seats.iter_mut().filter_map(Option::take).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waker that unparks the calling thread.
pub(crate) fn thread_waker() -> Waker {
    struct Unpark(std::thread::Thread);

    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    Waker::from(Arc::new(Unpark(std::thread::current())))
}
