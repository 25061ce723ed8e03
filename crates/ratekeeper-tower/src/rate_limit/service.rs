//! `RateLimit`: the service that decides on a request before it calls the inner one.

use super::RateLimitShared;
use super::body_kind::{BodyKind, EitherBody};
use super::delay_stats::WaitGuard;
use super::future::{RequestState, ResponseFuture};
use super::preflight::is_preflight;
use crate::decider::{Decider, DecisionFuture, LimitDecider};
use crate::head::Head;
use crate::identity::{Client, peer};
use crate::rate_limit::future::Pending;
use crate::response::NotReached;
use crate::response::{self, Denial, DenialFormat, Jitter};
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

/// A rate limited service, made by [`RateLimitLayer`](crate::RateLimitLayer).
pub struct RateLimit<S, D, F = EitherBody> {
    pub(super) inner: S,
    pub(super) shared: Arc<RateLimitShared<D>>,
    body_kind: PhantomData<fn() -> F>,
}

impl<S, D, F> RateLimit<S, D, F> {
    pub(crate) fn new(inner: S, shared: Arc<RateLimitShared<D>>) -> Self {
        Self {
            inner,
            shared,
            body_kind: PhantomData,
        }
    }
}

impl<S, D, F, B, R> Service<Request<B>> for RateLimit<S, D, F>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: Body,
    D: Decider,
    F: BodyKind<R, Pending<D>>,
{
    type Response = Response<F::Body>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, D, F>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.call_from(peer(request.extensions()), request)
    }
}

impl<S, D: Decider, F> RateLimit<S, D, F> {
    /// Calls the service, once it is ready, with a request from this peer: for servers that know
    /// the peer and need not insert it into each request's extensions. The extensions are not
    /// searched: `None` means that the peer is unknown.
    ///
    /// Inner layers still search the extensions. If one of them counts by address, insert
    /// [`PeerAddr`](crate::identity::PeerAddr) as well.
    #[inline]
    pub fn call_from<B>(
        &mut self,
        peer: Option<IpAddr>,
        request: Request<B>,
    ) -> ResponseFuture<S, B, D, F>
    where
        S: Service<Request<B>> + Clone,
    {
        self.shared
            .call(&mut self.inner, self.shared.prehash(peer), peer, request)
    }
}

/// The next step of a request. Rare variants are boxed.
pub(super) enum NextStep<D: Decider> {
    /// Call the inner service.
    CallInner,
    Deny(Box<Response<Bytes>>),
    Delay(Duration, WaitGuard),
    /// Wait for the decision on a request of this client.
    AwaitDecision(DecisionFuture<D::PendingDecision>, Client),
}

/// Takes the service that is ready for this request, and leaves a clone for the next one.
fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    std::mem::replace(service, clone)
}

impl<D: Decider> RequestState<D> {
    /// Decides on a request, unless it has a decision already.
    #[inline(never)]
    fn decide<B>(&mut self, request: &mut Request<B>, peer: Option<IpAddr>) -> NextStep<D> {
        let RateLimitShared { decider, options } = &*self.shared;
        let client = options.identity.client(peer, request.headers());
        if self.pending.is_none() {
            let head = Head::of(request, client);
            if options.skips(&head) {
                return NextStep::CallInner;
            }
            if let Err(error) = decider.validate(&head, options.strict) {
                return NextStep::Deny(Box::new(self.shared.bad_request(&error)));
            }
            if is_preflight(&head) {
                if options.preflights.are_exempt() {
                    return NextStep::CallInner;
                }
                if let Some(limit) = options.preflights.limit() {
                    return match self.shared.decide_preflight(limit, &head) {
                        Some(response) => NextStep::Deny(Box::new(response)),
                        None => NextStep::CallInner,
                    };
                }
            }
            if let Some(future) = decider.decide(&head, options.cost(&head), &mut self.pending) {
                return NextStep::AwaitDecision(future, client);
            }
        }
        self.after_decision(request, client)
    }

    /// The next step for a request of `client` after the decision.
    #[inline]
    pub(super) fn after_decision<B>(
        &mut self,
        request: &mut Request<B>,
        client: Client,
    ) -> NextStep<D> {
        let RateLimitShared { decider, options } = &*self.shared;
        match &self.pending {
            Some(pending)
                if decider.is_allowed_now(pending)
                    && !options.has_observer()
                    && !decider.is_observed() =>
            {
                NextStep::CallInner
            }
            _ => self.after_decision_slow(request, client),
        }
    }

    /// The same for requests that are denied, delayed or observed.
    #[inline(never)]
    fn after_decision_slow<B>(&mut self, request: &mut Request<B>, client: Client) -> NextStep<D> {
        let RateLimitShared { decider, options } = &*self.shared;
        let Some(pending) = &self.pending else {
            return NextStep::CallInner;
        };
        let head = Head::of(request, client);
        decider.observe(&head, pending);
        if !decider.is_allowed(pending) {
            let response =
                self.shared
                    .deny(&head, decider.denial(pending), Some((decider, pending)));
            // A denied request holds no permit, but its decision may hold memory, and the future
            // may live on.
            self.pending = None;
            return NextStep::Deny(Box::new(response));
        }
        let delay = decider.delay(pending);
        let wait_guard =
            (!delay.is_zero()).then(|| options.delay_stats.start_wait(options.max_waiting, delay));
        if let Some(None) = wait_guard {
            let response = self
                .shared
                .deny::<D>(&head, Denial::too_many_waiting(delay), None);
            if let Some(pending) = self.pending.take() {
                decider.cancel(pending);
            }
            return NextStep::Deny(Box::new(response));
        }
        if let Some(hook) = &options.hook {
            hook(&head, decider.shadow_denial(pending).as_ref());
        }
        if options.extension
            && let Some(status) = decider.status(pending)
        {
            request.extensions_mut().insert(status);
        }
        wait_guard
            .flatten()
            .map_or(NextStep::CallInner, |wait_guard| {
                NextStep::Delay(delay, wait_guard)
            })
    }
}

impl<D: Decider> RateLimitShared<D> {
    /// The hashed key of this peer's requests, if nothing else of a request matters.
    #[inline]
    pub(super) fn prehash(&self, peer: Option<IpAddr>) -> Option<D::PrehashedKey> {
        let Self { decider, options } = self;
        if options.needs_request_head() {
            None
        } else {
            decider.prehash(options.identity.untrusted_peer(peer?)?)
        }
    }

    /// Calls the inner service with a request of a peer with this key.
    #[inline]
    pub(super) fn call<S, B, F>(
        self: &Arc<Self>,
        inner: &mut S,
        key: Option<D::PrehashedKey>,
        peer: Option<IpAddr>,
        request: Request<B>,
    ) -> ResponseFuture<S, B, D, F>
    where
        S: Service<Request<B>> + Clone,
    {
        let decided = match self.decide_fast(key, &request) {
            Ok(pending) => {
                // In this order everything but the pointer is built in place: the rest is slow to
                // move.
                let shared = Arc::clone(self);
                let future = inner.call(request);
                return ResponseFuture::running(
                    future,
                    RequestState {
                        shared,
                        pending: Some(pending),
                    },
                );
            }
            Err(decided) => decided,
        };
        self.call_slow(inner, peer, request, decided)
    }

    /// The slow path. A decision that was made already is not made again.
    #[inline(never)]
    fn call_slow<S, B, F>(
        self: &Arc<Self>,
        inner: &mut S,
        peer: Option<IpAddr>,
        mut request: Request<B>,
        decided: Option<D::PendingDecision>,
    ) -> ResponseFuture<S, B, D, F>
    where
        S: Service<Request<B>> + Clone,
    {
        let mut request_state = RequestState {
            shared: Arc::clone(self),
            pending: decided,
        };
        match request_state.decide(&mut request, peer) {
            NextStep::CallInner => ResponseFuture::running(inner.call(request), request_state),
            NextStep::Deny(response) => ResponseFuture::denied(response, request_state),
            NextStep::Delay(delay, wait_guard) => ResponseFuture::delayed(
                delay,
                take_ready(inner),
                request,
                request_state,
                wait_guard,
            ),
            NextStep::AwaitDecision(future, client) => {
                ResponseFuture::deciding(future, client, take_ready(inner), request, request_state)
            }
        }
    }

    /// The fast path, taken by most requests: the decision on a request that is allowed with
    /// nothing else to do for it. Otherwise `Err`, with the decision if it was made.
    // Everything that sees the request must be inlined: otherwise it would have to be moved before
    // it goes on.
    #[inline(always)]
    fn decide_fast<B>(
        &self,
        key: Option<D::PrehashedKey>,
        request: &Request<B>,
    ) -> Result<D::PendingDecision, Option<D::PendingDecision>> {
        let Self { decider, options } = self;
        let Some(key) = key else { return Err(None) };
        // OPTIONS may be a preflight request, which has a limit of its own. A forwarding header
        // from an untrusted peer is ignored with a warning.
        if request.method() == Method::OPTIONS
            || options
                .identity
                .forwarding_header(request.headers())
                .is_some()
        {
            return Err(None);
        }
        decider.decide_prehashed(key)
    }

    /// Decides on a preflight request by the limit for these: the response if it is denied.
    #[inline(never)]
    fn decide_preflight(&self, limit: &LimitDecider, head: &Head<'_>) -> Option<Response<Bytes>> {
        let mut pending = None;
        // A limit in this process decides at once.
        let _ = limit.decide(head, 1, &mut pending);
        let pending = pending?;
        // Preflight requests never wait, even if their limit is paced.
        let is_allowed = limit.is_allowed_now(&pending);
        self.options.preflights.stats.count(is_allowed);
        if is_allowed {
            if let Some(hook) = &self.options.hook {
                hook(head, None);
            }
            return None;
        }
        Some(self.deny(head, limit.denial(&pending), Some((limit, &pending))))
    }

    /// The response to a request that the service may read differently.
    #[inline(never)]
    fn bad_request(&self, error: &RequestError) -> Response<Bytes> {
        let mut response = response::bad_request(error);
        response.extensions_mut().insert(NotReached);
        response
    }

    /// The response to a denied request, with rate limit headers if a limit denied it.
    #[inline(never)]
    fn deny<L: Decider>(
        &self,
        head: &Head<'_>,
        mut denial: Denial<'_>,
        decided: Option<(&L, &L::PendingDecision)>,
    ) -> Response<Bytes> {
        let Self { options, .. } = self;
        if let Some((decider, pending)) = decided {
            // Retry-After of shed requests is spread already.
            if denial.jitter == Jitter::default() {
                denial.jitter = Jitter {
                    percent: options.jitter,
                    hash: decider.key_hash(pending),
                };
            }
        }
        if let Some(hook) = &options.hook {
            hook(head, Some(&denial));
        }
        let retry_after = denial.seconds();
        let format = if options.plain_http {
            DenialFormat::from_accept(head.headers)
        } else {
            DenialFormat::from_headers(head.headers)
        };
        let mut response = match &options.denied {
            None => response::denial_response(format, &denial),
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
        if let Some((decider, pending)) = decided {
            decider.write_headers(
                pending,
                options.dialects,
                response.headers_mut(),
                retry_after,
            );
        }
        if options.expose {
            response::expose_headers(response.headers_mut(), options.dialects);
        }
        // An outer limit refunds what it counted.
        response.extensions_mut().insert(NotReached);
        response
    }
}

impl<S: Clone, D, F> Clone for RateLimit<S, D, F> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.shared))
    }
}

impl<S: fmt::Debug, D, F> fmt::Debug for RateLimit<S, D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
