//! Settings for overload: adaptive limits and load shedding.

use ratekeeper::adaptive::{AdaptiveConcurrency, AdaptiveConcurrencyBuilder, Control, QueueConfig};
use ratekeeper::{adaptive::Class, adaptive::ShedderBuilder};
use std::time::Duration;

/// An adaptive concurrency limit: a limit on the requests of a policy in flight, all keys together,
/// that adjusts itself: `adaptive` in a file.
///
/// Each node measures the service behind it by itself, whatever the store. See
/// [`ratekeeper::adaptive`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdaptiveLimit {
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) start: u64,
    pub(crate) control: Control,
    /// With a length of 0 there is no queue.
    pub(crate) queue: QueueConfig,
}

impl Default for AdaptiveLimit {
    fn default() -> Self {
        Self {
            min: 5,
            max: 200,
            start: 20,
            control: Control::gradient2().into(),
            queue: QueueConfig::of(0),
        }
    }
}

impl AdaptiveLimit {
    /// Creates a limit between 5 and 200 that starts at 20 and is controlled by `gradient2`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the minimum and the maximum, `min` and `max` in a file; the start is clamped to them.
    #[must_use]
    pub fn between(mut self, min: u64, max: u64) -> Self {
        self.min = min;
        self.max = max;
        self.start = self.start.clamp(min, max.max(min));
        self
    }

    /// Sets the initial limit.
    #[must_use]
    pub fn start(mut self, start: u64) -> Self {
        self.start = start;
        self
    }

    /// Sets the control algorithm.
    #[must_use]
    pub fn control(mut self, control: impl Into<Control>) -> Self {
        self.control = control.into();
        self
    }

    /// Sets a queue for requests that find no free permit; without one they are denied at once. The
    /// default is no queue, and a policy in shadow mode has none.
    ///
    /// Requests wait in [`decide`](crate::Engine::decide) and the other async methods, and in a
    /// layer, so at the gateway. [`decide_now`](crate::Engine::decide_now) never waits, nor does a
    /// subject with [`no_wait`](crate::Subject::no_wait).
    #[must_use]
    pub fn queue(mut self, queue: QueueConfig) -> Self {
        self.queue = queue;
        self
    }

    /// Whether there is a queue.
    pub(crate) fn has_queue(&self) -> bool {
        self.queue.max_waiting > 0
    }

    /// Whether the two differ at most in their queue.
    pub(crate) fn same_except_queue(&self, other: &Self) -> bool {
        *self
            == Self {
                queue: self.queue,
                ..*other
            }
    }

    pub(crate) fn builder(&self) -> AdaptiveConcurrencyBuilder {
        AdaptiveConcurrency::builder()
            .min(self.min)
            .max(self.max)
            .start(self.start)
            .control(self.control)
    }
}

/// Load shedding: under overload the least important requests are denied first: `[shed]` in a file.
///
/// An adaptive limit holds capacity back for important requests by itself ([how
/// much](ratekeeper::adaptive::AdaptiveConcurrency::try_acquire_as)). Load shedding is driven by
/// the utilization of adaptive limits, so it starts where even the most important requests are too
/// many; and by the load of the machine, if thresholds are set, and the engine has a
/// [source](crate::EngineOptions::load) for it.
///
/// A request past its deadline is denied, too, however important it is: see
/// [`patience`](Self::patience).
///
/// The importance of a request is the first of: its attribute `class`; that of its plan; that of
/// the first policy that applies to it; the default here, `critical`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shed {
    pub(crate) default: Class,
    pub(crate) cpu: Option<f64>,
    pub(crate) memory: Option<f64>,
    pub(crate) rest: Duration,
    pub(crate) spare: Option<Class>,
    pub(crate) patience: Option<Duration>,
}

impl Default for Shed {
    fn default() -> Self {
        let default = Class::default();
        let rest = Duration::from_secs(5);
        Self {
            default,
            cpu: None,
            memory: None,
            rest,
            spare: None,
            patience: None,
        }
    }
}

impl Shed {
    /// Creates load shedding driven by the adaptive limits alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the class of requests without one: `default` of `[shed]` in a file.
    #[must_use]
    pub fn default_class(mut self, class: Class) -> Self {
        self.default = class;
        self
    }

    /// Sets the share of the processors in use above which there is overload.
    #[must_use]
    pub fn cpu(mut self, share: f64) -> Self {
        self.cpu = Some(share);
        self
    }

    /// Sets the share of the memory in use above which there is overload.
    #[must_use]
    pub fn memory(mut self, share: f64) -> Self {
        self.memory = Some(share);
        self
    }

    /// Sets how long shedding stays at a level before it is reduced; 5 seconds by default.
    #[must_use]
    pub fn rest(mut self, rest: Duration) -> Self {
        self.rest = rest;
        self
    }

    /// Never sheds this class, nor more important ones.
    #[must_use]
    pub fn spare(mut self, class: Class) -> Self {
        self.spare = Some(class);
        self
    }

    /// Sets how long a caller waits for an answer, from the [start](crate::Subject::start) of the
    /// request, or from its arrival if the start is not known: an older request is denied before it
    /// costs anything, and none waits in a queue for longer. A request can shorten the time by a
    /// [deadline](crate::Subject::deadline) or by its header `grpc-timeout`.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    pub(crate) fn builder(&self) -> ShedderBuilder {
        let builder = ratekeeper::adaptive::Shedder::builder().rest(self.rest);
        match self.spare {
            Some(class) => builder.spare(class),
            None => builder,
        }
    }
}
