//! [`AdaptiveQueue`]: a queue of waiters for permits of an adaptive limit.
//!
//! A permit is granted to the next waiter, under the lock, before it is woken: no waiter is woken
//! without a permit, and no new request passes the waiters. A thread that gives a permit back
//! checks the queue afterwards, and one that joins the queue checks the permits afterwards: of any
//! two, one sees the other.

mod config;
mod ticket;
mod wait;

pub use config::QueueConfig;
pub use ticket::QueueTicket;
pub use wait::{AdaptiveQueueError, QueueWait, QueuedPermit};

use super::{AdaptiveConcurrency, AdaptivePermit, Class, Partition};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::wait_list::{Position, Ticket, WaitList};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::vec::Vec;

/// A short queue in front of an adaptive limit, for bursts: [`QueueConfig`] says how long requests
/// wait, and which is served first.
///
/// This is a handle: clones are the same queue.
///
/// ```
/// use ratekeeper::adaptive::{AdaptiveConcurrency, AdaptiveQueue, QueueConfig, RequestOutcome};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let limit = AdaptiveConcurrency::builder().min(5).max(200).build();
/// let queue = AdaptiveQueue::new(limit, QueueConfig::of(100));
/// let permit = queue.acquire().await?;        // at once, after a wait, or not at all
/// // serve the request to its very end, then report its outcome
/// permit.finish(RequestOutcome::Success);     // the next waiter gets the permit
/// # Ok(()) }
/// ```
///
/// Waiters are served when a permit that was acquired through the queue comes back. After permits
/// that were acquired from the [limit](Self::gate) itself come back, call [`serve`](Self::serve).
pub struct AdaptiveQueue<C: Clock = SystemClock> {
    shared: Arc<QueueShared<C>>,
}

struct QueueShared<C: Clock> {
    gate: AdaptiveConcurrency<C>,
    /// The number of waiters: written under the lock, read without it by requests that do not wait.
    length: AtomicUsize,
    state: Mutex<QueueState<C>>,
}

/// The class and the partition of a waiting request.
type WaiterClass = (Class, Option<Partition>);

struct QueueState<C: Clock> {
    config: QueueConfig,
    /// In order of arrival, all in queue 0.
    waiting: WaitList<WaiterClass, AdaptivePermit<C>>,
    /// When the queue was last seen empty.
    last_empty: Timestamp,
}

impl<C: Clock> AdaptiveQueue<C> {
    /// Creates a queue in front of this limit.
    pub fn new(gate: AdaptiveConcurrency<C>, queue: QueueConfig) -> Self {
        let now = gate.clock().now();
        let state = QueueState {
            config: queue,
            waiting: WaitList::default(),
            last_empty: now,
        };
        Self {
            shared: Arc::new(QueueShared {
                gate,
                length: AtomicUsize::new(0),
                state: Mutex::new(state),
            }),
        }
    }

    /// The adaptive limit.
    #[inline]
    pub fn gate(&self) -> &AdaptiveConcurrency<C> {
        &self.shared.gate
    }

    /// The number of waiters.
    #[inline]
    pub fn len(&self) -> usize {
        self.shared.length.load(SeqCst)
    }

    /// Whether there are no waiters. If there are, do not take a permit of the limit directly: no
    /// request should pass the waiters.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes the configuration. Requests that already wait keep their place and their timeout.
    pub fn set_queue(&self, queue: QueueConfig) {
        self.lock().config = queue;
    }

    /// Joins the queue, for a permit as [`try_acquire_as`](AdaptiveConcurrency::try_acquire_as)
    /// takes it. `None` if the queue is full.
    pub fn join(&self, class: Class, partition: Option<Partition>) -> Option<QueueTicket<C>> {
        let now = self.gate().clock().now();
        let ticket = {
            let mut state = self.lock();
            if state.waiting.queued() == 0 {
                state.last_empty = now;
            }
            if state.waiting.queued() >= state.config.max_waiting {
                return None;
            }
            let until = now + state.config.max_wait(state.last_empty, now);
            let id = state.waiting.insert();
            state.waiting.push_back(&id, 0, (class, partition));
            self.shared.length.store(state.waiting.queued(), SeqCst);
            QueueTicket::new(self.clone(), id, until)
        };
        self.serve();
        Some(ticket)
    }

    /// Serves waiters as long as there are permits for them: oldest first, or newest first if the
    /// queue is a backlog. Permits that were acquired through the queue do this when they come
    /// back.
    #[inline]
    pub fn serve(&self) {
        if !self.is_empty() {
            self.serve_slow();
        }
    }

    #[cold]
    fn serve_slow(&self) {
        while !self.is_empty() {
            let mut state = self.lock();
            let newest_first = state
                .config
                .is_backlog(state.last_empty, self.gate().clock().now());
            let Some((position, permit)) = self.next_to_serve(&state, newest_first) else {
                return;
            };
            let waker = state.waiting.grant(position, permit);
            self.shared.length.store(state.waiting.queued(), SeqCst);
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// The next waiter to serve and its permit: the first whose partition and class have one.
    fn next_to_serve(
        &self,
        state: &QueueState<C>,
        newest_first: bool,
    ) -> Option<(Position, AdaptivePermit<C>)> {
        let mut without: Vec<WaiterClass> = Vec::new();
        let gate = self.gate();
        for (position, &class) in state.waiting.iter(0, newest_first) {
            if without.contains(&class) {
                continue;
            }
            match gate.try_acquire_as(class.0, class.1) {
                Ok(permit) => return Some((position, permit)),
                Err(_) if gate.in_flight() >= gate.limit() => return None,
                Err(_) => without.push(class),
            }
        }
        None
    }

    /// The permit, if it was granted; else `waker` is woken when it is.
    fn poll_ticket(&self, ticket: &Ticket, waker: &Waker) -> Option<AdaptivePermit<C>> {
        let mut state = self.lock();
        let granted = state.waiting.take_granted(ticket);
        if granted.is_none() {
            state.waiting.set_waker(ticket, waker);
        }
        granted
    }

    /// Leaves the queue, with the permit if one was granted.
    fn leave(&self, ticket: Ticket) -> Option<AdaptivePermit<C>> {
        let mut state = self.lock();
        let (granted, _) = state.waiting.remove(ticket);
        self.shared.length.store(state.waiting.queued(), SeqCst);
        granted
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<C>> {
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clock> Clone for AdaptiveQueue<C> {
    #[inline]
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<C: Clock> fmt::Debug for AdaptiveQueue<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveQueue")
            .field("gate", self.gate())
            .field("waiting", &self.len())
            .finish()
    }
}

#[cfg(test)]
mod tests;
