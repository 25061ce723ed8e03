//! What a breaker answers: a guard for one call, or that it is open.

use super::CircuitBreaker;
use super::probes::Slot;
use ratekeeper::{Clock, Timestamp, clock::SystemClock};
use std::fmt;
use std::time::Duration;

/// A call that a breaker let through: say how it went.
///
/// Dropping it is [`ignore`](Self::ignore), so that a probe that is given up makes room for the
/// next.
#[must_use = "a call that is dropped at once tells the breaker nothing"]
pub struct CallGuard<C: Clock = SystemClock> {
    breaker: CircuitBreaker<C>,
    /// None where nobody asks how long it took.
    started: Option<Timestamp>,
    origin: Option<CallOrigin>,
}

/// By which right a call was let through: the generation, and the slot if it is a probe.
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

    /// It went well, unless it was slow: that is looked at here.
    pub fn success(self) {
        self.record(false);
    }

    /// It failed: a 5xx, a timeout, no connection.
    pub fn failure(self) {
        self.record(true);
    }

    /// It says nothing about who was called: a 4xx, a client that hung up. A probe's place is free
    /// again.
    pub fn ignore(self) {}

    /// Whether it is one of the few that half-open lets through.
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

/// The breaker is open: do not call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CircuitOpenError {
    pub(super) retry_after: Duration,
}

impl CircuitOpenError {
    /// How long it stays open. Where nobody knows, while the probes are out or somebody forced it
    /// open, a guess.
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
