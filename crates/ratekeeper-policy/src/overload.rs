//! What policies say for when there is too much: how many may be in flight, and who goes first.

use ratekeeper::adaptive::{AdaptiveConcurrency, AdaptiveConcurrencyBuilder, Control, QueueConfig};
use ratekeeper::{adaptive::Class, adaptive::ShedderBuilder};
use std::time::Duration;

/// A limit on how many requests of a policy are in flight, all keys together, that finds its number
/// by itself: `adaptive` in a file.
///
/// Each node measures for itself what is behind it, whatever the store. See
/// [`ratekeeper::adaptive`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdaptiveLimit {
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) start: u64,
    pub(crate) control: Control,
    /// With room for none, nobody waits.
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
    /// Between 5 and 200, from 20 on, by `gradient2`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Between these two; it starts between them, too.
    #[must_use]
    pub fn between(mut self, min: u64, max: u64) -> Self {
        (self.min, self.max) = (min, max);
        self.start = self.start.clamp(min, max.max(min));
        self
    }

    /// What it is before anything is known.
    #[must_use]
    pub fn start(mut self, start: u64) -> Self {
        self.start = start;
        self
    }

    /// What it goes by.
    #[must_use]
    pub fn control(mut self, control: impl Into<Control>) -> Self {
        self.control = control.into();
        self
    }

    /// Whoever finds no place waits in a short line, instead of being turned away at once. Nobody
    /// waits unless said, and nobody where the policy only watches.
    ///
    /// Only requests wait that are decided where they can: by [`decide`](crate::Engine::decide) and
    /// its like, and by a layer, so at the gateway. [`decide_now`](crate::Engine::decide_now)
    /// cannot; who [asks for an answer at once](crate::Subject::at_once) does not.
    #[must_use]
    pub fn queue(mut self, queue: QueueConfig) -> Self {
        self.queue = queue;
        self
    }

    /// Whether anybody may wait.
    pub(crate) fn queues(&self) -> bool {
        self.queue.max_waiting > 0
    }

    /// Whether the two differ in nothing but who may wait.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
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

/// Under pressure the least important requests are turned away first: `[shed]` in a file.
///
/// An adaptive limit keeps room for the more important by itself ([how
/// much](ratekeeper::adaptive::AdaptiveConcurrency::try_acquire_as)). What presses is how far it is in use,
/// so this begins where even the most important are too many; and the load of the machine, if it is
/// said from when on, and the engine is [told](crate::EngineOptions::load) of it.
///
/// A request that nobody waits for any more is turned away, too, however important it is: see
/// [`patience`](Self::patience).
///
/// How important a request is, the first of these that says something: its attribute `class`; the
/// plan that it has; the first policy that applies to it; the default here, `critical`.
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
        let (default, rest) = (Class::default(), Duration::from_secs(5));
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
    /// By the adaptive limits alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// The class of requests of which nothing says how important they are.
    #[must_use]
    pub fn default_class(mut self, class: Class) -> Self {
        self.default = class;
        self
    }

    /// More than this share of the processors in use is too much.
    #[must_use]
    pub fn cpu(mut self, share: f64) -> Self {
        self.cpu = Some(share);
        self
    }

    /// More than this share of the memory in use is too much.
    #[must_use]
    pub fn memory(mut self, share: f64) -> Self {
        self.memory = Some(share);
        self
    }

    /// How long no less is shed after more was; 5 seconds unless said.
    #[must_use]
    pub fn rest(mut self, rest: Duration) -> Self {
        self.rest = rest;
        self
    }

    /// Never sheds this class, nor what is more important.
    #[must_use]
    pub fn spare(mut self, class: Class) -> Self {
        self.spare = Some(class);
        self
    }

    /// How long after its [start](crate::Subject::start), or after it came if that is not known,
    /// anybody waits for an answer: what began longer ago is turned away before it costs anything,
    /// and nobody waits in line for longer. A request may say less by a
    /// [deadline](crate::Subject::deadline) or by `grpc-timeout` among its headers.
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
