//! Synchronous API: decisions without a future, where the store is in this process or knows the
//! answer.

use super::{Completion, Engine, PolicyVerdict, Subject};
use ratekeeper::{Clock, MemoryStore, Store};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

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
        let mut verdict = self.begin(subject, cost);
        let queued = self.check_overload(&mut verdict, true);
        if queued.is_none() && self.inner.store.is_local() {
            return MaybeReady::Ready(self.complete_sync(verdict, false));
        }
        // A remote store may know this answer, as from a lease.
        let is_known = queued.is_none()
            && (!verdict.needs_store() || verdict.try_query_store(&self.inner.store, false));
        if is_known && !verdict.needs_penalty() {
            self.count(&verdict);
            return MaybeReady::Ready(verdict);
        }
        let engine = self.clone();
        MaybeReady::Pending(async move {
            if let Some(queued) = queued {
                Box::pin(engine.wait_in_queue(&mut verdict, queued, None)).await;
            }
            if is_known {
                engine.finish_decision(verdict, None).await
            } else {
                engine.complete_at_store(verdict, false, None).await
            }
        })
    }

    /// Settles like [`settle`](Self::settle), at once if the store is in this process or there is
    /// nothing to settle. Otherwise returns a future that settles.
    pub fn try_settle(
        &self,
        verdict: PolicyVerdict,
        completion: Completion,
    ) -> MaybeReady<(), impl Future<Output = ()> + Send + use<S>> {
        let mut verdict = verdict;
        self.finish(&mut verdict, &completion);
        // Most requests end as they were charged: no future is made for them.
        if verdict.is_settled(&completion) {
            return MaybeReady::Ready(());
        }
        let engine = self.clone();
        let is_local = self.inner.store.is_local();
        ready_or_pending(
            is_local,
            async move { engine.settle(verdict, completion).await },
        )
    }

    /// Cancels like [`cancel`](Self::cancel), at once if the store is in this process. Otherwise
    /// returns a future that cancels.
    pub fn try_cancel(
        &self,
        verdict: PolicyVerdict,
    ) -> MaybeReady<(), impl Future<Output = ()> + Send + use<S>> {
        let engine = self.clone();
        let is_local = self.inner.store.is_local();
        ready_or_pending(is_local, async move { engine.cancel(verdict).await })
    }
}

impl<S: Store> Engine<S> {
    /// Decides without a future; the store must be in this process.
    fn decide_sync(&self, subject: &Subject<'_>, cost: u64, peek: bool) -> PolicyVerdict {
        let mut verdict = self.begin(subject, cost);
        if !peek {
            // There is no queueing here.
            self.check_overload(&mut verdict, false);
        }
        self.complete_sync(verdict, peek)
    }

    /// [`complete_at_store`](Self::complete_at_store) for a store in this process.
    pub(super) fn complete_sync(&self, mut verdict: PolicyVerdict, peek: bool) -> PolicyVerdict {
        if verdict.needs_store() && !verdict.try_query_store(&self.inner.store, peek) {
            now_or_never(self.query_store(&mut verdict, peek, None));
        }
        if !peek {
            if verdict.needs_penalty() {
                now_or_never(self.apply_penalties(&verdict, None));
            }
            self.count(&verdict);
        }
        verdict
    }
}

/// # Synchronous decisions over a store in memory
impl<C: Clock> Engine<MemoryStore<C>> {
    /// See [`decide`](Self::decide). Nothing waits here: where an adaptive limit has a queue, a
    /// request that finds no permit is denied at once.
    pub fn decide_now(&self, subject: &Subject<'_>) -> PolicyVerdict {
        self.decide_sync(subject, 1, false)
    }

    /// See [`decide_n`](Self::decide_n).
    pub fn decide_n_now(&self, subject: &Subject<'_>, cost: u64) -> PolicyVerdict {
        self.decide_sync(subject, cost, false)
    }

    /// See [`peek`](Self::peek).
    pub fn peek_now(&self, subject: &Subject<'_>, cost: u64) -> PolicyVerdict {
        self.decide_sync(subject, cost, true)
    }

    /// See [`settle`](Self::settle).
    pub fn settle_now(&self, verdict: PolicyVerdict, completion: Completion) {
        let mut verdict = verdict;
        self.finish(&mut verdict, &completion);
        if !verdict.is_settled(&completion) {
            now_or_never(self.settle(verdict, completion));
        }
    }

    /// See [`cancel`](Self::cancel).
    pub fn cancel_now(&self, verdict: PolicyVerdict) {
        now_or_never(self.cancel(verdict));
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

/// Runs a future of a store in this process at once; other futures are returned.
fn ready_or_pending<F: Future<Output = ()>>(is_local: bool, future: F) -> MaybeReady<(), F> {
    if is_local {
        now_or_never(future);
        MaybeReady::Ready(())
    } else {
        MaybeReady::Pending(future)
    }
}

/// The output of a future of a store in this process, which is ready at the first poll.
fn now_or_never<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("a store in this process never waits"),
    }
}
