//! How long one may wait in line: long while the line keeps getting empty, hardly at all once it
//! does not.

use crate::clock::Timestamp;
use core::time::Duration;

/// How many may wait for a permit of an adaptive limit, and for how long: what a
/// [`Line`](super::Line) goes by.
///
/// As long as it was empty at some moment of the last interval (100 ms), a request may wait for an
/// interval and the first that came is the first that is served. A line that was not empty for so
/// long is a backlog, which waiting only makes worse: whoever joins it waits for no longer than the
/// target (5 ms), and the last that came is the first that is served, since whoever waited longest
/// is the most likely to have given up.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::adaptive::Queue;
///
/// let queue = Queue::of(200).interval(Duration::from_millis(50)).target(Duration::from_millis(2));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueueConfig {
    /// How many may wait.
    pub most: usize,
    /// A line that was not empty for so long is a backlog; as long may be waited in one that is
    /// none.
    pub interval: Duration,
    /// How long may be waited in a backlog.
    pub target: Duration,
}

impl QueueConfig {
    /// With room for so many.
    pub const fn of(most: usize) -> Self {
        Self {
            most,
            interval: Duration::from_millis(100),
            target: Duration::from_millis(5),
        }
    }

    /// A line that was not empty for so long is a backlog; as long may be waited in one that is
    /// none. 100 ms unless set.
    #[must_use]
    pub const fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// How long may be waited in a backlog; 5 ms unless set.
    #[must_use]
    pub const fn target(mut self, target: Duration) -> Self {
        self.target = target;
        self
    }

    /// How long who comes now may wait, if the line was last empty then.
    pub(super) fn max_wait(&self, empty: Timestamp, now: Timestamp) -> Duration {
        if self.is_backlog(empty, now) {
            self.target.min(self.interval)
        } else {
            self.interval
        }
    }

    pub(super) fn is_backlog(&self, empty: Timestamp, now: Timestamp) -> bool {
        now.saturating_since(empty) >= self.interval
    }
}
