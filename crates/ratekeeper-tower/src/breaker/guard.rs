//! `CallGuard`, the permission to make one call, and `CircuitOpenError`.

use super::CircuitBreaker;
use super::probes::Slot;
use ratekeeper::{Clock, Timestamp, clock::SystemClock};
use std::fmt;
use std::time::Duration;

/// Permission to make one call: report its outcome with [`success`](Self::success) or
/// [`failure`](Self::failure).
///
/// Dropping it is [`ignore`](Self::ignore): an abandoned probe frees its slot for the next.
#[must_use = "a guard that is dropped at once reports nothing to the breaker"]
pub struct CallGuard<C: Clock = SystemClock> {
    breaker: CircuitBreaker<C>,
    /// `None` if durations are not measured.
    started: Option<Timestamp>,
    origin: Option<CallOrigin>,
}

/// The generation in which a call was allowed, and its slot if it is a probe.
#[derive(Clone, Copy)]
pub(super) struct CallOrigin {
    pub(super) generation: u16,
    pub(super) slot: Option<Slot>,
}

impl<C: Clock> CallGuard<C> {
    pub(super) fn new(
        breaker: CircuitBreaker<C>,
        started: Option<Timestamp>,
        origin: CallOrigin,
    ) -> Self {
        Self {
            breaker,
            started,
            origin: Some(origin),
        }
    }

    /// Reports a success, or a slow call if it took too long.
    pub fn success(self) {
        self.record(false);
    }

    /// Reports a failure: a 5xx, a timeout, no connection.
    pub fn failure(self) {
        self.record(true);
    }

    /// Reports nothing, because the outcome does not depend on the service: a 4xx, a client that
    /// hung up. A probe's slot is freed.
    pub fn ignore(self) {}

    /// Whether it is a probe.
    pub fn is_probe(&self) -> bool {
        self.origin.is_some_and(|origin| origin.slot.is_some())
    }

    fn record(mut self, failed: bool) {
        if let Some(origin) = self.origin.take() {
            self.breaker.record(origin, self.started, failed);
        }
    }
}

impl<C: Clock> Drop for CallGuard<C> {
    fn drop(&mut self) {
        if let Some(CallOrigin {
            slot: Some(slot), ..
        }) = self.origin.take()
        {
            self.breaker.free(slot);
        }
    }
}

impl<C: Clock> fmt::Debug for CallGuard<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallGuard")
            .field("is_probe", &self.is_probe())
            .finish_non_exhaustive()
    }
}

/// The circuit breaker is open: do not make the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CircuitOpenError {
    pub(super) retry_after: Duration,
}

impl CircuitOpenError {
    /// How long it stays open: an estimate while probes are in flight or the breaker is forced
    /// open.
    pub fn retry_after(&self) -> Duration {
        self.retry_after
    }
}

impl fmt::Display for CircuitOpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the circuit breaker is open; retry after {:?}",
            self.retry_after
        )
    }
}

impl std::error::Error for CircuitOpenError {}
