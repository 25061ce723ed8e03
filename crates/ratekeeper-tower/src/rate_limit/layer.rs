//! The layer: what a web developer writes.

use super::body_kind::EitherBody;
use super::options::Options;
use super::{DelayStats, PreflightStats, RateLimit, Shared};
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

/// Limits what reaches a service.
///
/// ```
/// use ratekeeper::Limit;
/// use ratekeeper_tower::RateLimitLayer;
///
/// let layer = RateLimitLayer::per_ip(Limit::per_minute(100).burst(20));
/// ```
///
/// All clones of a layer, and all services made by it, share its buckets: give the same layer to
/// several routes, and they share them; give each its own, and they do not.
pub struct RateLimitLayer<D, F = EitherBody> {
    /// In one place: axum clones a layer and makes a service of it for each request, unless it is
    /// told the state first.
    shared: Arc<Shared<D>>,
    body_kind: PhantomData<fn() -> F>,
}

/// # One limit
impl RateLimitLayer<LimitDecider> {
    /// So much for each client address. Behind a proxy say whom you trust:
    /// [`identity`](Self::identity).
    pub fn per_ip(limit: Limit) -> Self {
        Self::by(Key::ip(), limit)
    }

    /// So much for each key.
    pub fn by(key: Key, limit: Limit) -> Self {
        Self::of(LimitDecider::new(key, limit))
    }

    /// So much for all together.
    pub fn global(limit: Limit) -> Self {
        Self::by(Key::all(), limit)
    }
}

impl<C: Clock> RateLimitLayer<LimitDecider<C>> {
    /// Over a table of yours: with another size, another clock, or shared with something else.
    pub fn keyed(keyed: Keyed<[u8], C>, key: Key) -> Self {
        Self::of(LimitDecider::on(keyed, key))
    }
}

impl<C: Clock, F> RateLimitLayer<LimitDecider<C>, F> {
    /// What the limit is called in answers; `default` unless said.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        self.with_decider(|decider| decider.name = name.into())
    }

    /// Which requests count. Those that do not get it back when they end; one whose client hangs up
    /// counters. So does, where a limit [delays](Self::delay), one that had to wait: its slot is gone
    /// however it ends.
    #[must_use]
    pub fn count(self, count: Count) -> Self {
        self.with_decider(|decider| decider.count = count)
    }

    /// Nobody is turned away: to watch a limit before it bites.
    #[must_use]
    pub fn shadow(self) -> Self {
        self.with_decider(|decider| decider.action = Action::Shadow)
    }

    /// Who is over the limit delay_stats, up to so long, instead of being turned away; who hangs up
    /// meanwhile gives its place back. Windows and logs cannot be waited for: they go on turning
    /// away.
    ///
    /// Whoever has waited has used its turn: that is not given back, whatever
    /// [`count`](Self::count) says.
    #[must_use]
    pub fn delay(self, longest: Duration) -> Self {
        self.with_decider(|decider| decider.action = Action::Delay { max: longest })
    }

    /// The status of who is turned away; 429 unless said. A limit for all together answers 503: it
    /// is not the caller who asked too much.
    #[must_use]
    pub fn status(self, status: DenialStatus) -> Self {
        self.with_decider(|decider| decider.status = status)
    }

    /// How many bits of an IPv6 address name a client; 56 unless said.
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        self.with_decider(|decider| decider.ipv6_prefix = bits.min(128))
    }
}

/// # Policies
impl<S: Store + 'static> RateLimitLayer<PolicyDecider<S>> {
    /// By the policies of an engine: which limits apply follows from the request. On a store of
    /// this process nothing is waited for; on one that a fleet shares a request delay_stats for its
    /// answer.
    pub fn new(engine: Engine<S>) -> Self {
        Self::of(PolicyDecider::new(engine))
    }
}

impl<S: Store + 'static, F> RateLimitLayer<PolicyDecider<S>, F> {
    /// The header that names the user, believed on connections from these peers only: those that
    /// set it, and replace what clients send. On all others it is ignored. This is separate from
    /// [`identity`](Self::identity): a proxy that forwards addresses does not necessarily remove
    /// such a header.
    ///
    /// The peer is that of the connection ([`PeerAddr`](crate::identity::PeerAddr)), not the client that a
    /// proxy names.
    #[must_use]
    pub fn user_header(self, name: HeaderName, from: impl Into<TrustedPeers>) -> Self {
        let user = Some((name, from.into()));
        self.with_decider(|decider| decider.user = user)
    }

    /// The header that has the API key.
    #[must_use]
    pub fn api_key_header(self, name: HeaderName) -> Self {
        self.with_decider(|decider| decider.api_key = Some(name))
    }

    /// The header in which a [trusted](Self::identity) proxy says how important a request is, by
    /// the name of its [class](ratekeeper::adaptive::Class), where the policies
    /// [shed](ratekeeper_policy::Policies::shed). From anybody else it says nothing.
    #[must_use]
    pub fn class_header(self, name: HeaderName) -> Self {
        self.with_decider(|decider| decider.class = Some(name))
    }

    /// The header in which a [trusted](Self::identity) proxy says when a request began, where the
    /// policies [go by it](ratekeeper_policy::overload::Shed::patience). From anybody else it says nothing.
    #[must_use]
    pub fn start_header(self, name: HeaderName) -> Self {
        self.with_decider(|decider| decider.start = Some(name))
    }

    /// Nobody delay_stats in the [lines](ratekeeper_policy::overload::AdaptiveLimit::queue) of adaptive limits: for
    /// services that only answer whether a request may pass, and hold no place for it.
    #[must_use]
    pub fn no_wait(self) -> Self {
        self.with_decider(|decider| decider.no_wait = true)
    }

    /// Adds to the subject of each request what only you know, from extensions for example.
    #[must_use]
    pub fn attributes(
        self,
        add: impl for<'a> Fn(&Head<'a>, Subject<'a>) -> Subject<'a> + Send + Sync + 'static,
    ) -> Self {
        self.with_decider(|decider| decider.attributes = Some(Arc::new(add)))
    }

    /// Called with every verdict of the policies, before the request goes on or is answered: for
    /// logs.
    #[must_use]
    pub fn on_decision(
        self,
        hook: impl Fn(&Head<'_>, &PolicyVerdict) + Send + Sync + 'static,
    ) -> Self {
        self.with_decider(|decider| decider.on_decision = Some(Arc::new(hook)))
    }
}

impl<D: Decider> RateLimitLayer<D> {
    fn of(decider: D) -> Self {
        Self {
            shared: Arc::new(Shared {
                decider,
                options: Options::default(),
            }),
            body_kind: PhantomData,
        }
    }
}

/// # Options
impl<D: Decider, F> RateLimitLayer<D, F> {
    /// For axum: responses have axum's own body, as the routes behind the layer have, so that axum
    /// need not put it into a box.
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
    /// Without it everything works as well, for an allocation more a request.
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

    /// Who is believed about the client's address; nobody unless said.
    #[must_use]
    pub fn identity(self, identity: Identity) -> Self {
        self.with(|options| options.identity = identity)
    }

    /// Which headers tell about the limits; `X-RateLimit-…` unless said. Retry-After is always
    /// there.
    #[must_use]
    pub fn headers(self, dialects: impl Into<Dialects>) -> Self {
        self.with(|options| options.dialects = dialects.into())
    }

    /// Lists the headers in Access-Control-Expose-Headers, so that a browser shows them to scripts.
    #[must_use]
    pub fn expose_headers(self) -> Self {
        self.with(|options| options.expose = true)
    }

    /// Requests that pass uncounted and unchecked.
    #[must_use]
    pub fn skip(self, skip: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.with(|options| options.skip.push(Arc::new(skip)))
    }

    /// Passes what is for one of these paths uncounted: health checks.
    #[must_use]
    pub fn skip_paths<P: Into<String>>(self, paths: impl IntoIterator<Item = P>) -> Self {
        let paths: Vec<String> = paths.into_iter().map(Into::into).collect();
        self.skip(move |head| paths.iter().any(|path| path == head.uri.path()))
    }

    /// How CORS preflight requests, which carry no credentials, are request_state: by default a limit of
    /// their own, 600 a minute and up to 100 at once for each client address, whatever this layer
    /// limits otherwise. Its counters are those of this process.
    ///
    /// A layer for CORS outside of this one answers them itself; then none comes here.
    #[must_use]
    pub fn preflight(self, preflight: Preflight) -> Self {
        self.with(|options| options.preflights.set_mode(preflight))
    }

    /// Counters what becomes of preflight requests with `stats`, to be read at any time.
    #[must_use]
    pub fn preflight_stats(self, stats: &PreflightStats) -> Self {
        self.with(|options| options.preflights.stats = stats.clone())
    }

    /// Checks path and host of every request, even if no policy looks at them: for gateways, whose
    /// policies change while they run.
    ///
    /// What is refused, with the status 400, is what a service may read differently than the
    /// policies did: a path with `.` or `..`, also escaped; a host with user information; a target
    /// and a header Host that disagree. Where policies look at path or host they are checked
    /// anyway, as are headers that requests are request_state or matched by: two different values of one
    /// are refused.
    #[must_use]
    pub fn strict(self) -> Self {
        self.with(|options| options.strict = true)
    }

    /// Denials of calls of gRPC have the status of HTTP, too, and not 200 with a status of gRPC in
    /// a header: for services that only answer another proxy whether a request may pass, which
    /// would take 200 for yes.
    #[must_use]
    pub fn http_status(self) -> Self {
        self.with(|options| options.plain_http = true)
    }

    /// What a request costs; 1 unless said.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Head<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|options| options.cost = Some(Arc::new(cost)))
    }

    /// The response of who is turned away. Retry-After and the headers of the limits are added to
    /// it.
    #[must_use]
    pub fn denied(
        self,
        response: impl Fn(&Denial<'_>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.with(|options| options.denied = Some(Arc::new(response)))
    }

    /// Called with every verdict: none if the request passes, unless a limit that only watches
    /// would have turned it away ([`Denial::is_shadow`]).
    #[must_use]
    pub fn on_verdict(
        self,
        hook: impl Fn(&Head<'_>, Option<&Denial<'_>>) + Send + Sync + 'static,
    ) -> Self {
        self.with(|options| options.hook = Some(Arc::new(hook)))
    }

    /// Leaves a [`RateLimitStatus`](crate::decider::RateLimitStatus) among the extensions of each request
    /// that is request_state, for handlers.
    #[must_use]
    pub fn extension(self) -> Self {
        self.with(|options| options.extension = true)
    }

    /// Adds up to so many percent to Retry-After, the same for the same key, so that not all come
    /// back at once.
    #[must_use]
    pub fn jitter(self, percent: u8) -> Self {
        self.with(|options| options.jitter = percent)
    }

    /// How many requests may wait at the same time where a limit delays; 1,024 unless said. The
    /// others are turned away.
    #[must_use]
    pub fn max_waiting(self, many: usize) -> Self {
        self.with(|options| options.max_waiting = many)
    }

    /// Counters those who wait with `delay_stats`, to be read at any time.
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
