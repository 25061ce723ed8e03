//! What policies say for when there is too much: how many may be in flight, and who goes first.

use std::time::Duration;
use tollgate::adaptive::{AdaptiveConcurrency, AdaptiveConcurrencyBuilder, Control};
use tollgate::{Class, ShedderBuilder};

/// A limit on how many requests of a policy are in flight, all keys together, that finds its number by itself: `adaptive`
/// in a file.
///
/// Each node measures for itself what is behind it, whatever the store. See [`tollgate::adaptive`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdaptiveLimit {
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) start: u64,
    pub(crate) control: Control,
}

impl Default for AdaptiveLimit {
    fn default() -> Self {
        Self { min: 5, max: 200, start: 20, control: Control::gradient2().into() }
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

    pub(crate) fn builder(&self) -> AdaptiveConcurrencyBuilder {
        AdaptiveConcurrency::builder().min(self.min).max(self.max).start(self.start).control(self.control)
    }
}

/// Under pressure the least important requests are turned away first: `[shed]` in a file.
///
/// An adaptive limit keeps room for the more important by itself
/// ([how much](tollgate::AdaptiveConcurrency::try_acquire_as)). What presses is how far it is in use, so this begins where
/// even the most important are too many; and the load of the machine, if it is said from when on, and the engine is [told](crate::EngineOptions::load) of it.
///
/// How important a request is, the first of these that says something: its attribute `class`; the plan that it has; the first
/// policy that applies to it; the default here, `critical`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shed {
    pub(crate) default: Class,
    pub(crate) cpu: Option<f64>,
    pub(crate) memory: Option<f64>,
    pub(crate) rest: Duration,
    pub(crate) spare: Option<Class>,
}

impl Default for Shed {
    fn default() -> Self {
        Self { default: Class::default(), cpu: None, memory: None, rest: Duration::from_secs(5), spare: None }
    }
}

impl Shed {
    /// By the adaptive limits alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// The class of requests of which nothing says how important they are.
    #[must_use]
    pub fn otherwise(mut self, class: Class) -> Self {
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

    pub(crate) fn builder(&self) -> ShedderBuilder {
        let builder = tollgate::Shedder::builder().rest(self.rest);
        match self.spare {
            Some(class) => builder.spare(class),
            None => builder,
        }
    }
}
