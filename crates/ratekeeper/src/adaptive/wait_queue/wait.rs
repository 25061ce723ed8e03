//! [`QueueWait`] and [`QueuedPermit`]: waiting in the queue, and the permit it ends with.

use super::{AdaptiveQueue, QueueTicket};
use crate::adaptive::{AdaptivePermit, Class, Partition, RequestOutcome};
use crate::clock::{Clock, Sleep, SystemClock, Timestamp};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// # Waiting
impl<C: Clock> AdaptiveQueue<C> {
    /// Acquires a permit, after a wait in the queue if none is free.
    pub async fn acquire(&self) -> Result<QueuedPermit<C>, AdaptiveQueueError> {
        self.acquire_as(Class::CriticalPlus, None, None).await
    }

    /// Acquires a permit for a request of this class, in a partition or in none, whose client gives
    /// up at the deadline.
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
        // No request passes the waiters.
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
    /// Waits for the permit until `sleep` ends: pass a timer for [`until`](Self::until) or for
    /// less.
    pub fn wait(self, sleep: Sleep) -> QueueWait<C> {
        QueueWait {
            ticket: self,
            sleep,
        }
    }
}

/// A wait in the queue; what [`QueueTicket::wait`] returns. Its output is `None` if no permit was
/// granted in time. Dropping it leaves the queue.
#[must_use = "futures do nothing unless polled"]
pub struct QueueWait<C: Clock = SystemClock> {
    ticket: QueueTicket<C>,
    sleep: Sleep,
}

impl<C: Clock> Future for QueueWait<C> {
    type Output = Option<QueuedPermit<C>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { ticket, sleep } = &mut *self;
        let id = ticket.id.as_ref();
        let permit = match id.and_then(|id| ticket.queue.poll_ticket(id, cx.waker())) {
            Some(permit) => Some(permit),
            None => {
                // Without a timer, `sleep` is ready at once and there is no wait at all.
                ready!(Pin::new(sleep).poll(cx));
                // A permit may have been granted at the last moment.
                ticket.leave()
            }
        };
        let queue = &ticket.queue;
        Poll::Ready(permit.map(|permit| QueuedPermit::new(permit, queue.clone())))
    }
}

impl<C: Clock> Unpin for QueueWait<C> {}

impl<C: Clock> fmt::Debug for QueueWait<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueWait").field(&self.ticket).finish()
    }
}

/// A permit of an adaptive limit that goes to the next waiter when it comes back.
/// [`finish`](Self::finish) it with the outcome of the request; one that is dropped counts as
/// [`RequestOutcome::Ignored`].
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct QueuedPermit<C: Clock = SystemClock> {
    /// `None` once it is given back.
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

    /// Detaches the permit from the queue: call [serve](AdaptiveQueue::serve) after it is given
    /// back.
    pub fn into_inner(mut self) -> AdaptivePermit<C> {
        self.permit
            .take()
            .expect("the permit is present until it is finished or taken out")
    }
}

impl<C: Clock> Drop for QueuedPermit<C> {
    fn drop(&mut self) {
        drop(self.permit.take());
        // Waiters are served after the permit is back.
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

/// Error: no permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AdaptiveQueueError {
    /// The queue is full.
    QueueFull,
    /// No permit came back within the time that the [configuration](super::QueueConfig) allows.
    Timeout,
    /// The deadline of the request has passed.
    DeadlineExceeded,
}

impl fmt::Display for AdaptiveQueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::QueueFull => "adaptive concurrency limit reached, and its queue is full",
            Self::Timeout => "no permit came back within the time that the queue allows",
            Self::DeadlineExceeded => "no permit came back before the deadline",
        })
    }
}

impl std::error::Error for AdaptiveQueueError {}
