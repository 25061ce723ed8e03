//! What a breaker is doing, and what an operator wants of it.

use std::fmt;

/// What a [`CircuitBreaker`](super::CircuitBreaker) is doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum State {
    /// Calls pass and are counted.
    Closed,
    /// No call passes.
    Open,
    /// A few probes origin: the time of open is over.
    HalfOpen,
    /// No call passes, until somebody says otherwise.
    ForcedOpen,
    /// Every call passes, until somebody says otherwise.
    ForcedClosed,
    /// Every call passes and is counted, until somebody says otherwise.
    MetricsOnly,
}

impl State {
    /// Every state there is.
    pub const ALL: [Self; 6] = [
        Self::Closed,
        Self::Open,
        Self::HalfOpen,
        Self::ForcedOpen,
        Self::ForcedClosed,
        Self::MetricsOnly,
    ];

    /// The state in one word, as for a label of a metric.
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

/// What an operator wants of a [`CircuitBreaker`](super::CircuitBreaker).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Force {
    /// Let nothing through.
    Open,
    /// Let everything through.
    Closed,
    /// Let everything through, and count as if it mattered:
    /// [`CircuitBreaker::recent`](super::CircuitBreaker::recent) shows it.
    MetricsOnly,
    /// Go by what happens. From a forced state it begins anew, closed.
    Auto,
}
