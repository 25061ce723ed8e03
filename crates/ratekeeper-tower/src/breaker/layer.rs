//! The breaker as a layer, and what it takes for a failure.

use super::{CircuitBreaker, CircuitBreakerService};
use http::response::Parts;
use ratekeeper::{Clock, clock::SystemClock};
use std::fmt;
use tower_layer::Layer;

/// Puts a [`CircuitBreaker`] in front of a service: while it is open, callers get a 503 with the
/// time left as Retry-After.
///
/// A 5xx and an error of the service are failures. A 4xx is the caller's fault and a future that is
/// dropped is a client that hung up: neither counts. The judgement is made when the head of the
/// response comes, and a call is slow when that takes long; how long the body takes is the reader's
/// business too, and is not looked at.
///
/// All services of a layer, its clones, and whoever else holds the breaker share its state. The 503
/// carries the [`Open`](super::Open) as an extension, so that a layer outside can tell it from one
/// of the service.
#[derive(Clone)]
pub struct CircuitBreakerLayer<C: Clock = SystemClock, J = fn(&Parts) -> Outcome> {
    breaker: CircuitBreaker<C>,
    classifier: J,
}

/// What a response says about who gave it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// It is well.
    Success,
    /// It is not.
    Failure,
    /// Nothing.
    Ignored,
}

impl<C: Clock> CircuitBreakerLayer<C> {
    /// A layer around this breaker.
    pub fn new(breaker: CircuitBreaker<C>) -> Self {
        Self {
            breaker,
            classifier: by_status,
        }
    }
}

impl<C: Clock, J> CircuitBreakerLayer<C, J> {
    /// Decides by the head of a response what it says about the service. Errors of the service stay
    /// failures.
    ///
    /// ```
    /// use ratekeeper_tower::breaker::Outcome;
    /// use ratekeeper_tower::{CircuitBreaker, CircuitBreakerLayer};
    ///
    /// let layer = CircuitBreakerLayer::new(CircuitBreaker::new()).classify(|head| match head.status.as_u16() {
    ///     429 | 502..=504 => Outcome::Failure,
    ///     400..=499 => Outcome::Ignored,
    ///     _ => Outcome::Success,
    /// });
    /// ```
    pub fn classify<F: Fn(&Parts) -> Outcome>(self, classifier: F) -> CircuitBreakerLayer<C, F> {
        CircuitBreakerLayer {
            breaker: self.breaker,
            classifier,
        }
    }

    /// The breaker, to look at it or to force it.
    pub fn breaker(&self) -> &CircuitBreaker<C> {
        &self.breaker
    }
}

fn by_status(head: &Parts) -> Outcome {
    match head.status {
        status if status.is_server_error() => Outcome::Failure,
        status if status.is_client_error() => Outcome::Ignored,
        _ => Outcome::Success,
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
    /// A layer around a breaker of its own.
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
