//! One request across several slots: its split into one request for each slot, and the merging of
//! their answers.

use super::slot;
use crate::request::Receipt;
use crate::script::amend::{Amend, Amendment};
use crate::script::decide::{Answer, FEW, Question, QuestionResult, Questions};
use crate::store_error::StoreError;
use ratekeeper::{Mode, store::backend::MicrosLimit};
use smallvec::SmallVec;

/// The questions in one slot, by their indices in the request.
pub(super) struct SlotRequest {
    pub(super) slot: u16,
    indices: SmallVec<[usize; 4]>,
}

/// A request, split by slots.
pub(super) type SlotRequests = SmallVec<[SlotRequest; 4]>;

impl SlotRequest {
    pub(super) fn questions(&self, all: &Questions) -> Questions {
        self.indices.iter().map(|at| all[*at].clone()).collect()
    }
}

/// Splits a request by slots.
pub(super) fn of(questions: &Questions) -> SlotRequests {
    let mut slot_requests = SlotRequests::new();
    for (at, question) in questions.iter().enumerate() {
        let slot = slot(&question.key);
        match slot_requests
            .iter_mut()
            .find(|slot_request| slot_request.slot == slot)
        {
            Some(slot_request) => slot_request.indices.push(at),
            None => slot_requests.push(SlotRequest {
                slot,
                indices: SmallVec::from_slice(&[at]),
            }),
        }
    }
    slot_requests
}

/// Merges the answers. Also returns the amendments that refund charges which must not stay.
pub(super) fn merge(
    questions: &Questions,
    slot_requests: &SlotRequests,
    answers: SmallVec<[Result<Answer, StoreError>; 4]>,
) -> (Result<Answer, StoreError>, Vec<Amendment>) {
    let mut all: SmallVec<[Option<QuestionResult>; FEW]> =
        SmallVec::from_elem(None, questions.len());
    let mut failed = None;
    let mut charged: SmallVec<[usize; 8]> = SmallVec::new();
    let mut denied = false;
    for (slot_request, answer) in slot_requests.iter().zip(answers) {
        match answer {
            Ok(Answer::Decided { results }) => {
                let own = || slot_request.indices.iter().zip(&results);
                let fits =
                    own().all(|(at, result)| result.fits || questions[*at].mode == Mode::Shadow);
                denied |= !fits;
                if fits {
                    let takes = |(at, result): &(&usize, &QuestionResult)| {
                        result.fits && questions[**at].mode != Mode::Peek
                    };
                    charged.extend(own().filter(takes).map(|(at, _)| *at));
                }
                own().for_each(|(at, result)| all[*at] = Some(*result));
            }
            Ok(Answer::BadKey(at)) => failed = Some(Ok(Answer::BadKey(slot_request.indices[at]))),
            Err(error) => failed = failed.or(Some(Err(error))),
        }
    }
    let mut back = Vec::new();
    if denied || failed.is_some() {
        for at in charged {
            if let Some(result) = &mut all[at] {
                back.extend(refund(&questions[at], result));
                *result = uncharged(&questions[at], result);
            }
        }
    }
    let answer = failed.unwrap_or_else(|| match all.into_iter().collect() {
        Some(results) => Ok(Answer::Decided { results }),
        None => Err(StoreError::Broken),
    });
    (answer, back)
}

fn refund(question: &Question, result: &QuestionResult) -> Option<Amendment> {
    if !question.permits.is_empty() {
        let change = Amend::RenewPermits {
            ttl: 0,
            names: question.permits.clone(),
        };
        return Some(Amendment {
            key: question.key.clone(),
            limit: question.limit,
            change,
        });
    }
    Receipt::of_all(question, result).and_then(|receipt| receipt.corrected(0))
}

/// The result before the charge, as far as it can be known: a window or log still reports when it
/// is full again after it.
fn uncharged(question: &Question, result: &QuestionResult) -> QuestionResult {
    let cost = question.cost;
    let first = match question.limit {
        MicrosLimit::Unlimited => result.first,
        MicrosLimit::Bucket { token, .. } | MicrosLimit::Pacing { token, .. } => {
            result.first.saturating_sub(cost.saturating_mul(token))
        }
        MicrosLimit::Window { max, .. } | MicrosLimit::InFlight { max } => {
            result.first.saturating_add(cost).min(max)
        }
    };
    QuestionResult { first, ..*result }
}
