//! Policies as an engine runs them: with their limits registered, and found by path.

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
    Algorithm, Limit, Store, keyed::TooManyLimitsError, store::LimitHandle, store::OnFailure,
    store::ShardPrefix,
};
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// What an engine goes by, until it is given other policies.
pub(crate) struct Rules {
    pub(crate) source: Policies,
    /// In the order of the policies.
    pub(crate) policies: Vec<Rule>,
    pub(crate) index: Index,
    /// Whether any condition is about the path.
    pub(crate) needs_path: bool,
    /// What is checked of requests before they are decided on.
    pub(crate) checks: RequestChecks,
    /// The plans by name.
    pub(crate) plans: HashMap<Box<[u8]>, usize>,
    /// Who sheds, if anybody does.
    pub(crate) shedder: Option<Arc<LoadShedder>>,
}

/// One policy, with what it has in the store.
pub(crate) struct Rule {
    pub(crate) policy: Policy,
    /// Told apart from all others for as long as the engine lives; the same after a reload.
    pub(crate) number: u32,
    pub(crate) key_name: Box<str>,
    /// Its own limits, or those of each plan.
    pub(crate) sets: Vec<Vec<Slot>>,
    pub(crate) penalty: Option<PenaltyHandles>,
    pub(crate) counters: Arc<PolicyCounters>,
    /// How many may be in flight, where that is found out, and who waits for a place.
    pub(crate) adaptive_queue: Option<AdaptiveQueue<SharedClock>>,
}

/// What is counted of a policy, over all reloads.
pub(crate) struct PolicyCounters {
    pub(crate) tally: Tally,
    pub(crate) bans: AtomicU64,
    pub(crate) rejections: RejectionCounters,
    /// Whether it was logged that requests share the bucket `unknown`.
    warned_unknown: AtomicBool,
    /// Whether it applied to any request.
    has_applied: AtomicBool,
    /// How many requests there had been when it came into force.
    since: AtomicU64,
}

impl Rule {
    /// Logs, once, that requests have neither an attribute of the key nor an address.
    #[cold]
    pub(crate) fn warn_unknown(&self, attribute: &Attribute) {
        if self.counters.warned_unknown.swap(true, Ordering::Relaxed) {
            return;
        }
        let what = match attribute {
            Attribute::Ip => "no client address".to_owned(),
            other => format!("neither `{other}` nor a client address"),
        };
        tracing::warn!(
            "requests with {what} share one bucket, `unknown`, in the policy `{}`; send the address, or set `missing` of the \
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

    /// Notes that it applied to a request.
    #[inline]
    pub(crate) fn applied(&self) {
        // Most find it noted: a line that is only read stays with all processors.
        if !self.has_applied.load(Ordering::Relaxed) {
            self.has_applied.store(true, Ordering::Relaxed);
        }
    }

    /// Forgets that it applied to requests: it is about others from now on.
    pub(crate) fn forget_applied(&self, requests: u64) {
        self.since.store(requests, Ordering::Relaxed);
        self.has_applied.store(false, Ordering::Relaxed);
    }

    /// How many of so many requests came while it was in force, if it applied to none of them.
    pub(crate) fn unmatched(&self, requests: u64) -> Option<u64> {
        let applied = self.has_applied.load(Ordering::Relaxed);
        (!applied).then(|| requests.saturating_sub(self.since.load(Ordering::Relaxed)))
    }
}

/// A limit and its place in the store.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) limit: PolicyLimit,
    pub(crate) handle: LimitHandle,
}

/// A penalty is two limits: one that the denials use up, and one that a ban uses up.
pub(crate) struct PenaltyHandles {
    /// None: the first denial is one too many.
    pub(crate) denials: Option<LimitHandle>,
    pub(crate) ban: LimitHandle,
}

/// Everything the store was ever asked to keep: what comes back finds its counts again.
///
/// Policies are loaded into a copy, which takes its place once nothing can fail any more: a load
/// changes all or nothing.
#[derive(Clone, Default)]
pub(crate) struct Registry {
    /// What is left to do before the policies of the last load are in force.
    changes: Vec<Change>,
    /// What a store elsewhere is to do with the limits of a policy, by its number.
    handling: HashMap<u32, StoreOptions>,
    numbers: HashMap<String, u32>,
    counters: HashMap<u32, Arc<PolicyCounters>>,
    /// By policy, what it counts by, and whose limits they are.
    limits: HashMap<(u32, Vec<Attribute>, Set), Vec<LimitRegistration>>,
    /// How often policies were loaded.
    loads: u64,
    /// How many requests there have been.
    pub(super) requests: u64,
    /// Adaptive limits by the number of their policy, and what they were made by.
    pub(super) adaptive_queues: HashMap<u32, (AdaptiveLimit, AdaptiveQueue<SharedClock>)>,
    /// The clock of all of them.
    pub(super) clock: SharedClock,
    pub(super) load_shedder: Option<Arc<LoadShedder>>,
    pub(super) load: Option<LoadSource>,
}

/// A change to what decisions go by already, put off until a load cannot fail any more.
#[derive(Clone)]
enum Change {
    Limit(LimitHandle, PolicyLimit),
    /// The name that other processes know a limit by.
    SharedName(LimitHandle, String),
    /// By how many attributes of its key a limit is kept together.
    Tag(LimitHandle, usize),
    /// The window of the figures of a policy.
    Window(Arc<PolicyCounters>, Duration),
    /// How long callers may wait in the queue of an adaptive limit, and how many.
    Queue(AdaptiveQueue<SharedClock>, QueueConfig),
}

impl Change {
    fn apply(self, store: &impl Store) {
        match self {
            Self::Limit(handle, PolicyLimit::Rate(rate)) => store.set_limit(&handle, rate),
            Self::Limit(handle, PolicyLimit::Concurrent(many)) => {
                store.set_concurrency(&handle, many)
            }
            Self::SharedName(handle, name) => store.set_shared_name(&handle, &name),
            Self::Tag(handle, parts) => {
                store.set_shard_prefix(
                    &handle,
                    (parts > 0)
                        .then(|| Arc::new(move |key: &[u8]| prefix_len(key, parts)) as ShardPrefix),
                );
            }
            Self::Window(counters, window) => counters.tally.set_window(window),
            Self::Queue(queue, config) => queue.set_queue(config),
        }
    }
}

/// A limit as it is or was in force, and where.
#[derive(Clone)]
struct LimitRegistration {
    limit: PolicyLimit,
    handle: LimitHandle,
    /// The last load that had it; 0 if it was never in force.
    load: u64,
    /// What the store was told to do with it, once it was told.
    handling: Option<StoreOptions>,
    /// How many attributes of its key the store was told to keep it together by; none if it was not
    /// told.
    tag: usize,
}

/// What a store elsewhere is to do with a limit.
#[derive(Clone, Copy, PartialEq, Eq)]
struct StoreOptions {
    /// While it cannot be reached.
    on_failure: OnFailure,
    /// Whether this process may decide by leases, and how old what it knows may be.
    leased: Option<Duration>,
}

/// Whose limits they are.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Set {
    Own,
    Plan(String),
    /// The denials of a penalty, and the ban.
    Denials,
    Ban,
    /// A limit that stands in for those of the policy. Two keys with the same one are two keys of
    /// one handle.
    Instead(PolicyLimit),
}

/// Why an engine does not take policies.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum EngineError {
    /// They are wrong.
    Policies(Vec<PolicyFinding>),
    /// The store keeps no more limits.
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
            Self::TooManyLimits => f.write_str(
                "the store has had as many limits and changes as it can keep; restart it",
            ),
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
    /// Registers what is new with the store, puts off what has changed, and keeps the rest as it
    /// is. After an error the registry is of no use but for its [spares](Registry::keep_spares).
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

    /// Every limit in force, by the name that other nodes know it by too; none where limits are
    /// off.
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
    /// Makes the changes that were put off: all that is left to do before the rules change, so that
    /// it is done in one go.
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

    /// Takes over the limits that a load registered before it failed. A store cannot be rid of
    /// them, and the next load may need them.
    pub(crate) fn adopt_spares(&mut self, failed: Self) {
        self.numbers = failed.numbers;
        for (at, registered) in failed.limits {
            let known = self.limits.entry(at).or_default();
            // A load only ever adds to them.
            let spares = registered.into_iter().skip(known.len());
            known.extend(spares.map(|one| LimitRegistration {
                load: 0,
                handling: None,
                tag: 0,
                ..one
            }));
        }
    }

    /// Every limit of a policy that is or was in force, with the number of the policy. Those of
    /// penalties count no requests.
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

    /// Puts off a change to the queue in front of an adaptive limit.
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
        let (adaptive_queue, key_name) = (
            self.adaptive_queue(number, policy),
            policy.key_name().into(),
        );
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

    /// Handles for these limits: those that were there stay, those that changed are to be changed
    /// and keep their levels.
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
        // The same limit first. Then those that were in force last, whose levels it is to carry on:
        // one of the same period, then any of the same sort, in their order. Then what was in force
        // once.
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
                        PolicyLimit::Concurrent(many) => store.concurrency(&policy.name, *many)?,
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

    /// A handle for a limit that stands in for those of a policy, for whoever it is put on.
    pub(crate) fn register_replacement(
        &mut self,
        rule: &Rule,
        limit: PolicyLimit,
        store: &impl Store,
    ) -> Result<Slot, TooManyLimitsError> {
        let (number, set) = (rule.number, Set::Instead(limit));
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
    /// Tells the store what to do with a limit of a policy, unless it knows.
    fn apply_options(&mut self, set: &Set, policy: StoreOptions, store: &impl Store) {
        let handling = match set {
            Set::Own | Set::Plan(_) | Set::Instead(_) => policy,
            // A node's share of a ban begins used up, and would ban everybody. The limits beside it
            // decide.
            Set::Denials | Set::Ban => StoreOptions {
                on_failure: OnFailure::Open,
                leased: None,
            },
        };
        let before = self.handling.replace(handling);
        if before.map(|before| before.on_failure) != Some(handling.on_failure) {
            store.on_failure(&self.handle, handling.on_failure);
        }
        if before.and_then(|before| before.leased) != handling.leased {
            store.lease(&self.handle, handling.leased);
        }
    }
}

/// The limits of a penalty: its denials, unless the first is one too many, and its ban.
fn penalty_limits(penalty: &Penalty) -> (Option<PolicyLimit>, PolicyLimit) {
    // The last of them is the one that is not admitted any more.
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

/// What limits are called where other nodes know them too: by what the policies say, whatever this
/// node said before. A limit that keeps its policy, its key and its period is the same limit; of
/// those that share them, the first is the first.
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
        Set::Instead(limit) => write!(stem, " instead {limit}"),
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

/// Whether a limit can take the place of another.
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
