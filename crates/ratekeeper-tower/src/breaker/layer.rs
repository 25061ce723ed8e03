//! `CircuitBreakerLayer`, and the classification of responses.

use super::{CircuitBreaker, CircuitBreakerService};
use http::response::Parts;
use ratekeeper::{Clock, clock::SystemClock};
use std::fmt;
use tower_layer::Layer;

/// Puts a [`CircuitBreaker`] in front of a service: while it is open, callers get a 503 with the
/// remaining time as Retry-After.
///
/// A 5xx and an error of the service are failures. A 4xx is the caller's fault and a dropped future
/// is a client that hung up: both are ignored. The outcome is recorded when the head of the
/// response arrives, and a call is slow if that takes long; how long the body takes depends on the
/// reader, too, and is not measured.
///
/// All services of a layer, its clones, and other holders of the breaker share its state. The 503
/// has a [`CircuitOpenError`](super::CircuitOpenError) extension, by which outer layers can
/// distinguish it from a 503 of the service.
#[derive(Clone)]
pub struct CircuitBreakerLayer<C: Clock = SystemClock, J = fn(&Parts) -> CallOutcome> {
    breaker: CircuitBreaker<C>,
    classifier: J,
}

/// The outcome of a call, by its response.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CallOutcome {
    /// The service works.
    Success,
    /// The service fails.
    Failure,
    /// The response is no measure of the service.
    Ignored,
}

impl<C: Clock> CircuitBreakerLayer<C> {
    /// A layer with this breaker.
    pub fn new(breaker: CircuitBreaker<C>) -> Self {
        Self {
            breaker,
            classifier: by_status,
        }
    }
}

impl<C: Clock, J> CircuitBreakerLayer<C, J> {
    /// Sets the function that classifies responses by their head. Errors of the service remain
    /// failures.
    ///
    /// ```
    /// use ratekeeper_tower::breaker::CallOutcome;
    /// use ratekeeper_tower::{CircuitBreaker, CircuitBreakerLayer};
    ///
    /// let layer = CircuitBreakerLayer::new(CircuitBreaker::new());
    /// let layer = layer.classify(|head| match head.status.as_u16() {
    ///     429 | 502..=504 => CallOutcome::Failure,
    ///     400..=499 => CallOutcome::Ignored,
    ///     _ => CallOutcome::Success,
    /// });
    /// ```
    pub fn classify<F: Fn(&Parts) -> CallOutcome>(
        self,
        classifier: F,
    ) -> CircuitBreakerLayer<C, F> {
        CircuitBreakerLayer {
            breaker: self.breaker,
            classifier,
        }
    }

    /// The breaker, to read its state or to force it.
    pub fn breaker(&self) -> &CircuitBreaker<C> {
        &self.breaker
    }
}

fn by_status(head: &Parts) -> CallOutcome {
    match head.status {
        status if status.is_server_error() => CallOutcome::Failure,
        status if status.is_client_error() => CallOutcome::Ignored,
        _ => CallOutcome::Success,
    }
}

impl<S, C: Clock, J: Clone> Layer<S> for CircuitBreakerLayer<C, J> {
    type Service = CircuitBreakerService<S, C, J>;

    fn layer(&self, inner: S) -> Self::Service {
        CircuitBreakerService {
            inner,
            breaker: self.breaker.clone(),
            classifier: self.classifier.clone(),
        }
    }
}

impl Default for CircuitBreakerLayer {
    /// A layer with a breaker of its own.
    fn default() -> Self {
        Self::new(CircuitBreaker::new())
    }
}

impl<C: Clock, J> fmt::Debug for CircuitBreakerLayer<C, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreakerLayer")
            .field("breaker", &self.breaker)
            .finish_non_exhaustive()
    }
}
