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
    queue: QueueConfig,
    /// The first that came in front.
    waiting: VecDeque<Waiter>,
    /// Served, and not yet fetched.
    granted: Vec<(u64, AdaptivePermit<C>)>,
    next: u64,
    /// When the line was last seen empty.
    empty: Timestamp,
}

struct Waiter {
    ticket: u64,
    who: WaiterClass,
    /// None until it is first polled.
    waker: Option<Waker>,
}

impl<C: Clock> AdaptiveQueue<C> {
    /// In front of this gate.
    pub fn new(gate: AdaptiveConcurrency<C>, queue: QueueConfig) -> Self {
        let empty = gate.clock().now();
        let places = QueueState {
            queue,
            waiting: VecDeque::new(),
            granted: Vec::new(),
            next: 0,
            empty,
        };
        Self {
            shared: Arc::new(QueueShared {
                gate,
                length: AtomicUsize::new(0),
                state: Mutex::new(places),
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
        self.lock().queue = queue;
    }

    /// Joins the line, for a permit as [`try_acquire_as`](AdaptiveConcurrency::try_acquire_as)
    /// takes it. None if the line is full.
    pub fn join(&self, class: Class, partition: Option<Partition>) -> Option<QueueTicket<C>> {
        let now = self.gate().clock().now();
        let place = {
            let mut places = self.lock();
            if places.waiting.is_empty() {
                places.empty = now;
            }
            if places.waiting.len() >= places.queue.most {
                return None;
            }
            let (number, until) = (places.next, now + places.queue.longest(places.empty, now));
            places.next += 1;
            places.waiting.push_back(Waiter {
                ticket: number,
                who: (class, partition),
                waker: None,
            });
            self.shared.length.store(places.waiting.len(), SeqCst);
            QueueTicket::new(self.clone(), number, until)
        };
        self.serve();
        Some(place)
    }

    /// Serves those who wait as far as there are permits for them: from the front of the line, or
    /// where it is a backlog from its end. Permits that were taken in line do this when they come
    /// back.
    #[inline]
    pub fn serve(&self) {
        if !self.is_empty() {
            self.serve_waiters();
        }
    }

    #[cold]
    fn serve_waiters(&self) {
        while !self.is_empty() {
            let mut places = self.lock();
            let newest_first = places
                .queue
                .is_backlog(places.empty, self.gate().clock().now());
            let Some((at, permit)) = self.next_served(&places, newest_first) else {
                return;
            };
            let Some(served) = places.waiting.remove(at) else {
                return;
            };
            places.granted.push((served.ticket, permit));
            self.shared.length.store(places.waiting.len(), SeqCst);
            drop(places);
            if let Some(waker) = served.waker {
                waker.wake();
            }
        }
    }

    /// The one whose turn it is, and its permit: of the first whose partition and class have one.
    fn next_served(
        &self,
        places: &QueueState<C>,
        newest_first: bool,
    ) -> Option<(usize, AdaptivePermit<C>)> {
        let mut without: Vec<WaiterClass> = Vec::new();
        let (gate, many) = (self.gate(), places.waiting.len());
        for nth in 0..many {
            let at = if newest_first { many - 1 - nth } else { nth };
            let who = places.waiting[at].who;
            if without.contains(&who) {
                continue;
            }
            match gate.try_acquire_as(who.0, who.1) {
                Ok(permit) => return Some((at, permit)),
                Err(_) if gate.in_flight() >= gate.limit() => return None,
                Err(_) => without.push(who),
            }
        }
        None
    }

    /// The permit, if its turn has come; else `waker` is woken when it does.
    fn poll_ticket(&self, place: u64, waker: &Waker) -> Option<AdaptivePermit<C>> {
        let mut places = self.lock();
        let granted = places.take_granted(place);
        if granted.is_none()
            && let Some(waiting) = places
                .waiting
                .iter_mut()
                .find(|waiting| waiting.ticket == place)
        {
            match &mut waiting.waker {
                Some(known) => known.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
        }
        granted
    }

    /// Leaves the line, with the permit if its turn had come.
    fn leave(&self, place: u64) -> Option<AdaptivePermit<C>> {
        let mut places = self.lock();
        if let Some(at) = places
            .waiting
            .iter()
            .position(|waiting| waiting.ticket == place)
        {
            places.waiting.remove(at);
            self.shared.length.store(places.waiting.len(), SeqCst);
        }
        places.take_granted(place)
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<C>> {
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clock> QueueState<C> {
    fn take_granted(&mut self, place: u64) -> Option<AdaptivePermit<C>> {
        let at = self
            .granted
            .iter()
            .position(|(granted, _)| *granted == place)?;
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
        f.debug_struct("Line")
            .field("gate", self.gate())
            .field("waiting", &self.len())
            .finish()
    }
}

#[cfg(test)]
mod tests;
