//! The layer for calls that go out: what a client developer writes.

use super::host::Host;
use super::hosts::Hosts;
use super::{ClientService, NoRetries, Retries, RetryBudget, Throttle};
use crate::head::Head;
use crate::identity::Client;
use http::Request;
use http::header::HOST;
use ratekeeper::{
    Clock, Keyed, Limiter, Reservation, Timestamp, clock::SystemClock, decision::ReserveError,
};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tower_layer::Layer;

/// Makes a client behave: it waits, or fails, before a limit instead of running into it. See the
/// [module](super).
///
/// All clones of a layer, and all services made by it, share what they know of each host.
pub struct ClientLayer<C: Clock = SystemClock, R = NoRetries> {
    shared: Arc<Shared<C>>,
    retry_policy: R,
}

type KeyFn = Arc<dyn Fn(&Head<'_>) -> String + Send + Sync>;

pub(super) struct Shared<C: Clock> {
    pub(super) hosts: Arc<Hosts>,
    pub(super) clock: C,
    pub(super) max_wait: Duration,
    pub(super) jitter: f64,
    limit: Option<LocalLimit<C>>,
    throttle: Option<f64>,
    budget: RetryBudget,
    key: Option<KeyFn>,
}

#[derive(Clone)]
enum LocalLimit<C: Clock> {
    One(Limiter<C>),
    PerHost(Keyed<str, C>),
}

impl<C: Clock> Clone for Shared<C> {
    fn clone(&self) -> Self {
        Self {
            hosts: Arc::clone(&self.hosts),
            clock: self.clock.clone(),
            max_wait: self.max_wait,
            jitter: self.jitter,
            limit: self.limit.clone(),
            throttle: self.throttle,
            budget: self.budget.clone(),
            key: self.key.clone(),
        }
    }
}

impl ClientLayer {
    /// One that heeds what servers say of their limits, and waits up to 30 seconds.
    pub fn new() -> Self {
        Self::with_clock(SystemClock)
    }
}

impl Default for ClientLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clock> ClientLayer<C> {
    /// The same on a clock of your choice.
    pub fn with_clock(clock: C) -> Self {
        let shared = Shared {
            hosts: Arc::default(),
            clock,
            max_wait: Duration::from_secs(30),
            jitter: 0.1,
            limit: None,
            throttle: None,
            budget: RetryBudget::new(0.0, 0),
            key: None,
        };
        Self {
            shared: Arc::new(shared),
            retry_policy: NoRetries,
        }
    }
}

impl<C: Clock, R> ClientLayer<C, R> {
    fn with(mut self, change: impl FnOnce(&mut Shared<C>)) -> Self {
        change(Arc::make_mut(&mut self.shared));
        self
    }

    /// A limit of this side, for all that goes out together: waited for before anything is sent.
    #[must_use]
    pub fn limit(self, limiter: Limiter<C>) -> Self {
        self.with(|shared| shared.limit = Some(LocalLimit::One(limiter)))
    }

    /// A limit of this side for each host.
    #[must_use]
    pub fn limit_per_host(self, limiters: Keyed<str, C>) -> Self {
        self.with(|shared| shared.limit = Some(LocalLimit::PerHost(limiters)))
    }

    /// How long a request may wait before each time it is sent; 30 seconds unless set. Who would
    /// have to wait longer fails at once.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.with(|shared| shared.max_wait = max_wait)
    }

    /// Nobody waits: who would have to fails at once, and is told for how long.
    #[must_use]
    pub fn fail_fast(self) -> Self {
        self.max_wait(Duration::ZERO)
    }

    /// Rejects here what a server that turns most away would reject anyway, with this K
    /// ([`Throttle`]); 2 is usual. Not done unless said.
    #[must_use]
    pub fn throttle(self, k: f64) -> Self {
        self.with(|shared| shared.throttle = Some(k))
    }

    /// When a pause is over, those who waited come back spread over this share of it more; 0.1
    /// unless set.
    #[must_use]
    pub fn jitter(self, share: f64) -> Self {
        self.with(|shared| shared.jitter = if share > 0.0 { share.min(10.0) } else { 0.0 })
    }

    /// By what servers are told apart; by host and port unless set. An API key that has a limit of
    /// its own belongs in here.
    #[must_use]
    pub fn key(self, key: impl Fn(&Head<'_>) -> String + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.key = Some(Arc::new(key)))
    }

    /// Tries again what may be tried again. Bodies must be such that they can be cloned.
    pub fn retry(self, retries: Retries) -> ClientLayer<C, Retries> {
        let layer = self.with(|shared| shared.budget = retries.budget.clone());
        ClientLayer {
            shared: layer.shared,
            retry_policy: retries,
        }
    }
}

impl<C: Clock> Shared<C> {
    /// The name of the other side.
    pub(super) fn name_of<'a, B>(&self, request: &'a Request<B>) -> Cow<'a, str> {
        if let Some(key) = &self.key {
            return key(&Head::of(request, Client::unknown())).into();
        }
        let host = || {
            request
                .headers()
                .get(HOST)
                .and_then(|host| host.to_str().ok())
        };
        let name = request
            .uri()
            .authority()
            .map(|authority| authority.as_str())
            .or_else(host)
            .unwrap_or_default();
        match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => name.to_ascii_lowercase().into(),
            false => name.into(),
        }
    }

    pub(super) fn new_host(&self) -> Host {
        Host::new(self.throttle.map(Throttle::new), self.budget.clone())
    }

    /// A slot of this side's own limit; none if there is none, else when to ask again, or that it
    /// is too long.
    pub(super) fn reserve(
        &self,
        name: &str,
        now: Timestamp,
        max_wait: Duration,
    ) -> Result<Option<Reservation<C>>, LimitError> {
        let reserved = match &self.limit {
            None => return Ok(None),
            Some(LocalLimit::One(limiter)) => limiter.at(now).reserve_within(1, max_wait),
            Some(LocalLimit::PerHost(keyed)) => keyed.key(name).at(now).reserve_within(1, max_wait),
        };
        match reserved {
            Ok(slot) => Ok(Some(slot)),
            // Windows and logs say yes or no now.
            Err(ReserveError::NoSlots(_)) => {
                let decision = match &self.limit {
                    Some(LocalLimit::PerHost(keyed)) => keyed.key(name).at(now).check(),
                    Some(LocalLimit::One(limiter)) => limiter.at(now).check(),
                    None => return Ok(None),
                };
                match decision.retry_after() {
                    _ if decision.is_allowed() => Ok(None),
                    Some(after) if after <= max_wait => Err(LimitError::RetryAt(now + after)),
                    after => Err(LimitError::TooLong(after)),
                }
            }
            Err(error) => Err(LimitError::TooLong(error.retry_after())),
        }
    }
}

/// Why there is no slot yet.
pub(super) enum LimitError {
    RetryAt(Timestamp),
    TooLong(Option<Duration>),
}

impl<S, C: Clock, R: Clone> Layer<S> for ClientLayer<C, R> {
    type Service = ClientService<S, C, R>;

    fn layer(&self, inner: S) -> Self::Service {
        ClientService {
            inner,
            shared: Arc::clone(&self.shared),
            retry_policy: self.retry_policy.clone(),
        }
    }
}

impl<C: Clock, R: Clone> Clone for ClientLayer<C, R> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            retry_policy: self.retry_policy.clone(),
        }
    }
}

impl<C: Clock, R> fmt::Debug for ClientLayer<C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientLayer")
            .field("max_wait", &self.shared.max_wait)
            .finish_non_exhaustive()
    }
}
