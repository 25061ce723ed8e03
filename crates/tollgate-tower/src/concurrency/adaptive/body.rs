//! The body of a response whose end is the end of the request.

use super::says_overloaded;
use super::serving::Serving;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tollgate::adaptive::Outcome;
use tollgate::{Clock, SystemClock};

pin_project! {
    /// The body of a response under an adaptive limit, which is told when it ends and how: well, with an error, or dropped by
    /// a client that hung up.
    pub struct Timed<B, C: Clock = SystemClock> {
        #[pin]
        body: B,
        serving: Option<Serving<C>>,
    }
}

impl<B: Body, C: Clock> Timed<B, C> {
    /// The outcome is what the head of the response says.
    #[inline]
    pub(super) fn new(body: B, mut serving: Option<Serving<C>>, outcome: Outcome) -> Self {
        if let Some(serving) = &mut serving {
            serving.promised = outcome;
            if outcome == Outcome::Dropped {
                serving.outcome = outcome;
            }
        }
        // Nobody may ever poll a body that is at its end already.
        if body.is_end_stream() {
            end(&mut serving, None);
        }
        Self { body, serving }
    }
}

/// It has ended: as its head said, or otherwise.
#[inline]
fn end<C: Clock>(serving: &mut Option<Serving<C>>, otherwise: Option<Outcome>) {
    if let Some(serving) = serving.take() {
        let promised = serving.promised;
        serving.finish(otherwise.unwrap_or(promised));
    }
}

impl<B: Body, C: Clock> Body for Timed<B, C> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if frame.trailers_ref().is_some_and(says_overloaded) {
                    end(this.serving, Some(Outcome::Dropped));
                } else if this.body.is_end_stream() {
                    // Readers stop where is_end_stream says so: they may hold the body, but poll it no more.
                    end(this.serving, None);
                }
            }
            Some(Err(_)) => end(this.serving, Some(Outcome::Dropped)),
            None => end(this.serving, None),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: fmt::Debug, C: Clock> fmt::Debug for Timed<B, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timed").field("body", &self.body).finish_non_exhaustive()
    }
}
