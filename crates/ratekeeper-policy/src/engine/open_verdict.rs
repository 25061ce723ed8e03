//! [`OpenVerdict`]: the steps from a query to a verdict, the same for every way to decide.

use super::Engine;
use super::permits::QueuedRequest;
use super::verdict::PolicyVerdict;
use ratekeeper::{Ask, Mode, Store, Timestamp, Verdict, store::Source};
use std::future::poll_fn;
use std::mem;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What a verdict is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A request that may wait in the queue of an adaptive limit.
    Charge,
    /// A request that is decided at once.
    ChargeAtOnce,
    /// Nothing is charged or counted.
    Peek,
}

/// A verdict that is not complete yet, and what is left to do. Callers go on with
/// [`advance`](Self::advance), and where that has to wait, with [`wait`](Self::wait).
pub(super) struct OpenVerdict {
    pub(super) verdict: PolicyVerdict,
    purpose: Purpose,
    /// When the caller needs the verdict.
    latest: Option<Timestamp>,
    stage: Stage,
}

enum Stage {
    /// The request may be late, be shed, or need permits.
    Overload,
    /// It waits for a permit.
    Queue(QueuedRequest),
    /// The store has to be asked about the limits of the query.
    Query,
    /// The store has to be asked about the penalties of the denial.
    Penalties(PenaltyCursor),
    Done,
}

/// The next penalty of a denied request.
#[derive(Default)]
struct PenaltyCursor {
    /// The index of a limit in the query.
    item: usize,
    /// The policy whose penalty was applied last: one denial counts once.
    applied: Option<u32>,
    /// Whether the key has had too many denials and is to be banned.
    is_ban: bool,
}

impl OpenVerdict {
    /// `verdict` has its query. The caller needs the answer `within` this time of its arrival.
    pub(super) fn new(verdict: PolicyVerdict, purpose: Purpose, within: Option<Duration>) -> Self {
        let latest = within.map(|within| verdict.state.now + within);
        let stage = match purpose {
            Purpose::Peek => Stage::Query,
            _ => Stage::Overload,
        };
        Self {
            verdict,
            purpose,
            latest,
            stage,
        }
    }

    /// Whether the verdict is complete and counted.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    fn is_peek(&self) -> bool {
        self.purpose == Purpose::Peek
    }

    /// Goes on for as long as nothing has to wait.
    pub(super) fn advance<S: Store>(&mut self, engine: &Engine<S>) {
        let store = &engine.inner.store;
        loop {
            match &mut self.stage {
                Stage::Overload => {
                    let may_wait = self.purpose == Purpose::Charge;
                    self.stage = match engine.check_overload(&mut self.verdict, may_wait) {
                        Some(queued) => Stage::Queue(queued),
                        None => Stage::Query,
                    };
                }
                Stage::Query => {
                    let is_peek = self.is_peek();
                    let has_answer =
                        !self.verdict.needs_store() || self.verdict.try_query_store(store, is_peek);
                    if !has_answer {
                        return;
                    }
                    self.end_query(engine);
                }
                Stage::Penalties(cursor) => {
                    let Some(ask) = cursor.next_ask(&self.verdict) else {
                        self.complete(engine);
                        return;
                    };
                    let mut answer = Verdict::new(Source::Memory);
                    if !store.try_decide(&[ask], self.verdict.state.now, &mut answer) {
                        return;
                    }
                    cursor.apply(&self.verdict, &answer);
                }
                Stage::Queue(_) | Stage::Done => return,
            }
        }
    }

    /// Waits for what [`advance`](Self::advance) could not have at once: a permit, or the answer of
    /// another process.
    pub(super) async fn wait<S: Store>(&mut self, engine: &Engine<S>) {
        let store = &engine.inner.store;
        let left = self
            .latest
            .map(|latest| latest.saturating_since(store.now()));
        match &mut self.stage {
            Stage::Overload | Stage::Done => {}
            Stage::Queue(_) => {
                if let Stage::Queue(queued) = mem::replace(&mut self.stage, Stage::Query) {
                    let verdict = &mut self.verdict;
                    engine.wait_in_queue(verdict, queued, self.latest).await;
                }
            }
            Stage::Query => {
                let asks = (self.verdict.state.query).asks(self.verdict.rules(), self.is_peek());
                let answer = by_one_set_of_rules(engine, store.decide_within(&asks, left)).await;
                drop(asks);
                self.verdict.set_store_verdict(answer);
                self.end_query(engine);
            }
            Stage::Penalties(cursor) => {
                if let Some(ask) = cursor.next_ask(&self.verdict) {
                    let answer = store.decide_within(&[ask], left).await;
                    cursor.apply(&self.verdict, &answer);
                }
            }
        }
    }

    fn end_query<S: Store>(&mut self, engine: &Engine<S>) {
        if !self.is_peek() && self.verdict.needs_penalty() {
            self.stage = Stage::Penalties(PenaltyCursor::default());
        } else {
            self.complete(engine);
        }
    }

    fn complete<S: Store>(&mut self, engine: &Engine<S>) {
        self.stage = Stage::Done;
        if !self.is_peek() {
            engine.count(&self.verdict);
        }
    }
}

/// Polls a decision of the store, for the first time while no reload is under way: a store reads
/// its limits before it first waits, so it reads them as one reload left them.
async fn by_one_set_of_rules<S: Store>(
    engine: &Engine<S>,
    decision: impl Future<Output = Verdict>,
) -> Verdict {
    let mut decision = pin!(decision);
    let mut is_first = true;
    poll_fn(|context| {
        let _no_reload = mem::take(&mut is_first).then(|| engine.inner.reload_lock.read());
        decision.as_mut().poll(context)
    })
    .await
}

impl PenaltyCursor {
    /// The next ask: whether the key has had too many denials, and if so, for its ban.
    fn next_ask<'v>(&mut self, verdict: &'v PolicyVerdict) -> Option<Ask<'v>> {
        loop {
            let (item, status) = verdict.statuses().nth(self.item)?;
            let is_denial = item.mode != Mode::Shadow && status.decision().is_denied();
            let penalty = verdict.rule(item).penalty.as_ref();
            match penalty.filter(|_| is_denial && self.applied != Some(item.policy)) {
                Some(penalty) => {
                    let key = verdict.state.query.key(item);
                    let denials = penalty.denials.as_ref().filter(|_| !self.is_ban);
                    self.is_ban = denials.is_none();
                    return Some(Ask::new(denials.unwrap_or(&penalty.ban), key));
                }
                None => self.item += 1,
            }
        }
    }

    fn apply(&mut self, verdict: &PolicyVerdict, answer: &Verdict) {
        if !self.is_ban && answer.is_denied() {
            self.is_ban = true;
            return;
        }
        if let Some((item, _)) = verdict.statuses().nth(self.item) {
            self.applied = Some(item.policy);
            // With the source `Open` nothing was recorded in the store.
            if self.is_ban && answer.is_allowed() && answer.source() != Source::Open {
                verdict
                    .rule(item)
                    .counters
                    .bans
                    .fetch_add(1, Ordering::Relaxed);
            }
        }
        self.item += 1;
        self.is_ban = false;
    }
}
