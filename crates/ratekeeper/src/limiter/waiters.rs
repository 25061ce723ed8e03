//! Waiter registry: wakers to notify on close, and FIFO queues for algorithms that cannot assign
//! slots ahead of time.

use core::task::Waker;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// The waiters of one limiter, or of all keys of a keyed one. Every operation takes constant time,
/// however many wait.
#[derive(Default)]
pub(crate) struct Waiters {
    /// Written under the lock of the list, read without it by callers that do not have to wait.
    closed: AtomicBool,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    entries: Vec<Entry>,
    /// Indices of entries that are not in use.
    free: Vec<usize>,
    /// The queues that are not empty, by the hash of their key.
    queues: HashMap<u64, Queue>,
}

/// A registered waiter; while it is queued, a node of the linked list that its queue is.
#[derive(Default)]
struct Entry {
    waker: Option<Waker>,
    /// The queue it is in.
    queue: Option<u64>,
    previous: Option<usize>,
    next: Option<usize>,
}

/// The ends of a queue, as indices of entries.
struct Queue {
    first: usize,
    last: usize,
}

/// A waiter's registration; none before it is registered and after it is removed.
#[derive(Default)]
pub(super) struct Ticket(Option<usize>);

impl Waiters {
    /// Registers a waiter, or replaces its waker; false if the limiter is closed.
    pub(super) fn register(&self, ticket: &mut Ticket, waker: &Waker) -> bool {
        let mut list = self.lock();
        if self.is_closed() {
            return false;
        }
        let at = list.index_of(ticket);
        match &mut list.entries[at].waker {
            Some(known) if known.will_wake(waker) => {}
            other => *other = Some(waker.clone()),
        }
        true
    }

    /// Registers a waiter at the end of a queue; false if the limiter is closed.
    pub(super) fn enqueue(&self, ticket: &mut Ticket, queue: u64) -> bool {
        let mut list = self.lock();
        if self.is_closed() {
            return false;
        }
        let at = list.index_of(ticket);
        list.push_back(queue, at);
        true
    }

    pub(super) fn is_first(&self, ticket: &Ticket, queue: u64) -> bool {
        self.lock().first_of(queue) == ticket.0
    }

    pub(super) fn is_queue_empty(&self, queue: u64) -> bool {
        self.lock().first_of(queue).is_none()
    }

    /// Removes a waiter. If it was the first of its queue, the next one is woken.
    pub(super) fn remove(&self, ticket: &mut Ticket) {
        let Some(at) = ticket.0.take() else { return };
        let next = {
            let mut list = self.lock();
            let next = list.unlink(at);
            list.entries[at] = Entry::default();
            list.free.push(at);
            next.and_then(|next| list.entries[next].waker.clone())
        };
        if let Some(waker) = next {
            waker.wake();
        }
    }

    pub(crate) fn close(&self) {
        let wakers: Vec<Waker> = {
            let mut list = self.lock();
            self.closed.store(true, Ordering::Release);
            list.entries
                .iter_mut()
                .filter_map(|entry| entry.waker.take())
                .collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    /// The entry of a ticket, a new one if it has none.
    fn index_of(&mut self, ticket: &mut Ticket) -> usize {
        *ticket.0.get_or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                self.entries.push(Entry::default());
                self.entries.len() - 1
            })
        })
    }

    fn first_of(&self, queue: u64) -> Option<usize> {
        self.queues.get(&queue).map(|queue| queue.first)
    }

    fn push_back(&mut self, queue: u64, at: usize) {
        let ends = self.queues.entry(queue).or_insert(Queue {
            first: at,
            last: at,
        });
        let previous = Some(ends.last).filter(|last| *last != at);
        ends.last = at;
        if let Some(previous) = previous {
            self.entries[previous].next = Some(at);
        }
        let entry = &mut self.entries[at];
        (entry.queue, entry.previous) = (Some(queue), previous);
    }

    /// Takes an entry out of its queue; the new first one if it was the first.
    fn unlink(&mut self, at: usize) -> Option<usize> {
        let Entry {
            queue,
            previous,
            next,
            ..
        } = self.entries[at];
        let queue = queue?;
        if let Some(previous) = previous {
            self.entries[previous].next = next;
        }
        if let Some(next) = next {
            self.entries[next].previous = previous;
        }
        match (previous, next) {
            (None, None) => drop(self.queues.remove(&queue)),
            (None, Some(next)) => self.queues.get_mut(&queue)?.first = next,
            (Some(previous), None) => self.queues.get_mut(&queue)?.last = previous,
            (Some(_), Some(_)) => {}
        }
        next.filter(|_| previous.is_none())
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Enqueue(u64),
        /// The nth of those that wait.
        Remove(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u64..3).prop_map(Step::Enqueue),
            (0usize..64).prop_map(Step::Remove)
        ]
    }

    proptest! {
        /// However waiters come and go, each queue has the order in which they came.
        #[test]
        fn queues_are_first_in_first_out(steps in proptest::collection::vec(step(), 0..100)) {
            let waiters = Waiters::default();
            let mut waiting: Vec<(u64, Ticket)> = Vec::new();
            for step in steps {
                match step {
                    Step::Enqueue(queue) => {
                        let mut ticket = Ticket::default();
                        prop_assert!(waiters.enqueue(&mut ticket, queue));
                        waiting.push((queue, ticket));
                    }
                    Step::Remove(nth) if !waiting.is_empty() => {
                        let (_, mut ticket) = waiting.remove(nth % waiting.len());
                        waiters.remove(&mut ticket);
                    }
                    Step::Remove(_) => {}
                }
                for queue in 0..3 {
                    let mut of_queue = waiting.iter().filter(|(of, _)| *of == queue);
                    let first = of_queue.next();
                    prop_assert_eq!(waiters.is_queue_empty(queue), first.is_none());
                    prop_assert!(first.is_none_or(|(_, ticket)| waiters.is_first(ticket, queue)));
                    prop_assert!(of_queue.all(|(_, ticket)| !waiters.is_first(ticket, queue)));
                }
            }
            waiting.iter_mut().for_each(|(_, ticket)| waiters.remove(ticket));
            prop_assert!(waiters.lock().queues.is_empty());
        }
    }
}
