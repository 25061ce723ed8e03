//! `ResponseFuture` of a service behind a concurrency limit; it moves the permit into the response
//! body.

use crate::body::{BodyGuard, ResponseBody};
use bytes::Bytes;
use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

pin_project! {
    /// The response of a [`ConcurrencyService`](super::ConcurrencyService). Dropping it releases
    /// the permit.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, P> {
        #[pin]
        kind: Kind<F, P>,
    }
}

pin_project! {
    #[project = KindPinned]
    enum Kind<F, P> {
        Calling {
            #[pin]
            inner: F,
            permit: Option<P>,
        },
        Denied {
            response: Option<Response<Bytes>>,
        },
    }
}

impl<F, P> ResponseFuture<F, P> {
    pub(super) fn calling(inner: F, permit: P) -> Self {
        Self {
            kind: Kind::Calling {
                inner,
                permit: Some(permit),
            },
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

impl<F, R, E, P> Future for ResponseFuture<F, P>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body,
    P: BodyGuard,
{
    type Output = Result<Response<ResponseBody<R, P>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindPinned::Calling { inner, permit } => {
                let result = ready!(inner.poll(cx));
                // Taken out of the future, which may live long after it is done.
                let permit = permit.take();
                Poll::Ready(result.map(|response| {
                    response.map(|body| match permit {
                        Some(permit) => ResponseBody::with_guard(body, permit),
                        None => ResponseBody::from(body),
                    })
                }))
            }
            KindPinned::Denied { response } => Poll::Ready(Ok(ResponseBody::once(response))),
        }
    }
}

impl<F, P> fmt::Debug for ResponseFuture<F, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
