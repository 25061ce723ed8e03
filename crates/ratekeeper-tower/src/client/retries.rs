//! Retry policy: which requests are retried, how often and when.

use super::{Backoff, RetryBudget};
use http::{Method, Request, StatusCode};
use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// No retries: the default of a [`ClientLayer`](super::ClientLayer). Works with any body.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRetries;

/// Retries: after a 429, 502, 503 or 504 and after errors, if the request is idempotent and its
/// body can be cloned.
///
/// GET, HEAD, OPTIONS, TRACE, PUT and DELETE are idempotent, and so is a request with
/// [`Idempotent`] among its extensions. Others are retried only if [nothing was
/// sent](Self::unsent).
///
/// ```
/// use ratekeeper_tower::client::{ClientLayer, Retries};
///
/// // At most two more tries, for at most a tenth of the requests and ten a second.
/// let layer = ClientLayer::new().retry(Retries::default());
/// ```
#[derive(Clone)]
pub struct Retries {
    max_retries: u32,
    pub(super) backoff: Backoff,
    pub(super) budget: RetryBudget,
    unsent: Option<Arc<IsUnsent>>,
}

type IsUnsent = dyn Fn(&(dyn Error + 'static)) -> bool + Send + Sync;

/// Marks a request as idempotent: an extension of requests that may be sent twice without harm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Idempotent;

impl Default for Retries {
    /// Two retries, with a backoff from 100 milliseconds to 10 seconds, for a tenth of the requests
    /// and ten a second.
    fn default() -> Self {
        Self {
            max_retries: 2,
            backoff: Backoff::default(),
            budget: RetryBudget::new(0.1, 10),
            unsent: None,
        }
    }
}

impl Retries {
    /// Sets the maximum number of retries of a request; 2 unless set.
    #[must_use]
    pub fn max_retries(mut self, max: u32) -> Self {
        self.max_retries = max;
        self
    }

    /// Sets the backoff before retries. A longer pause that the server announced takes precedence.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets the budget of retries for each host.
    #[must_use]
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.budget = budget;
        self
    }

    /// Sets the function that decides which errors of the inner client mean that nothing was sent.
    /// Then any request may be retried.
    ///
    /// ```
    /// use ratekeeper_tower::client::Retries;
    ///
    /// let retries = Retries::default().unsent(|error| {
    ///     error
    ///         .downcast_ref::<std::io::Error>()
    ///         .is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    /// });
    /// ```
    ///
    /// With hyper-util:
    /// `error.downcast_ref::<hyper_util::client::legacy::Error>().is_some_and(|error|
    /// error.is_connect())`.
    #[must_use]
    pub fn unsent(
        mut self,
        is: impl Fn(&(dyn Error + 'static)) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.unsent = Some(Arc::new(is));
        self
    }
}

impl fmt::Debug for Retries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retries")
            .field("max_retries", &self.max_retries)
            .field("backoff", &self.backoff)
            .finish_non_exhaustive()
    }
}

/// The outcome of an attempt, as far as it decides on a retry.
pub(super) enum AttemptOutcome<'a> {
    Status(StatusCode),
    /// Denied, by the HTTP status or the gRPC status.
    Denied,
    Failed(&'a (dyn Error + 'static)),
}

/// A retry policy: [`NoRetries`] or [`Retries`].
pub trait RetryPolicy<B>: Clone + sealed::Sealed<B> {}

impl<B> RetryPolicy<B> for NoRetries {}
impl<B: Clone> RetryPolicy<B> for Retries {}

pub(super) mod sealed {
    use super::{
        AttemptOutcome, Idempotent, NoRetries, Request, Retries, StatusCode, is_idempotent,
    };

    pub trait Sealed<B> {
        /// A clone of the request, if it may ever be retried.
        #[doc(hidden)]
        fn clone_for_retry(&self, request: &Request<B>) -> Option<Request<B>>;

        #[doc(hidden)]
        fn retries(&self) -> Option<&Retries>;
    }

    impl<B> Sealed<B> for NoRetries {
        fn clone_for_retry(&self, _: &Request<B>) -> Option<Request<B>> {
            None
        }

        fn retries(&self) -> Option<&Retries> {
            None
        }
    }

    impl<B: Clone> Sealed<B> for Retries {
        fn clone_for_retry(&self, request: &Request<B>) -> Option<Request<B>> {
            let may = self.max_retries > 0 && (is_idempotent(request) || self.unsent.is_some());
            may.then(|| request.clone())
        }

        fn retries(&self) -> Option<&Retries> {
            Some(self)
        }
    }

    impl Retries {
        /// Whether a request with this outcome, after this many retries, is retried.
        pub(in crate::client) fn should_retry<B>(
            &self,
            request: &Request<B>,
            retries_made: u32,
            outcome: &AttemptOutcome<'_>,
        ) -> bool {
            let unsent = match outcome {
                AttemptOutcome::Failed(error) => self.unsent.as_ref().is_some_and(|is| is(*error)),
                AttemptOutcome::Status(status) if !RETRIED_STATUSES.contains(status) => {
                    return false;
                }
                _ => false,
            };
            retries_made < self.max_retries && (unsent || is_idempotent(request))
        }
    }

    const RETRIED_STATUSES: [StatusCode; 4] = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::BAD_GATEWAY,
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::GATEWAY_TIMEOUT,
    ];

    impl Idempotent {
        pub(super) fn marks<B>(request: &Request<B>) -> bool {
            request.extensions().get::<Self>().is_some()
        }
    }
}

fn is_idempotent<B>(request: &Request<B>) -> bool {
    let method = request.method();
    method.is_idempotent() && *method != Method::CONNECT || Idempotent::marks(request)
}
