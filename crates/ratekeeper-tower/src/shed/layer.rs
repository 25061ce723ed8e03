//! `ShedLayer` and its options.

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

/// Sheds the least important requests first when the service is overloaded, and drops requests that
/// arrive after their deadline. See the [module](super).
///
/// The class of a request is the first of these that is known: a [`Class`] among its extensions;
/// the result of the [function](Self::class); the [header](Self::header), accepted from trusted
/// proxies only; the [default](Self::default_class), `critical`.
pub struct ShedLayer<C: Clock = SystemClock> {
    pub(super) shared: Arc<ShedShared<C>>,
}

type HeadFn<T> = Arc<dyn Fn(&Head<'_>) -> T + Send + Sync>;

#[derive(Clone)]
pub(super) struct ShedShared<C: Clock> {
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
    /// Counts denials, to spread their Retry-After.
    denials: Arc<AtomicU64>,
}

impl ShedLayer {
    /// With a shedder, which decides how much is shed and to which load is reported.
    pub fn new(shedder: Shedder) -> Self {
        Self::with_clock(shedder, SystemClock)
    }
}

impl Default for ShedLayer {
    /// With a shedder of its own, to which the inner limits report overload.
    fn default() -> Self {
        Self::new(Shedder::new())
    }
}

impl<C: Clock> ShedLayer<C> {
    /// With this clock for deadlines.
    pub fn with_clock(shedder: Shedder<C>, clock: C) -> Self {
        let shared = ShedShared {
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

    fn with(mut self, change: impl FnOnce(&mut ShedShared<C>)) -> Self {
        change(Arc::make_mut(&mut self.shared));
        self
    }

    /// Sets a function that returns the class of a request, or `None` if it does not know.
    #[must_use]
    pub fn class(self, class: impl Fn(&Head<'_>) -> Option<Class> + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.class = Some(Arc::new(class)))
    }

    /// Sets the header in which a [trusted](Self::identity) proxy names the class. From other
    /// peers, or with an unknown name, it is ignored.
    #[must_use]
    pub fn header(self, name: HeaderName) -> Self {
        self.with(|shared| shared.header = Some(name))
    }

    /// Sets the class of requests that have no other; `critical` unless set.
    #[must_use]
    pub fn default_class(self, class: Class) -> Self {
        self.with(|shared| shared.default_class = class)
    }

    /// Sets the trusted proxies; by default there are none.
    #[must_use]
    pub fn identity(self, identity: Identity) -> Self {
        self.with(|shared| shared.identity = identity)
    }

    /// Sheds by key within the class that is shed in part: requests with the same key are allowed
    /// or denied alike, so that some users are served well rather than all of them badly. Without
    /// it a share of the requests is shed evenly.
    #[must_use]
    pub fn alike(self, key: Key) -> Self {
        self.with(|shared| shared.key = Some((key, RandomState::new())))
    }

    /// Sets the header in which a [trusted](Self::identity) proxy states when the request began
    /// (`X-Request-Start`: `t=` and seconds, or a whole number since 1970). The time that the
    /// request waited in the proxy counts towards its deadline.
    #[must_use]
    pub fn start_header(self, name: HeaderName) -> Self {
        self.with(|shared| shared.start = Some(name))
    }

    /// Sets how long after its start a request is worth a response. A request may set less with a
    /// [`Deadline`] among its extensions, or with `grpc-timeout`.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        self.with(|shared| shared.timeout = Some(timeout))
    }

    /// Inserts the [`Class`], and the [`Deadline`] if there is one, into the extensions of each
    /// allowed request.
    #[must_use]
    pub fn extension(self) -> Self {
        self.with(|shared| shared.extension = true)
    }

    /// The shedder, to report load to it and to read its state.
    pub fn shedder(&self) -> &Shedder<C> {
        &self.shared.shedder
    }
}

impl<C: Clock> ShedShared<C> {
    /// The client of a request, if an option needs it.
    pub(super) fn client_of<B>(&self, request: &Request<B>) -> Client {
        if self.class.is_some() || self.key.is_some() {
            self.identity
                .client(identity::peer(request.extensions()), request.headers())
        } else {
            Client::unknown()
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

    /// The deadline of a request and the current time; `None` if it has no deadline.
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
            // Clocks of machines differ: a start in the future counts as now.
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

    /// A number from a sequence that is spread evenly over all `u64`.
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
