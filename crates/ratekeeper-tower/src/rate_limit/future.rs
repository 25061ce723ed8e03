//! The response: of the inner service with what the limits say, or that of who is turned away.

use super::Shared;
use super::form::{BodyKind, EitherBody};
use super::service::Fate;
use super::waits::Waiting;
use crate::decider::{Decider, Later};
use crate::identity::Client;
use crate::response;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use ratekeeper::clock::Sleep;
use ratekeeper_policy::Completion;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tower_service::Service;

pin_project! {
    /// The response of a service behind a limit.
    pub struct ResponseFuture<S, B, G, F = EitherBody>
    where
        S: Service<Request<B>>,
        G: Decider,
    {
        #[pin]
        state: State<S, B, G, S::Future>,
        // Its ticket is elsewhere while it waits for its turn, and gone if it was turned away.
        counted: Counted<G>,
        form: PhantomData<fn() -> F>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, B, G, F>
    where
        G: Decider,
    {
        /// The inner service is at it.
        Running {
            #[pin]
            future: F,
        },
        /// It is not, yet. Few wait or are turned away: they have memory of their own, so that the
        /// futures of all others are small.
        Aside {
            aside: Option<Aside<S, B, G>>,
        },
    }
}

/// A request that the inner service was not called with.
enum Aside<S, B, G: Decider> {
    Denied(Box<Response<Bytes>>),
    /// Its turn has not come.
    Waiting(Box<Next<S, B, G>>),
    /// A store elsewhere is asked.
    Asking(Box<Unanswered<S, B, G>>),
}

/// What goes on when the store has answered.
struct Unanswered<S, B, G: Decider> {
    later: Later<G::Ticket>,
    client: Client,
    service: S,
    request: Request<B>,
}

/// What is called when its turn has come.
struct Next<S, B, G: Decider> {
    sleep: Sleep,
    service: S,
    request: Request<B>,
    uncalled: Uncalled<G>,
    /// Until then it has a place among those who wait.
    waiting: Waiting,
}

/// A request, and what it was counted by; without a ticket it was not.
pub(super) struct Counted<G: Decider> {
    pub(super) shared: Arc<Shared<G>>,
    pub(super) ticket: Option<G::Ticket>,
}

/// A request that waits for its turn. Whoever hangs up before it comes was counted for nothing, and
/// gets it back.
struct Uncalled<G: Decider> {
    shared: Arc<Shared<G>>,
    ticket: Option<G::Ticket>,
}

impl<G: Decider> Drop for Uncalled<G> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.shared.gate.cancel(ticket);
        }
    }
}

/// What a request keeps until its response has ended: permits, and its last word on what it cost.
///
/// Few requests do: it has memory of its own, so that the bodies of all others are small.
pub struct Pending<G: Decider>(Option<Box<Unsettled<G>>>);

struct Unsettled<G: Decider> {
    shared: Arc<Shared<G>>,
    ticket: G::Ticket,
    ending: Completion,
}

impl<G: Decider> crate::body::Held for Pending<G> {
    fn ended(&mut self) {
        if let Some(Unsettled {
            shared,
            ticket,
            ending,
        }) = self.0.take().map(|kept| *kept)
        {
            shared.gate.settle(ticket, ending);
        }
    }
}

/// The body was dropped before its end, or failed: that says nothing of how long the service takes.
impl<G: Decider> Drop for Pending<G> {
    fn drop(&mut self) {
        if let Some(Unsettled {
            shared,
            ticket,
            ending,
        }) = self.0.take().map(|kept| *kept)
        {
            shared.gate.settle(ticket, ending.cut_off());
        }
    }
}

impl<G: Decider> fmt::Debug for Pending<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kept").field(&self.0.is_some()).finish()
    }
}

impl<S: Service<Request<B>>, B, G: Decider, F> ResponseFuture<S, B, G, F> {
    #[inline]
    pub(super) fn running(future: S::Future, counted: Counted<G>) -> Self {
        Self {
            state: State::Running { future },
            counted,
            form: PhantomData,
        }
    }

    pub(super) fn denied(response: Box<Response<Bytes>>, counted: Counted<G>) -> Self {
        Self::aside(Aside::Denied(response), counted)
    }

    pub(super) fn waiting(
        delay: Duration,
        service: S,
        request: Request<B>,
        mut counted: Counted<G>,
        waiting: Waiting,
    ) -> Self {
        Self::aside(
            Aside::waiting(delay, service, request, &mut counted, waiting),
            counted,
        )
    }

    pub(super) fn asking(
        later: Later<G::Ticket>,
        client: Client,
        service: S,
        request: Request<B>,
        counted: Counted<G>,
    ) -> Self {
        Self::aside(Aside::asking(later, client, service, request), counted)
    }

    fn aside(aside: Aside<S, B, G>, counted: Counted<G>) -> Self {
        Self {
            state: State::aside(aside),
            counted,
            form: PhantomData,
        }
    }

    /// Whether the inner service is at it, and a permit is held until it is done: of a limit on
    /// what is in flight.
    pub fn holds_permit(&self) -> bool {
        let Counted { shared, ticket } = &self.counted;
        let is_running = matches!(self.state, State::Running { .. });
        is_running
            && ticket
                .as_ref()
                .is_some_and(|ticket| shared.gate.keeps(ticket))
    }
}

impl<S, B, G, F, R> Future for ResponseFuture<S, B, G, F>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
    G: Decider,
    F: BodyKind<R, Pending<G>>,
{
    type Output = Result<Response<F::Body>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            if let StateProjection::Running { future } = this.state.as_mut().project() {
                let mut polled = future.poll(cx);
                if let Poll::Ready(result) = &mut polled
                    && !this.counted.is_told_to(result)
                {
                    return settled::<R, G, F, S::Error>(polled, this.counted);
                }
                return polled.map(|result| result.map(|response| response.map(F::plain)));
            }
            if let Some(denied) = ready!(this.state.as_mut().go_on(cx, this.counted)) {
                return Poll::Ready(Ok(denied.map(F::own)));
            }
        }
    }
}

impl<S, B, G: Decider> Aside<S, B, G> {
    fn waiting(
        delay: Duration,
        service: S,
        request: Request<B>,
        counted: &mut Counted<G>,
        waiting: Waiting,
    ) -> Self {
        let sleep = counted.shared.gate.sleep(delay);
        let uncalled = Uncalled {
            shared: Arc::clone(&counted.shared),
            ticket: counted.ticket.take(),
        };
        Self::Waiting(Box::new(Next {
            sleep,
            service,
            request,
            uncalled,
            waiting,
        }))
    }

    fn asking(later: Later<G::Ticket>, client: Client, service: S, request: Request<B>) -> Self {
        Self::Asking(Box::new(Unanswered {
            later,
            client,
            service,
            request,
        }))
    }
}

impl<S: Service<Request<B>>, B, G: Decider> State<S, B, G, S::Future> {
    fn aside(aside: Aside<S, B, G>) -> Self {
        Self::Aside { aside: Some(aside) }
    }

    /// Ready once the inner service is called, or with the response of who is turned away. Apart:
    /// few wait.
    #[cold]
    #[inline(never)]
    fn go_on(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        counted: &mut Counted<G>,
    ) -> Poll<Option<Box<Response<Bytes>>>> {
        loop {
            let StateProjection::Aside { aside } = self.as_mut().project() else {
                return Poll::Ready(None);
            };
            let answer = match aside {
                Some(Aside::Waiting(next)) => {
                    ready!(Pin::new(&mut next.sleep).poll(cx));
                    None
                }
                Some(Aside::Asking(asking)) => Some(ready!(asking.later.as_mut().poll(cx))),
                Some(Aside::Denied(_)) | None => None,
            };
            let next = match aside.take().expect("polled after it was done") {
                Aside::Denied(response) => return Poll::Ready(Some(response)),
                Aside::Waiting(next) => {
                    let Next {
                        mut service,
                        request,
                        mut uncalled,
                        waiting,
                        ..
                    } = *next;
                    waiting.end();
                    counted.ticket = uncalled.ticket.take();
                    State::Running {
                        future: service.call(request),
                    }
                }
                Aside::Asking(asking) => {
                    let Unanswered {
                        client,
                        mut service,
                        mut request,
                        ..
                    } = *asking;
                    counted.ticket = answer;
                    match counted.decided(&mut request, client) {
                        Fate::Passes => State::Running {
                            future: service.call(request),
                        },
                        Fate::Denied(response) => return Poll::Ready(Some(response)),
                        Fate::Waits(delay, waiting) => {
                            State::aside(Aside::waiting(delay, service, request, counted, waiting))
                        }
                        Fate::Asks(later, client) => {
                            State::aside(Aside::asking(later, client, service, request))
                        }
                    }
                }
            };
            self.set(next);
        }
    }
}

impl<G: Decider> Counted<G> {
    /// Says in the response what the limits say. Whether that was all there is to do: else the
    /// request is to be settled.
    #[inline]
    fn is_told_to<R, E>(&self, result: &mut Result<Response<R>, E>) -> bool {
        let (Some(ticket), Ok(response)) = (&self.ticket, result) else {
            return self.ticket.is_none();
        };
        let Shared { gate, options } = &*self.shared;
        gate.tell(ticket, options.dialects, response.headers_mut(), None);
        if options.expose {
            response::expose(response.headers_mut(), options.dialects);
        }
        let reached = response
            .extensions()
            .get::<crate::response::NotReached>()
            .is_none();
        reached && gate.is_settled(ticket, &Completion::status(response.status().as_u16()))
    }
}

/// What became of a request that is to be settled: now, or when the body of its response has ended.
#[inline(never)]
fn settled<R: Body, G: Decider, F: BodyKind<R, Pending<G>>, E>(
    polled: Poll<Result<Response<R>, E>>,
    counted: &mut Counted<G>,
) -> Poll<Result<Response<F::Body>, E>> {
    let gate = &counted.shared.gate;
    // Out of the future now: it may be kept long after it is done.
    let Some(ticket) = counted.ticket.take() else {
        return polled.map(|result| result.map(|response| response.map(F::plain)));
    };
    let response = match ready!(polled) {
        Ok(response) => response,
        Err(error) => {
            gate.settle(ticket, Completion::failed());
            return Poll::Ready(Err(error));
        }
    };
    let ending = Completion::status(response.status().as_u16());
    if response
        .extensions()
        .get::<crate::response::NotReached>()
        .is_some()
    {
        gate.cancel(ticket);
    } else if gate.keeps(&ticket) {
        let kept = Pending(Some(Box::new(Unsettled {
            shared: Arc::clone(&counted.shared),
            ticket,
            ending,
        })));
        return Poll::Ready(Ok(response.map(|body| F::holding(body, kept))));
    } else {
        gate.settle(ticket, ending);
    }
    Poll::Ready(Ok(response.map(F::plain)))
}

impl<S: Service<Request<B>>, B, G: Decider, F> fmt::Debug for ResponseFuture<S, B, G, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
