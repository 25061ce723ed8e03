//! One request: converts its asks to questions for the script, and the results to a verdict.

use crate::key::Secret;
use crate::limits::RegisteredLimit;
use crate::script::PermitName;
use crate::script::amend::{Amend, Amendment, Refund};
use crate::script::decide::{FEW, Question, QuestionResult, Questions, RefundHistory};
use ratekeeper::{
    Ask, Decision, Mode, Outcome, Verdict, store::AskResult, store::Source,
    store::backend::MicrosLimit, store::backend::WindowCounter,
};
use smallvec::SmallVec;
use std::sync::Arc;

/// Permits that one ask may take.
const MAX_PERMITS: u64 = 4_096;

/// How one ask is decided.
#[derive(Clone, Copy)]
enum AskPlan {
    /// By the result of this question.
    Question(usize),
    /// Without asking Redis: it is always allowed, or never.
    Known(Decision),
}

/// The asks of one request, as questions to Redis.
pub(crate) struct Request {
    pub(crate) questions: Questions,
    /// The reserve of each question: what its class may not use.
    reserves: SmallVec<[u64; FEW]>,
    plans: SmallVec<[AskPlan; FEW]>,
    /// Whether the request can never be allowed, so that nothing is charged and the other limits
    /// only report their state.
    is_impossible: bool,
}

impl Request {
    /// `limits` are those of the asks, in order; `None` for a limit of another store.
    pub(crate) fn new(
        asks: &[Ask<'_>],
        limits: &[Option<Arc<RegisteredLimit>>],
        secret: &Secret,
        mut permit: impl FnMut() -> PermitName,
    ) -> Self {
        let mut questions: SmallVec<[Question; FEW]> = SmallVec::new();
        let mut plans = SmallVec::new();
        let mut is_impossible = false;
        for (ask, limit) in asks.iter().zip(limits) {
            let plan = match limit {
                Some(limit) if limit.form == MicrosLimit::Unlimited => {
                    AskPlan::Known(MicrosLimit::Unlimited.bucket_decision(Outcome::Allowed, 0, 0))
                }
                Some(limit) => AskPlan::Question(add_question(&mut questions, ask, limit, secret)),
                None => AskPlan::Known(MicrosLimit::no_capacity()),
            };
            is_impossible |= limit.is_none();
            plans.push(plan);
        }
        let reserves = questions.iter().map(|question| question.reserve).collect();
        is_impossible |= questions
            .iter()
            .any(|question| question.mode != Mode::Shadow && question.never_fits());
        for question in &mut questions {
            if question.never_fits() {
                (question.cost, question.reserve) = (0, 0);
            }
            if is_impossible {
                question.mode = Mode::Peek;
            }
            if question.mode != Mode::Peek {
                question.permits = (0..question.permits_wanted()).map(|_| permit()).collect();
            }
        }
        Self {
            questions: questions.into_iter().collect(),
            reserves,
            plans,
            is_impossible,
        }
    }

    /// The verdict, and the receipts to settle it by.
    pub(crate) fn verdict(
        &self,
        asks: &[Ask<'_>],
        results: &[QuestionResult],
    ) -> (Verdict, SmallVec<[Option<Receipt>; FEW]>) {
        let decides = |question: &Question| question.mode != Mode::Shadow;
        let charged = !self.is_impossible
            && self
                .questions
                .iter()
                .zip(results)
                .all(|(question, result)| result.fits || !decides(question));
        let mut verdict = Verdict::new(Source::Redis);
        let mut receipts = SmallVec::new();
        // What earlier asks of each question have charged.
        let mut earlier: SmallVec<[u64; FEW]> = self.questions.iter().map(|_| 0).collect();
        for (ask, plan) in asks.iter().zip(&self.plans) {
            let (decision, receipt) = match *plan {
                AskPlan::Known(decision) => (decision, None),
                AskPlan::Question(at) => {
                    let question = &self.questions[at];
                    let result = &results[at];
                    let takes = charged && result.fits && question.mode != Mode::Peek;
                    let decision = to_decision(question, self.reserves[at], result, takes);
                    let receipt = (takes && ask.cost > 0 && decision.is_allowed())
                        .then(|| Receipt::new(question, ask, result, earlier[at]))
                        .flatten();
                    earlier[at] = earlier[at].saturating_add(ask.cost);
                    (decision, receipt)
                }
            };
            verdict.push(AskResult::new(decision, ask.mode));
            receipts.push(receipt);
        }
        (verdict, receipts)
    }
}

/// Adds an ask to the question of its key and mode, or adds that question. Costs of one question
/// add up.
fn add_question(
    questions: &mut SmallVec<[Question; FEW]>,
    ask: &Ask<'_>,
    limit: &RegisteredLimit,
    secret: &Secret,
) -> usize {
    let key = secret.name(&limit.key_prefix, ask.key);
    let wait = ask
        .max_wait
        .map(|wait| u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
    let same = |known: &Question| known.key == key && known.mode == ask.mode;
    if let Some(at) = questions.iter().position(same) {
        let known = &mut questions[at];
        // A cost beyond `u64` never fits.
        known.cost = known.cost.saturating_add(ask.cost);
        known.reserve = known.reserve.max(ask.reserve);
        known.wait = known.wait.min(wait);
        return at;
    }
    questions.push(Question {
        key,
        limit: limit.form,
        cost: ask.cost,
        reserve: ask.reserve,
        mode: ask.mode,
        wait,
        permits: Vec::new(),
        lease: None,
    });
    questions.len() - 1
}

impl Question {
    /// Whether the question can never be allowed: its class has no capacity left, or it asks for
    /// too many permits.
    fn never_fits(&self) -> bool {
        self.limit.with_reserve(self.reserve).is_none() || self.permits_wanted() > MAX_PERMITS
    }

    fn permits_wanted(&self) -> u64 {
        match self.limit {
            MicrosLimit::InFlight { max } if self.cost <= max => self.cost,
            _ => 0,
        }
    }
}

/// The caller's decision. `takes`: the cost was charged, so that the result is the state after it.
fn to_decision(
    question: &Question,
    reserve: u64,
    result: &QuestionResult,
    takes: bool,
) -> Decision {
    let Some(limit) = question.limit.with_reserve(reserve) else {
        return MicrosLimit::no_capacity();
    };
    let cost = question.cost;
    let ahead = result.first;
    match limit {
        MicrosLimit::Unlimited => limit.bucket_decision(Outcome::Allowed, 0, 0),
        MicrosLimit::Bucket {
            per_micro,
            token,
            capacity,
            refundable,
        } => {
            let need = cost.saturating_mul(token);
            let before = ahead.saturating_sub(if takes { need } else { 0 });
            let wait = before.saturating_add(need).saturating_sub(capacity);
            if result.fits {
                return limit.bucket_decision(Outcome::Allowed, ahead, wait);
            }
            let max_wait = question
                .wait
                .filter(|_| reserve == 0 && !refundable)
                .unwrap_or(0)
                .saturating_mul(per_micro);
            match wait.checked_sub(max_wait).filter(|wait| *wait > 0) {
                Some(wait) if need <= capacity && per_micro > 0 => {
                    limit.bucket_decision(Outcome::Denied, ahead, wait)
                }
                _ => limit.bucket_decision(Outcome::Never, ahead, 0),
            }
        }
        MicrosLimit::Pacing {
            per_micro,
            token,
            max_ahead,
        } => {
            let before = ahead.saturating_sub(if takes { cost.saturating_mul(token) } else { 0 });
            if result.fits {
                return limit.bucket_decision(Outcome::Allowed, ahead, before);
            }
            let longest_wait = question.wait.map_or(max_ahead, |wait| {
                wait.saturating_mul(per_micro).min(max_ahead)
            });
            match before.checked_sub(longest_wait).filter(|wait| *wait > 0) {
                Some(wait) if cost <= max_ahead / token + 1 => {
                    limit.bucket_decision(Outcome::Denied, ahead, wait)
                }
                _ => limit.bucket_decision(Outcome::Never, ahead, 0),
            }
        }
        MicrosLimit::Window { max, .. } | MicrosLimit::InFlight { max } => {
            let outcome = if result.fits {
                Outcome::Allowed
            } else if cost > max {
                Outcome::Never
            } else {
                Outcome::Denied
            };
            limit.window_decision(
                outcome,
                result.first,
                result.reset_after,
                result.retry_after,
            )
        }
    }
}

/// What one ask charged, to settle it by.
#[derive(Clone, Debug)]
pub(crate) struct Receipt {
    pub(crate) key: Arc<[u8]>,
    pub(crate) limit: MicrosLimit,
    pub(crate) cost: u64,
    /// The limit's number in its store.
    pub(crate) number: u64,
    pub(crate) time: u64,
    pub(crate) after: u64,
    pub(crate) before: u64,
    pub(crate) history: RefundHistory,
}

impl Receipt {
    /// The charge of one ask of a question, after `earlier` of the same question: as if charged one
    /// after the other, so that each gives back its own charge.
    fn new(
        question: &Question,
        ask: &Ask<'_>,
        result: &QuestionResult,
        earlier: u64,
    ) -> Option<Self> {
        Self::of(question, result, ask.cost, earlier, ask.limit.number())
    }

    /// The charge of a question as a whole.
    pub(crate) fn of_all(question: &Question, result: &QuestionResult) -> Option<Self> {
        Self::of(question, result, question.cost, 0, 0)
    }

    fn of(
        question: &Question,
        result: &QuestionResult,
        cost: u64,
        earlier: u64,
        number: u64,
    ) -> Option<Self> {
        let mut time = result.at;
        let fresh_at = time + result.reset_after;
        let (after, before) = match question.limit {
            MicrosLimit::Unlimited | MicrosLimit::InFlight { .. } => return None,
            MicrosLimit::Bucket {
                token,
                refundable: true,
                ..
            } => {
                time = result.history.refunded;
                (cost.saturating_mul(token), 0)
            }
            MicrosLimit::Bucket { token, .. } | MicrosLimit::Pacing { token, .. } => {
                // Tokens out on lease are not ahead: they are charged when the lease ends.
                let all = result
                    .first
                    .saturating_sub(result.history.out.saturating_mul(token));
                let before =
                    all.saturating_sub(question.cost.saturating_sub(earlier).saturating_mul(token));
                (
                    before.saturating_add(cost.saturating_mul(token)).min(all),
                    before,
                )
            }
            MicrosLimit::Window { count, window, .. } => {
                let charged_in = match count {
                    WindowCounter::Fixed | WindowCounter::FirstHit | WindowCounter::Log => {
                        fresh_at.saturating_sub(window)
                    }
                    WindowCounter::Sliding { .. } => fresh_at.saturating_sub(2 * window),
                    WindowCounter::Strict { steps } => {
                        (fresh_at / (window / steps).max(1)).saturating_sub(steps + 1)
                    }
                };
                (charged_in, 0)
            }
        };
        Some(Self {
            key: Arc::clone(&question.key),
            limit: question.limit,
            cost,
            number,
            time,
            after,
            before,
            history: result.history,
        })
    }

    /// The amendment from the charge to the actual cost; `None` if they are equal.
    pub(crate) fn corrected(self, actual: u64) -> Option<Amendment> {
        let Self {
            key,
            limit,
            cost,
            time,
            after,
            before,
            history,
            ..
        } = self;
        let units = |tokens: u64| match limit {
            MicrosLimit::Bucket { token, .. } | MicrosLimit::Pacing { token, .. } => {
                tokens.saturating_mul(token)
            }
            _ => tokens,
        };
        if let MicrosLimit::Bucket {
            refundable: true, ..
        } = limit
        {
            let unused = units(cost.saturating_sub(actual));
            // Cost beyond the charge is charged in the same step.
            let before = actual.saturating_sub(cost);
            let change = Amend::Refund(Refund {
                unused,
                charged_at: time,
                after,
                before,
                history,
            });
            return Some(Amendment { key, limit, change });
        }
        let change = match actual.cmp(&cost) {
            std::cmp::Ordering::Equal => return None,
            std::cmp::Ordering::Greater => Amend::ChargeMore(actual - cost),
            std::cmp::Ordering::Less => {
                let unused = units(cost - actual);
                Amend::Refund(Refund {
                    unused,
                    charged_at: time,
                    after,
                    before,
                    history,
                })
            }
        };
        Some(Amendment { key, limit, change })
    }
}
