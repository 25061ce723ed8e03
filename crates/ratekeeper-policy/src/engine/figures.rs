//! What an engine has counted, for whoever asks.

use super::Engine;
use super::key;
use super::rules::Ruling;
use crate::attribute::Attribute;
use crate::policy::{Action, Rollout};
use crate::policy_limit::PolicyLimit;
use crate::stats::{DecisionStats, Heavy, HistogramSnapshot, SeenKey};
use ratekeeper::{Ask, Mode, Store, store::LimitHandle, store::LimitKeyStats};
use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// What one policy has counted since the engine was made, over all reloads.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct PolicyStats {
    /// Its name.
    pub policy: String,
    /// By what it counts, in words.
    pub key: String,
    /// The same, one by one.
    pub by: Vec<Attribute>,
    /// Its limits, those of its plans too, each once.
    pub limits: Vec<PolicyLimit>,
    /// What becomes of requests over the limit.
    pub action: Action,
    /// The share of keys that this is for.
    pub rollout: Rollout,
    /// What became of the requests it applied to. One that another policy turned away is in none of
    /// these, unless this one only watches and would have turned it away too.
    pub counts: DecisionStats,
    /// Bans by its penalty.
    pub bans: u64,
    /// The number of requests since the policy is in force, if it applied to none of them.
    pub unmatched: Option<u64>,
    /// How full it is; see [`Usage`].
    pub usage: Utilization,
    /// Keys that have used something which has not come back yet, and keys that were forgotten.
    /// None if the store cannot count.
    pub keys: Option<LimitKeyStats>,
}

/// How full a policy is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Utilization {
    /// One bucket for all: the share of it that is used, from 0 to 1.
    Share(f64),
    /// The cost that was admitted within its window, estimated as a sliding window counter does.
    Admitted(u64),
}

impl Utilization {
    /// The number alone.
    pub fn number(self) -> f64 {
        match self {
            Self::Share(share) => share,
            Self::Admitted(cost) => cost as f64,
        }
    }
}

/// One of the heaviest keys.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TopKey {
    /// The policy.
    pub policy: String,
    /// The key in words where the options say so, else by its fingerprints.
    pub key: String,
    /// The key by its fingerprints, such as `user=#f8c0a1b2c3d4e5f6`; none where it is too long to
    /// be kept.
    pub fingerprint: Option<String>,
    /// At most so many.
    pub count: u64,
    /// And at least so many.
    pub at_least: u64,
}

fn limits_of(ruling: &Ruling) -> Vec<PolicyLimit> {
    let mut limits = Vec::new();
    for slot in ruling.sets.iter().flatten() {
        if !limits.contains(&slot.limit) {
            limits.push(slot.limit);
        }
    }
    limits
}

/// # Figures
impl<S: Store> Engine<S> {
    /// What each policy has counted. Looks at the whole store once, so not for every request.
    pub async fn policy_stats(&self) -> Vec<PolicyStats> {
        let rules = self.inner.rules.load_full();
        let handles = |ruling: &Ruling| -> Vec<LimitHandle> {
            ruling
                .sets
                .iter()
                .flatten()
                .map(|slot| slot.handle.clone())
                .collect()
        };
        let mut all: Vec<LimitHandle> = rules.policies.iter().flat_map(handles).collect();
        // What was forgotten under a limit that is gone stays counted: a counter never goes down.
        let (mut owners, in_force) = (Vec::new(), all.len());
        for (number, handle) in self
            .inner
            .registry
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .ever()
        {
            owners.push(number);
            all.push(handle.clone());
        }
        let census = self.inner.store.key_stats(&all);
        let mut evicted = HashMap::<u32, (u64, u64)>::new();
        for (number, one) in owners
            .iter()
            .zip(census.iter().flat_map(|census| &census[in_force..]))
        {
            let (fresh, live) = evicted.entry(*number).or_default();
            *fresh += one.evicted_fresh;
            *live += one.evicted_live;
        }
        let mut census_in_force = census.as_deref().unwrap_or_default().iter();
        let requests = self.requests();
        let mut figures = Vec::with_capacity(rules.policies.len());
        for ruling in &rules.policies {
            // A request is charged to all limits of a set: its key is one, however many they are.
            let live = ruling.sets.iter().map(|set| {
                census_in_force
                    .by_ref()
                    .take(set.len())
                    .map(|one| one.live)
                    .max()
                    .unwrap_or_default()
            });
            let live = live.sum();
            let (evicted_fresh, evicted_live) =
                evicted.get(&ruling.number).copied().unwrap_or_default();
            let keys = census.is_some().then_some(LimitKeyStats {
                live,
                evicted_fresh,
                evicted_live,
            });
            figures.push(PolicyStats {
                policy: ruling.policy.name.clone(),
                key: ruling.key_name.to_string(),
                by: ruling.policy.key.clone(),
                limits: limits_of(ruling),
                action: ruling.policy.action,
                rollout: ruling.policy.rollout,
                counts: ruling.figures.tally.read(),
                bans: ruling.figures.bans.load(Ordering::Relaxed),
                unmatched: ruling.figures.unmatched(requests),
                usage: self.usage(ruling).await,
                keys,
            });
        }
        figures
    }

    async fn usage(&self, ruling: &Ruling) -> Utilization {
        let store = &self.inner.store;
        let now = store.now();
        if !ruling.policy.key.is_empty() {
            return Utilization::Admitted(ruling.figures.tally.in_window(now));
        }
        let mut fullest = 0.0_f64;
        for slot in ruling.sets.iter().flatten() {
            let verdict = store
                .decide_at(&[Ask::new(&slot.handle, b"").cost(0).mode(Mode::Peek)], now)
                .await;
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

    /// All requests: how many passed, and how many were turned away. Peeks are not among them.
    pub fn totals(&self) -> (u64, u64) {
        let counts = self.inner.figures.all.read();
        (counts.allowed, counts.denied)
    }

    /// How long decisions took, of those that were timed; see
    /// [`EngineOptions`](super::EngineOptions).
    pub fn decision_times(&self) -> HistogramSnapshot {
        self.inner.figures.times.read()
    }

    /// How often other policies have taken the place of those it was made with.
    pub fn reload_count(&self) -> u64 {
        self.inner.figures.reloads.load(Ordering::Relaxed)
    }

    /// The keys with most requests.
    pub fn most_active(&self, many: usize) -> Vec<TopKey> {
        self.top(self.inner.figures.heaviest.top(many))
    }

    /// The keys that were turned away most often.
    pub fn most_denied(&self, many: usize) -> Vec<TopKey> {
        self.top(self.inner.figures.most_denied.top(many))
    }

    /// The keys that would have been turned away most often by policies that only watch.
    pub fn most_shadow_denied(&self, many: usize) -> Vec<TopKey> {
        self.top(self.inner.figures.shadow_denied.top(many))
    }

    /// Requests that are in none of the lists because two newcomers met in one place.
    pub fn top_missed(&self) -> u64 {
        let figures = &self.inner.figures;
        let lists = [
            &figures.heaviest,
            &figures.most_denied,
            &figures.shadow_denied,
        ];
        lists
            .iter()
            .fold(0, |sum, list| sum.saturating_add(list.missed()))
    }

    /// Starts all lists anew.
    pub fn clear_top(&self) {
        self.inner.figures.shadow_denied.clear();
        self.inner.figures.heaviest.clear();
        self.inner.figures.most_denied.clear();
    }

    fn top(&self, keys: Vec<Heavy>) -> Vec<TopKey> {
        let (rules, secret) = (self.inner.rules.load(), self.inner.overrides.secret());
        let by_number: HashMap<u32, &Ruling> = rules
            .policies
            .iter()
            .map(|ruling| (ruling.number, ruling))
            .collect();
        let shown = |heavy: Heavy| {
            // Those of policies that have gone are about to be forgotten.
            let ruling = by_number.get(&heavy.policy)?;
            let (key, fingerprint) = match heavy.key {
                SeenKey::Long(label) => (label.into(), None),
                SeenKey::Bytes(bytes) => {
                    let bytes = bytes.as_slice();
                    (
                        self.key_listed(ruling, bytes),
                        Some(key::fingerprint(&ruling.policy.key, bytes, &secret)),
                    )
                }
            };
            let policy = ruling.policy.name.clone();
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
