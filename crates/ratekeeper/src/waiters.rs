//! [`Waiters`]: the waiters of one limiter, or of all keys of a keyed one.

use crate::wait_list::{Ticket, WaitList};
use core::task::Waker;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The waiters of one limiter, or of all keys of a keyed one: wakers to notify on close, and FIFO
/// queues for algorithms that cannot assign slots ahead of time.
#[derive(Default)]
pub(crate) struct Waiters {
    /// Written under the lock of the list, read without it by callers that do not have to wait.
    closed: AtomicBool,
    list: Mutex<WaitList<()>>,
}

impl Waiters {
    /// Registers a waiter, or replaces its waker; false if the limiter is closed.
    pub(crate) fn register(&self, ticket: &mut Option<Ticket>, waker: &Waker) -> bool {
        let mut list = self.lock();
        if self.is_closed() {
            return false;
        }
        let ticket = ticket.get_or_insert_with(|| list.insert());
        list.set_waker(ticket, waker);
        true
    }

    /// Registers a waiter at the end of a queue; false if the limiter is closed.
    pub(crate) fn enqueue(&self, ticket: &mut Option<Ticket>, queue: u64) -> bool {
        let mut list = self.lock();
        if self.is_closed() {
            return false;
        }
        let ticket = ticket.get_or_insert_with(|| list.insert());
        list.push_back(ticket, queue, ());
        true
    }

    pub(crate) fn is_first(&self, ticket: &Option<Ticket>, queue: u64) -> bool {
        let is_first = |ticket| self.lock().is_first(ticket, queue);
        ticket.as_ref().is_some_and(is_first)
    }

    pub(crate) fn is_queue_empty(&self, queue: u64) -> bool {
        self.lock().is_queue_empty(queue)
    }

    /// Removes a waiter. If it was the first of its queue, the next one is woken.
    pub(crate) fn remove(&self, ticket: &mut Option<Ticket>) {
        let Some(ticket) = ticket.take() else { return };
        let (_, next) = self.lock().remove(ticket);
        if let Some(waker) = next {
            waker.wake();
        }
    }

    pub(crate) fn close(&self) {
        let wakers = {
            let mut list = self.lock();
            self.closed.store(true, Ordering::Release);
            list.take_wakers()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, WaitList<()>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
