//! `ResponseFuture` of a service behind a circuit breaker; it reports the outcome of the call.

use super::{CallGuard, CallOutcome};
use crate::body::ResponseBody;
use crate::response::NotReached;
use bytes::Bytes;
use http::Response;
use http::response::Parts;
use pin_project_lite::pin_project;
use ratekeeper::{Clock, clock::SystemClock};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

pin_project! {
    /// The response of a [`CircuitBreakerService`](super::CircuitBreakerService). Dropping it
    /// early, as when a client hangs up, is ignored by the breaker.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, C: Clock = SystemClock, J = fn(&Parts) -> CallOutcome> {
        #[pin]
        kind: Kind<F, C, J>,
    }
}

pin_project! {
    #[project = KindPinned]
    enum Kind<F, C: Clock, J> {
        Calling {
            call: Option<CallGuard<C>>,
            #[pin]
            inner: F,
            classifier: J,
        },
        Rejected {
            response: Option<Response<Bytes>>,
        },
    }
}

impl<F, C: Clock, J> ResponseFuture<F, C, J> {
    pub(super) fn calling(call: CallGuard<C>, inner: F, classifier: J) -> Self {
        Self {
            kind: Kind::Calling {
                call: Some(call),
                inner,
                classifier,
            },
        }
    }

    pub(super) fn rejected(response: Response<Bytes>) -> Self {
        Self {
            kind: Kind::Rejected {
                response: Some(response),
            },
        }
    }
}

impl<F, R, E, C, J> Future for ResponseFuture<F, C, J>
where
    F: Future<Output = Result<Response<R>, E>>,
    C: Clock,
    J: Fn(&Parts) -> CallOutcome,
{
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (call, inner, classifier) = match self.project().kind.project() {
            KindPinned::Calling {
                call,
                inner,
                classifier,
            } => (call, inner, classifier),
            KindPinned::Rejected { response } => {
                return Poll::Ready(Ok(ResponseBody::once(response)));
            }
        };
        let result = ready!(inner.poll(cx));
        let call = call.take();
        Poll::Ready(match result {
            Ok(response) => {
                let (head, body) = response.into_parts();
                // A response marked `NotReached` is no measure of the service.
                let call = call.filter(|_| head.extensions.get::<NotReached>().is_none());
                match (call, classifier(&head)) {
                    (Some(call), CallOutcome::Success) => call.success(),
                    (Some(call), CallOutcome::Failure) => call.failure(),
                    _ => {}
                }
                Ok(Response::from_parts(head, ResponseBody::from(body)))
            }
            Err(error) => {
                if let Some(call) = call {
                    call.failure();
                }
                Err(error)
            }
        })
    }
}

impl<F, C: Clock, J> fmt::Debug for ResponseFuture<F, C, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
