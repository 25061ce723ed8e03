//! `AdaptiveConcurrencyService`: the service that takes a permit of an adaptive limit before each
//! call.

use super::future::{AcquireFailure, AdaptiveResponseFuture, QueuedCall};
use super::layer::AdaptiveShared;
use super::permit_guard::PermitGuard;
use super::{ClassifyResponse, HeadClassifier, TimedBody};
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

/// A service behind an [`AdaptiveConcurrencyLayer`](super::AdaptiveConcurrencyLayer). Clones share
/// the limit.
pub struct AdaptiveConcurrencyService<S, C: Clock = SystemClock, J = HeadClassifier> {
    pub(super) inner: S,
    pub(super) shared: Arc<AdaptiveShared<C>>,
    pub(super) classifier: J,
}

impl<S, B, R, C, J> Service<Request<B>> for AdaptiveConcurrencyService<S, C, J>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: Body,
    C: Clock,
    J: ClassifyResponse,
{
    type Response = Response<ResponseBody<TimedBody<R, C>>>;
    type Error = S::Error;
    type Future = AdaptiveResponseFuture<S, B, C, J>;

    /// Ready when the inner service is ready: requests without a permit are denied, or wait in the
    /// queue.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (class, partition) = self.shared.class_and_partition(&request);
        match self.shared.try_acquire(class, partition) {
            Ok(permit) => {
                let inner = self.inner.call(request);
                let permit_guard = PermitGuard::new(permit, self.shared.queue.clone());
                AdaptiveResponseFuture::calling(inner, permit_guard, self.classifier.clone())
            }
            Err(at_capacity) => self.call_without_permit(request, class, partition, at_capacity),
        }
    }
}

impl<C: Clock> AdaptiveShared<C> {
    /// The class and the partition of a request.
    #[inline]
    fn class_and_partition<B>(&self, request: &Request<B>) -> (Class, Option<Partition>) {
        let partition = self.partition.as_ref().and_then(|partition| {
            let client = Client::of_connection(request.extensions());
            partition(&Head::of(request, client))
        });
        // A request without a class may use the whole limit.
        (
            request
                .extensions()
                .get()
                .copied()
                .unwrap_or(Class::CriticalPlus),
            partition,
        )
    }

    /// Takes a permit. Otherwise returns the limit's error, or `None` because others are queued.
    #[inline]
    fn try_acquire(
        &self,
        class: Class,
        partition: Option<Partition>,
    ) -> Result<AdaptivePermit<C>, Option<AtCapacityError>> {
        // New requests do not overtake the queue.
        if self.queue.as_ref().is_some_and(|queue| !queue.is_empty()) {
            return Err(None);
        }
        self.concurrency
            .try_acquire_as(class, partition)
            .map_err(Some)
    }
}

impl<S: Clone, C: Clock, J: Clone> AdaptiveConcurrencyService<S, C, J> {
    /// Handles a request without a permit.
    #[cold]
    #[inline(never)]
    fn call_without_permit<B>(
        &mut self,
        request: Request<B>,
        class: Class,
        partition: Option<Partition>,
        at_capacity: Option<AtCapacityError>,
    ) -> AdaptiveResponseFuture<S, B, C, J>
    where
        S: Service<Request<B>>,
    {
        match at_capacity {
            Some(at_capacity) if self.shared.queue.is_none() => AdaptiveResponseFuture::denied(
                AcquireFailure::AtCapacity(at_capacity).response(&request),
                self.classifier.clone(),
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
            .queue
            .as_ref()
            .and_then(|queue| Some((queue.clone(), queue.join(class, partition)?)));
        let Some((queue, ticket)) = joined else {
            return AdaptiveResponseFuture::denied(
                AcquireFailure::QueueFull.response(&request),
                self.classifier.clone(),
            );
        };
        let deadline = request
            .extensions()
            .get::<Deadline>()
            .map(|deadline| deadline.0);
        // The inner service that is ready goes with this request; a clone of it stays for the next.
        let clone = self.inner.clone();
        let service = std::mem::replace(&mut self.inner, clone);
        let queued = QueuedCall::new(queue, ticket, deadline, service, request);
        AdaptiveResponseFuture::queued(queued, self.classifier.clone())
    }
}

impl AcquireFailure {
    pub(super) fn at_capacity(&self) -> Option<AtCapacityError> {
        match self {
            Self::AtCapacity(at_capacity) => Some(*at_capacity),
            _ => None,
        }
    }
}

impl<S: Clone, C: Clock, J: Clone> Clone for AdaptiveConcurrencyService<S, C, J> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
            classifier: self.classifier.clone(),
        }
    }
}

impl<S: fmt::Debug, C: Clock, J> fmt::Debug for AdaptiveConcurrencyService<S, C, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveConcurrencyService")
            .field("inner", &self.inner)
            .field("concurrency", &self.shared.concurrency)
            .finish_non_exhaustive()
    }
}
