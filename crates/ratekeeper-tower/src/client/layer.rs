//! `ClientLayer` and its options.

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

/// Respects rate limits on outgoing calls: a call waits, or fails, before a limit instead of
/// exceeding it. See the [module](super).
///
/// All clones of a layer, and all services made by it, share the state of each host.
pub struct ClientLayer<C: Clock = SystemClock, R = NoRetries> {
    shared: Arc<ClientShared<C>>,
    retry_policy: R,
}

type KeyFn = Arc<dyn Fn(&Head<'_>) -> String + Send + Sync>;

pub(super) struct ClientShared<C: Clock> {
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

impl<C: Clock> Clone for ClientShared<C> {
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
    /// Respects the limits that servers announce, and waits up to 30 seconds.
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
    /// With this clock.
    pub fn with_clock(clock: C) -> Self {
        let shared = ClientShared {
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
    fn with(mut self, change: impl FnOnce(&mut ClientShared<C>)) -> Self {
        change(Arc::make_mut(&mut self.shared));
        self
    }

    /// Adds a local limit for all calls together; a call waits for it before it is sent.
    #[must_use]
    pub fn limit(self, limiter: Limiter<C>) -> Self {
        self.with(|shared| shared.limit = Some(LocalLimit::One(limiter)))
    }

    /// Adds a local limit for each host.
    #[must_use]
    pub fn limit_per_host(self, limiters: Keyed<str, C>) -> Self {
        self.with(|shared| shared.limit = Some(LocalLimit::PerHost(limiters)))
    }

    /// Sets how long a request may wait each time before it is sent; 30 seconds unless set. One
    /// that would have to wait longer fails immediately.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.with(|shared| shared.max_wait = max_wait)
    }

    /// Requests never wait: one that would have to fails immediately with the time to wait.
    #[must_use]
    pub fn fail_fast(self) -> Self {
        self.max_wait(Duration::ZERO)
    }

    /// Adds an adaptive [`Throttle`] with this K: rejects locally what a server that denies most
    /// requests would deny; 2 is usual. Off by default.
    #[must_use]
    pub fn throttle(self, k: f64) -> Self {
        self.with(|shared| shared.throttle = Some(k))
    }

    /// Sets the share of a pause over which waiting requests are spread after it; 0.1 unless set.
    #[must_use]
    pub fn jitter(self, share: f64) -> Self {
        self.with(|shared| shared.jitter = if share > 0.0 { share.min(10.0) } else { 0.0 })
    }

    /// Sets the key that identifies servers; host and port unless set. Include an API key that has
    /// its own limit.
    #[must_use]
    pub fn key(self, key: impl Fn(&Head<'_>) -> String + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.key = Some(Arc::new(key)))
    }

    /// Retries requests that may be retried. Bodies must be cloneable.
    pub fn retry(self, retries: Retries) -> ClientLayer<C, Retries> {
        let layer = self.with(|shared| shared.budget = retries.budget.clone());
        ClientLayer {
            shared: layer.shared,
            retry_policy: retries,
        }
    }
}

impl<C: Clock> ClientShared<C> {
    /// The name of the host.
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
        if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            name.to_ascii_lowercase().into()
        } else {
            name.into()
        }
    }

    pub(super) fn new_host(&self) -> Host {
        Host::new(self.throttle.map(Throttle::new), self.budget.clone())
    }

    /// Reserves a slot of the local limit; `Ok(None)` if there is no limit or no slot is needed.
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
            // Windows and logs cannot reserve: they allow or deny.
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

/// Why the local limit has no slot yet.
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
