//! [`WaitList`]: the registered waiters of a limit, in FIFO queues by key.
//!
//! Every operation takes constant time, however many wait. The list is used under its owner's lock;
//! wakers are returned, to be woken after the lock is released.

use core::task::Waker;
use std::collections::HashMap;
use std::vec::Vec;

/// Waiters in FIFO queues. Each queued waiter has a value `T`, for example its cost, and may be
/// granted a `G`, for example a permit, which it collects later.
pub(crate) struct WaitList<T, G = ()> {
    entries: Vec<Entry<T, G>>,
    /// Indices of entries that are not in use.
    free: Vec<usize>,
    /// The queues that are not empty, by key.
    queues: HashMap<u64, Queue>,
    /// How many are queued.
    queued: usize,
}

/// A registered waiter; while it is queued, a node of a linked list.
struct Entry<T, G> {
    waker: Option<Waker>,
    node: Option<Node<T>>,
    granted: Option<G>,
}

struct Node<T> {
    queue: u64,
    value: T,
    previous: Option<usize>,
    next: Option<usize>,
}

/// The ends of a queue, as indices of entries.
struct Queue {
    first: usize,
    last: usize,
}

/// The registration of a waiter, until it is [removed](WaitList::remove).
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Ticket(usize);

/// A queued waiter found by [`iter`](WaitList::iter); valid only while the lock is held.
pub(crate) struct Position(usize);

impl<T, G> WaitList<T, G> {
    /// Registers a waiter.
    pub(crate) fn insert(&mut self) -> Ticket {
        let entry = Entry {
            waker: None,
            node: None,
            granted: None,
        };
        match self.free.pop() {
            Some(at) => {
                self.entries[at] = entry;
                Ticket(at)
            }
            None => {
                self.entries.push(entry);
                Ticket(self.entries.len() - 1)
            }
        }
    }

    /// Sets the waker of a waiter.
    pub(crate) fn set_waker(&mut self, ticket: &Ticket, waker: &Waker) {
        match &mut self.entries[ticket.0].waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// Appends a registered waiter to a queue.
    pub(crate) fn push_back(&mut self, ticket: &Ticket, queue: u64, value: T) {
        let at = ticket.0;
        let previous = self.queues.get(&queue).map(|ends| ends.last);
        match previous.and_then(|last| self.entries[last].node.as_mut()) {
            Some(last) => last.next = Some(at),
            None => drop(self.queues.insert(
                queue,
                Queue {
                    first: at,
                    last: at,
                },
            )),
        }
        if let Some(ends) = self.queues.get_mut(&queue) {
            ends.last = at;
        }
        self.entries[at].node = Some(Node {
            queue,
            value,
            previous,
            next: None,
        });
        self.queued += 1;
    }

    /// How many waiters are queued, in all queues.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Whether a waiter is the first of a queue.
    pub(crate) fn is_first(&self, ticket: &Ticket, queue: u64) -> bool {
        self.queues
            .get(&queue)
            .is_some_and(|ends| ends.first == ticket.0)
    }

    pub(crate) fn is_queue_empty(&self, queue: u64) -> bool {
        !self.queues.contains_key(&queue)
    }

    /// The waiters of a queue and their values, oldest first or newest first.
    pub(crate) fn iter(
        &self,
        queue: u64,
        newest_first: bool,
    ) -> impl Iterator<Item = (Position, &T)> {
        let ends = self.queues.get(&queue);
        let mut at = ends.map(|ends| if newest_first { ends.last } else { ends.first });
        core::iter::from_fn(move || {
            let position = at?;
            let node = self.entries[position].node.as_ref()?;
            at = if newest_first {
                node.previous
            } else {
                node.next
            };
            Some((Position(position), &node.value))
        })
    }

    /// Takes a waiter out of its queue with a grant, to be [collected](Self::take_granted) by it.
    /// Returns its waker.
    pub(crate) fn grant(&mut self, position: Position, granted: G) -> Option<Waker> {
        self.unlink(position.0);
        let entry = &mut self.entries[position.0];
        entry.granted = Some(granted);
        entry.waker.take()
    }

    /// Collects what a waiter was granted.
    pub(crate) fn take_granted(&mut self, ticket: &Ticket) -> Option<G> {
        self.entries[ticket.0].granted.take()
    }

    /// Removes a waiter. Returns what it was granted and did not collect; and, if it was the first
    /// of its queue, the waker of the new first.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> (Option<G>, Option<Waker>) {
        let new_first = self.unlink(ticket.0);
        let entry = &mut self.entries[ticket.0];
        entry.waker = None;
        let granted = entry.granted.take();
        self.free.push(ticket.0);
        let waker = new_first.and_then(|at| self.entries[at].waker.clone());
        (granted, waker)
    }

    /// Takes the wakers of all waiters. They stay registered and queued.
    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        let wakers = self.entries.iter_mut().map(|entry| entry.waker.take());
        wakers.flatten().collect()
    }

    /// Takes an entry out of its queue. Returns the new first entry if it was the first.
    fn unlink(&mut self, at: usize) -> Option<usize> {
        let Node {
            queue,
            previous,
            next,
            ..
        } = self.entries[at].node.take()?;
        self.queued -= 1;
        if let Some(node) = previous.and_then(|at| self.entries[at].node.as_mut()) {
            node.next = next;
        }
        if let Some(node) = next.and_then(|at| self.entries[at].node.as_mut()) {
            node.previous = previous;
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

impl<T, G> Default for WaitList<T, G> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            queues: HashMap::new(),
            queued: 0,
        }
    }
}

/// The message of `WaitError::NoTimer` and of `AcquireError::NoTimer`.
pub(crate) const NO_TIMER: &str = "no timer to wait with: poll the future inside a tokio runtime with timers (`enable_time()` on its \
                                   builder), or use blocking()";

/// A waker that unparks the calling thread.
pub(crate) fn thread_waker() -> Waker {
    struct Unpark(std::thread::Thread);

    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }

    Waker::from(std::sync::Arc::new(Unpark(std::thread::current())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Enqueue(u64),
        /// The nth of those that are registered.
        Remove(usize),
        /// The first or the last of a queue.
        Grant(u64, bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0u64..3).prop_map(Step::Enqueue),
            2 => (0usize..64).prop_map(Step::Remove),
            1 => (0u64..3, any::<bool>()).prop_map(|(queue, newest)| Step::Grant(queue, newest)),
        ]
    }

    /// A registered waiter of the model: its queue while it is queued, its number, its ticket.
    type Registered = (Option<u64>, u32, Ticket);

    proptest! {
        /// However waiters come, are granted and go, each queue has the order in which they came.
        #[test]
        fn queues_are_first_in_first_out(steps in proptest::collection::vec(step(), 0..200)) {
            let mut list: WaitList<u32, u32> = WaitList::default();
            let mut model: Vec<Registered> = Vec::new();
            for (number, step) in (0..).zip(steps) {
                match step {
                    Step::Enqueue(queue) => {
                        let ticket = list.insert();
                        list.push_back(&ticket, queue, number);
                        model.push((Some(queue), number, ticket));
                    }
                    Step::Remove(nth) if !model.is_empty() => {
                        let (queue, number, ticket) = model.remove(nth % model.len());
                        let (granted, _) = list.remove(ticket);
                        prop_assert_eq!(granted, queue.is_none().then_some(number));
                    }
                    Step::Grant(queue, newest_first) => {
                        let found = list.iter(queue, newest_first).next();
                        if let Some((position, number)) = found.map(|(at, number)| (at, *number)) {
                            prop_assert!(list.grant(position, number).is_none());
                            let granted = model.iter_mut().find(|(_, of, _)| *of == number);
                            granted.expect("it was registered").0 = None;
                        }
                    }
                    Step::Remove(_) => {}
                }
                for queue in 0..3 {
                    let of_queue = model.iter().filter(|(of, ..)| *of == Some(queue));
                    let mut expected: Vec<u32> = of_queue.map(|(_, number, _)| *number).collect();
                    let listed = |newest| list.iter(queue, newest).map(|(_, number)| *number);
                    prop_assert_eq!(&listed(false).collect::<Vec<_>>(), &expected);
                    prop_assert_eq!(list.is_queue_empty(queue), expected.is_empty());
                    for (_, number, ticket) in &model {
                        let is_first = expected.first() == Some(number);
                        prop_assert_eq!(list.is_first(ticket, queue), is_first);
                    }
                    expected.reverse();
                    prop_assert_eq!(&listed(true).collect::<Vec<_>>(), &expected);
                }
                let queued = model.iter().filter(|(queue, ..)| queue.is_some()).count();
                prop_assert_eq!(list.queued(), queued);
            }
            model.into_iter().for_each(|(_, _, ticket)| drop(list.remove(ticket)));
            prop_assert!(list.queues.is_empty());
            prop_assert_eq!(list.free.len(), list.entries.len());
        }
    }
}
