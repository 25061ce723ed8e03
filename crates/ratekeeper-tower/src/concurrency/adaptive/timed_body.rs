//! `TimedBody`: a response body whose end is the end of the request.

use super::is_overloaded_grpc;
use super::permit_guard::PermitGuard;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use ratekeeper::adaptive::RequestOutcome;
use ratekeeper::{Clock, clock::SystemClock};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

pin_project! {
    /// The response body of a request under an adaptive limit. It reports when and how it ends:
    /// completely, with an error, or dropped because the client hung up.
    pub struct TimedBody<B, C: Clock = SystemClock> {
        #[pin]
        body: B,
        permit_guard: Option<PermitGuard<C>>,
        // The outcome by the head of the response.
        head_outcome: RequestOutcome,
    }

    impl<B, C: Clock> PinnedDrop for TimedBody<B, C> {
        fn drop(this: Pin<&mut Self>) {
            // A client that hangs up is ignored, but a request known to be dropped stays so.
            let this = this.project();
            if *this.head_outcome == RequestOutcome::Dropped {
                end(this.permit_guard, RequestOutcome::Dropped);
            }
        }
    }
}

impl<B: Body, C: Clock> TimedBody<B, C> {
    /// A body with the outcome that its head has.
    #[inline]
    pub(super) fn new(
        body: B,
        permit_guard: Option<PermitGuard<C>>,
        head_outcome: RequestOutcome,
    ) -> Self {
        // A body that is already at its end may never be polled.
        if body.is_end_stream() {
            if let Some(permit_guard) = permit_guard {
                permit_guard.finish(head_outcome);
            }
            return Self {
                body,
                permit_guard: None,
                head_outcome,
            };
        }
        Self {
            body,
            permit_guard,
            head_outcome,
        }
    }
}

#[inline]
fn end<C: Clock>(permit_guard: &mut Option<PermitGuard<C>>, outcome: RequestOutcome) {
    if let Some(permit_guard) = permit_guard.take() {
        permit_guard.finish(outcome);
    }
}

impl<B: Body, C: Clock> Body for TimedBody<B, C> {
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
                if frame.trailers_ref().is_some_and(is_overloaded_grpc) {
                    end(this.permit_guard, RequestOutcome::Dropped);
                } else if this.body.is_end_stream() {
                    // Readers stop where `is_end_stream` is true: they may keep the body, but do
                    // not poll it again.
                    end(this.permit_guard, *this.head_outcome);
                }
            }
            Some(Err(_)) => end(this.permit_guard, RequestOutcome::Dropped),
            None => end(this.permit_guard, *this.head_outcome),
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

impl<B: fmt::Debug, C: Clock> fmt::Debug for TimedBody<B, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimedBody")
            .field("body", &self.body)
            .finish_non_exhaustive()
    }
}
