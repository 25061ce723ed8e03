//! States of a circuit breaker, and the states an operator can force.

use std::fmt;

/// The state of a [`CircuitBreaker`](super::CircuitBreaker).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum State {
    /// Calls are allowed and counted.
    Closed,
    /// No call is allowed.
    Open,
    /// A few probes are allowed, because the open time is over.
    HalfOpen,
    /// No call is allowed, until the breaker is forced otherwise.
    ForcedOpen,
    /// Every call is allowed, until the breaker is forced otherwise.
    ForcedClosed,
    /// Every call is allowed and counted, until the breaker is forced otherwise.
    MetricsOnly,
}

impl State {
    /// All states.
    pub const ALL: [Self; 6] = [
        Self::Closed,
        Self::Open,
        Self::HalfOpen,
        Self::ForcedOpen,
        Self::ForcedClosed,
        Self::MetricsOnly,
    ];

    /// The state as one word, as for a metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
            Self::ForcedOpen => "forced_open",
            Self::ForcedClosed => "forced_closed",
            Self::MetricsOnly => "metrics_only",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The state that an operator forces a [`CircuitBreaker`](super::CircuitBreaker) into.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Force {
    /// Reject all calls.
    Open,
    /// Allow all calls.
    Closed,
    /// Allow all calls, and count them as if closed:
    /// [`CircuitBreaker::recent`](super::CircuitBreaker::recent) shows the counts.
    MetricsOnly,
    /// Automatic. From a forced state it starts anew, closed.
    Auto,
}
