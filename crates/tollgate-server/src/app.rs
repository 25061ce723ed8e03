//! What all listeners share: the engine, the buckets of `/v1/throttle`, who is believed.

use crate::buckets::{Buckets, MOST_LIMITS};
use arc_swap::ArcSwap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use tollgate::{Clock, MemoryStore};
use tollgate_policy::config::{Config, Identity, KeysShown};
use tollgate_policy::{Engine, EngineError, EngineOptions};

pub(crate) struct App<C: Clock> {
    pub(crate) engine: Engine<MemoryStore<C>>,
    pub(crate) buckets: Buckets<C>,
    pub(crate) identity: ArcSwap<Identity>,
    pub(crate) reloads: Reloads,
}

/// How often the configuration was loaded again.
#[derive(Default)]
pub(crate) struct Reloads {
    pub(crate) taken: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Whether the file as it is now was refused.
    pub(crate) stale: AtomicBool,
}

impl<C: Clock> App<C> {
    /// One store holds the keys of both, under one cap.
    pub(crate) fn new(config: &Config, store: MemoryStore<C>) -> Result<Self, EngineError> {
        let mut options = EngineOptions::default();
        // A request over the network costs far more than a look at the clock.
        options.timed_every = 1;
        options.top = config.stats.top;
        options.plain_keys = config.stats.keys == KeysShown::Plain;
        Ok(Self {
            engine: Engine::with_options(store.clone(), config.policies.clone(), options)?,
            buckets: Buckets::new(store, MOST_LIMITS),
            identity: ArcSwap::from_pointee(config.identity.clone()),
            reloads: Reloads::default(),
        })
    }
}
