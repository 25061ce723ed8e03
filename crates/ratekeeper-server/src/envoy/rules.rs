//! The configuration with its limits registered: what requests are judged by, swapped as a whole.

use super::config::{EnvoyConfig, LimitRef, RuleConfig};
use super::matching::Level;
use crate::store::AnyStore;
use ratekeeper::{Clock, Store, keyed::TooManyLimitsError, store::LimitHandle, store::OnFailure};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// How requests are judged and answered, beside the limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// Off, everything passes.
    pub(crate) enabled: bool,
    /// What is turned away uses up what is left, as in envoyproxy/ratelimit.
    pub(crate) denied_hits_consume: bool,
    pub(crate) response_headers: bool,
    pub(crate) dynamic_metadata: bool,
    pub(crate) on_failure: OnFailure,
}

pub(super) struct Rules {
    pub(super) domains: HashMap<String, Level>,
    /// By their place.
    pub(super) rules: Vec<Rule>,
    pub(super) settings: Settings,
}

pub(super) struct Rule {
    pub(super) config: RuleConfig,
    pub(super) known: Arc<KnownLimits>,
}

/// What stays of a rule while files change.
pub(super) struct KnownLimits {
    /// None if it is unlimited.
    pub(super) handle: Option<LimitHandle>,
    pub(super) counts: RuleCounters,
}

/// What became of the requests that a rule judged.
#[derive(Default)]
pub(super) struct RuleCounters {
    pub(super) allowed: AtomicU64,
    pub(super) denied: AtomicU64,
    pub(super) shadow_denied: AtomicU64,
}

/// The figures of a rule, under the name it has in the file.
pub(crate) struct RuleStats {
    pub(crate) path: String,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) shadow_denied: u64,
}

/// Every rule there ever was: one that comes back finds its counts.
#[derive(Default)]
pub(super) struct Registry {
    known: Mutex<HashMap<String, Arc<KnownLimits>>>,
}

impl Registry {
    /// Registers what is new, and changes what is another limit than before: the store carries the
    /// counts over.
    pub(super) fn register<C: Clock>(
        &self,
        store: &AnyStore<C>,
        config: EnvoyConfig,
        settings: Settings,
    ) -> Result<Rules, TooManyLimitsError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rules = Vec::with_capacity(config.rules.len());
        for config in config.rules {
            let name = name(&config);
            let rule = match known.get(&name) {
                Some(rule) => Arc::clone(rule),
                None => {
                    let handle = match config.limit {
                        LimitRef::Unlimited => None,
                        LimitRef::To { limit, .. } => Some(store.limit(&name, limit)?),
                    };
                    let rule = Arc::new(KnownLimits {
                        handle,
                        counts: RuleCounters::default(),
                    });
                    known.insert(name, Arc::clone(&rule));
                    rule
                }
            };
            rules.push(Rule {
                config,
                known: rule,
            });
        }
        for rule in &rules {
            if let (Some(handle), LimitRef::To { limit, .. }) =
                (&rule.known.handle, rule.config.limit)
            {
                if handle.limit() != Some(limit) {
                    store.set_limit(handle, limit);
                }
                store.on_failure(handle, settings.on_failure);
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
    /// Every limit in force, by the name that other nodes know it by too; none where limits are
    /// off.
    pub(super) fn shared_limits(&self) -> impl Iterator<Item = String> {
        let limited = self.rules.iter().filter(|_| self.settings.enabled);
        limited.filter_map(|Rule { config, .. }| match config.limit {
            LimitRef::Unlimited => None,
            LimitRef::To { limit, .. } => Some(format!("{} = {limit}", name(config))),
        })
    }
}

/// The same in every process: where the rule is, and what of its limit cannot change without
/// beginning anew.
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
    pub(super) fn figures(&self) -> RuleStats {
        let RuleCounters {
            allowed,
            denied,
            shadow_denied,
        } = &self.known.counts;
        let [allowed, denied, shadow_denied] =
            [allowed, denied, shadow_denied].map(|count| count.load(Relaxed));
        RuleStats {
            path: self.config.path.clone(),
            allowed,
            denied,
            shadow_denied,
        }
    }
}
