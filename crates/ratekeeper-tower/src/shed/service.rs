//! `Shed`: the service that sheds requests before the inner one is called.

use super::ResponseFuture;
use super::layer::ShedShared;
use crate::body::ResponseBody;
use crate::head::Head;
use crate::response::{self, Denial, DenialFormat, Jitter};
use http::{Request, Response};
use ratekeeper::{Clock, clock::SystemClock};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_service::Service;

/// A service behind a [`ShedLayer`](super::ShedLayer). Clones share the shedder.
pub struct Shed<S, C: Clock = SystemClock> {
    pub(super) inner: S,
    pub(super) shared: Arc<ShedShared<C>>,
}

/// Percent: Retry-After of shed clients is up to twice the time, so that they come back one by one.
const JITTER: u8 = 100;

impl<S, B, R, C> Service<Request<B>> for Shed<S, C>
where
    S: Service<Request<B>, Response = Response<R>>,
    C: Clock,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, C>;

    /// Ready when the inner service is ready.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let shared = &*self.shared;
        let head = Head::of(&request, shared.client_of(&request));
        let deadline = shared.deadline_of(&head);
        if deadline.is_some_and(|(deadline, now)| deadline.0 <= now) {
            let denial = Denial::deadline_passed();
            return ResponseFuture::denied(response::denial_response(
                DenialFormat::from_headers(request.headers()),
                &denial,
            ));
        }
        let class = shared.class_of(&head);
        if !shared.allows(class, &head) {
            let mut denial = Denial::shed();
            denial.jitter = Jitter {
                percent: JITTER,
                hash: shared.spread(),
            };
            let mut response =
                response::denial_response(DenialFormat::from_headers(request.headers()), &denial);
            response.extensions_mut().insert(class);
            return ResponseFuture::denied(response);
        }
        if shared.extension {
            request.extensions_mut().insert(class);
            if let Some((deadline, _)) = deadline {
                request.extensions_mut().insert(deadline);
            }
        }
        // The inner service that is ready is the one that is called; after a denial it stays ready
        // for the next request.
        ResponseFuture::calling(self.inner.call(request), shared.shedder.clone())
    }
}

impl<S: Clone, C: Clock> Clone for Shed<S, C> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: fmt::Debug, C: Clock> fmt::Debug for Shed<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shed")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
