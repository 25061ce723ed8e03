//! Synchronous API: decisions without a future, where the store is in this process or knows the
//! answer.

use super::open_verdict::OpenVerdict;
use super::{Completion, Engine, PolicyVerdict, Settlement, Subject, charges_to_cancel};
use ratekeeper::{Clock, MemoryStore, Store};

/// # Decisions without a future where possible
impl<S: Store + 'static> Engine<S> {
    /// Decides like [`decide_n`](Self::decide_n), at once if possible: the store is in this
    /// process, or knows the answer without asking a server, and the request need not wait in a
    /// queue. Otherwise returns a future that decides; it does not borrow the subject.
    #[allow(
        clippy::result_large_err,
        reason = "few verdicts are pending, and those are moved once"
    )]
    pub fn try_decide(
        &self,
        subject: &Subject<'_>,
        cost: u64,
    ) -> MaybeReady<PolicyVerdict, impl Future<Output = PolicyVerdict> + Send + use<S>> {
        let mut open = OpenVerdict::new(self.begin(subject, cost), false);
        let queued = self.check_overload(&mut open.verdict, true);
        if queued.is_none() && open.advance(self) {
            return MaybeReady::Ready(open.verdict);
        }
        let engine = self.clone();
        MaybeReady::Pending(async move {
            if let Some(queued) = queued {
                Box::pin(engine.wait_in_queue(&mut open.verdict, queued, None)).await;
            }
            engine.complete_at_store(open, None).await
        })
    }

    /// Settles like [`settle`](Self::settle), at once if the store is in this process or there is
    /// nothing to settle. Otherwise returns a future that settles.
    pub fn try_settle(
        &self,
        verdict: PolicyVerdict,
        completion: Completion,
    ) -> MaybeReady<(), impl Future<Output = ()> + Send + use<S>> {
        self.try_settle_charges(self.charges_to_settle(verdict, &completion))
    }

    /// Cancels like [`cancel`](Self::cancel), at once if the store is in this process. Otherwise
    /// returns a future that cancels.
    pub fn try_cancel(
        &self,
        verdict: PolicyVerdict,
    ) -> MaybeReady<(), impl Future<Output = ()> + Send + use<S>> {
        self.try_settle_charges(charges_to_cancel(verdict))
    }

    fn try_settle_charges(
        &self,
        settlement: Option<Settlement>,
    ) -> MaybeReady<(), impl Future<Output = ()> + Send + use<S>> {
        // Most requests end as they were charged: no future is made for them.
        let Some((charges, actual)) = settlement else {
            return MaybeReady::Ready(());
        };
        let Some(charges) = self.inner.store.try_settle(charges, &actual) else {
            return MaybeReady::Ready(());
        };
        let engine = self.clone();
        MaybeReady::Pending(async move { engine.inner.store.settle(charges, &actual).await })
    }
}

/// # Synchronous decisions over a store in memory
impl<C: Clock> Engine<MemoryStore<C>> {
    /// See [`decide`](Self::decide). Nothing waits here: where an adaptive limit has a queue, a
    /// request that finds no permit is denied at once.
    pub fn decide_now(&self, subject: &Subject<'_>) -> PolicyVerdict {
        self.decide_n_now(subject, 1)
    }

    /// See [`decide_n`](Self::decide_n).
    pub fn decide_n_now(&self, subject: &Subject<'_>, cost: u64) -> PolicyVerdict {
        let mut open = OpenVerdict::new(self.begin(subject, cost), false);
        self.check_overload(&mut open.verdict, false);
        // A store in this process always answers.
        open.advance(self);
        open.verdict
    }

    /// See [`peek`](Self::peek).
    pub fn peek_now(&self, subject: &Subject<'_>, cost: u64) -> PolicyVerdict {
        let mut open = OpenVerdict::new(self.begin(subject, cost), true);
        open.advance(self);
        open.verdict
    }

    /// See [`settle`](Self::settle).
    pub fn settle_now(&self, verdict: PolicyVerdict, completion: Completion) {
        if let Some((charges, actual)) = self.charges_to_settle(verdict, &completion) {
            let store = &self.inner.store;
            store.settle_now(charges, &actual, store.clock().now());
        }
    }

    /// See [`cancel`](Self::cancel).
    pub fn cancel_now(&self, verdict: PolicyVerdict) {
        if let Some((charges, nothing)) = charges_to_cancel(verdict) {
            let store = &self.inner.store;
            store.settle_now(charges, &nothing, store.clock().now());
        }
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
