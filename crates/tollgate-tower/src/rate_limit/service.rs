//! The service: decides before the inner one is called.

use super::Shared;
use super::form::{Enum, Form};
use super::future::{Counted, ResponseFuture};
use super::waits::Waiting;
use crate::NotReached;
use crate::answer::{self, Asker, Denial, Jitter};
use crate::gate::{Gate, Later};
use crate::head::Head;
use crate::identity::{self, Client};
use crate::rate_limit::future::Kept;
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Request, Response};
use http_body::Body;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tower_service::Service;

/// A service behind a limit; made by [`RateLimitLayer`](crate::RateLimitLayer).
pub struct RateLimit<S, G, F = Enum> {
    inner: S,
    shared: Arc<Shared<G>>,
    form: PhantomData<fn() -> F>,
}

impl<S, G, F> RateLimit<S, G, F> {
    pub(crate) fn new(inner: S, shared: Arc<Shared<G>>) -> Self {
        Self { inner, shared, form: PhantomData }
    }
}

impl<S, G, F, B, R> Service<Request<B>> for RateLimit<S, G, F>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: Body,
    G: Gate,
    F: Form<R, Kept<G>>,
{
    type Response = Response<F::Body>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, G, F>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        match self.judge(&mut request) {
            Fate::Passes(counted) => ResponseFuture::running(self.inner.call(request), counted),
            fate => self.otherwise(request, fate),
        }
    }
}

/// What becomes of a request. What is rare is apart, so that what is not is small to move.
pub(super) enum Fate<G: Gate> {
    /// The inner service is called. None if the request is not counted.
    Passes(Option<Counted<G>>),
    Denied(Box<Response<Bytes>>),
    Waits(Box<(Counted<G>, Duration, Waiting)>),
    /// Nobody knows yet.
    Asks(Later<G::Ticket>),
}

impl<S: Clone, G, F> RateLimit<S, G, F> {
    /// The one that is ready goes with the request; a clone of it waits for the next.
    fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        std::mem::replace(&mut self.inner, clone)
    }
}

impl<S: Clone, G: Gate, F> RateLimit<S, G, F> {
    /// For whom the inner service is not called now. Apart, so that the future of all others is made where it stays: it is slow
    /// to move.
    #[cold]
    #[inline(never)]
    fn otherwise<B>(&mut self, request: Request<B>, fate: Fate<G>) -> ResponseFuture<S, B, G, F>
    where
        S: Service<Request<B>>,
    {
        match fate {
            Fate::Passes(counted) => ResponseFuture::running(self.inner.call(request), counted),
            Fate::Denied(response) => ResponseFuture::denied(*response),
            Fate::Waits(wait) => {
                let (counted, delay, waiting) = *wait;
                ResponseFuture::waiting(self.shared.gate.sleep(delay), self.take_ready(), request, counted, waiting)
            }
            Fate::Asks(later) => ResponseFuture::asking(later, self.take_ready(), request, Arc::clone(&self.shared)),
        }
    }
}

impl<S, G: Gate, F> RateLimit<S, G, F> {
    #[inline(always)]
    fn judge<B>(&self, request: &mut Request<B>) -> Fate<G> {
        let Shared { gate, options } = &*self.shared;
        let client = options.identity.client(identity::peer(request.extensions()), request.headers());
        let head = Head::of(request, client);
        if options.skips(&head) {
            return Fate::Passes(None);
        }
        match gate.decide(&head, options.cost(&head)) {
            Ok(ticket) => Shared::decided(&self.shared, request, client, ticket),
            Err(later) => Fate::Asks(later),
        }
    }
}

impl<G: Gate> Shared<G> {
    /// What becomes of a request of `client`, now that it is decided on.
    // Always: a ticket is slow to move.
    #[inline(always)]
    pub(super) fn decided<B>(this: &Arc<Self>, request: &mut Request<B>, client: Client, ticket: G::Ticket) -> Fate<G> {
        let Self { gate, options } = &**this;
        if gate.is_allowed(&ticket) && gate.delay(&ticket).is_zero() && !options.is_watched() {
            return Fate::Passes(Some(Counted { shared: Arc::clone(this), ticket }));
        }
        Self::decided_otherwise(this, request, client, ticket)
    }

    /// The same for whom more is to be done than to let them pass. Apart, and with a ticket of its own: one that nobody points at
    /// need not be in memory.
    #[inline(never)]
    fn decided_otherwise<B>(this: &Arc<Self>, request: &mut Request<B>, client: Client, ticket: G::Ticket) -> Fate<G> {
        let Self { gate, options } = &**this;
        let head = Head::of(request, client);
        if !gate.is_allowed(&ticket) {
            return Fate::Denied(Box::new(this.turn_away(&head, gate.denial(&ticket), Some(&ticket))));
        }
        let delay = gate.delay(&ticket);
        let waiting = (!delay.is_zero()).then(|| options.waits.enter(options.max_waiting, delay));
        if let Some(None) = waiting {
            let response = this.turn_away(&head, Denial::too_many_wait(delay), None);
            gate.cancel(ticket);
            return Fate::Denied(Box::new(response));
        }
        if let Some(hook) = &options.hook {
            hook(&head, gate.shadow(&ticket).as_ref());
        }
        if options.extension
            && let Some(status) = gate.status(&ticket)
        {
            request.extensions_mut().insert(status);
        }
        let counted = Counted { shared: Arc::clone(this), ticket };
        match waiting.flatten() {
            None => Fate::Passes(Some(counted)),
            Some(waiting) => Fate::Waits(Box::new((counted, delay, waiting))),
        }
    }

    /// The response of who is turned away, with what the limits say, if it was they.
    #[inline(never)]
    fn turn_away(&self, head: &Head<'_>, mut denial: Denial<'_>, ticket: Option<&G::Ticket>) -> Response<Bytes> {
        let Self { gate, options } = self;
        if let Some(ticket) = ticket {
            // What is shed is spread already.
            if denial.jitter == Jitter::default() {
                denial.jitter = Jitter { percent: options.jitter, hash: gate.key_hash(ticket) };
            }
        }
        if let Some(hook) = &options.hook {
            hook(head, Some(&denial));
        }
        let retry_after = denial.seconds();
        let mut response = match &options.denied {
            None => answer::denied(Asker::of(head.headers), &denial),
            Some(denied) => {
                let mut response = denied(&denial);
                if let Some(after) = retry_after {
                    response.headers_mut().entry(RETRY_AFTER).or_insert(after.into());
                }
                response
            }
        };
        if let Some(ticket) = ticket {
            gate.tell(ticket, options.dialects, response.headers_mut(), retry_after);
        }
        if options.expose {
            answer::expose(response.headers_mut(), options.dialects);
        }
        // A limit further out gives back what it counted.
        response.extensions_mut().insert(NotReached);
        response
    }
}

impl<S: Clone, G, F> Clone for RateLimit<S, G, F> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.shared))
    }
}

impl<S: fmt::Debug, G, F> fmt::Debug for RateLimit<S, G, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}
