//! `ConcurrencyService`: the service that takes a permit before each call.

use super::{PermitSource, ResponseFuture};
use crate::body::ResponseBody;
use crate::response::NoCapacity;
use crate::response::{self, Denial, DenialFormat};
use http::{Request, Response, StatusCode};
use http_body::Body;
use ratekeeper::Concurrency;
use std::task::{Context, Poll};
use tower_service::Service;

/// A service behind a [`ConcurrencyLayer`](super::ConcurrencyLayer). Clones share the permits.
#[derive(Clone, Debug)]
pub struct ConcurrencyService<S, P = Concurrency> {
    pub(super) inner: S,
    pub(super) permits: P,
    pub(super) status: StatusCode,
}

impl<S, B, R, P> Service<Request<B>> for ConcurrencyService<S, P>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
    P: PermitSource,
{
    type Response = Response<ResponseBody<R, P::Permit>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, P::Permit>;

    /// Ready when the inner service is ready: requests without a permit are denied, not delayed.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (request, permit) = self.permits.try_acquire_for(request);
        match permit {
            // The inner service that is ready is the one that is called; after a denial it stays
            // ready for the next request.
            Ok(permit) => ResponseFuture::calling(self.inner.call(request), permit),
            Err(at_capacity) => {
                let denial = Denial::too_many_in_flight(self.status);
                let mut response = response::denial_response(
                    DenialFormat::from_headers(request.headers()),
                    &denial,
                );
                response.extensions_mut().insert(at_capacity);
                if self.status == StatusCode::SERVICE_UNAVAILABLE {
                    response.extensions_mut().insert(NoCapacity);
                }
                ResponseFuture::denied(response)
            }
        }
    }
}
