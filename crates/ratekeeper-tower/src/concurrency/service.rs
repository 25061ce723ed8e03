//! The service that takes a permit first.

use super::{PermitSource, ResponseFuture};
use crate::body::ResponseBody;
use crate::response::NoCapacity;
use crate::response::{self, Denial, DenialFormat};
use http::{Request, Response, StatusCode};
use http_body::Body;
use ratekeeper::Concurrency;
use std::task::{Context, Poll};
use tower_service::Service;

/// What [`ConcurrencyLayer`](super::ConcurrencyLayer) makes of a service. Clones share the permits.
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

    /// As ready as the service inside: whoever finds no permit is told so, not kept waiting.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (request, permit) = self.permits.try_acquire_for(request);
        match permit {
            // The service that was readied is the one that is called; a denial leaves it ready for
            // the next.
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
