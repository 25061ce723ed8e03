//! [`AdmissionControl`]: one trait for the real limits of `ratekeeper` that protect the simulated
//! service.

use ratekeeper::adaptive::{
    AdaptiveConcurrency, AdaptivePermit, AdaptiveQueue, Partition, QueueWait, QueuedPermit,
    RequestOutcome,
};
use ratekeeper::{Clock, Concurrency, Permit, Timestamp, adaptive::Class, adaptive::Shedder};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Allows or denies calls, and is informed how they ended.
pub trait AdmissionControl {
    /// The permit of a call in the service.
    type Permit: 'static;

    /// Decides a call of this stream; `None` if it is denied.
    fn admit(&mut self, stream: usize) -> Option<Self::Permit>;

    /// Lets a denied call wait; `None` if it does not wait.
    fn wait(&mut self, stream: usize) -> Option<Wait<Self::Permit>> {
        let _ = stream;
        None
    }

    /// The call has left the service; `in_time`: whether its client was still waiting.
    fn done(&mut self, permit: Self::Permit, in_time: bool);

    /// The current limit on calls in flight.
    fn limit(&self) -> u64;

    /// How much is shed, counted in classes.
    fn level(&self) -> f64 {
        0.0
    }

    /// Whether the limit is lowered for a moment by a probe.
    fn probing(&self) -> bool {
        false
    }
}

/// A call that waits for a permit.
pub struct Wait<P> {
    /// Until when it waits at most.
    pub until: Timestamp,
    wait: Pin<Box<dyn Future<Output = Option<P>>>>,
}

impl<P: 'static> Wait<P> {
    fn new<C: Clock>(
        until: Timestamp,
        wait: QueueWait<C>,
        permit: impl FnOnce(QueuedPermit<C>) -> P + 'static,
    ) -> Self {
        Self {
            until,
            wait: Box::pin(async move { wait.await.map(permit) }),
        }
    }

    /// Polls the wait; ready with `None` if it has timed out.
    pub(crate) fn poll(&mut self) -> Poll<Option<P>> {
        self.wait
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
    }
}

/// No admission control: every call is allowed.
pub struct NoLimit;

impl AdmissionControl for NoLimit {
    type Permit = ();

    fn admit(&mut self, _: usize) -> Option<()> {
        Some(())
    }

    fn done(&mut self, (): (), _: bool) {}

    fn limit(&self) -> u64 {
        u64::MAX
    }
}

/// A fixed concurrency limit.
impl<C: Clock> AdmissionControl for Concurrency<C> {
    type Permit = Permit<C>;

    fn admit(&mut self, _: usize) -> Option<Self::Permit> {
        self.try_acquire().ok()
    }

    fn done(&mut self, permit: Self::Permit, _: bool) {
        drop(permit);
    }

    fn limit(&self) -> u64 {
        Concurrency::limit(self)
    }
}

fn finish<C: Clock>(permit: AdaptivePermit<C>, in_time: bool) {
    permit.finish(if in_time {
        RequestOutcome::Success
    } else {
        RequestOutcome::Dropped
    });
}

/// An adaptive concurrency limit.
impl<C: Clock> AdmissionControl for AdaptiveConcurrency<C> {
    type Permit = AdaptivePermit<C>;

    fn admit(&mut self, _: usize) -> Option<Self::Permit> {
        self.try_acquire().ok()
    }

    fn done(&mut self, permit: Self::Permit, in_time: bool) {
        finish(permit, in_time);
    }

    fn limit(&self) -> u64 {
        AdaptiveConcurrency::limit(self)
    }

    fn probing(&self) -> bool {
        self.snapshot().probing
    }
}

/// An adaptive concurrency limit with a short queue in front.
pub struct QueuedLimit<C: Clock>(AdaptiveQueue<C>);

impl<C: Clock> QueuedLimit<C> {
    /// A limit with this queue.
    pub fn new(line: AdaptiveQueue<C>) -> Self {
        Self(line)
    }
}

impl<C: Clock> AdmissionControl for QueuedLimit<C> {
    type Permit = AdaptivePermit<C>;

    fn admit(&mut self, _: usize) -> Option<Self::Permit> {
        // No call passes the waiters.
        if self.0.is_empty() {
            self.0.gate().try_acquire().ok()
        } else {
            None
        }
    }

    fn wait(&mut self, _: usize) -> Option<Wait<Self::Permit>> {
        let ticket = self.0.join(Class::CriticalPlus, None)?;
        let until = ticket.until();
        let wait = ticket.wait(self.0.gate().clock().sleep_until(until));
        Some(Wait::new(until, wait, QueuedPermit::into_inner))
    }

    fn done(&mut self, permit: Self::Permit, in_time: bool) {
        finish(permit, in_time);
        self.0.serve();
    }

    fn limit(&self) -> u64 {
        self.0.gate().limit()
    }

    fn probing(&self) -> bool {
        AdmissionControl::probing(self.0.gate())
    }
}

/// An adaptive concurrency limit in which each stream has a partition.
pub struct PartitionedLimit<C: Clock> {
    gate: AdaptiveConcurrency<C>,
    streams: Vec<Option<Partition>>,
}

impl<C: Clock> PartitionedLimit<C> {
    /// Takes the name of each stream's partition; an unknown name stands for no partition.
    pub fn new(gate: AdaptiveConcurrency<C>, names: &[&str]) -> Self {
        let streams = names.iter().map(|name| gate.partition(name)).collect();
        Self { gate, streams }
    }
}

impl<C: Clock> AdmissionControl for PartitionedLimit<C> {
    type Permit = AdaptivePermit<C>;

    fn admit(&mut self, stream: usize) -> Option<Self::Permit> {
        match self.streams[stream] {
            Some(partition) => self.gate.try_acquire_in(partition).ok(),
            None => self.gate.try_acquire().ok(),
        }
    }

    fn done(&mut self, permit: Self::Permit, in_time: bool) {
        finish(permit, in_time);
    }

    fn limit(&self) -> u64 {
        self.gate.limit()
    }

    fn probing(&self) -> bool {
        AdmissionControl::probing(&self.gate)
    }
}

/// An adaptive concurrency limit that reserves capacity for more important classes.
pub struct ClassedLimit<C: Clock> {
    gate: AdaptiveConcurrency<C>,
    classes: Vec<Class>,
}

impl<C: Clock> ClassedLimit<C> {
    /// Takes the class of each stream.
    pub fn new(gate: AdaptiveConcurrency<C>, classes: impl Into<Vec<Class>>) -> Self {
        Self {
            gate,
            classes: classes.into(),
        }
    }
}

impl<C: Clock> AdmissionControl for ClassedLimit<C> {
    type Permit = AdaptivePermit<C>;

    fn admit(&mut self, stream: usize) -> Option<Self::Permit> {
        self.gate.try_acquire_as(self.classes[stream], None).ok()
    }

    fn done(&mut self, permit: Self::Permit, in_time: bool) {
        finish(permit, in_time);
    }

    fn limit(&self) -> u64 {
        self.gate.limit()
    }

    fn probing(&self) -> bool {
        AdmissionControl::probing(&self.gate)
    }
}

/// A load shedder alone, to which the latency of every call is reported.
pub struct SheddingLimit<C: Clock> {
    shedder: Shedder<C>,
    clock: C,
    classes: Vec<Class>,
    well: Duration,
}

impl<C: Clock> SheddingLimit<C> {
    /// Takes the class of each stream, and the target latency.
    pub fn new(
        shedder: Shedder<C>,
        clock: C,
        classes: impl Into<Vec<Class>>,
        well: Duration,
    ) -> Self {
        Self {
            shedder,
            clock,
            classes: classes.into(),
            well,
        }
    }
}

impl<C: Clock> AdmissionControl for SheddingLimit<C> {
    type Permit = Timestamp;

    fn admit(&mut self, stream: usize) -> Option<Timestamp> {
        self.shedder
            .admit(self.classes[stream])
            .then(|| self.clock.now())
    }

    fn done(&mut self, began: Timestamp, _: bool) {
        self.shedder
            .report((self.clock.now() - began).as_secs_f64() / self.well.as_secs_f64());
    }

    fn limit(&self) -> u64 {
        u64::MAX
    }

    fn level(&self) -> f64 {
        self.shedder.level()
    }
}
