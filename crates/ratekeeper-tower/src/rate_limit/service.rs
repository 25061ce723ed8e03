//! The service: decides before the inner one is called.

use super::Shared;
use super::form::{BodyKind, EitherBody};
use super::future::{Counted, ResponseFuture};
use super::preflight::is_preflight;
use super::waits::Waiting;
use crate::decider::{Decider, Later, LimitDecider};
use crate::head::Head;
use crate::identity::{Client, peer};
use crate::rate_limit::future::Pending;
use crate::response::NotReached;
use crate::response::{self, Asker, Denial, Jitter};
use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Method, Request, Response};
use http_body::Body;
use ratekeeper_policy::request::RequestError;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tower_service::Service;

/// A service behind a limit; made by [`RateLimitLayer`](crate::RateLimitLayer).
pub struct RateLimit<S, G, F = EitherBody> {
    pub(super) inner: S,
    pub(super) shared: Arc<Shared<G>>,
    form: PhantomData<fn() -> F>,
}

impl<S, G, F> RateLimit<S, G, F> {
    pub(crate) fn new(inner: S, shared: Arc<Shared<G>>) -> Self {
        Self {
            inner,
            shared,
            form: PhantomData,
        }
    }
}

impl<S, G, F, B, R> Service<Request<B>> for RateLimit<S, G, F>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: Body,
    G: Decider,
    F: BodyKind<R, Pending<G>>,
{
    type Response = Response<F::Body>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, G, F>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.call_from(peer(request.extensions()), request)
    }
}

impl<S, G: Decider, F> RateLimit<S, G, F> {
    /// Calls it, once it is ready, with a request that came over a connection from this peer: for
    /// servers that know it, and need not put it into the extensions of each request to be found
    /// there. They are not looked at: `None` is a peer that nobody knows.
    ///
    /// Layers further in still look there. If one of them counts by address, insert
    /// [`PeerAddr`](crate::identity::PeerAddr) as well.
    #[inline]
    pub fn call_from<B>(
        &mut self,
        peer: Option<IpAddr>,
        request: Request<B>,
    ) -> ResponseFuture<S, B, G, F>
    where
        S: Service<Request<B>> + Clone,
    {
        self.shared
            .call(&mut self.inner, self.shared.seat(peer), peer, request)
    }
}

/// What becomes of a request. What few need has memory of its own.
pub(super) enum Fate<G: Decider> {
    /// The inner service is called.
    Passes,
    Denied(Box<Response<Bytes>>),
    Waits(Duration, Waiting),
    /// Nobody knows yet what becomes of that client.
    Asks(Later<G::Ticket>, Client),
}

/// The one that is ready goes with the request; a clone of it waits for the next.
fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    std::mem::replace(service, clone)
}

impl<G: Decider> Counted<G> {
    /// What becomes of a request, which is decided on unless it has a ticket already.
    #[inline(never)]
    fn judge<B>(&mut self, request: &mut Request<B>, peer: Option<IpAddr>) -> Fate<G> {
        let Shared { gate, options } = &*self.shared;
        let client = options.identity.client(peer, request.headers());
        if self.ticket.is_none() {
            let head = Head::of(request, client);
            if options.skips(&head) {
                return Fate::Passes;
            }
            if let Err(error) = gate.check(&head, options.strict) {
                return Fate::Denied(Box::new(self.shared.refuse(&error)));
            }
            if is_preflight(&head) {
                if options.preflights.are_exempt() {
                    return Fate::Passes;
                }
                if let Some(limit) = options.preflights.limit() {
                    return match self.shared.judge_preflight(limit, &head) {
                        Some(response) => Fate::Denied(Box::new(response)),
                        None => Fate::Passes,
                    };
                }
            }
            if let Some(later) = gate.decide(&head, options.cost(&head), &mut self.ticket) {
                return Fate::Asks(later, client);
            }
        }
        self.decided(request, client)
    }

    /// What becomes of a request of `client`, now that it is decided on.
    #[inline]
    pub(super) fn decided<B>(&mut self, request: &mut Request<B>, client: Client) -> Fate<G> {
        let Shared { gate, options } = &*self.shared;
        match &self.ticket {
            Some(ticket) if gate.passes(ticket) && !options.is_watched() && !gate.is_observed() => {
                Fate::Passes
            }
            _ => self.decided_otherwise(request, client),
        }
    }

    /// The same for whom more is to be done than to let them pass.
    #[inline(never)]
    fn decided_otherwise<B>(&mut self, request: &mut Request<B>, client: Client) -> Fate<G> {
        let Shared { gate, options } = &*self.shared;
        let Some(ticket) = &self.ticket else {
            return Fate::Passes;
        };
        let head = Head::of(request, client);
        gate.observe(&head, ticket);
        if !gate.is_allowed(ticket) {
            let response = self
                .shared
                .turn_away(&head, gate.denial(ticket), Some((gate, ticket)));
            // It holds nothing, but it may hold on to something, and the future may be kept.
            self.ticket = None;
            return Fate::Denied(Box::new(response));
        }
        let delay = gate.delay(ticket);
        let waiting = (!delay.is_zero()).then(|| options.waits.enter(options.max_waiting, delay));
        if let Some(None) = waiting {
            let response = self
                .shared
                .turn_away::<G>(&head, Denial::too_many_wait(delay), None);
            if let Some(ticket) = self.ticket.take() {
                gate.cancel(ticket);
            }
            return Fate::Denied(Box::new(response));
        }
        if let Some(hook) = &options.hook {
            hook(&head, gate.shadow(ticket).as_ref());
        }
        if options.extension
            && let Some(status) = gate.status(ticket)
        {
            request.extensions_mut().insert(status);
        }
        waiting
            .flatten()
            .map_or(Fate::Passes, |waiting| Fate::Waits(delay, waiting))
    }
}

impl<G: Decider> Shared<G> {
    /// Where a peer stands, for all of its requests.
    #[inline]
    pub(super) fn seat(&self, peer: Option<IpAddr>) -> Option<G::Seat> {
        let Self { gate, options } = self;
        if options.look_beyond_the_peer() {
            None
        } else {
            gate.seat(options.identity.stranger(peer?)?)
        }
    }

    /// Calls the service behind it with a request of a peer who stands there.
    #[inline]
    pub(super) fn call<S, B, F>(
        self: &Arc<Self>,
        inner: &mut S,
        seat: Option<G::Seat>,
        peer: Option<IpAddr>,
        request: Request<B>,
    ) -> ResponseFuture<S, B, G, F>
    where
        S: Service<Request<B>> + Clone,
    {
        let decided = match self.pass(seat, &request) {
            Ok(ticket) => {
                // In this order all but the pointer is made where it stays: the rest is slow to
                // move.
                let shared = Arc::clone(self);
                let future = inner.call(request);
                return ResponseFuture::running(
                    future,
                    Counted {
                        shared,
                        ticket: Some(ticket),
                    },
                );
            }
            Err(decided) => decided,
        };
        self.call_anyhow(inner, peer, request, decided)
    }

    /// The same the long way. What was decided on is not decided on again.
    #[inline(never)]
    fn call_anyhow<S, B, F>(
        self: &Arc<Self>,
        inner: &mut S,
        peer: Option<IpAddr>,
        mut request: Request<B>,
        decided: Option<G::Ticket>,
    ) -> ResponseFuture<S, B, G, F>
    where
        S: Service<Request<B>> + Clone,
    {
        let mut counted = Counted {
            shared: Arc::clone(self),
            ticket: decided,
        };
        match counted.judge(&mut request, peer) {
            Fate::Passes => ResponseFuture::running(inner.call(request), counted),
            Fate::Denied(response) => ResponseFuture::denied(response, counted),
            Fate::Waits(delay, waiting) => {
                ResponseFuture::waiting(delay, take_ready(inner), request, counted, waiting)
            }
            Fate::Asks(later, client) => {
                ResponseFuture::asking(later, client, take_ready(inner), request, counted)
            }
        }
    }

    /// The ticket of a request that passes, where there is nothing else to do for it: what most
    /// are. Else that of one that goes the long way, if it was decided on.
    // Nobody that is not compiled into this may see the request: else it would have to be moved
    // before it goes on.
    #[inline(always)]
    fn pass<B>(
        &self,
        seat: Option<G::Seat>,
        request: &Request<B>,
    ) -> Result<G::Ticket, Option<G::Ticket>> {
        let Self { gate, options } = self;
        let Some(seat) = seat else { return Err(None) };
        // What may be a preflight request has a limit of its own; whoever speaks for others is not
        // believed, and that is told.
        if request.method() == Method::OPTIONS
            || options.identity.word_of_others(request.headers()).is_some()
        {
            return Err(None);
        }
        gate.pass(seat)
    }

    /// Decides on a preflight request by the limit of their own: the response if it is denied.
    #[inline(never)]
    fn judge_preflight(&self, limit: &LimitDecider, head: &Head<'_>) -> Option<Response<Bytes>> {
        let mut ticket = None;
        // A limit of this process has nobody to wait for.
        let _ = limit.decide(head, 1, &mut ticket);
        let ticket = ticket?;
        // Nobody waits here, also where the limit is one that paces.
        let is_allowed = limit.passes(&ticket);
        self.options.preflights.stats.count(is_allowed);
        if is_allowed {
            if let Some(hook) = &self.options.hook {
                hook(head, None);
            }
            return None;
        }
        Some(self.turn_away(head, limit.denial(&ticket), Some((limit, &ticket))))
    }

    /// The response to a request that the service may read differently.
    #[inline(never)]
    fn refuse(&self, error: &RequestError) -> Response<Bytes> {
        let mut response = response::refused(error);
        response.extensions_mut().insert(NotReached);
        response
    }

    /// The response of who is turned away, with what the limits say, if it was they.
    #[inline(never)]
    fn turn_away<D: Decider>(
        &self,
        head: &Head<'_>,
        mut denial: Denial<'_>,
        decided: Option<(&D, &D::Ticket)>,
    ) -> Response<Bytes> {
        let Self { options, .. } = self;
        if let Some((gate, ticket)) = decided {
            // What is shed is spread already.
            if denial.jitter == Jitter::default() {
                denial.jitter = Jitter {
                    percent: options.jitter,
                    hash: gate.key_hash(ticket),
                };
            }
        }
        if let Some(hook) = &options.hook {
            hook(head, Some(&denial));
        }
        let retry_after = denial.seconds();
        let asker = if options.plain_http {
            Asker::of_http(head.headers)
        } else {
            Asker::of(head.headers)
        };
        let mut response = match &options.denied {
            None => response::denied(asker, &denial),
            Some(denied) => {
                let mut response = denied(&denial);
                if let Some(after) = retry_after {
                    response
                        .headers_mut()
                        .entry(RETRY_AFTER)
                        .or_insert(after.into());
                }
                response
            }
        };
        if let Some((gate, ticket)) = decided {
            gate.tell(
                ticket,
                options.dialects,
                response.headers_mut(),
                retry_after,
            );
        }
        if options.expose {
            response::expose(response.headers_mut(), options.dialects);
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
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
