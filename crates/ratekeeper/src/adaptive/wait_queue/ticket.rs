//! A place in line, and what it is waited for.

use super::AdaptiveQueue;
use crate::clock::{Clock, DefaultClock, Timestamp};
use std::fmt;

/// A place in line; what [`Line::join`] returns. Dropping it leaves the line: a permit that was
/// handed over meanwhile is for the next.
#[must_use = "dropping a place leaves the line"]
pub struct QueueTicket<C: Clock = DefaultClock> {
    pub(super) line: AdaptiveQueue<C>,
    pub(super) number: u64,
    pub(super) until: Timestamp,
}

impl<C: Clock> QueueTicket<C> {
    pub(super) fn new(line: AdaptiveQueue<C>, number: u64, until: Timestamp) -> Self {
        Self {
            line,
            number,
            until,
        }
    }

    /// Until when one may wait here.
    pub fn until(&self) -> Timestamp {
        self.until
    }
}

impl<C: Clock> Drop for QueueTicket<C> {
    fn drop(&mut self) {
        drop(self.line.leave(self.number));
        self.line.serve();
    }
}

impl<C: Clock> fmt::Debug for QueueTicket<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place")
            .field("line", &self.line)
            .field("until", &self.until)
            .finish()
    }
}
