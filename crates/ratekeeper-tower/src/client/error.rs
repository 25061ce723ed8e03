//! `ClientError`: why a call was not made, or how it failed.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The error of a [`ClientService`](super::ClientService).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ClientError<E> {
    /// The server's rate limit is exhausted for longer than the call may wait. Nothing was sent.
    Paused {
        /// How long until requests may be sent again.
        retry_after: Duration,
    },
    /// This client's own limit is exhausted for longer than the call may wait. Nothing was sent.
    Limited {
        /// How long until the limit allows it; `None` if retrying will not help.
        retry_after: Option<Duration>,
    },
    /// The server denies most requests, so the throttle did not send this one.
    Throttled,
    /// The deadline passed, or would pass before anything could be sent.
    TooLate,
    /// There is no timer to wait with: the call was made outside a tokio runtime, or on one built
    /// without `enable_time()`.
    NoTimer,
    /// The inner client failed.
    Inner(E),
}

impl<E> ClientError<E> {
    /// Whether nothing was sent: it is safe to make the call again, later or elsewhere.
    pub fn is_unsent(&self) -> bool {
        !matches!(self, Self::Inner(_))
    }

    /// When to try again, if that is known.
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
                write!(
                    f,
                    "the server's rate limit is exhausted; try again in {retry_after:?} or raise \
                     max_wait"
                )
            }
            Self::Limited {
                retry_after: Some(after),
            } => {
                write!(
                    f,
                    "this client's own rate limit is exhausted; try again in {after:?} or raise \
                     max_wait"
                )
            }
            Self::Limited { retry_after: None } => f.write_str(
                "this client's own rate limit never allows this request; raise the limit",
            ),
            Self::Throttled => f.write_str(
                "the server denies most requests, so this one was not sent; try again later",
            ),
            Self::TooLate => f.write_str(
                "the deadline of this request has passed, or would pass before it could be \
                     sent",
            ),
            Self::NoTimer => f.write_str(
                "no timer to wait with: make the call inside a tokio runtime with timers \
                 (`enable_time()` on its builder)",
            ),
            Self::Inner(error) => error.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for ClientError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // Displayed as itself, so its source is the inner error's source.
            Self::Inner(error) => error.source(),
            _ => None,
        }
    }
}
