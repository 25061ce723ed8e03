//! [`OpenVerdict`]: the steps from a query to a verdict, the same for every way to decide.

use super::Engine;
use super::verdict::PolicyVerdict;
use ratekeeper::{Ask, Mode, Store, Verdict, store::Source};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A verdict that is not complete yet, and what is left to do. Callers go on with
/// [`advance`](Self::advance), and where it has to wait for another process, with
/// [`wait_for_store`](Self::wait_for_store).
pub(super) struct OpenVerdict {
    pub(super) verdict: PolicyVerdict,
    peek: bool,
    stage: Stage,
}

enum Stage {
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
    /// `verdict` has its query; with `peek` nothing is charged or counted.
    pub(super) fn new(verdict: PolicyVerdict, peek: bool) -> Self {
        Self {
            verdict,
            peek,
            stage: Stage::Query,
        }
    }

    pub(super) fn is_peek(&self) -> bool {
        self.peek
    }

    /// Goes on for as long as the store answers without waiting; `true` once the verdict is
    /// complete and counted.
    #[inline]
    pub(super) fn advance<S: Store>(&mut self, engine: &Engine<S>) -> bool {
        let store = &engine.inner.store;
        loop {
            match &mut self.stage {
                Stage::Query => {
                    let has_answer = !self.verdict.needs_store()
                        || self.verdict.try_query_store(store, self.peek);
                    if !has_answer {
                        return false;
                    }
                    self.end_query(engine);
                }
                Stage::Penalties(cursor) => {
                    let Some(ask) = cursor.next_ask(&self.verdict) else {
                        self.complete(engine);
                        return true;
                    };
                    let mut answer = Verdict::new(Source::Memory);
                    if !store.try_decide(&[ask], self.verdict.state.now, &mut answer) {
                        return false;
                    }
                    cursor.apply(&self.verdict, &answer);
                }
                Stage::Done => return true,
            }
        }
    }

    /// Waits for what [`advance`](Self::advance) could not have at once, `within` the time since
    /// the request began.
    pub(super) async fn wait_for_store<S: Store>(
        &mut self,
        engine: &Engine<S>,
        within: Option<Duration>,
    ) {
        let store = &engine.inner.store;
        let began = self.verdict.state.now;
        let left = within.map(|within| within.saturating_sub(store.now().saturating_since(began)));
        match &mut self.stage {
            Stage::Query => {
                let asks = self
                    .verdict
                    .state
                    .query
                    .asks(self.verdict.rules(), self.peek);
                let answer = store.decide_within(&asks, left).await;
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
            Stage::Done => {}
        }
    }

    fn end_query<S: Store>(&mut self, engine: &Engine<S>) {
        if !self.peek && self.verdict.needs_penalty() {
            self.stage = Stage::Penalties(PenaltyCursor::default());
        } else {
            self.complete(engine);
        }
    }

    fn complete<S: Store>(&mut self, engine: &Engine<S>) {
        self.stage = Stage::Done;
        if !self.peek {
            engine.count(&self.verdict);
        }
    }
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
