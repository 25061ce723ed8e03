//! Waiting in line, and the permit that comes of it.

use super::{AdaptiveQueue, QueueTicket};
use crate::adaptive::{AdaptivePermit, Class, Partition, RequestOutcome};
use crate::clock::{Clock, DefaultClock, Sleep, Timestamp};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// # Waiting
impl<C: Clock> AdaptiveQueue<C> {
    /// Takes a permit, after a wait in line if there is none.
    pub async fn acquire(&self) -> Result<QueuedPermit<C>, AdaptiveQueueError> {
        self.acquire_as(Class::CriticalPlus, None, None).await
    }

    /// The same for a request of this importance, in a partition or in none, that nobody waits for
    /// after the deadline.
    pub async fn acquire_as(
        &self,
        class: Class,
        partition: Option<Partition>,
        deadline: Option<Timestamp>,
    ) -> Result<QueuedPermit<C>, AdaptiveQueueError> {
        let clock = self.gate().clock();
        let is_over = || deadline.is_some_and(|deadline| deadline <= clock.now());
        if is_over() {
            return Err(AdaptiveQueueError::DeadlineExceeded);
        }
        // Nobody passes those who wait.
        if self.is_empty()
            && let Ok(permit) = self.gate().try_acquire_as(class, partition)
        {
            return Ok(QueuedPermit::new(permit, self.clone()));
        }
        let ticket = self
            .join(class, partition)
            .ok_or(AdaptiveQueueError::QueueFull)?;
        let until = deadline.map_or(ticket.until, |deadline| deadline.min(ticket.until));
        let permit = ticket.wait(clock.sleep_until(until)).await;
        permit.ok_or_else(|| {
            if is_over() {
                AdaptiveQueueError::DeadlineExceeded
            } else {
                AdaptiveQueueError::Timeout
            }
        })
    }
}

impl<C: Clock> QueueTicket<C> {
    /// Waits for its turn, as long as `sleep` is not over: give it a timer of yours, for
    /// [`until`](Self::until) or for less.
    pub fn wait(self, sleep: Sleep) -> QueueWait<C> {
        QueueWait {
            ticket: self,
            sleep,
        }
    }
}

/// A wait in line; what [`Place::wait`] returns. None if there was no turn before the time was
/// over. Dropping it leaves the line.
#[must_use = "futures do nothing unless polled"]
pub struct QueueWait<C: Clock = DefaultClock> {
    ticket: QueueTicket<C>,
    sleep: Sleep,
}

impl<C: Clock> Future for QueueWait<C> {
    type Output = Option<QueuedPermit<C>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self {
            ticket: QueueTicket { queue, id, .. },
            sleep,
        } = &mut *self;
        let permit = match queue.poll_ticket(*id, cx.waker()) {
            Some(permit) => Some(permit),
            None => {
                // Where no timer runs, `poll` is ready at once and nobody waits at all.
                ready!(Pin::new(sleep).poll(cx));
                // Its turn may have come at the last moment.
                queue.leave(*id)
            }
        };
        Poll::Ready(permit.map(|permit| QueuedPermit::new(permit, queue.clone())))
    }
}

impl<C: Clock> Unpin for QueueWait<C> {}

impl<C: Clock> fmt::Debug for QueueWait<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueWait").field(&self.ticket).finish()
    }
}

/// The right to be in flight, which goes to whoever is first in line when it comes back.
/// [`finish`](Self::finish) it and say how it went; one that is dropped counts as
/// [`Outcome::Ignored`].
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct QueuedPermit<C: Clock = DefaultClock> {
    /// None once it is back.
    permit: Option<AdaptivePermit<C>>,
    queue: AdaptiveQueue<C>,
}

impl<C: Clock> QueuedPermit<C> {
    fn new(permit: AdaptivePermit<C>, queue: AdaptiveQueue<C>) -> Self {
        Self {
            permit: Some(permit),
            queue,
        }
    }

    /// Gives it back, as [`AdaptivePermit::finish`] does.
    pub fn finish(mut self, outcome: RequestOutcome) {
        if let Some(permit) = self.permit.take() {
            permit.finish(outcome);
        }
    }

    /// Without the line: [serve](Line::serve) that when the permit is back.
    pub fn into_inner(mut self) -> AdaptivePermit<C> {
        self.permit
            .take()
            .expect("it is there until it is finished or taken out")
    }
}

impl<C: Clock> Drop for QueuedPermit<C> {
    fn drop(&mut self) {
        drop(self.permit.take());
        // Whoever waits for it looks after it is back.
        self.queue.serve();
    }
}

impl<C: Clock> fmt::Debug for QueuedPermit<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedPermit")
            .field("permit", &self.permit)
            .finish_non_exhaustive()
    }
}

/// Why there is no permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AdaptiveQueueError {
    /// As many wait as may.
    QueueFull,
    /// It waited as long as the [queue](super::Queue) lets anybody wait.
    Timeout,
    /// Nobody waits for the answer any more.
    DeadlineExceeded,
}

impl fmt::Display for AdaptiveQueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::QueueFull => "as many are in flight as are served well, and as many wait as may",
            Self::Timeout => "no permit came back in the time that may be waited",
            Self::DeadlineExceeded => "no permit came back before the deadline",
        })
    }
}

impl std::error::Error for AdaptiveQueueError {}
