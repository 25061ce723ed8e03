//! What is tried again, how often and how long after.

use super::{Backoff, RetryBudget};
use http::{Method, Request, StatusCode};
use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// No retries: what a [`ClientLayer`](super::ClientLayer) does unless told. Any body will do.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRetries;

/// Retries: of a 429, 502, 503 or 504 and of errors, if the request is idempotent and its body can
/// be cloned.
///
/// GET, HEAD, OPTIONS, TRACE, PUT and DELETE are idempotent, and whatever carries [`Idempotent`]
/// among its extensions. Others are tried again only if [nothing was sent](Self::unsent).
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

/// A mark among the extensions of a request: doing it twice does no harm, so it may be tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Idempotent;

impl Default for Retries {
    /// Two, from 100 milliseconds to 10 seconds apart, for a tenth of the requests and ten a
    /// second.
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
    /// How often a request is tried again at most; twice unless set.
    #[must_use]
    pub fn max_retries(mut self, many: u32) -> Self {
        self.max_retries = many;
        self
    }

    /// How long after a try the next comes, if the other side says nothing longer.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// How many retries there may be, for each host.
    #[must_use]
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.budget = budget;
        self
    }

    /// Tells which errors of the client inside mean that nothing was sent. Then any request may be
    /// tried again.
    ///
    /// ```
    /// use ratekeeper_tower::client::Retries;
    ///
    /// let retries = Retries::default().unsent(|error| {
    ///     error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
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

/// How a try ended, as far as the next depends on it.
pub(super) enum AttemptOutcome<'a> {
    Status(StatusCode),
    /// Turned away by gRPC's status.
    Denied,
    Failed(&'a (dyn Error + 'static)),
}

/// [`NoRetries`] or [`Retries`]: which requests are kept to be tried again.
pub trait RetryPolicy<B>: Clone + sealed::Sealed<B> {}

impl<B> RetryPolicy<B> for NoRetries {}
impl<B: Clone> RetryPolicy<B> for Retries {}

pub(super) mod sealed {
    use super::{
        AttemptOutcome, Idempotent, NoRetries, Request, Retries, StatusCode, is_idempotent,
    };

    pub trait Sealed<B> {
        /// A copy, if the request may ever be tried again.
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
        /// Whether a request that ended so, after so many retries, is to be tried again.
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
