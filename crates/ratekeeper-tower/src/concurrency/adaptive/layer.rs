//! `AdaptiveConcurrencyLayer` and its options.

use super::{AdaptiveConcurrencyService, HeadClassifier, QueueConfig};
use crate::head::Head;
use http::response::Parts;
use ratekeeper::adaptive::{AdaptiveQueue, Partition, RequestOutcome};
use ratekeeper::{Clock, adaptive::AdaptiveConcurrency, clock::SystemClock};
use std::fmt;
use std::sync::Arc;
use tower_layer::Layer;

/// Adapts the number of requests in flight to what the service can take; more are answered 503
/// immediately.
///
/// ```
/// use ratekeeper::adaptive::AdaptiveConcurrency;
/// use ratekeeper_tower::AdaptiveConcurrencyLayer;
/// use ratekeeper_tower::concurrency::QueueConfig;
///
/// let concurrency = AdaptiveConcurrency::builder().min(5).max(200).build();
/// let layer = AdaptiveConcurrencyLayer::new(concurrency);
/// let with_queue = AdaptiveConcurrencyLayer::default().queue(QueueConfig::of(100));
/// ```
///
/// A request is in flight, and its latency is measured, until the body of its response has ended.
/// Its outcome:
///
/// - dropped, which lowers the limit: a 503, a 504, gRPC's UNAVAILABLE or DEADLINE_EXCEEDED, an
///   error of the service or of the body;
/// - success, whose latency moves the limit: any other response;
/// - ignored: a client that hangs up, a 429 (which is about the caller), and a response that never
///   reached the service ([`NotReached`](crate::response::NotReached)).
///
/// A [`Class`](ratekeeper::adaptive::Class) among the extensions of a request is its importance:
/// permits are reserved for higher classes ([how
/// many](ratekeeper::adaptive::AdaptiveConcurrency::try_acquire_as)).
/// [`ShedLayer::extension`](crate::ShedLayer::extension) inserts it. A request without a class may
/// use the whole limit.
///
/// [`classify`](Self::classify) replaces this classification. The 503 is a problem of the type
/// `temporary-reduced-capacity`. It has an
/// [`AtCapacityError`](ratekeeper::adaptive::AtCapacityError) extension and, if the request has no
/// class, [`NoCapacity`](crate::response::NoCapacity), which an outer
/// [`ShedLayer`](crate::ShedLayer) counts as overload. All services of a layer and its clones share
/// the limit.
pub struct AdaptiveConcurrencyLayer<C: Clock = SystemClock, J = HeadClassifier> {
    shared: Arc<AdaptiveShared<C>>,
    classifier: J,
}

type HeadFn<T> = Arc<dyn Fn(&Head<'_>) -> T + Send + Sync>;

pub(super) struct AdaptiveShared<C: Clock> {
    pub(super) concurrency: AdaptiveConcurrency<C>,
    pub(super) queue: Option<AdaptiveQueue<C>>,
    pub(super) partition: Option<HeadFn<Option<Partition>>>,
}

impl<C: Clock> Clone for AdaptiveShared<C> {
    fn clone(&self) -> Self {
        Self {
            concurrency: self.concurrency.clone(),
            queue: self.queue.clone(),
            partition: self.partition.clone(),
        }
    }
}

impl Default for AdaptiveConcurrencyLayer {
    /// A layer with a limit of its own and default settings.
    fn default() -> Self {
        Self::new(AdaptiveConcurrency::builder().build())
    }
}

impl<C: Clock> AdaptiveConcurrencyLayer<C> {
    /// A layer with this limit.
    pub fn new(concurrency: AdaptiveConcurrency<C>) -> Self {
        Self {
            shared: Arc::new(AdaptiveShared {
                concurrency,
                queue: None,
                partition: None,
            }),
            classifier: HeadClassifier,
        }
    }
}

impl<C: Clock, J> AdaptiveConcurrencyLayer<C, J> {
    fn with(mut self, change: impl FnOnce(&mut AdaptiveShared<C>)) -> Self {
        change(Arc::make_mut(&mut self.shared));
        self
    }

    /// Sets the function that classifies responses by their head. Responses that never reached the
    /// service are still ignored, errors still count as dropped, and a client that hangs up before
    /// the end of the body is still ignored.
    pub fn classify<F: Fn(&Parts) -> RequestOutcome + Clone>(
        self,
        classifier: F,
    ) -> AdaptiveConcurrencyLayer<C, F> {
        AdaptiveConcurrencyLayer {
            shared: self.shared,
            classifier,
        }
    }

    /// Sets the function that returns the
    /// [partition](ratekeeper::adaptive::AdaptiveConcurrencyBuilder::partition) of a request, if it
    /// has one. The client's address in the head is that of the peer.
    #[must_use]
    pub fn partition(
        self,
        of: impl Fn(&Head<'_>) -> Option<Partition> + Send + Sync + 'static,
    ) -> Self {
        self.with(|shared| shared.partition = Some(Arc::new(of)))
    }

    /// Requests without a permit wait in a short queue instead of being denied immediately. A
    /// request that waited too long, or finds the queue full, gets the 503; a client that hangs up
    /// leaves the queue at once. A request does not wait beyond the [`Deadline`](crate::Deadline)
    /// among its extensions. There is no queue by default.
    ///
    /// The queue is served when a request of this layer ends: do not share the limit with other
    /// code.
    #[must_use]
    pub fn queue(self, queue: QueueConfig) -> Self {
        self.with(|shared| {
            shared.queue = Some(AdaptiveQueue::new(shared.concurrency.clone(), queue));
        })
    }

    /// The limit, to read its state.
    pub fn concurrency(&self) -> &AdaptiveConcurrency<C> {
        &self.shared.concurrency
    }

    /// The number of requests in the queue.
    pub fn queued(&self) -> usize {
        self.shared.queue.as_ref().map_or(0, AdaptiveQueue::len)
    }
}

impl<S, C: Clock, J: Clone> Layer<S> for AdaptiveConcurrencyLayer<C, J> {
    type Service = AdaptiveConcurrencyService<S, C, J>;

    fn layer(&self, inner: S) -> Self::Service {
        AdaptiveConcurrencyService {
            inner,
            shared: Arc::clone(&self.shared),
            classifier: self.classifier.clone(),
        }
    }
}

impl<C: Clock, J: Clone> Clone for AdaptiveConcurrencyLayer<C, J> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            classifier: self.classifier.clone(),
        }
    }
}

impl<C: Clock, J> fmt::Debug for AdaptiveConcurrencyLayer<C, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveConcurrencyLayer")
            .field("concurrency", &self.shared.concurrency)
            .finish_non_exhaustive()
    }
}
