//! Why a call was not made, or how it failed.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// What [`ClientService`](super::ClientService) fails with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ClientError<E> {
    /// The other side said to leave it alone for longer than one would wait. Nothing was sent.
    Paused {
        /// For how long still.
        retry_after: Duration,
    },
    /// The limit of this side would have to be waited for longer than one would. Nothing was sent.
    Limited {
        /// For how long; none if waiting will not help.
        retry_after: Option<Duration>,
    },
    /// The other side turns most away, so this one was not even sent.
    Throttled,
    /// The deadline passed, or would have before anything could be sent.
    TooLate,
    /// There is no timer to wait with: the call was made outside a tokio runtime, or on one built
    /// without `enable_time()`.
    NoTimer,
    /// The client inside failed.
    Inner(E),
}

impl<E> ClientError<E> {
    /// Whether nothing was sent: it is safe to make the call again, later or elsewhere.
    pub fn is_unsent(&self) -> bool {
        !matches!(self, Self::Inner(_))
    }

    /// When to try again, where that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Paused { retry_after } => Some(*retry_after),
            Self::Limited { retry_after } => *retry_after,
            _ => None,
        }
    }
}

impl<E: fmt::Display> fmt::Display for ClientError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused { retry_after } => {
                write!(f, "the server asked to be remaining alone; try again in {retry_after:?}, or wait for longer")
            }
            Self::Limited { retry_after: Some(after) } => {
                write!(f, "this client's own rate limit is exhausted; try again in {after:?} or raise max_wait")
            }
            Self::Limited { retry_after: None } => {
                f.write_str("this client's own rate limit never allows this request; raise the limit")
            }
            Self::Throttled => {
                f.write_str("the server denies most requests, so this one was not sent; try again later")
            }
            Self::TooLate => {
                f.write_str("the deadline of this request has passed, or would pass before it could be sent")
            }
            Self::NoTimer => f.write_str(
                "no timer to wait with: make the call inside a tokio runtime with timers (`enable_time()` on its builder)",
            ),
            Self::Inner(error) => error.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for ClientError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // It is shown as itself; what is behind it is its own source.
            Self::Inner(error) => error.source(),
            _ => None,
        }
    }
}
