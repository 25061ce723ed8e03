//! The response of a service under an adaptive limit: called at once, or after a wait in line.

use super::serving::Serving;
use super::{ByHead, Classify, Timed};
use crate::body::ResponseBody;
use crate::response::NoCapacity;
use crate::response::{self, Asker, Denial};
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
    /// What [`AdaptiveConcurrencyService`](super::AdaptiveConcurrencyService) answers with.
    /// Dropping it is a client that hung up: the permit, or the place in line, is free at once.
    #[must_use = "futures do nothing unless polled"]
    pub struct AdaptiveResponseFuture<S, B, C: Clock = SystemClock, J = ByHead>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        kind: Kind<S::Future, Queued<S, B, C>, C>,
        judge: J,
    }
}

pin_project! {
    #[project = KindPinned]
    enum Kind<F, Q, C: Clock> {
        Calling {
            #[pin]
            inner: F,
            serving: Option<Serving<C>>,
        },
        // Few wait: they have memory of their own, so that the futures of all others are small.
        Queued {
            queued: Option<Box<Q>>,
        },
        Denied {
            response: Option<Response<Bytes>>,
        },
    }
}

/// A request that waits in line, and what is called when its turn has come.
pub(super) struct Queued<S, B, C: Clock> {
    turn: QueueWait<C>,
    line: AdaptiveQueue<C>,
    deadline: Option<Timestamp>,
    service: S,
    request: Request<B>,
}

/// Why there is no permit.
pub(super) enum NoPermit {
    Now(AtCapacityError),
    LineIsFull,
    WaitedTooLong,
    /// Nobody waits for the answer any more.
    TooLate,
}

impl NoPermit {
    #[cold]
    pub(super) fn answer<B>(self, request: &Request<B>) -> Response<Bytes> {
        let denial = match self {
            Self::Now(_) | Self::LineIsFull => {
                Denial::too_many_in_flight(StatusCode::SERVICE_UNAVAILABLE)
            }
            Self::WaitedTooLong => Denial::waited_too_long(),
            Self::TooLate => Denial::too_late(),
        };
        let mut response = response::denied(Asker::of(request.headers()), &denial);
        // A gate that knows classes keeps room by itself: whom it turns away for that is no
        // pressure.
        if request.extensions().get::<Class>().is_none() {
            response.extensions_mut().insert(NoCapacity);
        }
        if let Some(busy) = self.at_capacity() {
            response.extensions_mut().insert(busy);
        }
        response
    }
}

impl<S, B, C: Clock> Queued<S, B, C> {
    pub(super) fn new(
        line: AdaptiveQueue<C>,
        place: QueueTicket<C>,
        deadline: Option<Timestamp>,
        service: S,
        request: Request<B>,
    ) -> Self {
        let until = deadline.map_or(place.until(), |deadline| deadline.min(place.until()));
        let turn = place.wait(line.gate().clock().sleep_until(until));
        Self {
            turn,
            line,
            deadline,
            service,
            request,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<AdaptivePermit<C>, NoPermit>> {
        let turn = ready!(Pin::new(&mut self.turn).poll(cx));
        Poll::Ready(turn.map(QueuedPermit::into_inner).ok_or_else(|| {
            let too_late = self
                .deadline
                .is_some_and(|deadline| deadline <= self.line.gate().clock().now());
            if too_late {
                NoPermit::TooLate
            } else {
                NoPermit::WaitedTooLong
            }
        }))
    }
}

impl<S: Service<Request<B>>, B, C: Clock, J> AdaptiveResponseFuture<S, B, C, J> {
    #[inline]
    pub(super) fn calling(inner: S::Future, serving: Serving<C>, judge: J) -> Self {
        Self {
            kind: Kind::Calling {
                inner,
                serving: Some(serving),
            },
            judge,
        }
    }

    pub(super) fn queued(queued: Queued<S, B, C>, judge: J) -> Self {
        Self {
            kind: Kind::Queued {
                queued: Some(Box::new(queued)),
            },
            judge,
        }
    }

    pub(super) fn denied(response: Response<Bytes>, judge: J) -> Self {
        Self {
            kind: Kind::Denied {
                response: Some(response),
            },
            judge,
        }
    }
}

impl<S, B, R, C, J> Future for AdaptiveResponseFuture<S, B, C, J>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
    C: Clock,
    J: Classify,
{
    type Output = Result<Response<ResponseBody<Timed<R, C>>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.kind.as_mut().project() {
                KindPinned::Calling { inner, serving } => {
                    let result = ready!(inner.poll(cx));
                    // Out of the future it goes: that may be kept long after it is done.
                    return Poll::Ready(match result {
                        Ok(mut response) => {
                            let outcome = this.judge.outcome(&mut response);
                            Ok(response.map(|body| {
                                ResponseBody::from(Timed::new(body, serving.take(), outcome))
                            }))
                        }
                        Err(error) => {
                            if let Some(serving) = serving.take() {
                                serving.finish(RequestOutcome::Dropped);
                            }
                            Err(error)
                        }
                    });
                }
                KindPinned::Queued { queued } => {
                    let turn = match queued {
                        Some(queued) => ready!(queued.poll(cx)),
                        None => return Poll::Pending,
                    };
                    let Some(queued) = queued.take() else {
                        return Poll::Pending;
                    };
                    let Queued {
                        line,
                        mut service,
                        request,
                        ..
                    } = *queued;
                    let next = match turn {
                        Ok(permit) => {
                            let serving = Some(Serving::new(permit, Some(line)));
                            Kind::Calling {
                                inner: service.call(request),
                                serving,
                            }
                        }
                        Err(why) => Kind::Denied {
                            response: Some(why.answer(&request)),
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
