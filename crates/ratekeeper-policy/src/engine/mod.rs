//! The policy engine: decides a subject by the policies, over any store.

mod by_name;
mod check_request;
mod completion;
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
mod sync;
mod verdict;
mod verdict_pool;
mod verdict_summary;

pub use by_name::ByNameError;
pub use completion::Completion;
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
pub use sync::MaybeReady;
pub use verdict::{LimitStatus, PolicyVerdict};
pub use verdict_summary::VerdictSummary;

use crate::attribute::Attribute;
use crate::fingerprint::FingerprintSecret;
use crate::path::Path;
use crate::policies::{ListEntry, Policies};
use crate::stats::{Event, Histogram, Sketch, Tally};
use crate::subject::Subject;
use arc_swap::ArcSwap;
use open_verdict::OpenVerdict;
use overrides::Overrides;
use query::{INLINE_ITEMS, QueryItem, RequestContext, Role};
use ratekeeper::{Ask, Store, Timestamp, store::AskOutcome, store::Source};
use rules::{Registry, Rule, Rules};
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
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
    /// Locked while the rules change.
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

    /// Replaces the policies, from the next decision on. Limits that are unchanged keep their
    /// counts; a limit that changed keeps the tokens that are left. On an error nothing has
    /// changed: the policies are invalid, or the store cannot take more limits.
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
        // The store is changed first, limit by limit, and the rules after it: a decision in between
        // may see some limits in their new form.
        registry.apply(&self.inner.store);
        let before = self.inner.rules.swap(rules);
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

    /// The name and parameters of every limit in force. Nodes with equal policies return equal
    /// lists, so that a store can tell whether nodes disagree. Empty while the policies are
    /// disabled.
    pub fn shared_limits(&self) -> Vec<String> {
        self.inner.rules.load().shared_limits()
    }

    /// The policies in force.
    pub fn policies(&self) -> Policies {
        self.inner.rules.load().source.clone()
    }
}

/// What a request was charged, and the actual cost of each limit.
type Settlement = (ratekeeper::Verdict, SmallVec<[u64; INLINE_ITEMS]>);

/// What a request was charged, and a cost of 0 for each limit.
fn charges_to_cancel(mut verdict: PolicyVerdict) -> Option<Settlement> {
    let charges = verdict.state.take_store_verdict()?;
    let nothing = verdict.state.query.items.iter().map(|_| 0).collect();
    Some((charges, nothing))
}

/// # Deciding
impl<S: Store> Engine<S> {
    /// Decides a request, and charges it if it is allowed. It may wait in the queue of an adaptive
    /// limit [that has one](crate::overload::AdaptiveLimit::queue), and is charged nothing until it
    /// leaves the queue.
    pub async fn decide(&self, subject: &Subject<'_>) -> PolicyVerdict {
        self.decide_with(subject, 1, false, None).await
    }

    /// Decides a request of this cost; each policy multiplies the cost by its own.
    pub async fn decide_n(&self, subject: &Subject<'_>, cost: u64) -> PolicyVerdict {
        self.decide_with(subject, cost, false, None).await
    }

    /// Decides a request for a caller that needs the verdict `within` this time. A store that has
    /// to ask a server falls back before the time is over; a store in memory ignores it. The time
    /// also bounds the wait in a queue.
    pub async fn decide_within(
        &self,
        subject: &Subject<'_>,
        cost: u64,
        within: Duration,
    ) -> PolicyVerdict {
        self.decide_with(subject, cost, false, Some(within)).await
    }

    /// Returns the verdict that a request would get, and charges nothing.
    pub async fn peek(&self, subject: &Subject<'_>, cost: u64) -> PolicyVerdict {
        self.decide_with(subject, cost, true, None).await
    }

    /// Corrects the charge of a request, now that it has ended: policies that do not count it
    /// refund it, and policies whose cost is known only now charge the actual cost. Permits are
    /// released.
    pub async fn settle(&self, verdict: PolicyVerdict, completion: Completion) {
        if let Some((charges, actual)) = self.charges_to_settle(verdict, &completion) {
            self.inner.store.settle(charges, &actual).await;
        }
    }

    /// Refunds everything a request was charged: it ended before it reached what the limits
    /// protect.
    pub async fn cancel(&self, verdict: PolicyVerdict) {
        if let Some((charges, nothing)) = charges_to_cancel(verdict) {
            self.inner.store.settle(charges, &nothing).await;
        }
    }

    /// Ends a request; returns what it was charged and the actual costs, if they differ.
    fn charges_to_settle(
        &self,
        mut verdict: PolicyVerdict,
        completion: &Completion,
    ) -> Option<Settlement> {
        self.finish(&mut verdict, completion);
        if verdict.is_settled(completion) {
            return None;
        }
        let actual = verdict.settled(completion);
        Some((verdict.state.take_store_verdict()?, actual))
    }

    async fn decide_with(
        &self,
        subject: &Subject<'_>,
        cost: u64,
        peek: bool,
        within: Option<Duration>,
    ) -> PolicyVerdict {
        let open = OpenVerdict::new(self.begin(subject, cost), peek);
        self.complete(open, within).await
    }

    /// Completes a verdict: checks for overload, waits in a queue, and asks the store.
    async fn complete(&self, mut open: OpenVerdict, within: Option<Duration>) -> PolicyVerdict {
        let mut within = within;
        if !open.is_peek()
            && let Some(queued) = self.check_overload(&mut open.verdict, true)
        {
            let latest = within.map(|within| open.verdict.state.now + within);
            // Boxed, so that the futures of the many requests that do not wait stay small.
            Box::pin(self.wait_in_queue(&mut open.verdict, queued, latest)).await;
            within = latest.map(|latest| latest.saturating_since(open.verdict.state.now));
        }
        self.complete_at_store(open, within).await
    }

    /// Completes a verdict that passed the overload check.
    async fn complete_at_store(
        &self,
        mut open: OpenVerdict,
        within: Option<Duration>,
    ) -> PolicyVerdict {
        while !open.advance(self) {
            // Boxed, so that the futures over a local store stay small.
            Box::pin(open.wait_for_store(self, within)).await;
        }
        open.verdict
    }

    /// Asks the store on behalf of a request that began at `now`, and may have used up part of its
    /// time.
    async fn decide_at_store(
        &self,
        asks: &[Ask<'_>],
        now: Timestamp,
        within: Option<Duration>,
    ) -> ratekeeper::Verdict {
        let store = &self.inner.store;
        let mut verdict = ratekeeper::Verdict::new(Source::Memory);
        if store.try_decide(asks, now, &mut verdict) {
            return verdict;
        }
        let left = |within: Duration| within.saturating_sub(store.now().saturating_since(now));
        store.decide_within(asks, within.map(left)).await
    }

    /// Starts a verdict: everything but the overload check and the answer of the store.
    fn begin(&self, subject: &Subject<'_>, cost: u64) -> PolicyVerdict {
        let now = self.inner.store.now();
        let mut verdict = PolicyVerdict::new(self.inner.rules.load(), now);
        let (rules, query) = verdict.state.rules_and_query();
        let path = rules.path_of(subject);
        if let Some(reason) = rules.without_limits(subject, path.as_ref(), now) {
            verdict.state.reason = reason;
            return verdict;
        }
        query.class = rules.class_of(subject);
        query.deadline = rules.deadline_of(subject, now);
        query.no_wait = subject.is_no_wait();
        query.gather(
            rules,
            &self.inner.overrides.in_force(),
            &RequestContext {
                subject,
                path: path.as_ref(),
                cost,
                now,
            },
        );
        if let Some(reason) = query.denied_without_limits(rules) {
            verdict.state.reason = reason;
        } else if query.limits_something() {
            verdict.state.reason = Reason::Limits;
        }
        verdict
    }

    /// Adds a verdict to the statistics.
    fn count(&self, verdict: &PolicyVerdict) {
        let stats = &self.inner.stats;
        let allowed = verdict.is_allowed();
        stats.all.add(if allowed {
            Event::Allowed
        } else {
            Event::Denied
        });
        if let Reason::Ban(Ban::Operator(_)) | Reason::MissingAttribute { .. } =
            &verdict.state.reason
        {
            if let Some(rule) = verdict.binding() {
                rule.counters.applied();
                rule.counters.tally.add(Event::Denied);
            }
        } else {
            // Enforced ones deny, and so are counted above.
            for denial in &verdict.state.query.missing_denials {
                let counters = &verdict.rules().policies[denial.policy as usize].counters;
                counters.applied();
                counters.tally.add(Event::ShadowDenied);
            }
        }
        for (policy, _) in &verdict.state.query.adaptive_policies {
            verdict.rules().policies[*policy as usize]
                .counters
                .applied();
        }
        match &verdict.state.reason {
            Reason::TooLate => _ = stats.late.fetch_add(1, Ordering::Relaxed),
            Reason::AtCapacity | Reason::QueueFull | Reason::WaitedTooLong => {
                self.count_rejection(verdict);
            }
            _ => {}
        }
        let failed = matches!(
            verdict.source(),
            Source::Open | Source::Closed | Source::LocalShare
        );
        let mut of_policy: Option<(&QueryItem, AskOutcome, u64)> = None;
        for (item, status) in verdict.statuses() {
            let outcome = verdict::outcome(item, status);
            let units = if item.role == Role::Ban || verdict.is_concurrency(item) {
                0
            } else {
                item.cost
            };
            of_policy = match of_policy.take() {
                Some((first, worst, max_units)) if first.policy == item.policy => {
                    Some((first, worse(worst, outcome), max_units.max(units)))
                }
                done => {
                    self.count_policy(done, verdict, allowed, failed);
                    Some((item, outcome, units))
                }
            };
        }
        self.count_policy(of_policy, verdict, allowed, failed);
        self.time(verdict);
    }

    /// Counts a denial by an adaptive limit.
    #[cold]
    fn count_rejection(&self, verdict: &PolicyVerdict) {
        if let Some(rule) = verdict.binding() {
            rule.counters.tally.add(Event::Denied);
            rule.counters.rejections.add(&verdict.state.reason);
        }
    }

    fn count_policy(
        &self,
        of_policy: Option<(&QueryItem, AskOutcome, u64)>,
        verdict: &PolicyVerdict,
        allowed: bool,
        failed: bool,
    ) {
        let Some((item, outcome, units)) = of_policy else {
            return;
        };
        let rule = verdict.rule(item);
        rule.counters.applied();
        let tally = &rule.counters.tally;
        let denied = matches!(outcome, AskOutcome::Denied | AskOutcome::Never);
        match outcome {
            AskOutcome::Denied | AskOutcome::Never => tally.add(Event::Denied),
            AskOutcome::ShadowDenied => tally.add(Event::ShadowDenied),
            AskOutcome::Delayed if allowed => tally.add(Event::Delayed),
            AskOutcome::Allowed if allowed => tally.add(Event::Allowed),
            // Another policy denied the request.
            _ => {}
        }
        if failed {
            tally.add(Event::Error);
        }
        if allowed {
            tally.add_cost(units, verdict.state.now);
        }
        if rule.policy.key.is_empty() {
            return;
        }
        let key = verdict.state.query.key(item);
        let hash = self.inner.key_hasher.hash_one((rule.number, key));
        let number = rule.number;
        let long = || self.display_key(rule, key).into();
        self.inner.stats.most_active.add(hash, number, 1, key, long);
        if denied {
            self.inner.stats.most_denied.add(hash, number, 1, key, long);
        }
        if outcome == AskOutcome::ShadowDenied {
            self.inner
                .stats
                .shadow_denied
                .add(hash, number, 1, key, long);
        }
    }

    /// Records the decision time of one in `timed_every` decisions.
    fn time(&self, verdict: &PolicyVerdict) {
        thread_local!(static DECISIONS: Cell<u32> = const { Cell::new(0) });
        let every = self.inner.options.timed_every;
        if every == 0 {
            return;
        }
        let count = DECISIONS.get().wrapping_add(1);
        DECISIONS.set(count);
        if count.is_multiple_of(every) {
            self.inner
                .stats
                .times
                .record(self.inner.store.now().saturating_since(verdict.state.now));
        }
    }

    /// A key as the lists of top keys show it.
    fn display_key(&self, rule: &Rule, key: &[u8]) -> String {
        let attributes = &rule.policy.key;
        let secret = self.inner.overrides.secret();
        if self.inner.options.plain_keys {
            key::display(attributes, key, &secret)
        } else {
            key::fingerprint(attributes, key, &secret)
        }
    }
}

/// The worse of two outcomes, for a policy with several limits.
fn worse(a: AskOutcome, b: AskOutcome) -> AskOutcome {
    let weight = |outcome| match outcome {
        AskOutcome::Allowed => 0,
        AskOutcome::Delayed => 1,
        AskOutcome::ShadowDenied => 2,
        AskOutcome::Denied => 3,
        AskOutcome::Never => 4,
    };
    if weight(b) > weight(a) { b } else { a }
}

impl Rules {
    /// The verdict on requests that need no limit: the engine is disabled, or the request is on a
    /// list.
    fn without_limits(
        &self,
        subject: &Subject<'_>,
        path: Option<&Path<'_>>,
        now: Timestamp,
    ) -> Option<Reason> {
        if !self.source.enabled {
            return Some(Reason::Off);
        }
        let lasts = |entry: &ListEntry| entry.until.is_none_or(|until| now < until);
        if self
            .source
            .allow
            .iter()
            .any(|entry| lasts(entry) && entry.matching.holds_in_every_reading(subject, path))
        {
            return Some(Reason::AllowList);
        }
        let holds = |entry: &&ListEntry| lasts(entry) && entry.matching.holds(subject, path);
        // The entry that lasts longest, of equals the first: until then the request is denied.
        let end = |entry: &&ListEntry| (entry.until.is_none(), entry.until);
        let found = self
            .source
            .deny
            .iter()
            .filter(holds)
            .rev()
            .max_by_key(end)?;
        Some(Reason::DenyList {
            reason: found.reason.as_deref().map(Into::into),
            until: found.until,
        })
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
