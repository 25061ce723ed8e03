//! What a response says about how it went.

use super::says_overloaded;
use crate::NotReached;
use http::response::Parts;
use http::{Response, StatusCode};
use ratekeeper::adaptive::Outcome;

/// How a response went by its status and, of gRPC, by its headers: what
/// [`AdaptiveConcurrencyLayer`](super::AdaptiveConcurrencyLayer) goes by unless told.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByHead;

/// [`ByHead`], or a function of the head of a response.
pub trait Classify: Clone + sealed::Sealed {}

impl Classify for ByHead {}
impl<F: Fn(&Parts) -> Outcome + Clone> Classify for F {}

pub(super) mod sealed {
    use super::{ByHead, NotReached, Outcome, Parts, Response, StatusCode, says_overloaded};

    pub trait Sealed {
        /// The response is as it was.
        #[doc(hidden)]
        fn outcome<B>(&self, response: &mut Response<B>) -> Outcome;
    }

    impl Sealed for ByHead {
        #[inline]
        fn outcome<B>(&self, response: &mut Response<B>) -> Outcome {
            match response.status() {
                _ if never_reached(response) => Outcome::Ignored,
                StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => Outcome::Dropped,
                StatusCode::TOO_MANY_REQUESTS => Outcome::Ignored,
                _ if says_overloaded(response.headers()) => Outcome::Dropped,
                _ => Outcome::Success,
            }
        }
    }

    impl<F: Fn(&Parts) -> Outcome + Clone> Sealed for F {
        fn outcome<B>(&self, response: &mut Response<B>) -> Outcome {
            if never_reached(response) {
                return Outcome::Ignored;
            }
            // A head by itself, for as long as it is looked at.
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
    fn never_reached<B>(response: &Response<B>) -> bool {
        response.extensions().get::<NotReached>().is_some()
    }
}
