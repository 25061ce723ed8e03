//! Classifies responses for the adaptive concurrency limit.

use super::is_overloaded_grpc;
use crate::response::NotReached;
use http::response::Parts;
use http::{Response, StatusCode};
use ratekeeper::adaptive::RequestOutcome;

/// Classifies a response by its status and, for gRPC, its headers: the default of
/// [`AdaptiveConcurrencyLayer`](super::AdaptiveConcurrencyLayer).
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadClassifier;

/// Classifies responses: [`HeadClassifier`], or a function of the head of a response.
pub trait ClassifyResponse: Clone + sealed::Sealed {}

impl ClassifyResponse for HeadClassifier {}
impl<F: Fn(&Parts) -> RequestOutcome + Clone> ClassifyResponse for F {}

pub(super) mod sealed {
    use super::{
        HeadClassifier, NotReached, Parts, RequestOutcome, Response, StatusCode, is_overloaded_grpc,
    };

    pub trait Sealed {
        /// The outcome of a response, which is not changed.
        #[doc(hidden)]
        fn outcome<B>(&self, response: &mut Response<B>) -> RequestOutcome;
    }

    impl Sealed for HeadClassifier {
        #[inline]
        fn outcome<B>(&self, response: &mut Response<B>) -> RequestOutcome {
            match response.status() {
                _ if not_reached(response) => RequestOutcome::Ignored,
                StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                    RequestOutcome::Dropped
                }
                StatusCode::TOO_MANY_REQUESTS => RequestOutcome::Ignored,
                _ if is_overloaded_grpc(response.headers()) => RequestOutcome::Dropped,
                _ => RequestOutcome::Success,
            }
        }
    }

    impl<F: Fn(&Parts) -> RequestOutcome + Clone> Sealed for F {
        fn outcome<B>(&self, response: &mut Response<B>) -> RequestOutcome {
            if not_reached(response) {
                return RequestOutcome::Ignored;
            }
            // Moves the response's head into a `Parts` while it is classified.
            let (mut head, ()) = Response::new(()).into_parts();
            let swap = |head: &mut Parts, response: &mut Response<B>| {
                std::mem::swap(&mut head.status, response.status_mut());
                std::mem::swap(&mut head.version, response.version_mut());
                std::mem::swap(&mut head.headers, response.headers_mut());
                std::mem::swap(&mut head.extensions, response.extensions_mut());
            };
            swap(&mut head, response);
            let outcome = self(&head);
            swap(&mut head, response);
            outcome
        }
    }

    #[inline]
    fn not_reached<B>(response: &Response<B>) -> bool {
        response.extensions().get::<NotReached>().is_some()
    }
}
