//! Rules: policies as an engine runs them, with registered limits and a path index.

use super::LoadSource;
use super::key::prefix_len;
use super::overload::{LoadShedder, SharedClock};
use super::permits::RejectionCounters;
use crate::attribute::Attribute;
use crate::index::Index;
use crate::overload::AdaptiveLimit;
use crate::policies::Policies;
use crate::policy::{Limits, Penalty, Policy};
use crate::policy_limit::PolicyLimit;
use crate::request_check::RequestChecks;
use crate::stats::Tally;
use crate::validate::PolicyFinding;
use ratekeeper::adaptive::{AdaptiveQueue, QueueConfig};
use ratekeeper::{
    Algorithm, Limit, Store, keyed::TooManyLimitsError, store::LimitHandle, store::LimitOptions,
    store::OnFailure, store::ShardPrefix,
};
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The rules of an engine, until a reload.
pub(crate) struct Rules {
    pub(crate) source: Policies,
    /// In the order of the policies.
    pub(crate) policies: Vec<Rule>,
    pub(crate) index: Index,
    /// Whether any condition or key uses the path.
    pub(crate) needs_path: bool,
    /// The request checks.
    pub(crate) checks: RequestChecks,
    /// Indexes of the plans by name.
    pub(crate) plans: HashMap<Box<[u8]>, usize>,
    /// The load shedder, if configured.
    pub(crate) shedder: Option<Arc<LoadShedder>>,
}

/// One policy with its limits in the store.
pub(crate) struct Rule {
    pub(crate) policy: Policy,
    /// A unique number for the life of the engine, preserved by reloads.
    pub(crate) number: u32,
    pub(crate) key_name: Box<str>,
    /// Its own limits, or one set for each plan.
    pub(crate) sets: Vec<Vec<Slot>>,
    pub(crate) penalty: Option<PenaltyHandles>,
    pub(crate) counters: Arc<PolicyCounters>,
    /// The adaptive limit with its queue, if it has one.
    pub(crate) adaptive_queue: Option<AdaptiveQueue<SharedClock>>,
}

/// The counters of a policy, preserved by reloads.
pub(crate) struct PolicyCounters {
    pub(crate) tally: Tally,
    pub(crate) bans: AtomicU64,
    pub(crate) rejections: RejectionCounters,
    /// Whether it was logged that requests share the bucket `unknown`.
    warned_unknown: AtomicBool,
    /// Whether it applied to any request.
    has_applied: AtomicBool,
    /// The number of requests when it came into force.
    since: AtomicU64,
}

impl Rule {
    /// Logs once that requests have neither the attribute nor an address.
    #[cold]
    pub(crate) fn warn_unknown(&self, attribute: &Attribute) {
        if self.counters.warned_unknown.swap(true, Ordering::Relaxed) {
            return;
        }
        let missing = match attribute {
            Attribute::Ip => "no client address".to_owned(),
            other => format!("neither `{other}` nor a client address"),
        };
        tracing::warn!(
            "requests with {missing} share one bucket, `unknown`, in the policy `{}`; send the address, or set `missing` of the \
             policy to \"skip\", \"shared\" or \"deny\"",
            self.policy.name
        );
    }
}

impl PolicyCounters {
    fn new(window: Duration, since: u64) -> Self {
        Self {
            tally: Tally::new(window),
            bans: AtomicU64::new(0),
            rejections: RejectionCounters::default(),
            warned_unknown: AtomicBool::new(false),
            has_applied: AtomicBool::new(false),
            since: AtomicU64::new(since),
        }
    }

    /// Records that it applied to a request.
    #[inline]
    pub(crate) fn applied(&self) {
        // Usually it is set: a cache line that is only read stays shared.
        if !self.has_applied.load(Ordering::Relaxed) {
            self.has_applied.store(true, Ordering::Relaxed);
        }
    }

    /// Clears the record that it applied: its conditions changed.
    pub(crate) fn forget_applied(&self, requests: u64) {
        self.since.store(requests, Ordering::Relaxed);
        self.has_applied.store(false, Ordering::Relaxed);
    }

    /// The number of requests since it came into force, of `requests` in all, if it applied to none
    /// of them.
    pub(crate) fn unmatched(&self, requests: u64) -> Option<u64> {
        let applied = self.has_applied.load(Ordering::Relaxed);
        (!applied).then(|| requests.saturating_sub(self.since.load(Ordering::Relaxed)))
    }
}

/// A limit and its handle in the store.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) limit: PolicyLimit,
    pub(crate) handle: LimitHandle,
}

/// The handles of a penalty: one limit that denials use up, and one that a ban uses up.
pub(crate) struct PenaltyHandles {
    /// `None` if the first denial is already too many.
    pub(crate) denials: Option<LimitHandle>,
    pub(crate) ban: LimitHandle,
}

/// Everything registered in the store so far: a limit that comes back finds its counts again.
///
/// Policies are loaded into a copy, which replaces it once nothing can fail any more: a load
/// changes all or nothing.
#[derive(Clone, Default)]
pub(crate) struct Registry {
    /// Changes to apply before the policies of the last load are in force.
    changes: Vec<Change>,
    /// Options for the limits of a policy in a remote store, by policy number.
    handling: HashMap<u32, StoreOptions>,
    numbers: HashMap<String, u32>,
    counters: HashMap<u32, Arc<PolicyCounters>>,
    /// Limits by policy number, key attributes and set.
    limits: HashMap<(u32, Vec<Attribute>, Set), Vec<LimitRegistration>>,
    /// Number of loads.
    loads: u64,
    /// Number of requests so far.
    pub(super) requests: u64,
    /// Adaptive limits by policy number, with the parameters they were built from.
    pub(super) adaptive_queues: HashMap<u32, (AdaptiveLimit, AdaptiveQueue<SharedClock>)>,
    /// The clock of all adaptive limits.
    pub(super) clock: SharedClock,
    pub(super) load_shedder: Option<Arc<LoadShedder>>,
    pub(super) load: Option<LoadSource>,
}

/// A change to limits that are already in use, deferred until the load cannot fail any more.
#[derive(Clone)]
enum Change {
    Limit(LimitHandle, PolicyLimit),
    /// The name of a limit in other processes.
    SharedName(LimitHandle, String),
    /// The number of key attributes that determine the shard.
    Tag(LimitHandle, usize),
    /// The window of the usage statistics of a policy.
    Window(Arc<PolicyCounters>, Duration),
    /// The queue parameters of an adaptive limit.
    Queue(AdaptiveQueue<SharedClock>, QueueConfig),
}

impl Change {
    fn apply(self, store: &impl Store) {
        match self {
            Self::Limit(handle, PolicyLimit::Rate(rate)) => store.set_limit(&handle, rate),
            Self::Limit(handle, PolicyLimit::Concurrent(max)) => {
                store.set_concurrency(&handle, max);
            }
            Self::SharedName(handle, name) => {
                store.configure(&handle, LimitOptions::new().shared_name(&name));
            }
            Self::Tag(handle, parts) => {
                let prefix = (parts > 0)
                    .then(|| Arc::new(move |key: &[u8]| prefix_len(key, parts)) as ShardPrefix);
                store.configure(&handle, LimitOptions::new().shard_prefix(prefix));
            }
            Self::Window(counters, window) => counters.tally.set_window(window),
            Self::Queue(queue, config) => queue.set_queue(config),
        }
    }
}

/// A limit that is or was in force, with its handle.
#[derive(Clone)]
struct LimitRegistration {
    limit: PolicyLimit,
    handle: LimitHandle,
    /// The last load that had it; 0 if it was never in force.
    load: u64,
    /// The options that were set in the store, if any.
    handling: Option<StoreOptions>,
    /// The shard prefix that was set in the store, in attributes; 0 if none.
    tag: usize,
}

/// Options of a limit in a remote store.
#[derive(Clone, Copy, PartialEq, Eq)]
struct StoreOptions {
    /// The behaviour while the store cannot be reached.
    on_failure: OnFailure,
    /// The maximum staleness of leases; `None` without leasing.
    leased: Option<Duration>,
}

/// Which set of limits of a policy.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Set {
    Own,
    Plan(String),
    /// The denials of a penalty.
    Denials,
    Ban,
    /// A limit that replaces those of the policy. Keys with the same limit are keys of one handle.
    Replacement(PolicyLimit),
}

/// Why an engine rejected policies.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum EngineError {
    /// The policies are invalid.
    Policies(Vec<PolicyFinding>),
    /// The store cannot take more limits.
    TooManyLimits,
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policies(problems) => {
                for (at, problem) in problems.iter().enumerate() {
                    write!(f, "{}{problem}", if at > 0 { "; " } else { "" })?;
                }
                Ok(())
            }
            Self::TooManyLimits => {
                f.write_str("the store cannot take more limits or changes of limits; restart it")
            }
        }
    }
}

impl std::error::Error for EngineError {}

impl From<TooManyLimitsError> for EngineError {
    fn from(_: TooManyLimitsError) -> Self {
        Self::TooManyLimits
    }
}

impl Rules {
    /// Registers new limits with the store, defers changes to existing ones, and keeps the rest.
    /// After an error only the [spares](Registry::adopt_spares) of the registry are of use.
    pub(crate) fn new(
        source: Policies,
        registry: &mut Registry,
        store: &impl Store,
    ) -> Result<Self, EngineError> {
        let errors: Vec<PolicyFinding> = source
            .problems()
            .into_iter()
            .filter(PolicyFinding::is_error)
            .collect();
        if !errors.is_empty() {
            return Err(EngineError::Policies(errors));
        }
        let index = Index::new(
            source.policies.iter().map(|policy| &policy.matching),
            source.path_case,
        );
        let needs_path = source.policies.iter().any(Policy::uses_path)
            || source
                .allow
                .iter()
                .chain(&source.deny)
                .any(|entry| entry.matching.uses_path());
        let plans = (0..)
            .zip(&source.plans)
            .map(|(at, plan)| (plan.name.as_bytes().into(), at))
            .collect();
        registry.loads += 1;
        let mut policies = Vec::with_capacity(source.policies.len());
        for policy in &source.policies {
            policies.push(registry.rule(policy, &source, store)?);
        }
        let handling = |Policy {
                            on_failure, leased, ..
                        }: &Policy| StoreOptions {
            on_failure: on_failure.unwrap_or(source.on_failure),
            leased: *leased,
        };
        registry.handling = policies
            .iter()
            .map(|rule| (rule.number, handling(&rule.policy)))
            .collect();
        let shedder = registry.load_shedder(source.shed, store.now());
        Ok(Self {
            checks: RequestChecks::new(&source),
            source,
            policies,
            index,
            needs_path,
            plans,
            shedder,
        })
    }

    /// Every limit in force, by its name on other nodes; empty if limits are disabled.
    pub(crate) fn shared_limits(&self) -> Vec<String> {
        let mut texts = Vec::new();
        let mut add = |policy: &Policy, set: &Set, limits: &[PolicyLimit]| {
            let names = shared_names(policy, set, limits);
            texts.extend(
                names
                    .into_iter()
                    .zip(limits)
                    .map(|(name, limit)| format!("{name} = {limit}")),
            );
        };
        for policy in self.source.policies.iter().filter(|_| self.source.enabled) {
            let stored = |limits: &[PolicyLimit]| {
                limits
                    .iter()
                    .map(|limit| policy.stored(limit))
                    .collect::<Vec<_>>()
            };
            match &policy.limits {
                Limits::Own(limits) => add(policy, &Set::Own, &stored(limits)),
                Limits::Plan { .. } => {
                    for plan in &self.source.plans {
                        add(policy, &Set::Plan(plan.name.clone()), &stored(&plan.limits));
                    }
                }
            }
            if let Some(penalty) = &policy.penalty {
                let (denials, ban) = penalty_limits(penalty);
                add(policy, &Set::Ban, &[ban]);
                add(policy, &Set::Denials, denials.as_slice());
            }
        }
        texts
    }
}

impl Registry {
    /// Applies the deferred changes, right before the rules are swapped.
    pub(crate) fn apply(&mut self, store: &impl Store) {
        self.changes
            .drain(..)
            .for_each(|change| change.apply(store));
        for ((number, _, set), registered) in &mut self.limits {
            let Some(policy) = self.handling.get(number) else {
                continue;
            };
            registered
                .iter_mut()
                .for_each(|one| one.apply_options(set, *policy, store));
        }
    }

    /// Adopts the limits that a failed load registered. The store cannot remove them, and the next
    /// load may need them.
    pub(crate) fn adopt_spares(&mut self, failed: Self) {
        self.numbers = failed.numbers;
        for (at, registered) in failed.limits {
            let known = self.limits.entry(at).or_default();
            // A load only appends.
            let spares = registered.into_iter().skip(known.len());
            known.extend(spares.map(|one| LimitRegistration {
                load: 0,
                handling: None,
                tag: 0,
                ..one
            }));
        }
    }

    /// Every limit that is or was in force, with its policy number, except those of penalties,
    /// which count no requests.
    pub(crate) fn all_registered(&self) -> impl Iterator<Item = (u32, &LimitHandle)> {
        let counts = |set: &Set| !matches!(set, Set::Denials | Set::Ban);
        let limits = self
            .limits
            .iter()
            .filter(move |((_, _, set), _)| counts(set));
        limits.flat_map(|((number, ..), registered)| {
            registered.iter().map(|one| (*number, &one.handle))
        })
    }

    /// Defers a change to the queue of an adaptive limit.
    pub(super) fn set_queue_later(
        &mut self,
        queue: &AdaptiveQueue<SharedClock>,
        config: QueueConfig,
    ) {
        self.changes.push(Change::Queue(queue.clone(), config));
    }

    fn rule(
        &mut self,
        policy: &Policy,
        source: &Policies,
        store: &impl Store,
    ) -> Result<Rule, EngineError> {
        let next = u32::try_from(self.numbers.len()).map_err(|_| EngineError::TooManyLimits)?;
        let number = *self.numbers.entry(policy.name.clone()).or_insert(next);
        let sets = match &policy.limits {
            Limits::Own(limits) => vec![self.slots(number, policy, Set::Own, limits, store)?],
            Limits::Plan { .. } => {
                let slots = source.plans.iter().map(|plan| {
                    self.slots(
                        number,
                        policy,
                        Set::Plan(plan.name.clone()),
                        &plan.limits,
                        store,
                    )
                });
                slots.collect::<Result<_, _>>()?
            }
        };
        let penalty = policy
            .penalty
            .as_ref()
            .map(|penalty| self.penalty(number, policy, penalty, store))
            .transpose()?;
        let window = sets
            .iter()
            .flatten()
            .find_map(|slot| period(&slot.limit))
            .unwrap_or_default();
        let requests = self.requests;
        let counters = self
            .counters
            .entry(number)
            .or_insert_with(|| Arc::new(PolicyCounters::new(window, requests)));
        let counters = Arc::clone(counters);
        self.changes
            .push(Change::Window(Arc::clone(&counters), window));
        let adaptive_queue = self.adaptive_queue(number, policy);
        let key_name = policy.key_name().into();
        Ok(Rule {
            policy: policy.clone(),
            number,
            key_name,
            sets,
            penalty,
            counters,
            adaptive_queue,
        })
    }

    fn slots(
        &mut self,
        number: u32,
        policy: &Policy,
        set: Set,
        limits: &[PolicyLimit],
        store: &impl Store,
    ) -> Result<Vec<Slot>, TooManyLimitsError> {
        let stored: Vec<PolicyLimit> = limits.iter().map(|limit| policy.stored(limit)).collect();
        let handles = self.handles(number, policy, set, &stored, store)?;
        Ok(limits
            .iter()
            .zip(handles)
            .map(|(limit, handle)| Slot {
                limit: *limit,
                handle,
            })
            .collect())
    }

    fn penalty(
        &mut self,
        number: u32,
        policy: &Policy,
        penalty: &Penalty,
        store: &impl Store,
    ) -> Result<PenaltyHandles, TooManyLimitsError> {
        let (denials, ban) = penalty_limits(penalty);
        let ban = self
            .handles(number, policy, Set::Ban, &[ban], store)?
            .remove(0);
        let denials = match denials {
            None => None,
            Some(log) => Some(
                self.handles(number, policy, Set::Denials, &[log], store)?
                    .remove(0),
            ),
        };
        Ok(PenaltyHandles { denials, ban })
    }

    /// Handles for these limits: existing ones are reused, and changes to limits are applied in
    /// place, with their levels.
    fn handles(
        &mut self,
        number: u32,
        policy: &Policy,
        set: Set,
        limits: &[PolicyLimit],
        store: &impl Store,
    ) -> Result<Vec<LimitHandle>, TooManyLimitsError> {
        let Self {
            limits: all,
            changes,
            loads,
            ..
        } = self;
        let names = shared_names(policy, &set, limits);
        let registered = all.entry((number, policy.key.clone(), set)).or_default();
        let mut taken = vec![false; registered.len()];
        let mut chosen: Vec<Option<usize>> = vec![None; limits.len()];
        let latest = registered.iter().map(|old| old.load).max();
        // The matching order: an equal limit first; then one of the last load, whose levels to
        // carry over, with the same period, then of the same kind, in their order; then any earlier
        // one.
        let match_order: [(LimitMatcher, bool); 5] = [
            (PolicyLimit::eq, false),
            (same_period, true),
            (same_kind, true),
            (same_period, false),
            (same_kind, false),
        ];
        for (alike, only_latest) in match_order {
            for (limit, chosen) in limits
                .iter()
                .zip(&mut chosen)
                .filter(|(_, chosen)| chosen.is_none())
            {
                let fits = |old: &LimitRegistration| {
                    alike(&old.limit, limit) && (!only_latest || Some(old.load) == latest)
                };
                let found = (0..taken.len()).find(|at| !taken[*at] && fits(&registered[*at]));
                if let Some(at) = found {
                    (taken[at], *chosen) = (true, Some(at));
                }
            }
        }
        let mut handles = Vec::with_capacity(limits.len());
        for ((limit, name), chosen) in limits.iter().zip(names).zip(chosen) {
            let at = match chosen {
                Some(at) => at,
                None => {
                    let handle = match limit {
                        PolicyLimit::Rate(rate) => store.limit(&policy.name, *rate)?,
                        PolicyLimit::Concurrent(max) => store.concurrency(&policy.name, *max)?,
                    };
                    registered.push(LimitRegistration {
                        limit: *limit,
                        handle,
                        load: *loads,
                        handling: None,
                        tag: 0,
                    });
                    registered.len() - 1
                }
            };
            let LimitRegistration {
                limit: old,
                handle,
                load,
                tag,
                ..
            } = &mut registered[at];
            if old != limit {
                changes.push(Change::Limit(handle.clone(), *limit));
                *old = *limit;
            }
            *load = *loads;
            changes.push(Change::SharedName(handle.clone(), name));
            let parts = policy.tag.len();
            if parts != *tag {
                *tag = parts;
                changes.push(Change::Tag(handle.clone(), parts));
            }
            handles.push(handle.clone());
        }
        Ok(handles)
    }

    /// A handle for a limit that replaces those of a policy, for any key.
    pub(crate) fn register_replacement(
        &mut self,
        rule: &Rule,
        limit: PolicyLimit,
        store: &impl Store,
    ) -> Result<Slot, TooManyLimitsError> {
        let number = rule.number;
        let set = Set::Replacement(limit);
        let slot = self
            .slots(number, &rule.policy, set.clone(), &[limit], store)?
            .remove(0);
        self.changes
            .drain(..)
            .for_each(|change| change.apply(store));
        let registered = self
            .limits
            .get_mut(&(number, rule.policy.key.clone(), set.clone()))
            .into_iter()
            .flatten();
        if let Some(policy) = self.handling.get(&number) {
            registered.for_each(|one| one.apply_options(&set, *policy, store));
        }
        Ok(slot)
    }
}

impl LimitRegistration {
    /// Sets the options of a limit in the store, if they changed.
    fn apply_options(&mut self, set: &Set, policy: StoreOptions, store: &impl Store) {
        let handling = match set {
            Set::Own | Set::Plan(_) | Set::Replacement(_) => policy,
            // A node's share of a ban would start used up and ban every key. The other limits of
            // the policy decide.
            Set::Denials | Set::Ban => StoreOptions {
                on_failure: OnFailure::Open,
                leased: None,
            },
        };
        let before = self.handling.replace(handling);
        if before.map(|before| before.on_failure) != Some(handling.on_failure) {
            let options = LimitOptions::new().on_failure(handling.on_failure);
            store.configure(&self.handle, options);
        }
        if before.and_then(|before| before.leased) != handling.leased {
            store.configure(&self.handle, LimitOptions::new().lease(handling.leased));
        }
    }
}

/// The limits of a penalty: its denials, unless the first is too many, and its ban.
fn penalty_limits(penalty: &Penalty) -> (Option<PolicyLimit>, PolicyLimit) {
    // The last denial is the one that the log no longer allows.
    let log = |before| {
        Limit::of(before, penalty.within)
            .algorithm(Algorithm::SlidingLog)
            .into()
    };
    let before = penalty.denials - 1;
    (
        (before > 0).then(|| log(before)),
        PolicyLimit::Rate(Limit::of(1, penalty.ban)),
    )
}

/// The names of limits among nodes: derived from the policies alone, whatever this node registered
/// before. Limits with the same policy, key and period are the same limit; several of those are
/// numbered in their order.
fn shared_names(policy: &Policy, set: &Set, limits: &[PolicyLimit]) -> Vec<String> {
    let mut stem = policy.name.clone();
    for attribute in &policy.key {
        let _ = write!(stem, ",{attribute}");
    }
    let _ = match set {
        Set::Own => Ok(()),
        Set::Plan(plan) => write!(stem, " plan {plan}"),
        Set::Denials => write!(stem, " denials"),
        Set::Ban => write!(stem, " ban"),
        Set::Replacement(limit) => write!(stem, " instead {limit}"),
    };
    let name = |limit: &PolicyLimit| match (period(limit), limit.rate()) {
        (Some(period), _) => format!("{stem} {period:?}"),
        (None, Some(_)) => format!("{stem} unlimited"),
        (None, None) => format!("{stem} concurrent"),
    };
    let names: Vec<String> = limits.iter().map(name).collect();
    let nth = |at: usize| {
        1 + names[..at]
            .iter()
            .filter(|name| **name == names[at])
            .count()
    };
    (0..names.len())
        .map(|at| format!("{} {}", names[at], nth(at)))
        .collect()
}

/// Whether a registered limit can be changed into another.
type LimitMatcher = fn(&PolicyLimit, &PolicyLimit) -> bool;

fn same_kind(old: &PolicyLimit, new: &PolicyLimit) -> bool {
    old.rate().is_some() == new.rate().is_some()
}

fn same_period(old: &PolicyLimit, new: &PolicyLimit) -> bool {
    same_kind(old, new) && period(old) == period(new)
}

fn period(limit: &PolicyLimit) -> Option<Duration> {
    Some(limit.rate()?.rate()?.period())
}
