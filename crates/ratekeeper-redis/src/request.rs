//! One request: its asks as questions to the script, and the figures that come back as a verdict.

use crate::key::Secret;
use crate::limits::RegisteredLimit;
use crate::script::PermitName;
use crate::script::amend::{Amend, Amendment, Refund};
use crate::script::decide::{BucketInfo, ColdState, FEW, Question, Questions};
use ratekeeper::{
    Ask, Decision, Mode, Outcome, Verdict, limit::MicrosLimit, limit::WindowCounter,
    store::AskResult, store::Source,
};
use smallvec::SmallVec;
use std::sync::Arc;

/// As many permits as one ask may take.
const MOST_PERMITS: u64 = 4_096;

/// What becomes of one ask.
#[derive(Clone, Copy)]
enum AskPlan {
    /// It is part of this question.
    Asked(usize),
    /// Nobody needs to be asked: it passes, or it never does.
    Known(Decision),
}

/// The asks of one request, ready to be sent.
pub(crate) struct Request {
    pub(crate) questions: Questions,
    /// What the class of each question may not touch.
    reserves: SmallVec<[u64; FEW]>,
    places: SmallVec<[AskPlan; FEW]>,
    /// Whether it never passes, so that nothing is charged: the others only tell how they stand.
    hopeless: bool,
}

impl Request {
    /// `limits` are those of the asks, in their order; none where a limit is not of this store.
    pub(crate) fn new(
        asks: &[Ask<'_>],
        limits: &[Option<Arc<RegisteredLimit>>],
        secret: &Secret,
        mut permit: impl FnMut() -> PermitName,
    ) -> Self {
        let mut questions: SmallVec<[Question; FEW]> = SmallVec::new();
        let mut places = SmallVec::new();
        let mut hopeless = false;
        for (ask, limit) in asks.iter().zip(limits) {
            let place = match limit {
                Some(limit) if limit.form == MicrosLimit::Unlimited => {
                    AskPlan::Known(MicrosLimit::Unlimited.bucket_decision(Outcome::Allowed, 0, 0))
                }
                Some(limit) => AskPlan::Asked(add(&mut questions, ask, limit, secret)),
                None => AskPlan::Known(MicrosLimit::no_capacity()),
            };
            hopeless |= limit.is_none();
            places.push(place);
        }
        let reserves = questions.iter().map(|question| question.reserve).collect();
        hopeless |= questions
            .iter()
            .any(|question| question.mode != Mode::Shadow && question.is_vain());
        for question in &mut questions {
            if question.is_vain() {
                (question.cost, question.reserve) = (0, 0);
            }
            if hopeless {
                question.mode = Mode::Peek;
            }
            if question.mode != Mode::Peek {
                question.permits = (0..question.permits_wanted()).map(|_| permit()).collect();
            }
        }
        Self {
            questions: questions.into_iter().collect(),
            reserves,
            places,
            hopeless,
        }
    }

    /// The verdict, and what it is settled by.
    pub(crate) fn verdict(
        &self,
        asks: &[Ask<'_>],
        figures: &[BucketInfo],
    ) -> (Verdict, SmallVec<[Option<Receipt>; FEW]>) {
        let decides = |question: &Question| question.mode != Mode::Shadow;
        let charged = !self.hopeless
            && self
                .questions
                .iter()
                .zip(figures)
                .all(|(asked, told)| told.fits || !decides(asked));
        let mut verdict = Verdict::new(Source::Redis);
        let mut receipts = SmallVec::new();
        // What the asks of each question so far have charged.
        let mut earlier: SmallVec<[u64; FEW]> = self.questions.iter().map(|_| 0).collect();
        for (ask, place) in asks.iter().zip(&self.places) {
            let (decision, receipt) = match *place {
                AskPlan::Known(decision) => (decision, None),
                AskPlan::Asked(at) => {
                    let (question, figures) = (&self.questions[at], &figures[at]);
                    let takes = charged && figures.fits && question.mode != Mode::Peek;
                    let decision = told(question, self.reserves[at], figures, takes);
                    let receipt = (takes && ask.cost > 0 && decision.is_allowed())
                        .then(|| Receipt::new(question, ask, figures, earlier[at]))
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

/// The question that an ask is part of: one a key and mode, their costs add.
fn add(
    questions: &mut SmallVec<[Question; FEW]>,
    ask: &Ask<'_>,
    limit: &RegisteredLimit,
    secret: &Secret,
) -> usize {
    let key = secret.name(&limit.stem, ask.key);
    let wait = ask
        .max_wait
        .map(|wait| u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
    let same = |known: &Question| known.key == key && known.mode == ask.mode;
    if let Some(at) = questions.iter().position(same) {
        let known = &mut questions[at];
        // What cannot be counted never fits.
        known.cost = known.cost.saturating_add(ask.cost);
        known.reserve = known.reserve.max(ask.reserve);
        known.wait = known.wait.min(wait);
        return at;
    }
    let (cost, reserve, mode) = (ask.cost, ask.reserve, ask.mode);
    questions.push(Question {
        key,
        limit: limit.form,
        cost,
        reserve,
        mode,
        wait,
        permits: Vec::new(),
        lease: None,
    });
    questions.len() - 1
}

impl Question {
    /// Whether it never passes, whatever the state: nothing is left for its class, or it is for too
    /// many permits.
    fn is_vain(&self) -> bool {
        self.limit.with_reserve(self.reserve).is_none() || self.permits_wanted() > MOST_PERMITS
    }

    fn permits_wanted(&self) -> u64 {
        match self.limit {
            MicrosLimit::InFlight { most } if self.cost <= most => self.cost,
            _ => 0,
        }
    }
}

/// What a caller is told. `takes`: it was charged, so that the figures are those of after it.
fn told(question: &Question, reserve: u64, figures: &BucketInfo, takes: bool) -> Decision {
    let Some(limit) = question.limit.with_reserve(reserve) else {
        return MicrosLimit::no_capacity();
    };
    let (cost, ahead) = (question.cost, figures.first);
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
            if figures.fits {
                return limit.bucket_decision(Outcome::Allowed, ahead, wait);
            }
            let patience = question
                .wait
                .filter(|_| reserve == 0 && !refundable)
                .unwrap_or(0)
                .saturating_mul(per_micro);
            match wait.checked_sub(patience).filter(|wait| *wait > 0) {
                Some(wait) if need <= capacity && per_micro > 0 => {
                    limit.bucket_decision(Outcome::Denied, ahead, wait)
                }
                _ => limit.bucket_decision(Outcome::Never, ahead, 0),
            }
        }
        MicrosLimit::Pacing {
            per_micro,
            token,
            longest,
        } => {
            let before = ahead.saturating_sub(if takes { cost.saturating_mul(token) } else { 0 });
            if figures.fits {
                return limit.bucket_decision(Outcome::Allowed, ahead, before);
            }
            let longest_wait = question
                .wait
                .map_or(longest, |wait| wait.saturating_mul(per_micro).min(longest));
            match before.checked_sub(longest_wait).filter(|wait| *wait > 0) {
                Some(wait) if cost <= longest / token + 1 => {
                    limit.bucket_decision(Outcome::Denied, ahead, wait)
                }
                _ => limit.bucket_decision(Outcome::Never, ahead, 0),
            }
        }
        MicrosLimit::Window { most, .. } | MicrosLimit::InFlight { most } => {
            let outcome = match figures.fits {
                true => Outcome::Allowed,
                false if cost > most => Outcome::Never,
                false => Outcome::Denied,
            };
            limit.window_decision(
                outcome,
                figures.first,
                figures.reset_after,
                figures.retry_after,
            )
        }
    }
}

/// What one ask charged, to be settled by.
#[derive(Clone, Debug)]
pub(crate) struct Receipt {
    pub(crate) key: Arc<[u8]>,
    pub(crate) limit: MicrosLimit,
    pub(crate) cost: u64,
    /// The number of the limit in its store.
    pub(crate) number: u64,
    pub(crate) time: u64,
    pub(crate) after: u64,
    pub(crate) before: u64,
    pub(crate) cold: ColdState,
}

impl Receipt {
    /// What an ask of a question charged, after `earlier` of the same: one after the other, so that
    /// each gives back what is its own.
    fn new(question: &Question, ask: &Ask<'_>, figures: &BucketInfo, earlier: u64) -> Option<Self> {
        Self::of(question, figures, ask.cost, earlier, ask.limit.number())
    }

    /// What a question charged, as a whole.
    pub(crate) fn of_all(question: &Question, figures: &BucketInfo) -> Option<Self> {
        Self::of(question, figures, question.cost, 0, 0)
    }

    fn of(
        question: &Question,
        figures: &BucketInfo,
        cost: u64,
        earlier: u64,
        number: u64,
    ) -> Option<Self> {
        let mut time = figures.at;
        let fresh_at = time + figures.reset_after;
        let (after, before) = match question.limit {
            MicrosLimit::Unlimited | MicrosLimit::InFlight { .. } => return None,
            MicrosLimit::Bucket {
                token,
                refundable: true,
                ..
            } => {
                time = figures.cold.refunded;
                (cost.saturating_mul(token), 0)
            }
            MicrosLimit::Bucket { token, .. } | MicrosLimit::Pacing { token, .. } => {
                // What was out on lease is not ahead: it is charged when it ends.
                let all = figures
                    .first
                    .saturating_sub(figures.cold.out.saturating_mul(token));
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
            cold: figures.cold,
        })
    }

    /// What corrects it to what it really cost; none if that is what was charged.
    pub(crate) fn corrected(self, actual: u64) -> Option<Amendment> {
        let Self {
            key,
            limit,
            cost,
            time,
            after,
            before,
            cold,
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
            // What it cost beyond the charge is charged in the same step.
            let before = actual.saturating_sub(cost);
            let what = Amend::GiveBack(Refund {
                unused,
                charged_at: time,
                after,
                before,
                cold,
            });
            return Some(Amendment { key, limit, what });
        }
        let what = match actual.cmp(&cost) {
            std::cmp::Ordering::Equal => return None,
            std::cmp::Ordering::Greater => Amend::ChargeMore(actual - cost),
            std::cmp::Ordering::Less => {
                let unused = units(cost - actual);
                Amend::GiveBack(Refund {
                    unused,
                    charged_at: time,
                    after,
                    before,
                    cold,
                })
            }
        };
        Some(Amendment { key, limit, what })
    }
}
