//! Fairness between connections: the work that one of them may do before the others of its worker
//! run.

use crate::net::stream::MAX_FRAMES_PER_POLL;

/// Bytes that one connection forwards before it yields.
const MAX_BYTES_PER_POLL: usize = 256 * 1024;

/// The cost of a step beside its bytes: small frames are not free.
const STEP_COST: usize = 64;

// Frames that come faster than they are forwarded pile up, until h2 ends the connection.
const _: () = assert!(MAX_BYTES_PER_POLL / (STEP_COST + 1) >= MAX_FRAMES_PER_POLL);

/// The work that a connection may do in one poll.
///
/// Sockets count against tokio's cooperative budget, which ends after 128 reads or writes: with 64
/// KiB each that is 8 MiB. Bodies in memory and deferred writes do not count there at all.
pub(crate) struct PollBudget {
    left: usize,
}

impl PollBudget {
    pub(crate) fn new() -> Self {
        Self {
            left: MAX_BYTES_PER_POLL,
        }
    }

    /// Counts a step that forwards this many bytes.
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes.saturating_add(STEP_COST));
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.left == 0
    }
}
