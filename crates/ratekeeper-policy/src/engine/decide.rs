//! Deciding and settling requests.
//!
//! Every way to decide takes the same steps, those of [`OpenVerdict`]. They differ in what they do
//! where a step has to wait: await it, return a future, or never wait because the store is in this
//! process.

use super::open_verdict::{OpenVerdict, Purpose};
use super::query::{INLINE_ITEMS, RequestContext};
use super::reason::Reason;
use super::rules::Rules;
use super::verdict::PolicyVerdict;
use super::{Completion, Engine};
use crate::path::Path;
use crate::policies::ListEntry;
use crate::subject::Subject;
use ratekeeper::{Ask, Clock, MemoryStore, Store, Timestamp, store::Source};
use smallvec::SmallVec;

/// What a request was charged, and the actual cost of each limit.
type Settlement = (ratekeeper::Verdict, SmallVec<[u64; INLINE_ITEMS]>);

/// # Deciding
impl<S: Store> Engine<S> {
    /// Decides a request, and charges it if it is allowed. It may wait in the queue of an adaptive
    /// limit [that has one](crate::overload::AdaptiveLimit::queue), and is charged nothing until it
    /// leaves the queue.
    ///
    /// Its [cost](Subject::cost) is multiplied by that of each policy. If it must have the verdict
    /// [within](Subject::within) some time, a store that has to ask a server falls back before that
    /// time is over.
    pub async fn decide(&self, subject: &Subject<'_>) -> PolicyVerdict {
        self.complete(self.open(subject, Purpose::Charge)).await
    }

    /// Returns the verdict that a request would get, and charges nothing.
    pub async fn peek(&self, subject: &Subject<'_>) -> PolicyVerdict {
        self.complete(self.open(subject, Purpose::Peek)).await
    }

    /// Corrects the charge of a request, now that it has ended: policies that do not count it
    /// refund it, and policies whose cost is known only now charge the actual cost. Permits are
    /// released.
    pub async fn settle(&self, verdict: PolicyVerdict, completion: Completion) {
        if let Some((charges, actual)) = self.charges_to_settle(verdict, &completion) {
            self.inner.store.settle(charges, &actual).await;
        }
    }
}

/// # Deciding without a future where possible
impl<S: Store + 'static> Engine<S> {
    /// Decides like [`decide`](Self::decide), at once if possible: the store is in this process, or
    /// knows the answer without asking a server, and the request need not wait in a queue.
    /// Otherwise returns a future that decides; it does not borrow the subject.
    #[allow(
        clippy::result_large_err,
        reason = "few verdicts are pending, and those are moved once"
    )]
    pub fn try_decide(
        &self,
        subject: &Subject<'_>,
    ) -> MaybeReady<PolicyVerdict, impl Future<Output = PolicyVerdict> + Send + use<S>> {
        let open = self.open(subject, Purpose::Charge);
        if open.is_complete() {
            return MaybeReady::Ready(open.verdict);
        }
        let engine = self.clone();
        MaybeReady::Pending(async move { engine.complete(open).await })
    }

    /// Settles like [`settle`](Self::settle), at once if the store is in this process or there is
    /// nothing to settle. Otherwise returns a future that settles.
    pub fn try_settle(
        &self,
        verdict: PolicyVerdict,
        completion: Completion,
    ) -> MaybeReady<(), impl Future<Output = ()> + Send + use<S>> {
        // Most requests end as they were charged: no future is made for them.
        let Some((charges, actual)) = self.charges_to_settle(verdict, &completion) else {
            return MaybeReady::Ready(());
        };
        let Some(charges) = self.inner.store.try_settle(charges, &actual) else {
            return MaybeReady::Ready(());
        };
        let engine = self.clone();
        MaybeReady::Pending(async move { engine.inner.store.settle(charges, &actual).await })
    }
}

/// # Deciding over a store in memory
impl<C: Clock> Engine<MemoryStore<C>> {
    /// See [`decide`](Self::decide). Nothing waits here: where an adaptive limit has a queue, a
    /// request that finds no permit is denied at once.
    pub fn decide_now(&self, subject: &Subject<'_>) -> PolicyVerdict {
        self.open(subject, Purpose::ChargeAtOnce).verdict
    }

    /// See [`peek`](Self::peek).
    pub fn peek_now(&self, subject: &Subject<'_>) -> PolicyVerdict {
        self.open(subject, Purpose::Peek).verdict
    }

    /// See [`settle`](Self::settle).
    pub fn settle_now(&self, verdict: PolicyVerdict, completion: Completion) {
        if let Some((charges, actual)) = self.charges_to_settle(verdict, &completion) {
            let store = &self.inner.store;
            store.settle_now(charges, &actual, store.clock().now());
        }
    }
}

impl<S: Store> Engine<S> {
    /// Decides a request as far as it can without waiting.
    fn open(&self, subject: &Subject<'_>, purpose: Purpose) -> OpenVerdict {
        let _no_reload = self.inner.reload_lock.read();
        let mut open = OpenVerdict::new(self.begin(subject), purpose, subject.time_limit());
        open.advance(self);
        open
    }

    /// Completes a verdict, waiting in queues and for the store.
    pub(super) async fn complete(&self, mut open: OpenVerdict) -> PolicyVerdict {
        while !open.is_complete() {
            // Boxed, so that the futures of the many requests that do not wait stay small.
            Box::pin(open.wait(self)).await;
            let _no_reload = self.inner.reload_lock.read();
            open.advance(self);
        }
        open.verdict
    }

    /// Starts a verdict: everything but the overload check and the answer of the store.
    pub(super) fn begin(&self, subject: &Subject<'_>) -> PolicyVerdict {
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
                cost: subject.units(),
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

    /// Asks the store about limits, charging nothing.
    pub(super) async fn peek_at_store(
        &self,
        asks: &[Ask<'_>],
        now: Timestamp,
    ) -> ratekeeper::Verdict {
        let store = &self.inner.store;
        let mut verdict = ratekeeper::Verdict::new(Source::Memory);
        if store.try_decide(asks, now, &mut verdict) {
            return verdict;
        }
        store.decide(asks).await
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
}

impl Rules {
    /// The verdict on requests that need no limit: the engine is disabled, or the request is on a
    /// list.
    pub(super) fn without_limits(
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

/// A result that is there already, or the future that produces it.
#[derive(Debug)]
pub enum MaybeReady<T, F> {
    /// The result.
    Ready(T),
    /// A future that has to be awaited for it.
    Pending(F),
}

impl<T, F> MaybeReady<T, F> {
    /// The result, if it is there.
    pub fn ready(self) -> Option<T> {
        match self {
            Self::Ready(result) => Some(result),
            Self::Pending(_) => None,
        }
    }

    /// Whether the future has to be awaited.
    pub fn is_pending(&self) -> bool {
        matches!(self, Self::Pending(_))
    }
}
