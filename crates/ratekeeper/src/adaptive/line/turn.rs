//! Waiting in line, and the permit that comes of it.

use super::{Line, Place};
use crate::adaptive::{AdaptivePermit, Class, Outcome, Partition};
use crate::clock::{Clock, DefaultClock, Instant, Sleep};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// # Waiting
impl<C: Clock> Line<C> {
    /// Takes a permit, after a wait in line if there is none.
    pub async fn acquire(&self) -> Result<LinePermit<C>, NoTurn> {
        self.acquire_as(Class::CriticalPlus, None, None).await
    }

    /// The same for a request of this importance, in a partition or in none, that nobody waits for
    /// after the deadline.
    pub async fn acquire_as(
        &self,
        class: Class,
        partition: Option<Partition>,
        deadline: Option<Instant>,
    ) -> Result<LinePermit<C>, NoTurn> {
        let clock = self.gate().clock();
        let is_over = || deadline.is_some_and(|deadline| deadline <= clock.now());
        if is_over() {
            return Err(NoTurn::TooLate);
        }
        // Nobody passes those who wait.
        if self.is_empty()
            && let Ok(permit) = self.gate().try_acquire_as(class, partition)
        {
            return Ok(LinePermit::new(permit, self.clone()));
        }
        let place = self.join(class, partition).ok_or(NoTurn::LineIsFull)?;
        let until = deadline.map_or(place.until, |deadline| deadline.min(place.until));
        let turn = place.wait(clock.sleep_until(until)).await;
        turn.ok_or_else(|| {
            if is_over() {
                NoTurn::TooLate
            } else {
                NoTurn::WaitedTooLong
            }
        })
    }
}

impl<C: Clock> Place<C> {
    /// Waits for its turn, as long as `sleep` is not over: give it a timer of yours, for
    /// [`until`](Self::until) or for less.
    pub fn wait(self, sleep: Sleep) -> Turn<C> {
        Turn { place: self, sleep }
    }
}

/// A wait in line; what [`Place::wait`] returns. None if there was no turn before the time was
/// over. Dropping it leaves the line.
#[must_use = "futures do nothing unless polled"]
pub struct Turn<C: Clock = DefaultClock> {
    place: Place<C>,
    sleep: Sleep,
}

impl<C: Clock> Future for Turn<C> {
    type Output = Option<LinePermit<C>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self {
            place: Place { line, number, .. },
            sleep,
        } = &mut *self;
        let permit = match line.look(*number, cx.waker()) {
            Some(permit) => Some(permit),
            None => {
                // Where no timer runs, `poll` is ready at once and nobody waits at all.
                ready!(Pin::new(sleep).poll(cx));
                // Its turn may have come at the last moment.
                line.leave(*number)
            }
        };
        Poll::Ready(permit.map(|permit| LinePermit::new(permit, line.clone())))
    }
}

impl<C: Clock> Unpin for Turn<C> {}

impl<C: Clock> fmt::Debug for Turn<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Turn").field(&self.place).finish()
    }
}

/// The right to be in flight, which goes to whoever is first in line when it comes back.
/// [`finish`](Self::finish) it and say how it went; one that is dropped counts as
/// [`Outcome::Ignored`].
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct LinePermit<C: Clock = DefaultClock> {
    /// None once it is back.
    permit: Option<AdaptivePermit<C>>,
    line: Line<C>,
}

impl<C: Clock> LinePermit<C> {
    fn new(permit: AdaptivePermit<C>, line: Line<C>) -> Self {
        Self {
            permit: Some(permit),
            line,
        }
    }

    /// Gives it back, as [`AdaptivePermit::finish`] does.
    pub fn finish(mut self, outcome: Outcome) {
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

impl<C: Clock> Drop for LinePermit<C> {
    fn drop(&mut self) {
        drop(self.permit.take());
        // Whoever waits for it looks after it is back.
        self.line.serve();
    }
}

impl<C: Clock> fmt::Debug for LinePermit<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinePermit")
            .field("permit", &self.permit)
            .finish_non_exhaustive()
    }
}

/// Why there is no permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NoTurn {
    /// As many wait as may.
    LineIsFull,
    /// It waited as long as the [queue](super::Queue) lets anybody wait.
    WaitedTooLong,
    /// Nobody waits for the answer any more.
    TooLate,
}

impl fmt::Display for NoTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LineIsFull => "as many are in flight as are served well, and as many wait as may",
            Self::WaitedTooLong => "no permit came back in the time that may be waited",
            Self::TooLate => "no permit came back before the deadline",
        })
    }
}

impl std::error::Error for NoTurn {}
