//! Those who wait for a permit of an adaptive limit.
//!
//! A permit is handed to the one whose turn it is, under the lock, before it is woken: nobody is
//! woken for nothing, and nobody passes those who wait. Whoever gives a permit back looks at the
//! line afterwards, and whoever joins the line looks at the permits afterwards: of any two one sees
//! the other.

mod config;
mod ticket;
mod wait;

pub use config::QueueConfig;
pub use ticket::QueueTicket;
pub use wait::{AdaptiveQueueError, QueueWait, QueuedPermit};

use super::{AdaptiveConcurrency, AdaptivePermit, Class, Partition};
use crate::clock::{Clock, DefaultClock, Timestamp};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::vec::Vec;

/// A short line in front of an adaptive limit, for bursts: see [`Queue`] for who waits how long,
/// and who is first.
///
/// A handle: clones are the same line.
///
/// ```
/// use ratekeeper::adaptive::{AdaptiveConcurrency, Line, Outcome, Queue};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let line = Line::new(AdaptiveConcurrency::builder().min(5).max(200).build(), Queue::of(100));
/// let permit = line.acquire().await?;      // at once, after a wait, or not at all
/// // serve the request to its very end, then say how it went
/// permit.finish(Outcome::Success);         // whoever is first in line is next
/// # Ok(()) }
/// ```
///
/// Those who wait are served when a permit that was taken in line comes back. Whoever takes permits
/// of the [gate](Self::gate) itself calls [`serve`](Self::serve) after they are back.
pub struct AdaptiveQueue<C: Clock = DefaultClock> {
    shared: Arc<QueueShared<C>>,
}

struct QueueShared<C: Clock> {
    gate: AdaptiveConcurrency<C>,
    /// How many wait: written under the lock, read without it by those who would not wait.
    length: AtomicUsize,
    state: Mutex<QueueState<C>>,
}

/// Whose permit it is: of which partition, and how important.
type WaiterClass = (Class, Option<Partition>);

struct QueueState<C: Clock> {
    config: QueueConfig,
    /// The first that came in front.
    waiting: VecDeque<Waiter>,
    /// Served, and not yet fetched.
    granted: Vec<(u64, AdaptivePermit<C>)>,
    next_ticket: u64,
    /// When the line was last seen empty.
    last_empty: Timestamp,
}

struct Waiter {
    ticket: u64,
    class: WaiterClass,
    /// None until it is first polled.
    waker: Option<Waker>,
}

impl<C: Clock> AdaptiveQueue<C> {
    /// In front of this gate.
    pub fn new(gate: AdaptiveConcurrency<C>, queue: QueueConfig) -> Self {
        let now = gate.clock().now();
        let state = QueueState {
            config: queue,
            waiting: VecDeque::new(),
            granted: Vec::new(),
            next_ticket: 0,
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

    /// The gate.
    #[inline]
    pub fn gate(&self) -> &AdaptiveConcurrency<C> {
        &self.shared.gate
    }

    /// How many wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.shared.length.load(SeqCst)
    }

    /// Whether nobody waits. If somebody does, it is not for you to take a permit of the gate:
    /// nobody passes those who wait.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Goes by other numbers from now on. Those who wait already stay, for as long as they were
    /// told.
    pub fn set_queue(&self, queue: QueueConfig) {
        self.lock().config = queue;
    }

    /// Joins the line, for a permit as [`try_acquire_as`](AdaptiveConcurrency::try_acquire_as)
    /// takes it. None if the line is full.
    pub fn join(&self, class: Class, partition: Option<Partition>) -> Option<QueueTicket<C>> {
        let now = self.gate().clock().now();
        let ticket = {
            let mut state = self.lock();
            if state.waiting.is_empty() {
                state.last_empty = now;
            }
            if state.waiting.len() >= state.config.most {
                return None;
            }
            let (id, until) = (
                state.next_ticket,
                now + state.config.max_wait(state.last_empty, now),
            );
            state.next_ticket += 1;
            state.waiting.push_back(Waiter {
                ticket: id,
                class: (class, partition),
                waker: None,
            });
            self.shared.length.store(state.waiting.len(), SeqCst);
            QueueTicket::new(self.clone(), id, until)
        };
        self.serve();
        Some(ticket)
    }

    /// Serves those who wait as far as there are permits for them: from the front of the line, or
    /// where it is a backlog from its end. Permits that were taken in line do this when they come
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
            let Some((at, permit)) = self.next_to_serve(&state, newest_first) else {
                return;
            };
            let Some(served) = state.waiting.remove(at) else {
                return;
            };
            state.granted.push((served.ticket, permit));
            self.shared.length.store(state.waiting.len(), SeqCst);
            drop(state);
            if let Some(waker) = served.waker {
                waker.wake();
            }
        }
    }

    /// The one whose turn it is, and its permit: of the first whose partition and class have one.
    fn next_to_serve(
        &self,
        state: &QueueState<C>,
        newest_first: bool,
    ) -> Option<(usize, AdaptivePermit<C>)> {
        let mut without: Vec<WaiterClass> = Vec::new();
        let (gate, many) = (self.gate(), state.waiting.len());
        for nth in 0..many {
            let at = if newest_first { many - 1 - nth } else { nth };
            let class = state.waiting[at].class;
            if without.contains(&class) {
                continue;
            }
            match gate.try_acquire_as(class.0, class.1) {
                Ok(permit) => return Some((at, permit)),
                Err(_) if gate.in_flight() >= gate.limit() => return None,
                Err(_) => without.push(class),
            }
        }
        None
    }

    /// The permit, if its turn has come; else `waker` is woken when it does.
    fn poll_ticket(&self, ticket: u64, waker: &Waker) -> Option<AdaptivePermit<C>> {
        let mut state = self.lock();
        let granted = state.take_granted(ticket);
        if granted.is_none()
            && let Some(waiting) = state
                .waiting
                .iter_mut()
                .find(|waiting| waiting.ticket == ticket)
        {
            match &mut waiting.waker {
                Some(stored) => stored.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
        }
        granted
    }

    /// Leaves the line, with the permit if its turn had come.
    fn leave(&self, ticket: u64) -> Option<AdaptivePermit<C>> {
        let mut state = self.lock();
        if let Some(at) = state
            .waiting
            .iter()
            .position(|waiting| waiting.ticket == ticket)
        {
            state.waiting.remove(at);
            self.shared.length.store(state.waiting.len(), SeqCst);
        }
        state.take_granted(ticket)
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<C>> {
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clock> QueueState<C> {
    fn take_granted(&mut self, ticket: u64) -> Option<AdaptivePermit<C>> {
        let at = self
            .granted
            .iter()
            .position(|(granted, _)| *granted == ticket)?;
        Some(self.granted.swap_remove(at).1)
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
