//! The connections of one worker to one upstream that nobody uses.

use super::Link;
use std::future::poll_fn;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;
use tokio::task::unconstrained;
use tokio::time::Instant;

/// Each stays in its place while it moves between here and the bodies that come over it.
#[allow(clippy::vec_box, reason = "to move it is to move a pointer")]
type Idle = Vec<Box<Link>>;

#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<Idle>,
}

/// So many are kept.
const MOST_IDLE: usize = 512;

/// So long.
const LONGEST_IDLE: Duration = Duration::from_secs(30);

impl Pool {
    /// The one that was used last, if it still is one.
    pub(crate) async fn take(&self) -> Option<Box<Link>> {
        loop {
            let mut link = self.idle().pop()?;
            // Also when the task has done much already: else every connection would look alive then.
            if unconstrained(poll_fn(|cx| Poll::Ready(link.is_alive(cx)))).await {
                return Some(link);
            }
        }
    }

    /// Keeps one for the next request, if it can take another.
    pub(crate) fn give(&self, link: Box<Link>) {
        let mut idle = self.idle();
        if link.is_free() && idle.len() < MOST_IDLE {
            idle.push(link);
        }
    }

    /// Closes those whose last request is too long ago.
    pub(crate) fn tidy(&self, now: Instant) {
        let is_fresh = |link: &mut Box<Link>| now.saturating_duration_since(link.timer.begun()) < LONGEST_IDLE;
        self.idle().retain_mut(is_fresh);
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
