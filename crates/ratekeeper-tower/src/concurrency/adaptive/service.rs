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
use ratekeeper::adaptive::Partition;
use ratekeeper::{
    Clock, adaptive::AdaptivePermit, adaptive::AtCapacityError, adaptive::Class, clock::SystemClock,
};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_service::Service;

/// What [`AdaptiveConcurrencyLayer`](super::AdaptiveConcurrencyLayer) makes of a service. Clones
/// share the limit.
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

    /// As ready as the service inside: whoever finds no permit is told so, or waits in line with
    /// its request.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (class, partition) = self.shared.who(&request);
        match self.shared.enter(class, partition) {
            Ok(permit) => {
                let inner = self.inner.call(request);
                let serving = Serving::new(permit, self.shared.line.clone());
                AdaptiveResponseFuture::calling(inner, serving, self.judge.clone())
            }
            Err(busy) => self.otherwise(request, class, partition, busy),
        }
    }
}

impl<C: Clock> Shared<C> {
    /// How important a request is, and of which partition.
    #[inline]
    fn who<B>(&self, request: &Request<B>) -> (Class, Option<Partition>) {
        let partition = self.partition.as_ref().and_then(|partition| {
            let client = Client::connected(request.extensions());
            partition(&Head::of(request, client))
        });
        // Whoever says nothing has all of the limit.
        (
            request
                .extensions()
                .get()
                .copied()
                .unwrap_or(Class::CriticalPlus),
            partition,
        )
    }

    /// A permit; else what the gate said, if it was asked.
    #[inline]
    fn enter(
        &self,
        class: Class,
        partition: Option<Partition>,
    ) -> Result<AdaptivePermit<C>, Option<AtCapacityError>> {
        // Nobody passes those who wait.
        if self.line.as_ref().is_some_and(|line| !line.is_empty()) {
            return Err(None);
        }
        self.gate.try_acquire_as(class, partition).map_err(Some)
    }
}

impl<S: Clone, C: Clock, J: Clone> AdaptiveConcurrencyService<S, C, J> {
    /// For whom there is no permit now.
    #[cold]
    #[inline(never)]
    fn otherwise<B>(
        &mut self,
        request: Request<B>,
        class: Class,
        partition: Option<Partition>,
        busy: Option<AtCapacityError>,
    ) -> AdaptiveResponseFuture<S, B, C, J>
    where
        S: Service<Request<B>>,
    {
        match busy {
            Some(busy) if self.shared.line.is_none() => AdaptiveResponseFuture::denied(
                NoPermit::Now(busy).answer(&request),
                self.judge.clone(),
            ),
            _ => self.wait(request, class, partition),
        }
    }

    fn wait<B>(
        &mut self,
        request: Request<B>,
        class: Class,
        partition: Option<Partition>,
    ) -> AdaptiveResponseFuture<S, B, C, J>
    where
        S: Service<Request<B>>,
    {
        let joined = self
            .shared
            .line
            .as_ref()
            .and_then(|line| Some((line.clone(), line.join(class, partition)?)));
        let Some((line, place)) = joined else {
            return AdaptiveResponseFuture::denied(
                NoPermit::LineIsFull.answer(&request),
                self.judge.clone(),
            );
        };
        let deadline = request
            .extensions()
            .get::<Deadline>()
            .map(|deadline| deadline.0);
        // The one that is ready goes with the request; a clone of it waits for the next.
        let clone = self.inner.clone();
        let service = std::mem::replace(&mut self.inner, clone);
        let queued = Queued::new(line, place, deadline, service, request);
        AdaptiveResponseFuture::queued(queued, self.judge.clone())
    }
}

impl NoPermit {
    pub(super) fn at_capacity(&self) -> Option<AtCapacityError> {
        match self {
            Self::Now(busy) => Some(*busy),
            _ => None,
        }
    }
}

impl<S: Clone, C: Clock, J: Clone> Clone for AdaptiveConcurrencyService<S, C, J> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
            judge: self.judge.clone(),
        }
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
