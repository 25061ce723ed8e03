//! `ClientService`: the service that checks the state of a host before it calls.

use super::layer::ClientShared;
use super::{ClientError, ClientFuture, NoRetries, RetryPolicy};
use http::{Request, Response};
use ratekeeper::{Clock, clock::SystemClock};
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_service::Service;

/// A client behind a [`ClientLayer`](super::ClientLayer). Clones share the state of each host.
#[derive(Clone)]
pub struct ClientService<S, C: Clock = SystemClock, R = NoRetries> {
    pub(super) inner: S,
    pub(super) shared: Arc<ClientShared<C>>,
    pub(super) retry_policy: R,
}

impl<S, B, T, C, R> Service<Request<B>> for ClientService<S, C, R>
where
    S: Service<Request<B>, Response = Response<T>> + Clone,
    S::Error: Error + 'static,
    C: Clock,
    R: RetryPolicy<B>,
{
    type Response = Response<T>;
    type Error = ClientError<S::Error>;
    type Future = ClientFuture<S, B, C, R>;

    /// Ready when the inner client is ready: a request that must wait does so after it was
    /// accepted.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(ClientError::Inner)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The inner client that is ready goes with this request; a clone of it stays for the next.
        let clone = self.inner.clone();
        let service = std::mem::replace(&mut self.inner, clone);
        ClientFuture::new(
            service,
            request,
            Arc::clone(&self.shared),
            self.retry_policy.clone(),
        )
    }
}

impl<S: fmt::Debug, C: Clock, R> fmt::Debug for ClientService<S, C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientService")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
