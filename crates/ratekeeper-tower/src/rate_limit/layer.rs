//! `RateLimitLayer` and its options.

use super::body_kind::EitherBody;
use super::options::Options;
use super::{DelayStats, PreflightStats, RateLimit, RateLimitShared};
use crate::decider::{Decider, LimitDecider, PolicyDecider};
use crate::head::Head;
use crate::identity::Identity;
use crate::key::Key;
use crate::response::{Denial, Dialects};
use bytes::Bytes;
use http::{HeaderName, Response};
use ratekeeper::{Clock, Keyed, Limit, Store};
use ratekeeper_policy::{
    Action, Count, Engine, PolicyVerdict, Subject, policy::DenialStatus, request::Preflight,
    request::TrustedPeers,
};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use tower_layer::Layer;

/// Limits the rate of requests to a service.
///
/// ```
/// use ratekeeper::Limit;
/// use ratekeeper_tower::RateLimitLayer;
///
/// let layer = RateLimitLayer::per_ip(Limit::per_minute(100).burst(20));
/// ```
///
/// All clones of a layer, and all services made by it, share its buckets: give the same layer to
/// several routes to share them, or each route its own layer to keep them separate.
pub struct RateLimitLayer<D, F = EitherBody> {
    /// One allocation: axum clones a layer and makes a service of it for each request, unless the
    /// router's state was provided before.
    shared: Arc<RateLimitShared<D>>,
    body_kind: PhantomData<fn() -> F>,
}

/// # One limit
impl RateLimitLayer<LimitDecider> {
    /// A limit for each client address. Behind a proxy, also set [`identity`](Self::identity).
    pub fn per_ip(limit: Limit) -> Self {
        Self::by(Key::ip(), limit)
    }

    /// A limit for each key.
    pub fn by(key: Key, limit: Limit) -> Self {
        Self::from_decider(LimitDecider::new(key, limit))
    }

    /// One limit for all requests together.
    pub fn global(limit: Limit) -> Self {
        Self::by(Key::all(), limit)
    }
}

impl<C: Clock> RateLimitLayer<LimitDecider<C>> {
    /// A limit on an existing table: with another size, another clock, or shared with other code.
    pub fn keyed(keyed: Keyed<[u8], C>, key: Key) -> Self {
        Self::from_decider(LimitDecider::with_keyed(keyed, key))
    }
}

impl<C: Clock, F> RateLimitLayer<LimitDecider<C>, F> {
    /// Sets the name of the limit in responses; `default` unless set.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        self.with_decider(|decider| decider.name = name.into())
    }

    /// Sets which requests count. The others are refunded when they end. A request whose client
    /// hangs up counts, and so does one that had to wait where a limit [delays](Self::delay): its
    /// slot is used however it ends.
    #[must_use]
    pub fn count(self, count: Count) -> Self {
        self.with_decider(|decider| decider.count = count)
    }

    /// Denies nothing: for watching a limit before it is enforced.
    #[must_use]
    pub fn shadow(self) -> Self {
        self.with_decider(|decider| decider.action = Action::Shadow)
    }

    /// Delays requests over the limit, up to this long, instead of denying them. A client that
    /// hangs up meanwhile frees its slot. Windows and logs cannot delay: they still deny.
    ///
    /// A request that has waited has used its slot: it is not refunded, even if
    /// [`count`](Self::count) excludes it.
    #[must_use]
    pub fn delay(self, max_wait: Duration) -> Self {
        self.with_decider(|decider| decider.action = Action::Delay { max: max_wait })
    }

    /// Sets the status of denials; 429 unless set. A limit for all clients together should answer
    /// 503, because no single caller is at fault.
    #[must_use]
    pub fn status(self, status: DenialStatus) -> Self {
        self.with_decider(|decider| decider.status = status)
    }

    /// Sets how many bits of an IPv6 address identify a client; 56 unless set.
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        self.with_decider(|decider| decider.ipv6_prefix = bits.min(128))
    }
}

/// # Policies
impl<S: Store + 'static> RateLimitLayer<PolicyDecider<S>> {
    /// Limits by the policies of an engine: which limits apply depends on the request. With a store
    /// in this process a decision is immediate; with a shared store a request waits for the store's
    /// answer.
    pub fn new(engine: Engine<S>) -> Self {
        Self::from_decider(PolicyDecider::new(engine))
    }
}

impl<S: Store + 'static, F> RateLimitLayer<PolicyDecider<S>, F> {
    /// Sets the header that names the user. It is trusted on connections from these peers only:
    /// those that set it and replace what clients send. On all other connections it is ignored.
    /// This is separate from [`identity`](Self::identity): a proxy that forwards addresses does not
    /// necessarily remove such a header.
    ///
    /// The peer is that of the connection ([`PeerAddr`](crate::identity::PeerAddr)), not the client
    /// that a proxy names.
    #[must_use]
    pub fn user_header(self, name: HeaderName, from: impl Into<TrustedPeers>) -> Self {
        let user = Some((name, from.into()));
        self.with_decider(|decider| decider.user = user)
    }

    /// Sets the header with the API key.
    #[must_use]
    pub fn api_key_header(self, name: HeaderName) -> Self {
        self.with_decider(|decider| decider.api_key = Some(name))
    }

    /// Sets the header in which a [trusted](Self::identity) proxy names the
    /// [class](ratekeeper::adaptive::Class) of a request, for policies that
    /// [shed](ratekeeper_policy::Policies::shed). From any other peer it is ignored.
    #[must_use]
    pub fn class_header(self, name: HeaderName) -> Self {
        self.with_decider(|decider| decider.class = Some(name))
    }

    /// Sets the header in which a [trusted](Self::identity) proxy states when a request began, for
    /// policies with a [deadline](ratekeeper_policy::overload::Shed::patience). From any other peer
    /// it is ignored.
    #[must_use]
    pub fn start_header(self, name: HeaderName) -> Self {
        self.with_decider(|decider| decider.start = Some(name))
    }

    /// Requests never wait in the [queues](ratekeeper_policy::overload::AdaptiveLimit::queue) of
    /// adaptive limits: for services that only answer whether a request is allowed, and hold no
    /// permit for it.
    #[must_use]
    pub fn no_wait(self) -> Self {
        self.with_decider(|decider| decider.no_wait = true)
    }

    /// Adds attributes to the subject of each request, from its extensions for example.
    #[must_use]
    pub fn attributes(
        self,
        add: impl for<'a> Fn(&Head<'a>, Subject<'a>) -> Subject<'a> + Send + Sync + 'static,
    ) -> Self {
        self.with_decider(|decider| decider.attributes = Some(Arc::new(add)))
    }

    /// Sets a hook that is called with every verdict of the policies, before the request goes on or
    /// is answered: for logs.
    #[must_use]
    pub fn on_decision(
        self,
        hook: impl Fn(&Head<'_>, &PolicyVerdict) + Send + Sync + 'static,
    ) -> Self {
        self.with_decider(|decider| decider.on_decision = Some(Arc::new(hook)))
    }
}

impl<D: Decider> RateLimitLayer<D> {
    fn from_decider(decider: D) -> Self {
        Self {
            shared: Arc::new(RateLimitShared {
                decider,
                options: Options::default(),
            }),
            body_kind: PhantomData,
        }
    }
}

/// # Options
impl<D: Decider, F> RateLimitLayer<D, F> {
    /// For axum: responses have axum's own body type, as the routes behind the layer have, so that
    /// axum need not box it.
    ///
    /// ```
    /// use axum::{Router, routing::get};
    /// use ratekeeper::Limit;
    /// use ratekeeper_tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::per_ip(Limit::per_minute(100)).for_axum();
    /// let app: Router = Router::new().route("/", get(async || "Hello, World!")).layer(layer);
    /// ```
    ///
    /// Without it the layer works as well, with one more allocation for each request.
    #[cfg(feature = "axum")]
    #[must_use]
    pub fn for_axum(self) -> RateLimitLayer<D, super::AxumBody> {
        RateLimitLayer {
            shared: self.shared,
            body_kind: PhantomData,
        }
    }

    fn with_decider(mut self, change: impl FnOnce(&mut D)) -> Self {
        change(&mut Arc::make_mut(&mut self.shared).decider);
        self
    }

    fn with(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut Arc::make_mut(&mut self.shared).options);
        self
    }

    /// Sets how the client's address is found; the peer of the connection unless set.
    #[must_use]
    pub fn identity(self, identity: Identity) -> Self {
        self.with(|options| options.identity = identity)
    }

    /// Sets the rate limit headers of responses; `X-RateLimit-…` unless set. Denials always have
    /// Retry-After.
    #[must_use]
    pub fn headers(self, dialects: impl Into<Dialects>) -> Self {
        self.with(|options| options.dialects = dialects.into())
    }

    /// Lists the rate limit headers in Access-Control-Expose-Headers, so that scripts in browsers
    /// can read them.
    #[must_use]
    pub fn expose_headers(self) -> Self {
        self.with(|options| options.expose = true)
    }

    /// Skips requests: they are neither counted nor validated.
    #[must_use]
    pub fn skip(self, skip: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.with(|options| options.skip.push(Arc::new(skip)))
    }

    /// Skips requests for these paths, such as health checks.
    #[must_use]
    pub fn skip_paths<P: Into<String>>(self, paths: impl IntoIterator<Item = P>) -> Self {
        let paths: Vec<String> = paths.into_iter().map(Into::into).collect();
        self.skip(move |head| paths.iter().any(|path| path == head.uri.path()))
    }

    /// Sets how CORS preflight requests, which carry no credentials, are counted. By default they
    /// have a limit of their own: 600 a minute with a burst of 100 for each client address,
    /// whatever this layer limits otherwise, counted in this process.
    ///
    /// A CORS layer outside of this one answers preflight requests itself; then none arrives here.
    #[must_use]
    pub fn preflight(self, preflight: Preflight) -> Self {
        self.with(|options| options.preflights.set_mode(preflight))
    }

    /// Counts allowed and denied preflight requests in `stats`, which can be read at any time.
    #[must_use]
    pub fn preflight_stats(self, stats: &PreflightStats) -> Self {
        self.with(|options| options.preflights.stats = stats.clone())
    }

    /// Validates path and host of every request, even if no policy uses them: for gateways, whose
    /// policies change while they run.
    ///
    /// Requests that a service may read differently than the policies are answered 400: a path with
    /// `.` or `..`, also escaped; a host with user information; a target and a Host header that
    /// disagree. Where policies use path or host these are validated anyway, as are the headers
    /// that requests are counted or matched by: two different values of one are rejected.
    #[must_use]
    pub fn strict(self) -> Self {
        self.with(|options| options.strict = true)
    }

    /// Denies gRPC calls with an HTTP status too, not with 200 and a gRPC status in a header: for
    /// services that only answer another proxy whether a request is allowed, which would read 200
    /// as allowed.
    #[must_use]
    pub fn http_status(self) -> Self {
        self.with(|options| options.plain_http = true)
    }

    /// Sets the cost of a request; 1 unless set.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Head<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|options| options.cost = Some(Arc::new(cost)))
    }

    /// Sets the response to denied requests. Retry-After and the rate limit headers are added to
    /// it.
    #[must_use]
    pub fn denied(
        self,
        response: impl Fn(&Denial<'_>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.with(|options| options.denied = Some(Arc::new(response)))
    }

    /// Sets a hook that is called with every verdict: `None` if the request is allowed, unless a
    /// limit in shadow mode would have denied it ([`Denial::is_shadow`]).
    #[must_use]
    pub fn on_verdict(
        self,
        hook: impl Fn(&Head<'_>, Option<&Denial<'_>>) + Send + Sync + 'static,
    ) -> Self {
        self.with(|options| options.hook = Some(Arc::new(hook)))
    }

    /// Inserts a [`RateLimitStatus`](crate::decider::RateLimitStatus) into the extensions of each
    /// counted request, for handlers.
    #[must_use]
    pub fn extension(self) -> Self {
        self.with(|options| options.extension = true)
    }

    /// Adds up to this many percent to Retry-After, the same for the same key, so that clients do
    /// not all come back at once.
    #[must_use]
    pub fn jitter(self, percent: u8) -> Self {
        self.with(|options| options.jitter = percent)
    }

    /// Sets how many requests may wait at the same time where a limit delays; 1,024 unless set.
    /// More are denied.
    #[must_use]
    pub fn max_waiting(self, many: usize) -> Self {
        self.with(|options| options.max_waiting = many)
    }

    /// Counts delayed requests in `delay_stats`, which can be read at any time.
    #[must_use]
    pub fn delay_stats(self, delay_stats: &DelayStats) -> Self {
        self.with(|options| options.delay_stats = delay_stats.clone())
    }
}

impl<S, D: Decider, F> Layer<S> for RateLimitLayer<D, F> {
    type Service = RateLimit<S, D, F>;

    fn layer(&self, inner: S) -> RateLimit<S, D, F> {
        RateLimit::new(inner, Arc::clone(&self.shared))
    }
}

impl<D, F> Clone for RateLimitLayer<D, F> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            body_kind: PhantomData,
        }
    }
}

impl<D, F> fmt::Debug for RateLimitLayer<D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").finish_non_exhaustive()
    }
}
