//! [`Acquire`]: waiting for a permit, FIFO, with a deadline, on a runtime or without one.

use super::{Concurrency, Permit};
use crate::clock::{Clock, Timestamp};
use crate::wait_list::{NO_TIMER, Ticket, WaitList, thread_waker};
use core::fmt;
use core::task::Waker;
use core::time::Duration;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Why a wait for permits ended without them. Nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AcquireError {
    /// More was requested than may ever be in flight.
    ExceedsLimit {
        /// The requested cost.
        cost: u64,
        /// The most that may be in flight.
        limit: u64,
    },
    /// The limit was closed.
    Closed,
    /// The deadline passed first.
    Deadline,
    /// There is no timer for the deadline: the future was polled outside a tokio runtime, or on one
    /// built without `enable_time()`.
    NoTimer,
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExceedsLimit { cost, limit } => {
                write!(
                    f,
                    "a cost of {cost} never fits a limit of {limit} in flight; raise the limit or ask for less"
                )
            }
            Self::Closed => f.write_str("the concurrency limit was closed"),
            Self::Deadline => f.write_str("no permit came back before the deadline"),
            Self::NoTimer => f.write_str(NO_TIMER),
        }
    }
}

impl core::error::Error for AcquireError {}

/// # Waiting
impl<C: Clock> Concurrency<C> {
    /// Waits for one permit: `.await` it (feature `tokio`), or call
    /// [`blocking`](Acquire::blocking).
    pub fn acquire(&self) -> Acquire<'_, C> {
        self.acquire_n(1)
    }

    /// Waits for `cost` permits at once.
    pub fn acquire_n(&self, cost: u64) -> Acquire<'_, C> {
        Acquire {
            concurrency: self,
            cost,
            deadline: None,
            ticket: None,
            #[cfg(feature = "tokio")]
            sleep: None,
        }
    }

    /// Ends every wait, now and later, with [`AcquireError::Closed`]. Permits in flight stay valid.
    pub fn close(&self) {
        self.shared.wait_list.close();
    }
}

/// A wait for permits; what [`Concurrency::acquire`] returns. It joins the queue when it is first
/// polled (or [`blocking`](Self::blocking) is called); dropping it leaves the queue.
#[must_use = "a wait does nothing until it is awaited or blocking() is called"]
pub struct Acquire<'a, C: Clock> {
    concurrency: &'a Concurrency<C>,
    cost: u64,
    deadline: Option<Deadline>,
    /// Its ticket while it is queued.
    ticket: Option<Ticket>,
    #[cfg(feature = "tokio")]
    sleep: Option<crate::clock::Sleep>,
}

enum Deadline {
    Within(Duration),
    At(Timestamp),
}

impl<C: Clock> Acquire<'_, C> {
    /// Waits at most this long, counted from when the wait begins.
    pub fn within(mut self, max_wait: Duration) -> Self {
        self.deadline = Some(Deadline::Within(max_wait));
        self
    }

    /// Waits until `deadline` at the latest.
    pub fn until(mut self, deadline: Timestamp) -> Self {
        self.deadline = Some(Deadline::At(deadline));
        self
    }

    /// Blocks this thread until the permits are there. Needs no runtime.
    pub fn blocking(mut self) -> Result<Permit<C>, AcquireError> {
        let waker = thread_waker();
        loop {
            match self.poll_once(&waker) {
                Some(ended) => return ended,
                None => match self.deadline {
                    Some(Deadline::At(deadline)) => {
                        self.concurrency.shared.clock.park_until(deadline);
                    }
                    _ => std::thread::park(),
                },
            }
        }
    }

    /// Joins the queue or checks whether it was served; `None` if it must go on waiting.
    fn poll_once(&mut self, waker: &Waker) -> Option<Result<Permit<C>, AcquireError>> {
        let concurrency = self.concurrency;
        let shared = &concurrency.shared;
        if self.ticket.is_none() {
            if self.cost > concurrency.limit() {
                return Some(Err(AcquireError::ExceedsLimit {
                    cost: self.cost,
                    limit: concurrency.limit(),
                }));
            }
            if shared.wait_list.is_closed() {
                return Some(Err(AcquireError::Closed));
            }
            if let Ok(permit) = concurrency.try_acquire_n(self.cost) {
                return Some(Ok(permit));
            }
            if let Some(Deadline::Within(max_wait)) = self.deadline {
                self.deadline = Some(Deadline::At(shared.clock.now() + max_wait));
            }
            self.ticket = Some(shared.wait_list.join(self.cost));
            // A permit that came back before the queue was joined was not offered to it.
            shared.serve_waiters();
        }
        match shared.wait_list.poll_once(self.ticket.as_ref()?, waker) {
            WaiterStatus::Granted => {
                let permit = concurrency.permit(self.cost);
                self.leave();
                Some(Ok(permit))
            }
            WaiterStatus::Closed => {
                self.leave();
                Some(Err(AcquireError::Closed))
            }
            WaiterStatus::Waiting => match self.deadline {
                Some(Deadline::At(deadline)) if shared.clock.now() >= deadline => {
                    self.leave();
                    Some(Err(AcquireError::Deadline))
                }
                _ => None,
            },
        }
    }

    /// Leaves the queue; a permit granted meanwhile goes back.
    fn leave(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let shared = &self.concurrency.shared;
            if shared.wait_list.leave(ticket) {
                shared.give_back(self.cost);
            } else {
                // The next waiter may fit where this one did not.
                shared.serve_waiters();
            }
        }
    }
}

#[cfg(feature = "tokio")]
impl<C: Clock> Future for Acquire<'_, C> {
    type Output = Result<Permit<C>, AcquireError>;

    fn poll(
        mut self: core::pin::Pin<&mut Self>,
        cx: &mut core::task::Context<'_>,
    ) -> core::task::Poll<Self::Output> {
        use core::task::Poll;

        loop {
            if let Some(ended) = self.poll_once(cx.waker()) {
                return Poll::Ready(ended);
            }
            let Some(Deadline::At(deadline)) = self.deadline else {
                return Poll::Pending;
            };
            let concurrency = self.concurrency;
            let sleep = self
                .sleep
                .get_or_insert_with(|| concurrency.shared.clock.sleep_until(deadline));
            match core::pin::Pin::new(sleep).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(true) => self.sleep = None,
                Poll::Ready(false) => {
                    self.leave();
                    return Poll::Ready(Err(AcquireError::NoTimer));
                }
            }
        }
    }
}

#[cfg(feature = "tokio")]
impl<C: Clock> Unpin for Acquire<'_, C> {}

impl<C: Clock> Drop for Acquire<'_, C> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<C: Clock> fmt::Debug for Acquire<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("cost", &self.cost)
            .field("queued", &self.ticket.is_some())
            .finish()
    }
}

/// The FIFO queue of waits for permits.
#[derive(Default)]
pub(super) struct PermitQueue {
    /// How many are queued: written under the lock, read without it by calls that do not wait.
    length: AtomicUsize,
    closed: AtomicBool,
    /// Waiters with their cost, all in queue 0.
    list: Mutex<WaitList<u64>>,
}

enum WaiterStatus {
    Granted,
    Waiting,
    Closed,
}

impl PermitQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.length.load(Ordering::SeqCst) == 0
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn join(&self, cost: u64) -> Ticket {
        let mut list = self.lock();
        let ticket = list.insert();
        list.push_back(&ticket, 0, cost);
        self.update_length(&list);
        ticket
    }

    fn poll_once(&self, ticket: &Ticket, waker: &Waker) -> WaiterStatus {
        let mut list = self.lock();
        if list.take_granted(ticket).is_some() {
            return WaiterStatus::Granted;
        }
        if self.is_closed() {
            return WaiterStatus::Closed;
        }
        list.set_waker(ticket, waker);
        WaiterStatus::Waiting
    }

    /// Removes a waiter; true if it had been granted permits that it did not collect.
    fn leave(&self, ticket: Ticket) -> bool {
        let mut list = self.lock();
        let (granted, _) = list.remove(ticket);
        self.update_length(&list);
        granted.is_some()
    }

    /// Serves the queue from its front, as long as `take` has permits.
    pub(super) fn serve(&self, take: impl Fn(u64) -> bool) {
        while !self.is_empty() {
            let waker = {
                let mut list = self.lock();
                let Some((first, cost)) = list.iter(0, false).next() else {
                    return;
                };
                if !take(*cost) {
                    return;
                }
                let waker = list.grant(first, ());
                self.update_length(&list);
                waker
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    fn close(&self) {
        let wakers = {
            let mut list = self.lock();
            self.closed.store(true, Ordering::Release);
            self.update_length(&list);
            list.take_wakers()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// After every change, under the lock. A closed queue serves no waiter and blocks no call.
    fn update_length(&self, list: &WaitList<u64>) {
        let length = if self.is_closed() { 0 } else { list.queued() };
        self.length.store(length, Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, WaitList<u64>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
