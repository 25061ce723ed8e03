//! The response of a service under an adaptive limit: called at once, or after a wait in line.

use super::line::Line;
use super::serving::Serving;
use super::{ByHead, Classify, Timed};
use crate::NoRoom;
use crate::answer::{self, Asker, Denial};
use crate::body::ResponseBody;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tollgate::adaptive::Outcome;
use tollgate::{AdaptivePermit, AtCapacity, Class, Clock, Instant, Sleep, SystemClock};
use tower_service::Service;

pin_project! {
    /// What [`AdaptiveConcurrencyService`](super::AdaptiveConcurrencyService) answers with. Dropping it is a client that hung up:
    /// the permit, or the place in line, is free at once.
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
    place: Place<C>,
    sleep: Sleep,
    deadline: Option<Instant>,
    service: S,
    request: Request<B>,
}

/// A place in line; dropping it leaves the line.
struct Place<C: Clock> {
    line: Arc<Line<C>>,
    place: u64,
}

impl<C: Clock> Drop for Place<C> {
    fn drop(&mut self) {
        // A permit that was handed over and not fetched is for the next.
        drop(self.line.leave(self.place));
        self.line.serve();
    }
}

/// Why there is no permit.
pub(super) enum NoPermit {
    Now(AtCapacity),
    LineIsFull,
    WaitedTooLong,
    /// Nobody waits for the answer any more.
    TooLate,
}

impl NoPermit {
    #[cold]
    pub(super) fn answer<B>(self, request: &Request<B>) -> Response<Bytes> {
        let denial = match self {
            Self::Now(_) | Self::LineIsFull => Denial::too_many_in_flight(StatusCode::SERVICE_UNAVAILABLE),
            Self::WaitedTooLong => Denial::waited_too_long(),
            Self::TooLate => Denial::too_late(),
        };
        let mut response = answer::denied(Asker::of(request.headers()), &denial);
        // A gate that knows classes keeps room by itself: whom it turns away for that is no pressure.
        if request.extensions().get::<Class>().is_none() {
            response.extensions_mut().insert(NoRoom);
        }
        if let Some(busy) = self.at_capacity() {
            response.extensions_mut().insert(busy);
        }
        response
    }
}

impl<S, B, C: Clock> Queued<S, B, C> {
    pub(super) fn new(
        line: Arc<Line<C>>,
        place: u64,
        until: Instant,
        deadline: Option<Instant>,
        service: S,
        request: Request<B>,
    ) -> Self {
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        let sleep = line.clock.sleep_until(until);
        Self { place: Place { line, place }, sleep, deadline, service, request }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<AdaptivePermit<C>, NoPermit>> {
        let Place { line, place } = &self.place;
        if let Some(permit) = line.look(*place, cx.waker()) {
            return Poll::Ready(Ok(permit));
        }
        // Where no timer runs, outside a runtime, nobody waits at all.
        ready!(Pin::new(&mut self.sleep).poll(cx));
        // Its turn may have come at the last moment.
        Poll::Ready(line.leave(*place).ok_or_else(|| {
            let too_late = self.deadline.is_some_and(|deadline| deadline <= line.clock.now());
            if too_late { NoPermit::TooLate } else { NoPermit::WaitedTooLong }
        }))
    }
}

impl<S: Service<Request<B>>, B, C: Clock, J> AdaptiveResponseFuture<S, B, C, J> {
    #[inline]
    pub(super) fn calling(inner: S::Future, serving: Serving<C>, judge: J) -> Self {
        Self { kind: Kind::Calling { inner, serving: Some(serving) }, judge }
    }

    pub(super) fn queued(queued: Queued<S, B, C>, judge: J) -> Self {
        Self { kind: Kind::Queued { queued: Some(Box::new(queued)) }, judge }
    }

    pub(super) fn denied(response: Response<Bytes>, judge: J) -> Self {
        Self { kind: Kind::Denied { response: Some(response) }, judge }
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
                    // Out of the future now: it may be kept long after it is done.
                    let serving = serving.take();
                    return Poll::Ready(match result {
                        Ok(mut response) => {
                            let outcome = this.judge.outcome(&mut response);
                            Ok(response.map(|body| ResponseBody::from(Timed::new(body, serving, outcome))))
                        }
                        Err(error) => {
                            if let Some(serving) = serving {
                                serving.finish(Outcome::Dropped);
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
                    let Some(queued) = queued.take() else { return Poll::Pending };
                    let Queued { place, mut service, request, .. } = *queued;
                    let next = match turn {
                        Ok(permit) => {
                            let serving = Some(Serving::new(permit, Some(Arc::clone(&place.line))));
                            Kind::Calling { inner: service.call(request), serving }
                        }
                        Err(why) => Kind::Denied { response: Some(why.answer(&request)) },
                    };
                    this.kind.set(next);
                }
                KindPinned::Denied { response } => return Poll::Ready(Ok(ResponseBody::once(response))),
            }
        }
    }
}

impl<S: Service<Request<B>>, B, C: Clock, J> fmt::Debug for AdaptiveResponseFuture<S, B, C, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveResponseFuture").finish_non_exhaustive()
    }
}
