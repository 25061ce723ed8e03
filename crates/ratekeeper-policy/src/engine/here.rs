//! Deciding without a future to wait on, where the store is in this process.

use super::{Ending, Engine, Subject, Verdict};
use ratekeeper::{Clock, MemoryStore, Store};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// # Deciding without a future, where the store is in this process
impl<S: Store + 'static> Engine<S> {
    /// Decides, as [`decide_n`](Self::decide_n) does, if the store is in this process, or knows the
    /// answer without asking elsewhere, and nobody has to wait in line. If not, what decides: a
    /// future that needs the subject no longer.
    #[allow(
        clippy::result_large_err,
        reason = "few have to wait, and they move it once"
    )]
    pub fn decide_or_later(
        &self,
        subject: &Subject<'_>,
        cost: u64,
    ) -> Result<Verdict, impl Future<Output = Verdict> + Send + use<S>> {
        let mut verdict = self.begin(subject, cost);
        let in_line = self.press(&mut verdict, true);
        if in_line.is_none() && self.inner.store.is_here() {
            return Ok(self.ask_pressed_here(verdict, false));
        }
        // A store that is elsewhere may still know this one.
        let is_known = in_line.is_none()
            && (!verdict.is_open() || verdict.ask_store_here(&self.inner.store, false));
        if is_known && !verdict.is_to_be_punished() {
            self.count(&verdict);
            return Ok(verdict);
        }
        let engine = self.clone();
        Err(async move {
            if let Some(in_line) = in_line {
                Box::pin(engine.wait_in_line(&mut verdict, in_line, None)).await;
            }
            match is_known {
                true => engine.conclude(verdict, None).await,
                false => engine.ask_pressed(verdict, false, None).await,
            }
        })
    }

    /// Settles, as [`settle`](Self::settle) does, if the store is in this process or there is
    /// nothing to settle. If not, what settles.
    pub fn settle_or_later(
        &self,
        verdict: Verdict,
        ending: Ending,
    ) -> Result<(), impl Future<Output = ()> + Send + use<S>> {
        let mut verdict = verdict;
        self.finish(&mut verdict, &ending);
        // Most requests end as they were charged: they need no future to be moved into.
        if verdict.is_settled(&ending) {
            return Ok(());
        }
        let (engine, here) = (self.clone(), self.inner.store.is_here());
        here_or_later(here, async move { engine.settle(verdict, ending).await })
    }

    /// Cancels, as [`cancel`](Self::cancel) does, if the store is in this process. If not, what
    /// cancels.
    pub fn cancel_or_later(
        &self,
        verdict: Verdict,
    ) -> Result<(), impl Future<Output = ()> + Send + use<S>> {
        let (engine, here) = (self.clone(), self.inner.store.is_here());
        here_or_later(here, async move { engine.cancel(verdict).await })
    }
}

impl<S: Store> Engine<S> {
    /// As `ask` does, without a future to move the verdict through.
    fn ask_here(&self, subject: &Subject<'_>, cost: u64, peek: bool) -> Verdict {
        let mut verdict = self.begin(subject, cost);
        if !peek {
            // Who cannot wait does not.
            self.press(&mut verdict, false);
        }
        self.ask_pressed_here(verdict, peek)
    }

    /// What `ask_pressed` does where the store is here.
    pub(super) fn ask_pressed_here(&self, mut verdict: Verdict, peek: bool) -> Verdict {
        if verdict.is_open() && !verdict.ask_store_here(&self.inner.store, peek) {
            at_once(self.ask_and_wait(&mut verdict, peek, None));
        }
        if !peek {
            if verdict.is_to_be_punished() {
                at_once(self.punish(&verdict, None));
            }
            self.count(&verdict);
        }
        verdict
    }
}

/// # Deciding in memory, where nothing has to be waited for
impl<C: Clock> Engine<MemoryStore<C>> {
    /// See [`decide`](Self::decide). Where an adaptive limit has a queue, nobody waits here:
    /// whoever finds no place is turned away, as without one.
    pub fn decide_now(&self, subject: &Subject<'_>) -> Verdict {
        self.ask_here(subject, 1, false)
    }

    /// See [`decide_n`](Self::decide_n).
    pub fn decide_n_now(&self, subject: &Subject<'_>, cost: u64) -> Verdict {
        self.ask_here(subject, cost, false)
    }

    /// See [`peek`](Self::peek).
    pub fn peek_now(&self, subject: &Subject<'_>, cost: u64) -> Verdict {
        self.ask_here(subject, cost, true)
    }

    /// See [`settle`](Self::settle).
    pub fn settle_now(&self, verdict: Verdict, ending: Ending) {
        let mut verdict = verdict;
        self.finish(&mut verdict, &ending);
        if !verdict.is_settled(&ending) {
            at_once(self.settle(verdict, ending));
        }
    }

    /// See [`cancel`](Self::cancel).
    pub fn cancel_now(&self, verdict: Verdict) {
        at_once(self.cancel(verdict));
    }
}

/// Runs a future that is ready when it is polled, if it is.
fn here_or_later<F: Future<Output = ()>>(here: bool, future: F) -> Result<(), F> {
    match here {
        true => {
            at_once(future);
            Ok(())
        }
        false => Err(future),
    }
}

/// What a store in this process answers, it answers when it is asked.
fn at_once<T>(answer: impl Future<Output = T>) -> T {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("a store that is here never waits"),
    }
}
