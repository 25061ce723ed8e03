//! `AdaptiveResponseFuture`: calls the inner service at once, or after a wait in the queue.

use super::permit_guard::PermitGuard;
use super::{ClassifyResponse, HeadClassifier, TimedBody};
use crate::body::ResponseBody;
use crate::response::NoCapacity;
use crate::response::{self, Denial, DenialFormat};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use ratekeeper::adaptive::{AdaptiveQueue, QueueTicket, QueueWait, QueuedPermit, RequestOutcome};
use ratekeeper::{
    Clock, Timestamp, adaptive::AdaptivePermit, adaptive::AtCapacityError, adaptive::Class,
    clock::SystemClock,
};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tower_service::Service;

pin_project! {
    /// The response of an [`AdaptiveConcurrencyService`](super::AdaptiveConcurrencyService).
    /// Dropping it, as when a client hangs up, releases the permit or leaves the queue at once.
    #[must_use = "futures do nothing unless polled"]
    pub struct AdaptiveResponseFuture<S, B, C: Clock = SystemClock, J = HeadClassifier>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        kind: Kind<S::Future, QueuedCall<S, B, C>, C>,
        classifier: J,
    }
}

pin_project! {
    #[project = KindPinned]
    enum Kind<F, Q, C: Clock> {
        Calling {
            #[pin]
            inner: F,
            permit_guard: Option<PermitGuard<C>>,
        },
        // Boxed, because few requests wait: the futures of all others stay small.
        Queued {
            queued: Option<Box<Q>>,
        },
        Denied {
            response: Option<Response<Bytes>>,
        },
    }
}

/// A request that waits in the queue, and the service to call when it gets a permit.
pub(super) struct QueuedCall<S, B, C: Clock> {
    queue_wait: QueueWait<C>,
    queue: AdaptiveQueue<C>,
    deadline: Option<Timestamp>,
    service: S,
    request: Request<B>,
}

/// The reason why a request got no permit.
pub(super) enum AcquireFailure {
    AtCapacity(AtCapacityError),
    QueueFull,
    QueueTimeout,
    /// The request's deadline passed in the queue.
    DeadlinePassed,
}

impl AcquireFailure {
    #[cold]
    pub(super) fn response<B>(self, request: &Request<B>) -> Response<Bytes> {
        let denial = match self {
            Self::AtCapacity(_) | Self::QueueFull => {
                Denial::too_many_in_flight(StatusCode::SERVICE_UNAVAILABLE)
            }
            Self::QueueTimeout => Denial::queue_timeout(),
            Self::DeadlinePassed => Denial::deadline_passed(),
        };
        let mut response =
            response::denial_response(DenialFormat::from_headers(request.headers()), &denial);
        // A limit that knows classes reserves permits by itself: a denial of a lower class is not
        // overload.
        if request.extensions().get::<Class>().is_none() {
            response.extensions_mut().insert(NoCapacity);
        }
        if let Some(at_capacity) = self.at_capacity() {
            response.extensions_mut().insert(at_capacity);
        }
        response
    }
}

impl<S, B, C: Clock> QueuedCall<S, B, C> {
    pub(super) fn new(
        queue: AdaptiveQueue<C>,
        ticket: QueueTicket<C>,
        deadline: Option<Timestamp>,
        service: S,
        request: Request<B>,
    ) -> Self {
        let until = deadline.map_or(ticket.until(), |deadline| deadline.min(ticket.until()));
        let queue_wait = ticket.wait(queue.gate().clock().sleep_until(until));
        Self {
            queue_wait,
            queue,
            deadline,
            service,
            request,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<AdaptivePermit<C>, AcquireFailure>> {
        let queue_wait = ready!(Pin::new(&mut self.queue_wait).poll(cx));
        Poll::Ready(queue_wait.map(QueuedPermit::into_inner).ok_or_else(|| {
            let too_late = self
                .deadline
                .is_some_and(|deadline| deadline <= self.queue.gate().clock().now());
            if too_late {
                AcquireFailure::DeadlinePassed
            } else {
                AcquireFailure::QueueTimeout
            }
        }))
    }
}

impl<S: Service<Request<B>>, B, C: Clock, J> AdaptiveResponseFuture<S, B, C, J> {
    #[inline]
    pub(super) fn calling(inner: S::Future, permit_guard: PermitGuard<C>, classifier: J) -> Self {
        Self {
            kind: Kind::Calling {
                inner,
                permit_guard: Some(permit_guard),
            },
            classifier,
        }
    }

    pub(super) fn queued(queued: QueuedCall<S, B, C>, classifier: J) -> Self {
        Self {
            kind: Kind::Queued {
                queued: Some(Box::new(queued)),
            },
            classifier,
        }
    }

    pub(super) fn denied(response: Response<Bytes>, classifier: J) -> Self {
        Self {
            kind: Kind::Denied {
                response: Some(response),
            },
            classifier,
        }
    }
}

impl<S, B, R, C, J> Future for AdaptiveResponseFuture<S, B, C, J>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
    C: Clock,
    J: ClassifyResponse,
{
    type Output = Result<Response<ResponseBody<TimedBody<R, C>>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.kind.as_mut().project() {
                KindPinned::Calling {
                    inner,
                    permit_guard,
                } => {
                    let result = ready!(inner.poll(cx));
                    // Taken out of the future, which may live long after it is done.
                    return Poll::Ready(match result {
                        Ok(mut response) => {
                            let outcome = this.classifier.outcome(&mut response);
                            Ok(response.map(|body| {
                                ResponseBody::from(TimedBody::new(
                                    body,
                                    permit_guard.take(),
                                    outcome,
                                ))
                            }))
                        }
                        Err(error) => {
                            if let Some(permit_guard) = permit_guard.take() {
                                permit_guard.finish(RequestOutcome::Dropped);
                            }
                            Err(error)
                        }
                    });
                }
                KindPinned::Queued { queued } => {
                    let queue_wait = match queued {
                        Some(queued) => ready!(queued.poll(cx)),
                        None => return Poll::Pending,
                    };
                    let Some(queued) = queued.take() else {
                        return Poll::Pending;
                    };
                    let QueuedCall {
                        queue,
                        mut service,
                        request,
                        ..
                    } = *queued;
                    let next = match queue_wait {
                        Ok(permit) => {
                            let permit_guard = Some(PermitGuard::new(permit, Some(queue)));
                            Kind::Calling {
                                inner: service.call(request),
                                permit_guard,
                            }
                        }
                        Err(why) => Kind::Denied {
                            response: Some(why.response(&request)),
                        },
                    };
                    this.kind.set(next);
                }
                KindPinned::Denied { response } => {
                    return Poll::Ready(Ok(ResponseBody::once(response)));
                }
            }
        }
    }
}

impl<S: Service<Request<B>>, B, C: Clock, J> fmt::Debug for AdaptiveResponseFuture<S, B, C, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveResponseFuture")
            .finish_non_exhaustive()
    }
}
