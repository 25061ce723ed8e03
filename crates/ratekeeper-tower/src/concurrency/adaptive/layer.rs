//! The adaptive limit, as a layer.

use super::{AdaptiveConcurrencyService, HeadClassifier, QueueConfig};
use crate::head::Head;
use http::response::Parts;
use ratekeeper::adaptive::{AdaptiveQueue, Partition, RequestOutcome};
use ratekeeper::{Clock, adaptive::AdaptiveConcurrency, clock::SystemClock};
use std::fmt;
use std::sync::Arc;
use tower_layer::Layer;

/// Lets as many requests be in flight as the service is seen to take; the others are answered 503
/// at once.
///
/// ```
/// use ratekeeper::adaptive::AdaptiveConcurrency;
/// use ratekeeper_tower::AdaptiveConcurrencyLayer;
/// use ratekeeper_tower::concurrency::Queue;
///
/// let layer = AdaptiveConcurrencyLayer::new(AdaptiveConcurrency::builder().min(5).max(200).build());
/// let with_a_line = AdaptiveConcurrencyLayer::default().queue(Queue::of(100));
/// ```
///
/// A request is in flight, and its latency counts, until the body of its response has ended. How it
/// went:
///
/// - a 503, a 504, gRPC's UNAVAILABLE or DEADLINE_EXCEEDED, an error of the service or of the body
///   is one that was dropped: the limit shrinks;
/// - whatever else is answered is one that was served, and its latency moves the limit;
/// - a client that hangs up, a 429 (which speaks of who asked) and what never reached the service
///   ([`NotReached`](crate::response::NotReached)) say nothing.
///
/// A [`Class`](ratekeeper::adaptive::Class) among the extensions of a request says how important it is, and
/// room is kept for those above it ([how much](ratekeeper::adaptive::AdaptiveConcurrency::try_acquire_as));
/// [`ShedLayer::extension`](crate::ShedLayer::extension) leaves it there. Whoever says nothing has
/// all of the limit.
///
/// [`classify`](Self::classify) decides otherwise. The 503 is a problem of the type
/// `temporary-reduced-capacity`; it carries the [`AtCapacity`](ratekeeper::adaptive::AtCapacityError), and where
/// no class was said [`NoRoom`](crate::NoRoom), by which a [`ShedLayer`](crate::ShedLayer) further
/// out learns of the pressure. All services of a layer and its clones share the limit.
pub struct AdaptiveConcurrencyLayer<C: Clock = SystemClock, J = HeadClassifier> {
    shared: Arc<Shared<C>>,
    classifier: J,
}

type HeadFn<T> = Arc<dyn Fn(&Head<'_>) -> T + Send + Sync>;

pub(super) struct Shared<C: Clock> {
    pub(super) concurrency: AdaptiveConcurrency<C>,
    pub(super) queue: Option<AdaptiveQueue<C>>,
    pub(super) partition: Option<HeadFn<Option<Partition>>>,
}

impl<C: Clock> Clone for Shared<C> {
    fn clone(&self) -> Self {
        Self {
            concurrency: self.concurrency.clone(),
            queue: self.queue.clone(),
            partition: self.partition.clone(),
        }
    }
}

impl Default for AdaptiveConcurrencyLayer {
    /// A limit of its own with nothing set.
    fn default() -> Self {
        Self::new(AdaptiveConcurrency::builder().build())
    }
}

impl<C: Clock> AdaptiveConcurrencyLayer<C> {
    /// Permits of this gate.
    pub fn new(concurrency: AdaptiveConcurrency<C>) -> Self {
        Self {
            shared: Arc::new(Shared {
                concurrency,
                queue: None,
                partition: None,
            }),
            classifier: HeadClassifier,
        }
    }
}

impl<C: Clock, J> AdaptiveConcurrencyLayer<C, J> {
    fn with(mut self, change: impl FnOnce(&mut Shared<C>)) -> Self {
        change(Arc::make_mut(&mut self.shared));
        self
    }

    /// Decides by the head of a response how it went. What never reached the service still says
    /// nothing, errors are still dropped, and a client that hangs up before the end of the body
    /// still says nothing.
    pub fn classify<F: Fn(&Parts) -> RequestOutcome + Clone>(
        self,
        classifier: F,
    ) -> AdaptiveConcurrencyLayer<C, F> {
        AdaptiveConcurrencyLayer {
            shared: self.shared,
            classifier,
        }
    }

    /// Which [partition](ratekeeper::adaptive::AdaptiveConcurrencyBuilder::partition) of the gate a
    /// request belongs to, if any. The address that the head has is that of the peer.
    #[must_use]
    pub fn partition(
        self,
        of: impl Fn(&Head<'_>) -> Option<Partition> + Send + Sync + 'static,
    ) -> Self {
        self.with(|shared| shared.partition = Some(Arc::new(of)))
    }

    /// Whoever finds no permit waits in a short line instead of being turned away at once. Who has
    /// waited too long, or finds the line full, gets the 503; who hangs up leaves the line at once.
    /// A [`Deadline`](crate::Deadline) among the extensions of a request is waited for no longer
    /// than that. Without it, the default, nobody waits.
    ///
    /// Those who wait are served when a request of this layer ends: give the gate to nobody else.
    #[must_use]
    pub fn queue(self, queue: QueueConfig) -> Self {
        self.with(|shared| {
            shared.queue = Some(AdaptiveQueue::new(shared.concurrency.clone(), queue))
        })
    }

    /// The gate, to look at it.
    pub fn concurrency(&self) -> &AdaptiveConcurrency<C> {
        &self.shared.concurrency
    }

    /// How many wait in line.
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
