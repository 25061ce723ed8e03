//! The response: of the inner service with what the limits say, or that of who is turned away.

use super::Shared;
use super::form::{Enum, Form};
use super::service::Fate;
use super::waits::Waiting;
use crate::answer;
use crate::gate::{Gate, Later};
use crate::identity::Client;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tollgate::Sleep;
use tollgate_policy::Ending;
use tower_service::Service;

pin_project! {
    /// The response of a service behind a limit.
    pub struct ResponseFuture<S, B, G, F = Enum>
    where
        S: Service<Request<B>>,
        G: Gate,
    {
        #[pin]
        state: State<S, B, G, S::Future>,
        form: PhantomData<fn() -> F>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, B, G, F>
    where
        G: Gate,
    {
        /// The inner service is at it.
        Running {
            #[pin]
            future: F,
            counted: Counted<G>,
        },
        /// Its turn has not come. Few wait: they have memory of their own, so that the futures of all others are small.
        Waiting {
            next: Option<Box<Next<S, B, G>>>,
        },
        Denied {
            response: Option<Response<Bytes>>,
        },
        /// A store elsewhere is asked.
        Asking {
            later: Option<Box<Unanswered<S, B, G>>>,
        },
    }
}

/// What goes on when the store has answered.
struct Unanswered<S, B, G: Gate> {
    later: Later<G::Ticket>,
    client: Client,
    service: S,
    request: Request<B>,
    counted: Counted<G>,
}

/// What is called when its turn has come.
struct Next<S, B, G: Gate> {
    sleep: Sleep,
    service: S,
    request: Request<B>,
    uncalled: Uncalled<G>,
    /// Until then it has a place among those who wait.
    waiting: Waiting,
}

/// A request, and what it was counted by; without a ticket it was not.
pub(super) struct Counted<G: Gate> {
    pub(super) shared: Arc<Shared<G>>,
    pub(super) ticket: Option<G::Ticket>,
}

/// A request that waits for its turn. Whoever hangs up before it comes was counted for nothing, and gets it back.
struct Uncalled<G: Gate>(Option<Counted<G>>);

impl<G: Gate> Drop for Uncalled<G> {
    fn drop(&mut self) {
        if let Some(Counted { shared, ticket: Some(ticket) }) = self.0.take() {
            shared.gate.cancel(ticket);
        }
    }
}

/// What a request keeps until its response has ended: permits, and its last word on what it cost.
///
/// Few requests do: it has memory of its own, so that the bodies of all others are small.
pub struct Kept<G: Gate>(Option<Box<Unsettled<G>>>);

struct Unsettled<G: Gate> {
    shared: Arc<Shared<G>>,
    ticket: G::Ticket,
    ending: Ending,
}

impl<G: Gate> crate::body::Held for Kept<G> {
    fn ended(&mut self) {
        if let Some(Unsettled { shared, ticket, ending }) = self.0.take().map(|kept| *kept) {
            shared.gate.settle(ticket, ending);
        }
    }
}

/// The body was dropped before its end, or failed: that says nothing of how long the service takes.
impl<G: Gate> Drop for Kept<G> {
    fn drop(&mut self) {
        if let Some(Unsettled { shared, ticket, ending }) = self.0.take().map(|kept| *kept) {
            shared.gate.settle(ticket, ending.cut_off());
        }
    }
}

impl<G: Gate> fmt::Debug for Kept<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kept").field(&self.0.is_some()).finish()
    }
}

impl<S: Service<Request<B>>, B, G: Gate, F> ResponseFuture<S, B, G, F> {
    #[inline]
    fn new(state: State<S, B, G, S::Future>) -> Self {
        Self { state, form: PhantomData }
    }

    #[inline]
    pub(super) fn running(future: S::Future, counted: Counted<G>) -> Self {
        Self::new(State::Running { future, counted })
    }

    pub(super) fn waiting(
        delay: Duration,
        service: S,
        request: Request<B>,
        counted: Counted<G>,
        waiting: Waiting,
    ) -> Self {
        Self::new(State::waiting(delay, service, request, counted, waiting))
    }

    pub(super) fn asking(
        later: Later<G::Ticket>,
        client: Client,
        service: S,
        request: Request<B>,
        counted: Counted<G>,
    ) -> Self {
        Self::new(State::asking(later, client, service, request, counted))
    }

    pub(super) fn denied(response: Response<Bytes>) -> Self {
        Self::new(State::Denied { response: Some(response) })
    }
}

impl<S, B, G, F, R> Future for ResponseFuture<S, B, G, F>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
    G: Gate,
    F: Form<R, Kept<G>>,
{
    type Output = Result<Response<F::Body>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                StateProjection::Running { future, counted } => {
                    let mut polled = future.poll(cx);
                    if let Poll::Ready(result) = &mut polled
                        && !counted.is_told_to(result)
                    {
                        return settled::<R, G, F, S::Error>(polled, counted);
                    }
                    return polled.map(|result| result.map(|response| response.map(F::plain)));
                }
                StateProjection::Denied { response } => {
                    let response = response.take().expect("polled after it was done");
                    return Poll::Ready(Ok(response.map(F::own)));
                }
                _ => ready!(state.as_mut().go_on(cx)),
            }
        }
    }
}

impl<S: Service<Request<B>>, B, G: Gate> State<S, B, G, S::Future> {
    fn waiting(delay: Duration, service: S, request: Request<B>, counted: Counted<G>, waiting: Waiting) -> Self {
        let sleep = counted.shared.gate.sleep(delay);
        let next = Next { sleep, service, request, uncalled: Uncalled(Some(counted)), waiting };
        Self::Waiting { next: Some(Box::new(next)) }
    }

    fn asking(later: Later<G::Ticket>, client: Client, service: S, request: Request<B>, counted: Counted<G>) -> Self {
        Self::Asking { later: Some(Box::new(Unanswered { later, client, service, request, counted })) }
    }

    /// Waits for what a request that is not running waits for; pending until it comes. Apart: few wait.
    #[cold]
    #[inline(never)]
    fn go_on(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.as_mut().project() {
            StateProjection::Waiting { next } => {
                if let Some(next) = next {
                    ready!(Pin::new(&mut next.sleep).poll(cx));
                }
                let Some(next) = next.take() else { return Poll::Pending };
                let Next { mut service, request, mut uncalled, waiting, .. } = *next;
                waiting.end();
                let Some(counted) = uncalled.0.take() else { return Poll::Pending };
                let future = service.call(request);
                self.set(State::Running { future, counted });
            }
            StateProjection::Asking { later } => {
                let Some(asking) = later else { return Poll::Pending };
                let ticket = ready!(asking.later.as_mut().poll(cx));
                let Some(asking) = later.take() else { return Poll::Pending };
                let Unanswered { client, mut service, mut request, mut counted, .. } = *asking;
                counted.ticket = Some(ticket);
                self.set(match counted.decided(&mut request, client) {
                    Fate::Passes => State::Running { future: service.call(request), counted },
                    Fate::Denied(response) => State::Denied { response: Some(*response) },
                    Fate::Waits(delay, waiting) => State::waiting(delay, service, request, counted, waiting),
                    Fate::Asks(later, client) => State::asking(later, client, service, request, counted),
                });
            }
            StateProjection::Running { .. } | StateProjection::Denied { .. } => {}
        }
        Poll::Ready(())
    }
}

impl<G: Gate> Counted<G> {
    /// Says in the response what the limits say. Whether that was all there is to do: else the request is to be settled.
    #[inline]
    fn is_told_to<R, E>(&self, result: &mut Result<Response<R>, E>) -> bool {
        let (Some(ticket), Ok(response)) = (&self.ticket, result) else { return self.ticket.is_none() };
        let Shared { gate, options } = &*self.shared;
        gate.tell(ticket, options.dialects, response.headers_mut(), None);
        if options.expose {
            answer::expose(response.headers_mut(), options.dialects);
        }
        let reached = response.extensions().get::<crate::NotReached>().is_none();
        reached && gate.is_settled(ticket, &Ending::status(response.status().as_u16()))
    }
}

/// What became of a request that is to be settled: now, or when the body of its response has ended.
#[inline(never)]
fn settled<R: Body, G: Gate, F: Form<R, Kept<G>>, E>(
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
            gate.settle(ticket, Ending::failed());
            return Poll::Ready(Err(error));
        }
    };
    let ending = Ending::status(response.status().as_u16());
    if response.extensions().get::<crate::NotReached>().is_some() {
        gate.cancel(ticket);
    } else if gate.keeps(&ticket) {
        let kept = Kept(Some(Box::new(Unsettled { shared: Arc::clone(&counted.shared), ticket, ending })));
        return Poll::Ready(Ok(response.map(|body| F::holding(body, kept))));
    } else {
        gate.settle(ticket, ending);
    }
    Poll::Ready(Ok(response.map(F::plain)))
}

impl<S: Service<Request<B>>, B, G: Gate, F> fmt::Debug for ResponseFuture<S, B, G, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
