//! [`QueueConfig`]: how long a request may wait: long while the queue keeps getting empty, hardly
//! at all once it does not (as in CoDel).

use crate::clock::Timestamp;
use core::time::Duration;

/// How many requests may wait for a permit of an adaptive limit, and for how long: the
/// configuration of an [`AdaptiveQueue`](super::AdaptiveQueue).
///
/// While the queue was empty at some moment of the last interval (100 ms), a request may wait for
/// an interval, and the oldest is served first. A queue that was not empty for that long is a
/// backlog, which waiting only makes worse: a request that joins it waits no longer than the target
/// (5 ms), and the newest is served first, since the request that waited longest is the most likely
/// to have been given up.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::adaptive::QueueConfig;
///
/// let config = QueueConfig::of(200).interval(Duration::from_millis(50)).target(Duration::from_millis(2));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueueConfig {
    /// The most requests that may wait.
    pub max_waiting: usize,
    /// A queue that was not empty for this long is a backlog; also the longest wait in a queue that
    /// is not a backlog.
    pub interval: Duration,
    /// The longest wait in a backlog.
    pub target: Duration,
}

impl QueueConfig {
    /// A queue with this many slots.
    pub const fn of(max_waiting: usize) -> Self {
        Self {
            max_waiting,
            interval: Duration::from_millis(100),
            target: Duration::from_millis(5),
        }
    }

    /// A queue that was not empty for this long is a backlog; also the longest wait in a queue that
    /// is not a backlog. 100 ms unless set.
    #[must_use]
    pub const fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// The longest wait in a backlog; 5 ms unless set.
    #[must_use]
    pub const fn target(mut self, target: Duration) -> Self {
        self.target = target;
        self
    }

    /// The longest wait of a request that joins now, if the queue was last empty at `empty`.
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
