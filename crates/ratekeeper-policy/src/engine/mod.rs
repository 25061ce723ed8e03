//! The policy engine: decides a subject by the policies, over any store.

mod by_name;
mod check_request;
mod completion;
mod count;
mod decide;
mod detached;
mod explain;
mod fleet_overrides;
mod key;
mod open_verdict;
mod operator;
mod overload;
mod overrides;
mod permits;
mod query;
mod reason;
mod rules;
mod stats;
mod verdict;
mod verdict_pool;
mod verdict_summary;

pub use by_name::ByNameError;
pub use completion::Completion;
pub use decide::MaybeReady;
pub use explain::{Explanation, KeyState, LimitState, PolicyTrace};
pub use fleet_overrides::{PolicyKey, SharedOverride};
pub use operator::{KeySelector, Operator, SeenValue};
pub use overload::{AdaptiveStats, LoadSource, OverloadStats};
pub(crate) use overrides::MAX_OVERRIDE_DURATION;
pub use overrides::{Override, OverrideError};
pub use permits::RejectionStats;
pub use reason::{Ban, Reason};
pub use rules::EngineError;
pub use stats::{EngineStats, PolicyStats, TopKey, Utilization};
pub use verdict::{LimitStatus, PolicyVerdict};
pub use verdict_summary::VerdictSummary;

use crate::attribute::Attribute;
use crate::fingerprint::FingerprintSecret;
use crate::policies::Policies;
use crate::stats::{Histogram, Sketch, Tally};
use crate::subject::Subject;
use arc_swap::ArcSwap;
use crossbeam_utils::sync::ShardedLock;
use overrides::Overrides;
use ratekeeper::Store;
use rules::{Registry, Rule, Rules};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Decides requests by policies, over a store.
///
/// ```
/// use ratekeeper::{Limit, MemoryStore};
/// use ratekeeper_policy::{Attribute, Engine, Match, Policies, Policy, Subject};
///
/// let login = Policy::new("login")
///     .matching(Match::new().path("/login".parse()?))
///     .key(Attribute::Ip)
///     .limit(Limit::per_minute(5));
/// let everything = Policy::new("everything").limit(Limit::per_minute(100_000));
/// let policies = Policies::new().policy(login).policy(everything);
/// let engine = Engine::new(MemoryStore::new(), policies)?;
///
/// let subject = Subject::new().ip("203.0.113.7".parse()?).method("POST").path("/login");
/// let verdict = engine.decide_now(&subject); // on any store: engine.decide(&subject).await
/// assert!(verdict.is_allowed());
/// assert_eq!(verdict.limits().next().unwrap().decision().remaining(), 4);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// It is a handle: clones share everything. All limits of a request are asked of the store in one
/// call.
pub struct Engine<S> {
    inner: Arc<Inner<S>>,
}

struct Inner<S> {
    store: S,
    rules: ArcSwap<Rules>,
    /// Held by a decision from reading the rules to the answer of the store, and by a reload while
    /// it changes both. A decision therefore sees all of a reload or nothing of it.
    reload_lock: ShardedLock<()>,
    /// Locked while the next rules are made.
    registry: Mutex<Registry>,
    overrides: Overrides,
    stats: EngineCounters,
    options: EngineOptions,
    /// Hashes keys for the lists of top keys.
    key_hasher: foldhash::fast::RandomState,
}

/// Statistics over all policies.
struct EngineCounters {
    all: Tally,
    times: Histogram,
    most_active: Sketch,
    most_denied: Sketch,
    /// Denials by policies in shadow mode.
    shadow_denied: Sketch,
    reloads: AtomicU64,
    /// Requests whose deadline had passed before they were decided.
    late: AtomicU64,
}

/// Options of an engine: statistics, fingerprints, and the source of the machine load.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Times one in this many decisions, which costs one more clock read each; 0 turns timing off.
    pub timed_every: u32,
    /// Number of keys tracked for the lists of most active and most denied keys.
    pub top: usize,
    /// Whether those lists show keys in plain text instead of fingerprints. Secrets are always
    /// shown as fingerprints.
    pub plain_keys: bool,
    /// The secret for fingerprints; `None` for a random one of this process. See also
    /// [`share_overrides`](Operator::share_overrides).
    pub fingerprints: Option<FingerprintSecret>,
    /// The load of the machine, for load [shedding](crate::overload::Shed) by it. It is read ten
    /// times a second at most.
    pub load: Option<LoadSource>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            timed_every: 16,
            top: 1024,
            plain_keys: false,
            fingerprints: None,
            load: None,
        }
    }
}

impl<S: Store> Engine<S> {
    /// Creates an engine for these policies.
    pub fn new(store: S, policies: Policies) -> Result<Self, EngineError> {
        Self::with_options(store, policies, EngineOptions::default())
    }

    /// Creates an engine with other [options](EngineOptions) than the defaults.
    pub fn with_options(
        store: S,
        policies: Policies,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let mut registry = Registry::default();
        registry.load = options.load.clone();
        let rules = Rules::new(policies, &mut registry, &store)?;
        registry.apply(&store);
        let stats = EngineCounters {
            all: Tally::new(Duration::ZERO),
            times: Histogram::new(),
            most_active: Sketch::new(options.top),
            most_denied: Sketch::new(options.top),
            shadow_denied: Sketch::new(options.top),
            reloads: AtomicU64::new(0),
            late: AtomicU64::new(0),
        };
        Ok(Self {
            inner: Arc::new(Inner {
                store,
                rules: ArcSwap::from_pointee(rules),
                reload_lock: ShardedLock::new(()),
                registry: Mutex::new(registry),
                overrides: Overrides::new(
                    options
                        .fingerprints
                        .unwrap_or_else(FingerprintSecret::random),
                ),
                stats,
                options,
                key_hasher: foldhash::fast::RandomState::default(),
            }),
        })
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// Replaces the policies, all at once: a decision is made by the old ones or by the new ones.
    /// (A request that is waiting in a queue keeps the policies that it matched, and is decided by
    /// the limits of the new ones.) Limits that are unchanged keep their counts; a limit that
    /// changed keeps the tokens that are left. On an error nothing has changed: the policies are
    /// invalid, or the store cannot take more limits.
    pub fn set_policies(&self, policies: Policies) -> Result<(), EngineError> {
        let mut registry = self
            .inner
            .registry
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut next = registry.clone();
        let requests = self.stats().requests();
        next.requests = requests;
        let rules = match Rules::new(policies, &mut next, &self.inner.store) {
            Ok(rules) => Arc::new(rules),
            Err(error) => {
                registry.adopt_spares(next);
                return Err(error);
            }
        };
        *registry = next;
        let before = {
            let _no_decision = self.inner.reload_lock.write();
            registry.apply(&self.inner.store);
            self.inner.rules.swap(rules)
        };
        let now = self.inner.rules.load();
        // With another key attribute, the same bytes are another key.
        let keys: HashMap<u32, &[Attribute]> = now
            .policies
            .iter()
            .map(|new| (new.number, &*new.policy.key))
            .collect();
        for gone in before
            .policies
            .iter()
            .filter(|old| keys.get(&old.number) != Some(&&*old.policy.key))
        {
            self.inner.stats.most_active.forget(gone.number);
            self.inner.stats.most_denied.forget(gone.number);
            self.inner.stats.shadow_denied.forget(gone.number);
        }
        for old in &before.policies {
            let matching = &old.policy.matching;
            let key = &old.policy.key;
            let same = now.policies.iter().find(|new| new.number == old.number);
            if let Some(new) =
                same.filter(|new| new.policy.matching != *matching || new.policy.key != *key)
            {
                new.counters.forget_applied(requests);
            }
        }
        self.inner.stats.reloads.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The policies in force.
    pub fn policies(&self) -> Policies {
        self.inner.rules.load().source.clone()
    }
}

impl<S> Clone for Engine<S> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<S> fmt::Debug for Engine<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("policies", &self.inner.rules.load().policies.len())
            .finish_non_exhaustive()
    }
}
