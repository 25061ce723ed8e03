//! `ResponseFuture` of a shedding service; it reports responses without capacity to the shedder.

use crate::body::ResponseBody;
use crate::response::NoCapacity;
use bytes::Bytes;
use http::Response;
use pin_project_lite::pin_project;
use ratekeeper::{Clock, adaptive::Shedder, clock::SystemClock};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

pin_project! {
    /// The response of a [`Shed`](super::Shed) service.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, C: Clock = SystemClock> {
        #[pin]
        kind: Kind<F, C>,
    }
}

pin_project! {
    #[project = KindPinned]
    enum Kind<F, C: Clock> {
        Calling {
            #[pin]
            inner: F,
            shedder: Shedder<C>,
        },
        Denied {
            response: Option<Response<Bytes>>,
        },
    }
}

impl<F, C: Clock> ResponseFuture<F, C> {
    pub(super) fn calling(inner: F, shedder: Shedder<C>) -> Self {
        Self {
            kind: Kind::Calling { inner, shedder },
        }
    }

    pub(super) fn denied(response: Response<Bytes>) -> Self {
        Self {
            kind: Kind::Denied {
                response: Some(response),
            },
        }
    }
}

impl<F, R, E, C> Future for ResponseFuture<F, C>
where
    F: Future<Output = Result<Response<R>, E>>,
    C: Clock,
{
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindPinned::Calling { inner, shedder } => {
                let result = ready!(inner.poll(cx));
                if result
                    .as_ref()
                    .is_ok_and(|response| response.extensions().get::<NoCapacity>().is_some())
                {
                    shedder.refused();
                }
                Poll::Ready(result.map(|response| response.map(ResponseBody::from)))
            }
            KindPinned::Denied { response } => Poll::Ready(Ok(ResponseBody::once(response))),
        }
    }
}

impl<F, C: Clock> fmt::Debug for ResponseFuture<F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
