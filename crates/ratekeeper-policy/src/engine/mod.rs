//! The engine: from a subject to a verdict, over any store.

mod account;
mod asking;
mod by_name;
mod checks;
mod detached;
mod ending;
mod explain;
mod figures;
mod here;
mod key;
mod operator;
mod overrides;
mod parts;
mod places;
mod pressure;
mod reason;
mod rules;
mod shared;
mod verdict;

pub use account::VerdictSummary;
pub use by_name::ByNameError;
pub use ending::Completion;
pub use explain::{Explanation, KeyState, LimitState, PolicyTrace};
pub use figures::{PolicyStats, TopKey, Utilization};
pub use here::MaybeReady;
pub use operator::{KeySelector, SeenValue};
pub(crate) use overrides::LONGEST;
pub use overrides::{Override, OverrideError};
pub use places::RejectionStats;
pub use pressure::{AdaptiveStats, LoadSource, OverloadStats};
pub use reason::{Ban, Reason};
pub use rules::EngineError;
pub use shared::{PolicyKey, SharedOverride};
pub use verdict::{LimitStatus, PolicyVerdict};

use crate::attribute::Attribute;
use crate::fingerprint::FingerprintSecret;
use crate::path::Path;
use crate::policies::{ListEntry, Policies};
use crate::stats::{Event, Histogram, Sketch, Tally};
use crate::subject::Subject;
use arc_swap::ArcSwap;
use asking::{Asked, FEW, Request, Role};
use overrides::Overrides;
use ratekeeper::{Ask, Mode, Store, Timestamp, store::AskOutcome, store::Source};
use rules::{Registry, Rules, Ruling};
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Decides which limits apply to a request, and asks the store about all of them at once.
///
/// ```
/// use ratekeeper::{Limit, MemoryStore};
/// use ratekeeper_policy::{Attribute, Engine, Match, Policies, Policy, Subject};
///
/// let policies = Policies::new()
///     .policy(Policy::new("login").matching(Match::new().path("/login".parse()?)).key(Attribute::Ip).limit(Limit::per_minute(5)))
///     .policy(Policy::new("everything").limit(Limit::per_minute(100_000)));
/// let engine = Engine::new(MemoryStore::new(), policies)?;
///
/// let subject = Subject::new().ip("203.0.113.7".parse()?).method("POST").path("/login");
/// let verdict = engine.decide_now(&subject);            // on any store: engine.decide(&subject).await
/// assert!(verdict.is_allowed());
/// assert_eq!(verdict.limits().next().unwrap().decision().remaining(), 4);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// A handle: clones share everything.
pub struct Engine<S> {
    inner: Arc<Inner<S>>,
}

struct Inner<S> {
    store: S,
    rules: ArcSwap<Rules>,
    /// Held by whoever changes the rules.
    registry: Mutex<Registry>,
    overrides: Overrides,
    figures: Figures,
    options: EngineOptions,
    /// Tells keys apart in the figures, quickly.
    quick: foldhash::fast::RandomState,
}

/// What is counted of all requests together.
struct Figures {
    all: Tally,
    times: Histogram,
    heaviest: Sketch,
    most_denied: Sketch,
    /// By policies that only watch.
    shadow_denied: Sketch,
    reloads: AtomicU64,
    /// Nobody waited for them any more.
    late: AtomicU64,
}

/// How an engine keeps its figures.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineOptions {
    /// One decision in so many is timed: that takes another look at the clock. 0 for none.
    pub timed_every: u32,
    /// How many keys the lists of the heaviest and the most denied are made from.
    pub top: usize,
    /// Whether those lists have keys as they are, but for what opens doors, instead of
    /// fingerprints.
    pub plain_keys: bool,
    /// What fingerprints are made with; none for a secret of this process. See
    /// [`share_overrides`](Engine::share_overrides), too.
    pub fingerprints: Option<FingerprintSecret>,
    /// How busy the machine is, for [`Shed`](crate::overload::Shed)ding by it. Asked ten times a second at
    /// most.
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
    /// An engine for these policies.
    pub fn new(store: S, policies: Policies) -> Result<Self, EngineError> {
        Self::with_options(store, policies, EngineOptions::default())
    }

    /// The same, with figures to your taste.
    pub fn with_options(
        store: S,
        policies: Policies,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let mut registry = Registry::default();
        registry.load = options.load.clone();
        let rules = Rules::new(policies, &mut registry, &store)?;
        registry.apply(&store);
        let figures = Figures {
            all: Tally::new(Duration::ZERO),
            times: Histogram::new(),
            heaviest: Sketch::new(options.top),
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
                figures,
                options,
                quick: foldhash::fast::RandomState::default(),
            }),
        })
    }

    /// The store it asks.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// Goes by other policies from the next decision on. What is the same keeps its counts; a limit
    /// that changed keeps the tokens that are left. After an error nothing has changed: the
    /// policies are wrong, or the store takes no more limits.
    pub fn set_policies(&self, policies: Policies) -> Result<(), EngineError> {
        let mut registry = self
            .inner
            .registry
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut next = registry.clone();
        let requests = self.requests();
        next.requests = requests;
        let rules = match Rules::new(policies, &mut next, &self.inner.store) {
            Ok(rules) => Arc::new(rules),
            Err(error) => {
                registry.keep_spares(next);
                return Err(error);
            }
        };
        *registry = next;
        // One after the other, and then the rules: a decision in between may meet some limits as
        // they will be.
        registry.apply(&self.inner.store);
        let before = self.inner.rules.swap(rules);
        let now = self.inner.rules.load();
        // Where it counts by something else the same bytes are another key.
        let kept: HashMap<u32, &[Attribute]> = now
            .policies
            .iter()
            .map(|new| (new.number, &*new.policy.key))
            .collect();
        for gone in before
            .policies
            .iter()
            .filter(|old| kept.get(&old.number) != Some(&&*old.policy.key))
        {
            self.inner.figures.heaviest.forget(gone.number);
            self.inner.figures.most_denied.forget(gone.number);
            self.inner.figures.shadow_denied.forget(gone.number);
        }
        for old in &before.policies {
            let (when, by) = (&old.policy.matching, &old.policy.key);
            let same = now.policies.iter().find(|new| new.number == old.number);
            if let Some(new) =
                same.filter(|new| new.policy.matching != *when || new.policy.key != *by)
            {
                new.figures.forget_applied(requests);
            }
        }
        self.inner.figures.reloads.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The name and the numbers of every limit in force, the same on all nodes that have the same
    /// policies: for a store that compares them. None where the policies are not enabled.
    pub fn shared_limits(&self) -> Vec<String> {
        self.inner.rules.load().shared_limits()
    }

    /// The policies it goes by.
    pub fn policies(&self) -> Policies {
        self.inner.rules.load().source.clone()
    }
}

/// # Deciding
impl<S: Store> Engine<S> {
    /// Decides on one request, and charges it if it passes. It may wait for a place where an
    /// adaptive limit [has a queue](crate::overload::AdaptiveLimit::queue), and is charged nothing until it
    /// has one.
    pub async fn decide(&self, subject: &Subject<'_>) -> PolicyVerdict {
        self.ask(subject, 1, false, None).await
    }

    /// Decides on a request that costs more or less than one; each policy multiplies it by its own
    /// cost.
    pub async fn decide_n(&self, subject: &Subject<'_>, cost: u64) -> PolicyVerdict {
        self.ask(subject, cost, false, None).await
    }

    /// The same for a caller who needs the verdict `within` some time. A store that has to ask
    /// elsewhere falls back before that; one that does not takes no notice.
    pub async fn decide_within(
        &self,
        subject: &Subject<'_>,
        cost: u64,
        within: Duration,
    ) -> PolicyVerdict {
        self.ask(subject, cost, false, Some(within)).await
    }

    /// Says what would be decided, and charges nothing.
    pub async fn peek(&self, subject: &Subject<'_>, cost: u64) -> PolicyVerdict {
        self.ask(subject, cost, true, None).await
    }

    /// Corrects what a request was charged, now that it has ended: policies that do not count it
    /// get it back, those whose cost is known only now are charged that. Permits go back.
    pub async fn settle(&self, verdict: PolicyVerdict, ending: Completion) {
        let mut verdict = verdict;
        self.finish(&mut verdict, &ending);
        if verdict.is_settled(&ending) {
            return;
        }
        let actual = verdict.settled(&ending);
        let inner = { verdict }.parts.take_answer();
        if let Some(inner) = inner {
            self.inner.store.settle(inner, &actual).await;
        }
    }

    /// Gives back everything a request was charged: it came to nothing before it reached what the
    /// limits protect.
    pub async fn cancel(&self, verdict: PolicyVerdict) {
        let mut verdict = verdict;
        if let Some(inner) = verdict.parts.take_answer() {
            let nothing: SmallVec<[u64; FEW]> =
                verdict.parts.asking.asked.iter().map(|_| 0).collect();
            self.inner.store.settle(inner, &nothing).await;
        }
    }

    async fn ask(
        &self,
        subject: &Subject<'_>,
        cost: u64,
        peek: bool,
        within: Option<Duration>,
    ) -> PolicyVerdict {
        self.ask_for(self.begin(subject, cost), peek, within).await
    }

    /// What a verdict lacks that has begun.
    async fn ask_for(
        &self,
        mut verdict: PolicyVerdict,
        peek: bool,
        within: Option<Duration>,
    ) -> PolicyVerdict {
        let (began, mut within) = (verdict.parts.now, within);
        if !peek && let Some(in_line) = self.press(&mut verdict, true) {
            let latest = within.map(|within| began + within);
            // Few wait: they have memory of their own, so that the futures of all others are small.
            Box::pin(self.wait_in_line(&mut verdict, in_line, latest)).await;
            within = latest.map(|latest| latest.saturating_since(verdict.parts.now));
        }
        self.ask_pressed(verdict, peek, within).await
    }

    /// The same of one that no pressure is against.
    async fn ask_pressed(
        &self,
        mut verdict: PolicyVerdict,
        peek: bool,
        within: Option<Duration>,
    ) -> PolicyVerdict {
        if self.inner.store.is_local() {
            return self.ask_pressed_here(verdict, peek);
        }
        if verdict.is_open() {
            // Who asks elsewhere has memory of its own, so that the futures of all others are
            // small.
            Box::pin(self.ask_and_wait(&mut verdict, peek, within)).await;
        }
        if peek {
            verdict
        } else {
            self.conclude(verdict, within).await
        }
    }

    /// Asks the store what it is to be asked.
    async fn ask_and_wait(
        &self,
        verdict: &mut PolicyVerdict,
        peek: bool,
        within: Option<Duration>,
    ) {
        let asks = verdict.parts.asking.asks(verdict.rules(), peek);
        let answer = self.ask_store(&asks, verdict.parts.now, within).await;
        drop(asks);
        verdict.answered(answer);
    }

    /// What is left to do once a store elsewhere has decided.
    async fn conclude(&self, verdict: PolicyVerdict, within: Option<Duration>) -> PolicyVerdict {
        if verdict.is_to_be_punished() {
            Box::pin(self.punish(&verdict, within)).await;
        }
        self.count(&verdict);
        verdict
    }

    /// Asks for a request that began at `now`, and of whose time some may have gone by.
    async fn ask_store(
        &self,
        asks: &[Ask<'_>],
        now: Timestamp,
        within: Option<Duration>,
    ) -> ratekeeper::Verdict {
        let store = &self.inner.store;
        match within {
            None => store.decide_at(asks, now).await,
            Some(within) => {
                let left = within.saturating_sub(store.now().saturating_since(now));
                store.decide_within(asks, now, left).await
            }
        }
    }

    /// A verdict on which nothing is missing but the answer of the store, if it is to be asked.
    fn begin(&self, subject: &Subject<'_>, cost: u64) -> PolicyVerdict {
        let now = self.inner.store.now();
        let mut verdict = PolicyVerdict::new(self.inner.rules.load(), now);
        let (rules, asking) = verdict.parts.asking_by();
        let path = rules.path_of(subject);
        if let Some(reason) = rules.without_limits(subject, path.as_ref(), now) {
            verdict.parts.reason = reason;
            return verdict;
        }
        asking.class = rules.class_of(subject);
        (asking.deadline, asking.at_once) = (rules.deadline_of(subject, now), subject.is_at_once());
        asking.gather(
            rules,
            &self.inner.overrides.in_force(),
            &Request {
                subject,
                path: path.as_ref(),
                cost,
                now,
            },
        );
        if let Some(reason) = asking.denied_without_limits(rules) {
            verdict.parts.reason = reason;
        } else if asking.limits_something() {
            verdict.parts.reason = Reason::Limits;
        }
        verdict
    }

    /// Counts the denial against the keys it was for, where a policy has a penalty.
    async fn punish(&self, verdict: &PolicyVerdict, within: Option<Duration>) {
        let (mut last, now) = (None, verdict.parts.now);
        for (asked, status) in verdict.statuses() {
            let ruling = verdict.ruling(asked);
            let turned_away = asked.mode != Mode::Shadow && status.decision().is_denied();
            let Some(penalty) = ruling
                .penalty
                .as_ref()
                .filter(|_| turned_away && last != Some(asked.policy))
            else {
                continue;
            };
            last = Some(asked.policy);
            let key = verdict.parts.asking.key(asked);
            let one_too_many = match &penalty.denials {
                None => true,
                Some(denials) => self
                    .ask_store(&[Ask::new(denials, key)], now, within)
                    .await
                    .is_denied(),
            };
            if !one_too_many {
                continue;
            }
            let ban = self
                .ask_store(&[Ask::new(&penalty.ban, key)], now, within)
                .await;
            // Where nobody decided, nobody remembers.
            if ban.is_allowed() && ban.source() != Source::Open {
                ruling.figures.bans.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Adds a verdict to the figures.
    fn count(&self, verdict: &PolicyVerdict) {
        let figures = &self.inner.figures;
        let allowed = verdict.is_allowed();
        figures.all.add(if allowed {
            Event::Allowed
        } else {
            Event::Denied
        });
        if let Reason::Ban(Ban::Operator(_)) | Reason::MissingAttribute { .. } =
            &verdict.parts.reason
        {
            if let Some(ruling) = verdict.binding() {
                ruling.figures.applied();
                ruling.figures.tally.add(Event::Denied);
            }
        } else {
            // Those that are enforced deny.
            for lacking in &verdict.parts.asking.lacking {
                let figures = &verdict.rules().policies[lacking.policy as usize].figures;
                figures.applied();
                figures.tally.add(Event::ShadowDenied);
            }
        }
        for (policy, _) in &verdict.parts.asking.gates {
            verdict.rules().policies[*policy as usize].figures.applied();
        }
        match &verdict.parts.reason {
            Reason::TooLate => _ = figures.late.fetch_add(1, Ordering::Relaxed),
            Reason::AtCapacity | Reason::QueueFull | Reason::WaitedTooLong => {
                self.count_refused(verdict)
            }
            _ => {}
        }
        let failed = matches!(
            verdict.source(),
            Source::Open | Source::Closed | Source::LocalShare
        );
        let mut of_policy: Option<(&Asked, AskOutcome, u64)> = None;
        for (asked, status) in verdict.statuses() {
            let outcome = verdict::outcome(asked, status);
            let units = if asked.role == Role::Ban || verdict.is_a_permit(asked) {
                0
            } else {
                asked.cost
            };
            of_policy = match of_policy.take() {
                Some((first, worst, most)) if first.policy == asked.policy => {
                    Some((first, worse(worst, outcome), most.max(units)))
                }
                done => {
                    self.count_policy(done, verdict, allowed, failed);
                    Some((asked, outcome, units))
                }
            };
        }
        self.count_policy(of_policy, verdict, allowed, failed);
        self.time(verdict);
    }

    /// One that an adaptive limit turned away.
    #[cold]
    fn count_refused(&self, verdict: &PolicyVerdict) {
        if let Some(ruling) = verdict.binding() {
            ruling.figures.tally.add(Event::Denied);
            ruling.figures.refusals.add(&verdict.parts.reason);
        }
    }

    fn count_policy(
        &self,
        of_policy: Option<(&Asked, AskOutcome, u64)>,
        verdict: &PolicyVerdict,
        allowed: bool,
        failed: bool,
    ) {
        let Some((asked, outcome, units)) = of_policy else {
            return;
        };
        let ruling = verdict.ruling(asked);
        ruling.figures.applied();
        let tally = &ruling.figures.tally;
        let denied = matches!(outcome, AskOutcome::Denied | AskOutcome::Never);
        match outcome {
            AskOutcome::Denied | AskOutcome::Never => tally.add(Event::Denied),
            AskOutcome::ShadowDenied => tally.add(Event::ShadowDenied),
            AskOutcome::Delayed if allowed => tally.add(Event::Delayed),
            AskOutcome::Allowed if allowed => tally.add(Event::Allowed),
            // Another policy turned it away.
            _ => {}
        }
        if failed {
            tally.add(Event::Error);
        }
        if allowed {
            tally.admitted(units, verdict.parts.now);
        }
        if ruling.policy.key.is_empty() {
            return;
        }
        let key = verdict.parts.asking.key(asked);
        let (hash, number) = (
            self.inner.quick.hash_one((ruling.number, key)),
            ruling.number,
        );
        let long = || self.key_listed(ruling, key).into();
        self.inner.figures.heaviest.add(hash, number, 1, key, long);
        if denied {
            self.inner
                .figures
                .most_denied
                .add(hash, number, 1, key, long);
        }
        if outcome == AskOutcome::ShadowDenied {
            self.inner
                .figures
                .shadow_denied
                .add(hash, number, 1, key, long);
        }
    }

    /// Times one decision in so many.
    fn time(&self, verdict: &PolicyVerdict) {
        thread_local!(static TURN: Cell<u32> = const { Cell::new(0) });
        let every = self.inner.options.timed_every;
        if every == 0 {
            return;
        }
        let turn = TURN.get().wrapping_add(1);
        TURN.set(turn);
        if turn.is_multiple_of(every) {
            self.inner
                .figures
                .times
                .record(self.inner.store.now().saturating_since(verdict.parts.now));
        }
    }

    /// A key as lists show it.
    fn key_listed(&self, ruling: &Ruling, key: &[u8]) -> String {
        let (by, secret) = (&ruling.policy.key, self.inner.overrides.secret());
        match self.inner.options.plain_keys {
            true => key::shown(by, key, &secret),
            false => key::fingerprint(by, key, &secret),
        }
    }
}

/// The worse of two, for a policy of several limits.
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
    /// What is decided without looking at any limit.
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
        // The one that lasts longest, of equals the first: until then nobody passes.
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
