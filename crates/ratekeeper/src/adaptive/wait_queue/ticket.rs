//! [`QueueTicket`]: a position in the queue.

use super::AdaptiveQueue;
use crate::adaptive::AdaptivePermit;
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::wait_list::Ticket;
use std::fmt;

/// A position in the queue; what [`AdaptiveQueue::join`] returns. Dropping it leaves the queue: a
/// permit that was granted meanwhile goes to the next waiter.
#[must_use = "dropping a ticket leaves the queue"]
pub struct QueueTicket<C: Clock = SystemClock> {
    pub(super) queue: AdaptiveQueue<C>,
    /// `None` once it has left.
    pub(super) id: Option<Ticket>,
    pub(super) until: Timestamp,
}

impl<C: Clock> QueueTicket<C> {
    pub(super) fn new(queue: AdaptiveQueue<C>, id: Ticket, until: Timestamp) -> Self {
        Self {
            queue,
            id: Some(id),
            until,
        }
    }

    /// Leaves the queue, with the permit if one was granted.
    pub(super) fn leave(&mut self) -> Option<AdaptivePermit<C>> {
        self.queue.leave(self.id.take()?)
    }

    /// Until when this ticket may wait.
    pub fn until(&self) -> Timestamp {
        self.until
    }
}

impl<C: Clock> Drop for QueueTicket<C> {
    fn drop(&mut self) {
        drop(self.leave());
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
