//! `CircuitBreakerService`: the service that asks the breaker before each call.

use super::{CallOutcome, CircuitBreaker, ResponseFuture};
use crate::body::ResponseBody;
use crate::response::{self, Denial, DenialFormat};
use http::response::Parts;
use http::{Request, Response};
use ratekeeper::{Clock, clock::SystemClock};
use std::fmt;
use std::task::{Context, Poll};
use tower_service::Service;

/// A service behind a [`CircuitBreakerLayer`](super::CircuitBreakerLayer). Clones share the
/// breaker.
#[derive(Clone)]
pub struct CircuitBreakerService<S, C: Clock = SystemClock, J = fn(&Parts) -> CallOutcome> {
    pub(super) inner: S,
    pub(super) breaker: CircuitBreaker<C>,
    pub(super) classifier: J,
}

impl<S, B, R, C, J> Service<Request<B>> for CircuitBreakerService<S, C, J>
where
    S: Service<Request<B>, Response = Response<R>>,
    C: Clock,
    J: Fn(&Parts) -> CallOutcome + Clone,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, C, J>;

    /// Ready when the inner service is ready. An open breaker is ready, too: to reject calls.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.breaker.try_acquire() {
            // The inner service that is ready is the one that is called; after a rejection it stays
            // ready for the next request.
            Ok(call) => {
                ResponseFuture::calling(call, self.inner.call(request), self.classifier.clone())
            }
            Err(open) => {
                let denial = Denial::circuit_open(open.retry_after());
                let mut response = response::denial_response(
                    DenialFormat::from_headers(request.headers()),
                    &denial,
                );
                response.extensions_mut().insert(open);
                ResponseFuture::rejected(response)
            }
        }
    }
}

impl<S: fmt::Debug, C: Clock, J> fmt::Debug for CircuitBreakerService<S, C, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreakerService")
            .field("inner", &self.inner)
            .field("breaker", &self.breaker)
            .finish_non_exhaustive()
    }
}
