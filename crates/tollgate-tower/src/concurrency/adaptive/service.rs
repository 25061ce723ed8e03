//! The service that takes a permit of an adaptive limit first.

use super::future::{AdaptiveResponseFuture, NoPermit, Queued};
use super::layer::Shared;
use super::serving::Serving;
use super::{ByHead, Classify, Timed};
use crate::body::ResponseBody;
use crate::deadline::Deadline;
use crate::head::Head;
use crate::identity::Client;
use http::{Request, Response};
use http_body::Body;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use tollgate::adaptive::Partition;
use tollgate::{AtCapacity, Class, Clock, SystemClock};
use tower_service::Service;

/// What [`AdaptiveConcurrencyLayer`](super::AdaptiveConcurrencyLayer) makes of a service. Clones share the limit.
pub struct AdaptiveConcurrencyService<S, C: Clock = SystemClock, J = ByHead> {
    pub(super) inner: S,
    pub(super) shared: Arc<Shared<C>>,
    pub(super) judge: J,
}

impl<S, B, R, C, J> Service<Request<B>> for AdaptiveConcurrencyService<S, C, J>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: Body,
    C: Clock,
    J: Classify,
{
    type Response = Response<ResponseBody<Timed<R, C>>>;
    type Error = S::Error;
    type Future = AdaptiveResponseFuture<S, B, C, J>;

    /// As ready as the service inside: whoever finds no permit is told so, or waits in line with its request.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let shared = &*self.shared;
        let partition = shared.partition.as_ref().and_then(|partition| {
            let client = Client::peer(request.extensions());
            partition(&Head::of(&request, client))
        });
        // Whoever says nothing has all of the limit.
        let class = request.extensions().get().copied().unwrap_or(Class::CriticalPlus);
        // Nobody passes those who wait.
        let barred = shared.line.as_ref().is_some_and(|line| !line.is_empty());
        if !barred {
            match shared.gate.try_acquire_as(class, partition) {
                Ok(permit) => {
                    let serving = Serving::new(permit, shared.line.clone());
                    return AdaptiveResponseFuture::calling(self.inner.call(request), serving, self.judge.clone());
                }
                Err(busy) if shared.line.is_none() => {
                    return AdaptiveResponseFuture::denied(NoPermit::Now(busy).answer(&request), self.judge.clone());
                }
                Err(_) => {}
            }
        }
        self.wait(request, class, partition)
    }
}

impl<S: Clone, C: Clock, J: Clone> AdaptiveConcurrencyService<S, C, J> {
    #[cold]
    fn wait<B>(
        &mut self,
        request: Request<B>,
        class: Class,
        partition: Option<Partition>,
    ) -> AdaptiveResponseFuture<S, B, C, J>
    where
        S: Service<Request<B>>,
    {
        let joined = self.shared.line.as_ref().and_then(|line| Some((line.clone(), line.join(class, partition)?)));
        let Some((line, place)) = joined else {
            return AdaptiveResponseFuture::denied(NoPermit::LineIsFull.answer(&request), self.judge.clone());
        };
        let deadline = request.extensions().get::<Deadline>().map(|deadline| deadline.0);
        // The one that is ready goes with the request; a clone of it waits for the next.
        let clone = self.inner.clone();
        let service = std::mem::replace(&mut self.inner, clone);
        let queued = Queued::new(line, place, deadline, service, request);
        AdaptiveResponseFuture::queued(queued, self.judge.clone())
    }
}

impl NoPermit {
    pub(super) fn at_capacity(&self) -> Option<AtCapacity> {
        match self {
            Self::Now(busy) => Some(*busy),
            _ => None,
        }
    }
}

impl<S: Clone, C: Clock, J: Clone> Clone for AdaptiveConcurrencyService<S, C, J> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared), judge: self.judge.clone() }
    }
}

impl<S: fmt::Debug, C: Clock, J> fmt::Debug for AdaptiveConcurrencyService<S, C, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveConcurrencyService")
            .field("inner", &self.inner)
            .field("gate", &self.shared.gate)
            .finish_non_exhaustive()
    }
}
