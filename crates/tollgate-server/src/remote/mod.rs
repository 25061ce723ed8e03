//! The store of this service for programs elsewhere: what `POST /v1/store` does.

mod kept;
mod limits;

use crate::store::AnyStore;
use kept::Kept;
use limits::Limits;
use smallvec::SmallVec;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use tollgate::{Ask, Clock, LimitHandle, Mode, Store, Verdict};
use tollgate_policy::config::Secret;
use tollgate_remote::wire::{Answer, Answers, Call, Decide, Job, Refusal, Told};

/// More than any request is about.
const MOST_ASKS: usize = 256;

pub(crate) struct Remote<C: Clock> {
    store: AnyStore<C>,
    limits: Limits,
    kept: Kept,
    token: Option<Secret>,
    allowed: AtomicU64,
    denied: AtomicU64,
}

/// Who calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Caller {
    /// May do everything: it has the token.
    Operator,
    /// May decide, and come back to what it has decided.
    Anyone,
}

/// The limits of a call by the numbers that its jobs know them by, sorted.
type Named = Vec<(u64, Result<LimitHandle, Refusal>)>;

impl<C: Clock> Remote<C> {
    pub(crate) fn new(store: AnyStore<C>, token: Option<Secret>) -> Self {
        let (limits, kept) = (Limits::new(crate::buckets::MOST_LIMITS), Kept::default());
        Self { store, limits, kept, token, allowed: AtomicU64::new(0), denied: AtomicU64::new(0) }
    }

    /// Who has this token, or none; nobody if it is not ours.
    pub(crate) fn caller(&self, token: Option<&[u8]>) -> Option<Caller> {
        match (&self.token, token) {
            (None, _) => Some(Caller::Anyone),
            (Some(ours), Some(token)) if is_same(ours.reveal().as_bytes(), token) => Some(Caller::Operator),
            _ => None,
        }
    }

    /// How many requests passed, and how many were turned away. Peeks are not among them.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.allowed.load(Relaxed), self.denied.load(Relaxed))
    }

    /// Does the jobs of a call. What gives back comes first, whatever the order: it can then be taken.
    pub(crate) async fn serve(&self, call: &Call<'_>, caller: Caller) -> Vec<u8> {
        let now = self.store.now();
        self.kept.end_overdue(now);
        let mut named: Named =
            call.limits.iter().map(|line| (line.number, self.limits.handle(&self.store, line))).collect();
        named.sort_by_key(|(number, _)| *number);
        let mut answers: Vec<Answer> = Vec::new();
        answers.resize(call.jobs.len(), Answer::Done);
        for decides in [false, true] {
            let jobs = call.jobs.iter().enumerate().filter(|(_, job)| matches!(job, Job::Decide(_)) == decides);
            let (places, jobs): (Vec<usize>, Vec<_>) =
                jobs.map(|(at, job)| (at, self.do_job(job, &named, caller))).unzip();
            for (at, answer) in places.into_iter().zip(all(jobs).await) {
                answers[at] = answer;
            }
        }
        let mut written = Answers::new(answers.len());
        answers.iter().for_each(|answer| written.push(answer));
        written.into_bytes()
    }

    async fn do_job(&self, job: &Job<'_>, named: &Named, caller: Caller) -> Answer {
        match job {
            Job::Decide(decide) => self.decide(decide, named).await.unwrap_or_else(Answer::Refused),
            Job::Settle { name, actual } => match self.kept.take(name) {
                Some(verdict) => {
                    self.store.settle(*verdict, actual).await;
                    Answer::Done
                }
                None => Answer::Refused(Refusal::NotKept),
            },
            Job::GiveUp(names) => {
                // Dropped, they give back what they hold.
                names.iter().for_each(|name| drop(self.kept.take(name)));
                Answer::Done
            }
            Job::Renew(names) => {
                self.kept.renew(names, self.store.now());
                Answer::Done
            }
            Job::Grant { .. } | Job::Reset { .. } if caller != Caller::Operator => Answer::Refused(Refusal::Forbidden),
            Job::Grant { limit, key, tokens } => match handle_of(named, *limit) {
                Ok(handle) => {
                    self.store.grant(handle, key, *tokens).await;
                    Answer::Done
                }
                Err(refusal) => Answer::Refused(refusal),
            },
            Job::Reset { limit, key } => match handle_of(named, *limit) {
                Ok(handle) => {
                    self.store.reset(handle, key).await;
                    Answer::Done
                }
                Err(refusal) => Answer::Refused(refusal),
            },
        }
    }

    async fn decide(&self, decide: &Decide<'_>, named: &Named) -> Result<Answer, Refusal> {
        if decide.asks.len() > MOST_ASKS {
            return Err(Refusal::TooManyAsks);
        }
        let mut asks: SmallVec<[Ask<'_>; 8]> = SmallVec::new();
        for line in &decide.asks {
            let (cost, reserve, mode, max_wait) = (line.cost, line.reserve, line.mode, line.max_wait);
            asks.push(Ask { limit: handle_of(named, line.limit)?, key: line.key, cost, reserve, mode, max_wait });
        }
        let verdict = self.store.decide(&asks).await;
        let charges = |ask: &Ask<'_>| ask.mode != Mode::Peek && ask.cost > 0;
        if asks.iter().any(|ask| ask.mode != Mode::Peek) {
            if verdict.is_allowed() { &self.allowed } else { &self.denied }.fetch_add(1, Relaxed);
        }
        let (source, decisions) = (verdict.source(), verdict.statuses().map(|status| status.decision()).collect());
        let mut kept = false;
        if let Some(name) = decide.keep.filter(|_| verdict.is_allowed() && asks.iter().any(charges)) {
            let has_permits = asks.iter().any(|ask| charges(ask) && ask.limit.in_flight().is_some());
            match self.kept.keep(name, Box::new(verdict), self.store.now()) {
                Ok(()) => kept = true,
                // Who cannot give them back may not have them.
                Err(verdict) if has_permits => {
                    self.cancel(*verdict).await;
                    return Err(Refusal::TooManyVerdicts);
                }
                Err(_) => {}
            }
        }
        Ok(Answer::Told(Told { source, kept, decisions }))
    }

    async fn cancel(&self, verdict: Verdict) {
        let nothing: SmallVec<[u64; 8]> = verdict.statuses().map(|_| 0).collect();
        self.store.settle(verdict, &nothing).await;
    }
}

fn handle_of(named: &Named, number: u64) -> Result<&LimitHandle, Refusal> {
    let at = named.binary_search_by_key(&number, |(number, _)| *number).map_err(|_| Refusal::BadLimit)?;
    named[at].1.as_ref().map_err(|refusal| *refusal)
}

/// In a time that does not depend on where they differ.
pub(crate) fn is_same(ours: &[u8], theirs: &[u8]) -> bool {
    let differs = ours.iter().zip(theirs).fold(0, |differs, (ours, theirs)| differs | (ours ^ theirs));
    ours.len() == theirs.len() && std::hint::black_box(differs) == 0
}

/// Waits for all of them at once: a store that is elsewhere is asked once for all. In memory each is ready when it is looked
/// at.
async fn all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut waiting: Vec<Waiting<F>> = futures.into_iter().map(|future| Waiting::For(Box::pin(future))).collect();
    std::future::poll_fn(|cx| {
        let mut is_ready = true;
        for one in &mut waiting {
            if let Waiting::For(future) = one {
                match future.as_mut().poll(cx) {
                    Poll::Ready(output) => *one = Waiting::Over(output),
                    Poll::Pending => is_ready = false,
                }
            }
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let output = |one| match one {
        Waiting::Over(output) => Some(output),
        Waiting::For(_) => None,
    };
    waiting.into_iter().filter_map(output).collect()
}

enum Waiting<F: Future> {
    For(Pin<Box<F>>),
    Over(F::Output),
}

#[cfg(test)]
mod tests;
