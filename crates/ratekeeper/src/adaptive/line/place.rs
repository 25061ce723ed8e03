//! A place in line, and what it is waited for.

use super::Line;
use crate::clock::{Clock, DefaultClock, Instant};
use std::fmt;

/// A place in line; what [`Line::join`] returns. Dropping it leaves the line: a permit that was
/// handed over meanwhile is for the next.
#[must_use = "dropping a place leaves the line"]
pub struct Place<C: Clock = DefaultClock> {
    pub(super) line: Line<C>,
    pub(super) number: u64,
    pub(super) until: Instant,
}

impl<C: Clock> Place<C> {
    pub(super) fn new(line: Line<C>, number: u64, until: Instant) -> Self {
        Self {
            line,
            number,
            until,
        }
    }

    /// Until when one may wait here.
    pub fn until(&self) -> Instant {
        self.until
    }
}

impl<C: Clock> Drop for Place<C> {
    fn drop(&mut self) {
        drop(self.line.leave(self.number));
        self.line.serve();
    }
}

impl<C: Clock> fmt::Debug for Place<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place")
            .field("line", &self.line)
            .field("until", &self.until)
            .finish()
    }
}
