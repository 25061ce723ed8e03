//! Shedding by priority, as a layer.

use super::Shed;
use crate::deadline::{Deadline, grpc_timeout};
use crate::head::Head;
use crate::identity::{self, Client, Identity};
use crate::key::Key;
use http::{HeaderName, Request};
use ratekeeper::{Clock, Timestamp, adaptive::Class, adaptive::Shedder, clock::SystemClock};
use ratekeeper_policy::request::request_start;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tower_layer::Layer;

/// Sheds the least important requests first when there is too much, and drops what comes after its
/// deadline. See the [module](super).
///
/// How important a request is, the first of these that says something: a [`Class`] among its
/// extensions; the [function](Self::class); the [header](Self::header), believed from trusted
/// proxies only; the [default](Self::default_class), `critical`.
pub struct ShedLayer<C: Clock = SystemClock> {
    pub(super) shared: Arc<Shared<C>>,
}

type HeadFn<T> = Arc<dyn Fn(&Head<'_>) -> T + Send + Sync>;

#[derive(Clone)]
pub(super) struct Shared<C: Clock> {
    pub(super) shedder: Shedder<C>,
    pub(super) extension: bool,
    class: Option<HeadFn<Option<Class>>>,
    header: Option<HeaderName>,
    default_class: Class,
    identity: Identity,
    key: Option<(Key, RandomState)>,
    start: Option<HeaderName>,
    timeout: Option<Duration>,
    clock: C,
    /// Spreads those who come back.
    denials: Arc<AtomicU64>,
}

impl ShedLayer {
    /// With a shedder, which tells how much is shed and is told of the pressure.
    pub fn new(shedder: Shedder) -> Self {
        Self::with_clock(shedder, SystemClock)
    }
}

impl Default for ShedLayer {
    /// With a shedder of its own, which learns of the pressure by the gates inside.
    fn default() -> Self {
        Self::new(Shedder::new())
    }
}

impl<C: Clock> ShedLayer<C> {
    /// The same on a clock of your choice, by which deadlines pass.
    pub fn with_clock(shedder: Shedder<C>, clock: C) -> Self {
        let shared = Shared {
            shedder,
            extension: false,
            class: None,
            header: None,
            default_class: Class::default(),
            identity: Identity::direct(),
            key: None,
            start: None,
            timeout: None,
            clock,
            denials: Arc::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Shared<C>)) -> Self {
        change(Arc::make_mut(&mut self.shared));
        self
    }

    /// How important a request is, by what you see of it; none if you do not know.
    #[must_use]
    pub fn class(self, class: impl Fn(&Head<'_>) -> Option<Class> + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.class = Some(Arc::new(class)))
    }

    /// The header in which a [trusted](Self::identity) proxy says it, by the name of the class.
    /// From anybody else, or with anything else in it, it says nothing.
    #[must_use]
    pub fn header(self, name: HeaderName) -> Self {
        self.with(|shared| shared.header = Some(name))
    }

    /// What a request is of which nothing says how important it is; `critical` unless said.
    #[must_use]
    pub fn default_class(self, class: Class) -> Self {
        self.with(|shared| shared.default_class = class)
    }

    /// Who is believed: nobody unless said.
    #[must_use]
    pub fn identity(self, identity: Identity) -> Self {
        self.with(|shared| shared.identity = identity)
    }

    /// Of the class at the edge, those with the same key fare alike: some users are served well
    /// rather than all of them badly. Without it every so-manieth request passes.
    #[must_use]
    pub fn alike(self, key: Key) -> Self {
        self.with(|shared| shared.key = Some((key, RandomState::new())))
    }

    /// The header in which a [trusted](Self::identity) proxy says when the request began
    /// (`X-Request-Start`: `t=` and seconds, or a whole number since 1970). What it waited before
    /// it came counts against its deadline.
    #[must_use]
    pub fn start_header(self, name: HeaderName) -> Self {
        self.with(|shared| shared.start = Some(name))
    }

    /// How long after its beginning anybody waits for an answer. A request may say less by a
    /// [`Deadline`] among its extensions or by `grpc-timeout`.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        self.with(|shared| shared.timeout = Some(timeout))
    }

    /// Leaves the [`Class`], and the [`Deadline`] if there is one, among the extensions of each
    /// request that passes.
    #[must_use]
    pub fn extension(self) -> Self {
        self.with(|shared| shared.extension = true)
    }

    /// The shedder, to tell it of the pressure and to look at it.
    pub fn shedder(&self) -> &Shedder<C> {
        &self.shared.shedder
    }
}

impl<C: Clock> Shared<C> {
    /// Who sent a request, where anybody may ask.
    pub(super) fn client_of<B>(&self, request: &Request<B>) -> Client {
        match self.class.is_some() || self.key.is_some() {
            true => self
                .identity
                .client(identity::peer(request.extensions()), request.headers()),
            false => Client::unknown(),
        }
    }

    fn trusts(&self, head: &Head<'_>) -> bool {
        identity::peer(head.extensions).is_some_and(|peer| self.identity.trusts(peer))
    }

    pub(super) fn class_of(&self, head: &Head<'_>) -> Class {
        let of_header = || {
            let value = head.headers.get(self.header.as_ref()?)?;
            value
                .to_str()
                .ok()?
                .trim()
                .parse()
                .ok()
                .filter(|_| self.trusts(head))
        };
        let known = head.extensions.get::<Class>().copied();
        let known = known.or_else(|| self.class.as_ref().and_then(|class| class(head)));
        known.or_else(of_header).unwrap_or(self.default_class)
    }

    /// Until when somebody waits, and what time it is; none if nobody says.
    pub(super) fn deadline_of(&self, head: &Head<'_>) -> Option<(Deadline, Timestamp)> {
        let set_by_layer = head.extensions.get::<Deadline>().map(|deadline| deadline.0);
        let timeout = [self.timeout, grpc_timeout(head.headers)]
            .into_iter()
            .flatten()
            .min();
        if set_by_layer.is_none() && timeout.is_none() {
            return None;
        }
        let now = self.clock.now();
        let began = || {
            let value = head.headers.get(self.start.as_ref()?)?;
            // Clocks of machines differ: nothing began in the future.
            request_start(value.as_bytes())
                .filter(|_| self.trusts(head))
                .map(|start| start.min(now))
        };
        let ends = timeout.map(|timeout| began().unwrap_or(now) + timeout);
        [set_by_layer, ends]
            .into_iter()
            .flatten()
            .min()
            .map(|deadline| (Deadline(deadline), now))
    }

    pub(super) fn allows(&self, class: Class, head: &Head<'_>) -> bool {
        match &self.key {
            None => self.shedder.admit(class),
            Some((key, hasher)) => {
                const IPV6_PREFIX: u8 = 56;
                key.with_bytes(head, IPV6_PREFIX, |key| {
                    self.shedder.admit_key(class, hasher.hash_one(key))
                })
            }
        }
    }

    /// A number that is spread over all there are.
    pub(super) fn spread(&self) -> u64 {
        self.denials
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl<S, C: Clock> Layer<S> for ShedLayer<C> {
    type Service = Shed<S, C>;

    fn layer(&self, inner: S) -> Shed<S, C> {
        Shed {
            inner,
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<C: Clock> Clone for ShedLayer<C> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<C: Clock> fmt::Debug for ShedLayer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShedLayer")
            .field("shedder", &self.shared.shedder)
            .finish_non_exhaustive()
    }
}
