//! What stands in front of the service: the real things, seen through one trait.

use ratekeeper::adaptive::{
    AdaptiveConcurrency, AdaptivePermit, AdaptiveQueue, Partition, QueueWait, QueuedPermit,
    RequestOutcome,
};
use ratekeeper::{Clock, Concurrency, Permit, Timestamp, adaptive::Class, adaptive::Shedder};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Lets calls in, and is told how they ended.
pub trait Gate {
    /// What a call holds while it is in the service.
    type Pass: 'static;

    /// A call of this stream; none if it is turned away.
    fn admit(&mut self, stream: usize) -> Option<Self::Pass>;

    /// A call that found no room, if it waits for some.
    fn wait(&mut self, stream: usize) -> Option<Wait<Self::Pass>> {
        let _ = stream;
        None
    }

    /// The call has left the service, and its client was still there, or was not.
    fn done(&mut self, pass: Self::Pass, in_time: bool);

    /// How many it would let in at once.
    fn limit(&self) -> u64;

    /// How much is shed, counted in classes.
    fn level(&self) -> f64 {
        0.0
    }

    /// Whether the limit is held low for a moment, to measure something.
    fn probing(&self) -> bool {
        false
    }
}

/// A call that waits to be let in.
pub struct Wait<P> {
    /// Until when it waits at most.
    pub until: Timestamp,
    turn: Pin<Box<dyn Future<Output = Option<P>>>>,
}

impl<P: 'static> Wait<P> {
    fn new<C: Clock>(
        until: Timestamp,
        turn: QueueWait<C>,
        pass: impl FnOnce(QueuedPermit<C>) -> P + 'static,
    ) -> Self {
        Self {
            until,
            turn: Box::pin(async move { turn.await.map(pass) }),
        }
    }

    /// Whether its turn has come; none if its time is over.
    pub(crate) fn poll(&mut self) -> Poll<Option<P>> {
        self.turn
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
    }
}

/// No gate at all.
pub struct Open;

impl Gate for Open {
    type Pass = ();

    fn admit(&mut self, _: usize) -> Option<()> {
        Some(())
    }

    fn done(&mut self, (): (), _: bool) {}

    fn limit(&self) -> u64 {
        u64::MAX
    }
}

/// A limit that stays as it is.
impl<C: Clock> Gate for Concurrency<C> {
    type Pass = Permit<C>;

    fn admit(&mut self, _: usize) -> Option<Self::Pass> {
        self.try_acquire().ok()
    }

    fn done(&mut self, pass: Self::Pass, _: bool) {
        drop(pass);
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

/// A limit that finds its number.
impl<C: Clock> Gate for AdaptiveConcurrency<C> {
    type Pass = AdaptivePermit<C>;

    fn admit(&mut self, _: usize) -> Option<Self::Pass> {
        self.try_acquire().ok()
    }

    fn done(&mut self, pass: Self::Pass, in_time: bool) {
        finish(pass, in_time);
    }

    fn limit(&self) -> u64 {
        AdaptiveConcurrency::limit(self)
    }

    fn probing(&self) -> bool {
        self.snapshot().probing
    }
}

/// The same with a short queue in front.
pub struct Queued<C: Clock>(AdaptiveQueue<C>);

impl<C: Clock> Queued<C> {
    /// With this line.
    pub fn new(line: AdaptiveQueue<C>) -> Self {
        Self(line)
    }
}

impl<C: Clock> Gate for Queued<C> {
    type Pass = AdaptivePermit<C>;

    fn admit(&mut self, _: usize) -> Option<Self::Pass> {
        // Nobody passes those who wait.
        if self.0.is_empty() {
            self.0.gate().try_acquire().ok()
        } else {
            None
        }
    }

    fn wait(&mut self, _: usize) -> Option<Wait<Self::Pass>> {
        let place = self.0.join(Class::CriticalPlus, None)?;
        let until = place.until();
        let turn = place.wait(self.0.gate().clock().sleep_until(until));
        Some(Wait::new(until, turn, QueuedPermit::into_inner))
    }

    fn done(&mut self, pass: Self::Pass, in_time: bool) {
        finish(pass, in_time);
        self.0.serve();
    }

    fn limit(&self) -> u64 {
        self.0.gate().limit()
    }

    fn probing(&self) -> bool {
        Gate::probing(self.0.gate())
    }
}

/// The same, where each stream has a part of its own.
pub struct Parted<C: Clock> {
    gate: AdaptiveConcurrency<C>,
    streams: Vec<Option<Partition>>,
}

impl<C: Clock> Parted<C> {
    /// The name of its partition for each stream; a name that there is none of stands for no
    /// partition.
    pub fn new(gate: AdaptiveConcurrency<C>, names: &[&str]) -> Self {
        let streams = names.iter().map(|name| gate.partition(name)).collect();
        Self { gate, streams }
    }
}

impl<C: Clock> Gate for Parted<C> {
    type Pass = AdaptivePermit<C>;

    fn admit(&mut self, stream: usize) -> Option<Self::Pass> {
        match self.streams[stream] {
            Some(partition) => self.gate.try_acquire_in(partition).ok(),
            None => self.gate.try_acquire().ok(),
        }
    }

    fn done(&mut self, pass: Self::Pass, in_time: bool) {
        finish(pass, in_time);
    }

    fn limit(&self) -> u64 {
        self.gate.limit()
    }

    fn probing(&self) -> bool {
        Gate::probing(&self.gate)
    }
}

/// An adaptive limit that keeps room for the more important.
pub struct Classed<C: Clock> {
    gate: AdaptiveConcurrency<C>,
    classes: Vec<Class>,
}

impl<C: Clock> Classed<C> {
    /// The class of each stream.
    pub fn new(gate: AdaptiveConcurrency<C>, classes: impl Into<Vec<Class>>) -> Self {
        Self {
            gate,
            classes: classes.into(),
        }
    }
}

impl<C: Clock> Gate for Classed<C> {
    type Pass = AdaptivePermit<C>;

    fn admit(&mut self, stream: usize) -> Option<Self::Pass> {
        self.gate.try_acquire_as(self.classes[stream], None).ok()
    }

    fn done(&mut self, pass: Self::Pass, in_time: bool) {
        finish(pass, in_time);
    }

    fn limit(&self) -> u64 {
        self.gate.limit()
    }

    fn probing(&self) -> bool {
        Gate::probing(&self.gate)
    }
}

/// A shedder alone, which is told of the latency of every answer.
pub struct Shed<C: Clock> {
    shedder: Shedder<C>,
    clock: C,
    classes: Vec<Class>,
    well: Duration,
}

impl<C: Clock> Shed<C> {
    /// The class of each stream, and the latency that is well.
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

impl<C: Clock> Gate for Shed<C> {
    type Pass = Timestamp;

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
