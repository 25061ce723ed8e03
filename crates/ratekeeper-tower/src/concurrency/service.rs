//! The service that takes a permit first.

use super::{Gate, ResponseFuture};
use crate::body::ResponseBody;
use crate::response::NoCapacity;
use crate::response::{self, Asker, Denial};
use http::{Request, Response, StatusCode};
use http_body::Body;
use ratekeeper::Concurrency;
use std::task::{Context, Poll};
use tower_service::Service;

/// What [`ConcurrencyLayer`](super::ConcurrencyLayer) makes of a service. Clones share the permits.
#[derive(Clone, Debug)]
pub struct ConcurrencyService<S, G = Concurrency> {
    pub(super) inner: S,
    pub(super) gate: G,
    pub(super) status: StatusCode,
}

impl<S, B, R, G> Service<Request<B>> for ConcurrencyService<S, G>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
    G: Gate,
{
    type Response = Response<ResponseBody<R, G::Permit>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, G::Permit>;

    /// As ready as the service inside: whoever finds no permit is told so, not kept waiting.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (request, permit) = self.gate.try_enter(request);
        match permit {
            // The service that was readied is the one that is called; a denial leaves it ready for
            // the next.
            Ok(permit) => ResponseFuture::calling(self.inner.call(request), permit),
            Err(busy) => {
                let denial = Denial::too_many_in_flight(self.status);
                let mut response = response::denied(Asker::of(request.headers()), &denial);
                response.extensions_mut().insert(busy);
                if self.status == StatusCode::SERVICE_UNAVAILABLE {
                    response.extensions_mut().insert(NoCapacity);
                }
                ResponseFuture::denied(response)
            }
        }
    }
}
