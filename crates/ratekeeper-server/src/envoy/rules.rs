//! Rules of the configuration with their registered limits, replaced as a whole.

use super::config::{EnvoyConfig, LimitRef, RuleConfig};
use super::matching::Level;
use crate::store::AnyStore;
use ratekeeper::{
    Clock, Store, keyed::TooManyLimitsError, store::LimitHandle, store::LimitOptions,
    store::OnFailure,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Settings for decisions and responses, from the server configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// If false, every request is allowed.
    pub(crate) enabled: bool,
    /// Denied hits consume the rest of a limit, as in envoyproxy/ratelimit.
    pub(crate) denied_hits_consume: bool,
    pub(crate) response_headers: bool,
    pub(crate) dynamic_metadata: bool,
    pub(crate) on_failure: OnFailure,
}

pub(super) struct Rules {
    pub(super) domains: HashMap<String, Level>,
    /// Indexed by [`RuleIndex`](super::matching::RuleIndex).
    pub(super) rules: Vec<Rule>,
    pub(super) settings: Settings,
}

pub(super) struct Rule {
    pub(super) config: RuleConfig,
    pub(super) state: Arc<RuleState>,
}

/// State of a rule that outlasts changes of the files.
pub(super) struct RuleState {
    /// `None` if it is unlimited.
    pub(super) handle: Option<LimitHandle>,
    pub(super) counters: RuleCounters,
}

/// Decisions of a rule by outcome.
#[derive(Default)]
pub(super) struct RuleCounters {
    pub(super) allowed: AtomicU64,
    pub(super) denied: AtomicU64,
    pub(super) shadow_denied: AtomicU64,
}

/// Statistics of a rule, with its path in the file.
pub(crate) struct RuleStats {
    pub(crate) path: String,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) shadow_denied: u64,
}

/// All rules since the start: a rule that is added again keeps its counts.
#[derive(Default)]
pub(super) struct Registry {
    states: Mutex<HashMap<String, Arc<RuleState>>>,
}

impl Registry {
    /// Registers new limits and updates changed ones; the store carries the counts over.
    pub(super) fn register<C: Clock>(
        &self,
        store: &AnyStore<C>,
        config: EnvoyConfig,
        settings: Settings,
    ) -> Result<Rules, TooManyLimitsError> {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rules = Vec::with_capacity(config.rules.len());
        for config in config.rules {
            let name = name(&config);
            let state = match states.get(&name) {
                Some(state) => Arc::clone(state),
                None => {
                    let handle = match config.limit {
                        LimitRef::Unlimited => None,
                        LimitRef::To { limit, .. } => Some(store.limit(&name, limit)?),
                    };
                    let state = Arc::new(RuleState {
                        handle,
                        counters: RuleCounters::default(),
                    });
                    states.insert(name, Arc::clone(&state));
                    state
                }
            };
            rules.push(Rule { config, state });
        }
        for rule in &rules {
            if let (Some(handle), LimitRef::To { limit, .. }) =
                (&rule.state.handle, rule.config.limit)
            {
                if handle.limit() != Some(limit) {
                    store.set_limit(handle, limit);
                }
                let options = LimitOptions::new().on_failure(settings.on_failure);
                store.configure(handle, options);
            }
        }
        Ok(Rules {
            domains: config.domains,
            rules,
            settings,
        })
    }
}

impl Rules {
    /// The limits in force, by names that are the same on all nodes; empty if `enabled` is false.
    pub(super) fn shared_limits(&self) -> impl Iterator<Item = String> {
        let limited = self.rules.iter().filter(|_| self.settings.enabled);
        limited.filter_map(|Rule { config, .. }| match config.limit {
            LimitRef::Unlimited => None,
            LimitRef::To { limit, .. } => Some(format!("{} = {limit}", name(config))),
        })
    }
}

/// The name of a limit in the store, the same in every process: its identity, window and algorithm,
/// which cannot change without losing the counts.
fn name(rule: &RuleConfig) -> String {
    let identity = &rule.identity;
    match rule.limit {
        LimitRef::Unlimited => format!("envoy {identity} unlimited"),
        LimitRef::To { limit, .. } => {
            let window = limit.rate().map_or(0, |rate| rate.period().as_millis());
            format!("envoy {identity} {window}ms {}", limit.algorithm_kind())
        }
    }
}

impl Rule {
    pub(super) fn stats(&self) -> RuleStats {
        let RuleCounters {
            allowed,
            denied,
            shadow_denied,
        } = &self.state.counters;
        RuleStats {
            path: self.config.path.clone(),
            allowed: allowed.load(Relaxed),
            denied: denied.load(Relaxed),
            shadow_denied: shadow_denied.load(Relaxed),
        }
    }
}
