//! [`QueueTicket`]: a place in the queue.

use super::AdaptiveQueue;
use crate::clock::{Clock, DefaultClock, Timestamp};
use std::fmt;

/// A place in the queue; what [`AdaptiveQueue::join`] returns. Dropping it leaves the queue: a
/// permit that was granted meanwhile goes to the next waiter.
#[must_use = "dropping a ticket leaves the queue"]
pub struct QueueTicket<C: Clock = DefaultClock> {
    pub(super) queue: AdaptiveQueue<C>,
    pub(super) id: u64,
    pub(super) until: Timestamp,
}

impl<C: Clock> QueueTicket<C> {
    pub(super) fn new(queue: AdaptiveQueue<C>, id: u64, until: Timestamp) -> Self {
        Self { queue, id, until }
    }

    /// Until when this ticket may wait.
    pub fn until(&self) -> Timestamp {
        self.until
    }
}

impl<C: Clock> Drop for QueueTicket<C> {
    fn drop(&mut self) {
        drop(self.queue.leave(self.id));
        self.queue.serve();
    }
}

impl<C: Clock> fmt::Debug for QueueTicket<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueTicket")
            .field("queue", &self.queue)
            .field("until", &self.until)
            .finish()
    }
}
