//! The body of a response whose end is the end of the request.

use super::says_overloaded;
use super::serving::Serving;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use ratekeeper::adaptive::RequestOutcome;
use ratekeeper::{Clock, clock::SystemClock};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

pin_project! {
    /// The body of a response under an adaptive limit, which is told when it ends and how: well,
    /// with an error, or dropped by a client that hung up.
    pub struct Timed<B, C: Clock = SystemClock> {
        #[pin]
        body: B,
        serving: Option<Serving<C>>,
        // What the head of the response said.
        promised: RequestOutcome,
    }

    impl<B, C: Clock> PinnedDrop for Timed<B, C> {
        fn drop(this: Pin<&mut Self>) {
            // A client that hangs up says nothing; but what is known to be dropped stays so.
            let this = this.project();
            if *this.promised == RequestOutcome::Dropped {
                end(this.serving, RequestOutcome::Dropped);
            }
        }
    }
}

impl<B: Body, C: Clock> Timed<B, C> {
    /// The outcome is what the head of the response says.
    #[inline]
    pub(super) fn new(body: B, serving: Option<Serving<C>>, promised: RequestOutcome) -> Self {
        // Nobody may ever poll a body that is at its end already.
        if body.is_end_stream() {
            if let Some(serving) = serving {
                serving.finish(promised);
            }
            return Self {
                body,
                serving: None,
                promised,
            };
        }
        Self {
            body,
            serving,
            promised,
        }
    }
}

#[inline]
fn end<C: Clock>(serving: &mut Option<Serving<C>>, outcome: RequestOutcome) {
    if let Some(serving) = serving.take() {
        serving.finish(outcome);
    }
}

impl<B: Body, C: Clock> Body for Timed<B, C> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if frame.trailers_ref().is_some_and(says_overloaded) {
                    end(this.serving, RequestOutcome::Dropped);
                } else if this.body.is_end_stream() {
                    // Readers stop where is_end_stream says so: they may hold the body, but poll it
                    // no more.
                    end(this.serving, *this.promised);
                }
            }
            Some(Err(_)) => end(this.serving, RequestOutcome::Dropped),
            None => end(this.serving, *this.promised),
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
        f.debug_struct("Timed")
            .field("body", &self.body)
            .finish_non_exhaustive()
    }
}
