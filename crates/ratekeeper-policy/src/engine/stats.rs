//! Statistics of an engine: policies, keys, decision times.

use super::Engine;
use super::key;
use super::rules::Rule;
use crate::attribute::Attribute;
use crate::policy::{Action, Rollout};
use crate::policy_limit::PolicyLimit;
use crate::stats::{DecisionStats, HeavyHitter, HistogramSnapshot, StoredKey};
use ratekeeper::{Ask, Mode, Store, store::LimitHandle, store::LimitKeyStats};
use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Statistics of one policy since the engine was created, over all reloads.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct PolicyStats {
    /// The name of the policy.
    pub policy: String,
    /// Its key, in words.
    pub key: String,
    /// The attributes of its key.
    pub by: Vec<Attribute>,
    /// Its limits, including those of its plans, without duplicates.
    pub limits: Vec<PolicyLimit>,
    /// What happens to requests over the limit.
    pub action: Action,
    /// The share of keys that the action applies to.
    pub rollout: Rollout,
    /// Its decisions on the requests it applied to. A request that another policy denied is not
    /// counted, unless this policy is in shadow mode and would have denied it too.
    pub counts: DecisionStats,
    /// Bans by its penalty.
    pub bans: u64,
    /// The number of requests since the policy is in force, if it applied to none of them.
    pub unmatched: Option<u64>,
    /// How much of it is used.
    pub usage: Utilization,
    /// Live and evicted keys. `None` if the store cannot count them.
    pub keys: Option<LimitKeyStats>,
}

/// How much of a policy is used.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Utilization {
    /// For one bucket for all requests: the used share of it, from 0 to 1.
    Share(f64),
    /// For buckets by key: the cost that was allowed within the window, estimated like a sliding
    /// window counter.
    Allowed(u64),
}

impl Utilization {
    /// The plain number.
    pub fn number(self) -> f64 {
        match self {
            Self::Share(share) => share,
            Self::Allowed(cost) => cost as f64,
        }
    }
}

/// One of the most active or most denied keys.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TopKey {
    /// The policy.
    pub policy: String,
    /// The key in plain text if [the options](super::EngineOptions::plain_keys) show it, otherwise
    /// by its fingerprints.
    pub key: String,
    /// The key by its fingerprints, such as `user=#f8c0a1b2c3d4e5f6`; `None` if the key is too long
    /// to be stored.
    pub fingerprint: Option<String>,
    /// Upper bound of its count.
    pub count: u64,
    /// Lower bound of its count.
    pub at_least: u64,
}

fn limits_of(rule: &Rule) -> Vec<PolicyLimit> {
    let mut limits = Vec::new();
    for slot in rule.sets.iter().flatten() {
        if !limits.contains(&slot.limit) {
            limits.push(slot.limit);
        }
    }
    limits
}

/// The statistics of an engine; see [`Engine::stats`].
pub struct EngineStats<'e, S: Store> {
    pub(super) engine: &'e Engine<S>,
}

impl<S: Store> Engine<S> {
    /// The statistics of this engine.
    pub fn stats(&self) -> EngineStats<'_, S> {
        EngineStats { engine: self }
    }
}

impl<S: Store> EngineStats<'_, S> {
    /// Statistics of each policy. Scans the whole store once: do not call it per request.
    pub async fn policies(&self) -> Vec<PolicyStats> {
        let rules = self.engine.inner.rules.load_full();
        let handles = |rule: &Rule| -> Vec<LimitHandle> {
            rule.sets
                .iter()
                .flatten()
                .map(|slot| slot.handle.clone())
                .collect()
        };
        let mut all: Vec<LimitHandle> = rules.policies.iter().flat_map(handles).collect();
        // Evictions under limits that are gone stay counted: a counter never goes down.
        let mut owners = Vec::new();
        let in_force = all.len();
        for (number, handle) in self
            .engine
            .inner
            .registry
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .all_registered()
        {
            owners.push(number);
            all.push(handle.clone());
        }
        let key_stats = self.engine.inner.store.key_stats(&all);
        let mut evicted = HashMap::<u32, (u64, u64)>::new();
        for (number, one) in owners.iter().zip(
            key_stats
                .iter()
                .flat_map(|key_stats| &key_stats[in_force..]),
        ) {
            let (fresh, live) = evicted.entry(*number).or_default();
            *fresh += one.evicted_fresh;
            *live += one.evicted_live;
        }
        let mut key_stats_in_force = key_stats.as_deref().unwrap_or_default().iter();
        let requests = self.requests();
        let mut all_stats = Vec::with_capacity(rules.policies.len());
        for rule in &rules.policies {
            // A request is charged to all limits of a set, so they hold the same keys: count them
            // once.
            let live = rule.sets.iter().map(|set| {
                key_stats_in_force
                    .by_ref()
                    .take(set.len())
                    .map(|one| one.live)
                    .max()
                    .unwrap_or_default()
            });
            let live = live.sum();
            let (evicted_fresh, evicted_live) =
                evicted.get(&rule.number).copied().unwrap_or_default();
            let keys = key_stats.is_some().then_some(LimitKeyStats {
                live,
                evicted_fresh,
                evicted_live,
            });
            all_stats.push(PolicyStats {
                policy: rule.policy.name.clone(),
                key: rule.key_name.to_string(),
                by: rule.policy.key.clone(),
                limits: limits_of(rule),
                action: rule.policy.action,
                rollout: rule.policy.rollout,
                counts: rule.counters.tally.read(),
                bans: rule.counters.bans.load(Ordering::Relaxed),
                unmatched: rule.counters.unmatched(requests),
                usage: self.usage(rule).await,
                keys,
            });
        }
        all_stats
    }

    async fn usage(&self, rule: &Rule) -> Utilization {
        let store = &self.engine.inner.store;
        let now = store.now();
        if !rule.policy.key.is_empty() {
            return Utilization::Allowed(rule.counters.tally.in_window(now));
        }
        let mut fullest = 0.0_f64;
        for slot in rule.sets.iter().flatten() {
            let ask = Ask::new(&slot.handle, b"").cost(0).mode(Mode::Peek);
            let verdict = self.engine.peek_at_store(&[ask], now).await;
            for status in verdict
                .results()
                .filter(|status| !status.decision().is_unlimited())
            {
                let (limit, remaining) =
                    (status.decision().capacity(), status.decision().remaining());
                fullest = fullest.max(1.0 - remaining as f64 / limit.max(1) as f64);
            }
        }
        Utilization::Share(fullest)
    }

    pub(super) fn requests(&self) -> u64 {
        let (allowed, denied) = self.totals();
        allowed + denied
    }

    /// The number of allowed and of denied requests, without peeks.
    pub fn totals(&self) -> (u64, u64) {
        let counts = self.engine.inner.stats.all.read();
        (counts.allowed, counts.denied)
    }

    /// Decision times, of the decisions that were timed; see
    /// [`EngineOptions`](super::EngineOptions).
    pub fn decision_times(&self) -> HistogramSnapshot {
        self.engine.inner.stats.times.read()
    }

    /// The number of reloads.
    pub fn reloads(&self) -> u64 {
        self.engine.inner.stats.reloads.load(Ordering::Relaxed)
    }

    /// The keys with the most requests.
    pub fn most_active(&self, count: usize) -> Vec<TopKey> {
        self.top(self.engine.inner.stats.most_active.top(count))
    }

    /// The keys with the most denials.
    pub fn most_denied(&self, count: usize) -> Vec<TopKey> {
        self.top(self.engine.inner.stats.most_denied.top(count))
    }

    /// The keys with the most denials by policies in shadow mode.
    pub fn most_shadow_denied(&self, count: usize) -> Vec<TopKey> {
        self.top(self.engine.inner.stats.shadow_denied.top(count))
    }

    /// Requests that the lists missed, because two new keys competed for one slot.
    pub fn top_missed(&self) -> u64 {
        let stats = &self.engine.inner.stats;
        let lists = [&stats.most_active, &stats.most_denied, &stats.shadow_denied];
        lists
            .iter()
            .fold(0, |sum, list| sum.saturating_add(list.missed()))
    }

    /// Clears all lists.
    pub fn clear_top(&self) {
        self.engine.inner.stats.shadow_denied.clear();
        self.engine.inner.stats.most_active.clear();
        self.engine.inner.stats.most_denied.clear();
    }

    fn top(&self, keys: Vec<HeavyHitter>) -> Vec<TopKey> {
        let rules = self.engine.inner.rules.load();
        let secret = self.engine.inner.overrides.secret();
        let by_number: HashMap<u32, &Rule> = rules
            .policies
            .iter()
            .map(|rule| (rule.number, rule))
            .collect();
        let shown = |heavy: HeavyHitter| {
            // Keys of removed policies are about to be dropped.
            let rule = by_number.get(&heavy.policy)?;
            let (key, fingerprint) = match heavy.key {
                StoredKey::Long(label) => (label.into(), None),
                StoredKey::Bytes(bytes) => {
                    let bytes = bytes.as_slice();
                    (
                        self.engine.display_key(rule, bytes),
                        Some(key::fingerprint(&rule.policy.key, bytes, &secret)),
                    )
                }
            };
            let policy = rule.policy.name.clone();
            Some(TopKey {
                policy,
                key,
                fingerprint,
                count: heavy.count,
                at_least: heavy.count - heavy.error,
            })
        };
        keys.into_iter().filter_map(shown).collect()
    }
}
