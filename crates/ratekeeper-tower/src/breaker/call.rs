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
pub struct Call<C: Clock = SystemClock> {
    breaker: CircuitBreaker<C>,
    /// None where nobody asks how long it took.
    started: Option<Timestamp>,
    pass: Option<Pass>,
}

/// By which right a call was let through: the generation, and the slot if it is a probe.
#[derive(Clone, Copy)]
pub(super) struct Pass {
    pub(super) generation: u16,
    pub(super) slot: Option<Slot>,
}

impl<C: Clock> Call<C> {
    pub(super) fn new(breaker: CircuitBreaker<C>, started: Option<Timestamp>, pass: Pass) -> Self {
        Self {
            breaker,
            started,
            pass: Some(pass),
        }
    }

    /// It went well, unless it was slow: that is looked at here.
    pub fn success(self) {
        self.judge(false);
    }

    /// It failed: a 5xx, a timeout, no connection.
    pub fn failure(self) {
        self.judge(true);
    }

    /// It says nothing about who was called: a 4xx, a client that hung up. A probe's place is free
    /// again.
    pub fn ignore(self) {}

    /// Whether it is one of the few that half-open lets through.
    pub fn is_probe(&self) -> bool {
        self.pass.is_some_and(|pass| pass.slot.is_some())
    }

    fn judge(mut self, failed: bool) {
        if let Some(pass) = self.pass.take() {
            self.breaker.judge(pass, self.started, failed);
        }
    }
}

impl<C: Clock> Drop for Call<C> {
    fn drop(&mut self) {
        if let Some(Pass {
            slot: Some(slot), ..
        }) = self.pass.take()
        {
            self.breaker.free(slot);
        }
    }
}

impl<C: Clock> fmt::Debug for Call<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
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
