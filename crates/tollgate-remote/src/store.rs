//! The store itself.

use crate::fallback::Fallback;
use crate::health::{Health, TROUBLES};
use crate::limits::{Limits, Registered, Rule};
use crate::queue::{Entrance, Limited, Work};
use crate::trouble::Trouble;
use crate::wire::{Answer, Job, Name, Told};
use smallvec::SmallVec;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tollgate::{
    Ask, Census, Clock, InMicros, Instant, Limit, LimitHandle, MemoryStore, Mode, OnFailure, Source, Store,
    TooManyLimits, Verdict,
};

/// The limits of a tollgate service, for a program that asks it.
///
/// Every decision is one round trip, whatever the number of limits; what is asked at the same time shares it. See the
/// [crate] for an example. A handle: clones share it. It runs a thread of its own, so that any executor will do, and
/// none that is busy holds it up.
#[derive(Clone)]
pub struct RemoteStore {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    /// Where limits are registered; it counts nothing.
    pub(crate) names: MemoryStore,
    pub(crate) limits: Limits,
    pub(crate) fallback: Fallback,
    pub(crate) health: Arc<Health>,
    pub(crate) lanes: Vec<Entrance>,
    pub(crate) spread: RandomState,
    pub(crate) timeout: Duration,
    pub(crate) on_failure: OnFailure,
    pub(crate) gone: Arc<tokio::sync::Notify>,
}

/// How the store is.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Status {
    /// What is wrong and for how long; none if nothing is.
    pub trouble: Option<(Duration, Trouble)>,
    /// What happened since the start.
    pub counts: Counts,
}

/// What happened since the start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Requests that the service decided.
    pub decisions: u64,
    /// Calls of the service that it answered, for decisions and corrections.
    pub round_trips: u64,
    /// Requests that were decided without it.
    pub fallbacks: u64,
    /// Corrections that did not reach it, or that it could not do.
    pub lost: u64,
    /// Units that were spent without it and charged when it came back.
    pub debited: u64,
    /// What went wrong, by [`Trouble::name`].
    pub troubles: [(&'static str, u64); 8],
}

/// An operator waits longer than a caller.
const OPERATOR_WAITS: Duration = Duration::from_secs(1);

impl RemoteStore {
    /// How it is.
    pub fn status(&self) -> Status {
        let health = &self.inner.health;
        let counts = &health.counts;
        Status {
            trouble: health.trouble().map(|(since, trouble)| (since.elapsed(), trouble)),
            counts: Counts {
                decisions: counts.decisions.load(Relaxed),
                round_trips: counts.round_trips.load(Relaxed),
                fallbacks: counts.fallbacks.load(Relaxed),
                lost: counts.lost.load(Relaxed),
                debited: counts.debited.load(Relaxed),
                troubles: std::array::from_fn(|at| (TROUBLES[at], counts.troubles[at].load(Relaxed))),
            },
        }
    }

    /// Whether the service answers.
    pub fn is_well(&self) -> bool {
        self.inner.health.is_well()
    }

    async fn decide_in(&self, asks: &[Ask<'_>], timeout: Duration) -> Verdict {
        let inner = &self.inner;
        let limits: SmallVec<[Option<Arc<Registered>>; 8]> = asks.iter().map(|ask| inner.limit_of(ask.limit)).collect();
        let trouble = match inner.health.is_open() {
            true => Trouble::Broken,
            false => match self.ask(asks, &limits, timeout).await {
                Ok(verdict) => return verdict,
                Err(trouble) => trouble,
            },
        };
        inner.health.count(&trouble);
        inner.health.counts.fallbacks.fetch_add(1, Relaxed);
        inner.fallback.decide(asks, &limits)
    }

    async fn ask(
        &self,
        asks: &[Ask<'_>],
        limits: &[Option<Arc<Registered>>],
        timeout: Duration,
    ) -> Result<Verdict, Trouble> {
        let inner = &self.inner;
        // What is not of this store never passes, so the others only tell how they stand.
        let hopeless = limits.iter().any(Option::is_none);
        let own = asks.iter().zip(limits).filter(|(_, limit)| limit.is_some());
        let sent: SmallVec<[Ask<'_>; 8]> = own
            .map(|(ask, _)| match hopeless {
                true => ask.mode(Mode::Peek),
                false => *ask,
            })
            .collect();
        if sent.is_empty() {
            return verdict(asks, limits, &Told { source: Source::Remote, kept: false, decisions: Vec::new() });
        }
        // Where its permits go back, if it is about any: what was given back before can be taken.
        let is_of_permits = |ask: &&Ask<'_>| ask.limit.in_flight().is_some();
        let lane = &inner.lanes[inner.lane_of(sent.iter().find(is_of_permits).unwrap_or(&sent[0]))];
        let permits = sent.iter().any(|ask| is_of_permits(&ask) && charges(ask));
        let name = sent.iter().any(charges).then(|| lane.verdicts.name());
        // Dropped with this future, it tells the service that nobody waits any more.
        let held = name.map(|name| Held { lane: lane.clone(), name: Some(name), permits });
        let work = Work {
            bytes: Job::decide(&sent, name),
            limits: limits.iter().flatten().cloned().collect(),
            decides: true,
            may_arrive_twice: true,
        };
        let Answer::Told(told) = lane.run(work, timeout).await? else {
            return Err(Trouble::Protocol("it does not decide".to_owned()));
        };
        let mut verdict = verdict(asks, limits, &told)?;
        if let Some(mut held) = held {
            if told.kept {
                verdict.hold(Box::new(held));
            } else {
                held.let_go();
            }
        }
        Ok(verdict)
    }

    /// Corrects one key now.
    async fn amend_key(&self, handle: &LimitHandle, ask: Ask<'_>, job: Job<'_>) {
        let inner = &self.inner;
        let Some(limit) = inner.limit_of(handle).filter(|limit| matches!(limit.rule, Rule::Rate(_))) else { return };
        let lane = &inner.lanes[inner.lane_of(&ask)];
        inner.report(lane.run(Work::of(&job, Limited::from_iter([limit])), OPERATOR_WAITS).await);
    }

    fn register(&self, rule: Rule, handle: LimitHandle) -> Result<LimitHandle, TooManyLimits> {
        let Inner { limits, fallback, on_failure, .. } = &*self.inner;
        limits.add(&handle, rule, fallback.register(handle.name(), &rule)?, *on_failure);
        Ok(handle)
    }

    fn set_rule(&self, handle: &LimitHandle, rule: Rule) {
        let Inner { limits, fallback, .. } = &*self.inner;
        limits.change(handle, |limit| limit.rule = rule);
        if let Some(limit) = limits.numbered(handle.number()) {
            fallback.set(&limit);
        }
    }
}

/// Whether an ask may take something.
fn charges(ask: &Ask<'_>) -> bool {
    ask.mode != Mode::Peek && ask.cost > 0
}

fn verdict(asks: &[Ask<'_>], limits: &[Option<Arc<Registered>>], told: &Told) -> Result<Verdict, Trouble> {
    let mut decisions = told.decisions.iter();
    let mut verdict = Verdict::new(told.source);
    for (ask, limit) in asks.iter().zip(limits) {
        let decision = match limit {
            None => Some(InMicros::nothing()),
            Some(_) => decisions.next().copied(),
        };
        let decision = decision.ok_or_else(|| Trouble::Protocol("it decides on too few".to_owned()))?;
        verdict.push(tollgate::Status::new(decision, ask.mode));
    }
    Ok(verdict)
}

impl Inner {
    /// Where a key is asked about.
    pub(crate) fn lane_of(&self, ask: &Ask<'_>) -> usize {
        let hash = self.spread.hash_one((ask.limit.number(), ask.key));
        (hash % self.lanes.len() as u64) as usize
    }

    fn limit_of(&self, handle: &LimitHandle) -> Option<Arc<Registered>> {
        self.names.knows(handle).then(|| self.limits.numbered(handle.number())).flatten()
    }

    fn report<T>(&self, result: Result<T, Trouble>) {
        if let Err(trouble) = result {
            self.health.count(&trouble);
            self.health.counts.lost.fetch_add(1, Relaxed);
            tracing::warn!(target: "tollgate::remote", "a correction of what was charged is lost: {trouble}");
        }
    }
}

/// A verdict that the service keeps. Dropped, it is given up there.
struct Held {
    lane: Entrance,
    name: Option<Name>,
    /// Whether others may wait for what it holds.
    permits: bool,
}

impl Held {
    /// The service does not keep it, or has just been told.
    fn let_go(&mut self) -> Option<Name> {
        let name = self.name.take()?;
        self.lane.verdicts.is_gone(&name);
        Some(name)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(name) = self.name.take() else { return };
        self.lane.verdicts.forget(name);
        if self.permits {
            // It goes with the next call, which is made for it.
            drop(self.lane.hand_in(Work::of(&Job::Renew(Vec::new()), Limited::new()), OPERATOR_WAITS));
        }
    }
}

impl Drop for RemoteStore {
    fn drop(&mut self) {
        // The thread holds none.
        if Arc::strong_count(&self.inner) == 1 {
            self.inner.gone.notify_one();
        }
    }
}

impl Store for RemoteStore {
    fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimits> {
        self.register(Rule::Rate(limit), self.inner.names.limit(name, limit)?)
    }

    fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimits> {
        self.register(Rule::InFlight(limit), self.inner.names.concurrency(name, limit)?)
    }

    fn set_limit(&self, handle: &LimitHandle, limit: Limit) {
        if self.inner.names.knows(handle) && handle.limit().is_some() {
            self.inner.names.set_limit(handle, limit);
            self.set_rule(handle, Rule::Rate(limit));
        }
    }

    fn set_concurrency(&self, handle: &LimitHandle, limit: u64) {
        if self.inner.names.knows(handle) && handle.in_flight().is_some() {
            self.inner.names.set_concurrency(handle, limit);
            self.set_rule(handle, Rule::InFlight(limit));
        }
    }

    fn now(&self) -> Instant {
        self.inner.fallback.clock().now()
    }

    async fn decide(&self, asks: &[Ask<'_>]) -> Verdict {
        self.decide_in(asks, self.inner.timeout).await
    }

    async fn decide_within(&self, asks: &[Ask<'_>], _now: Instant, within: Duration) -> Verdict {
        // Falling back takes a moment too.
        let timeout = self.inner.timeout.min(within * 9 / 10);
        self.decide_in(asks, timeout).await
    }

    fn on_failure(&self, handle: &LimitHandle, then: OnFailure) {
        let known = self.inner.limit_of(handle);
        if known.is_some_and(|limit| limit.on_failure != then) {
            self.inner.limits.change(handle, |limit| limit.on_failure = then);
        }
    }

    fn share_as(&self, handle: &LimitHandle, name: &str) {
        if self.inner.names.knows(handle) {
            self.inner.limits.change(handle, |limit| limit.set_name(name));
        }
    }

    async fn settle(&self, mut verdict: Verdict, actual: &[u64]) {
        let mut held = match verdict.let_go().map(|held| held.downcast::<Held>()) {
            Some(Ok(held)) => held,
            Some(Err(other)) => {
                verdict.hold(other);
                return self.inner.fallback.settle(verdict, actual);
            }
            None => return self.inner.fallback.settle(verdict, actual),
        };
        let Some(name) = held.let_go() else { return };
        let job = Job::Settle { name, actual: actual.to_vec() };
        self.inner.report(held.lane.run(Work::of(&job, Limited::new()), self.inner.timeout).await);
    }

    async fn grant(&self, handle: &LimitHandle, key: &[u8], tokens: u64) {
        let job = Job::Grant { limit: handle.number(), key, tokens };
        self.amend_key(handle, Ask::new(handle, key), job).await;
    }

    async fn reset(&self, handle: &LimitHandle, key: &[u8]) {
        let job = Job::Reset { limit: handle.number(), key };
        self.amend_key(handle, Ask::new(handle, key), job).await;
    }

    fn census(&self, _limits: &[LimitHandle]) -> Option<Vec<Census>> {
        None
    }
}

impl fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteStore").field("status", &self.status()).finish_non_exhaustive()
    }
}
