//! One request in several slots: asked in parts, and put together again.

use super::slot;
use crate::request::Receipt;
use crate::script::amend::{Amend, Amendment};
use crate::script::decide::{Answer, BucketInfo, FEW, Question, Questions};
use crate::store_error::StoreError;
use ratekeeper::{Mode, limit::MicrosLimit};
use smallvec::SmallVec;

/// The questions of one slot, by their places in the request.
pub(super) struct SlotRequest {
    pub(super) slot: u16,
    places: SmallVec<[usize; 4]>,
}

pub(super) type SlotRequests = SmallVec<[SlotRequest; 4]>;

impl SlotRequest {
    pub(super) fn questions(&self, all: &Questions) -> Questions {
        self.places.iter().map(|at| all[*at].clone()).collect()
    }
}

/// A request by slots.
pub(super) fn of(questions: &Questions) -> SlotRequests {
    let mut parts = SlotRequests::new();
    for (at, question) in questions.iter().enumerate() {
        let slot = slot(&question.key);
        match parts.iter_mut().find(|part| part.slot == slot) {
            Some(part) => part.places.push(at),
            None => parts.push(SlotRequest {
                slot,
                places: SmallVec::from_slice(&[at]),
            }),
        }
    }
    parts
}

/// What the parts come to together, and what gives back that which is not to stay charged.
pub(super) fn together(
    questions: &Questions,
    parts: &SlotRequests,
    answers: SmallVec<[Result<Answer, StoreError>; 4]>,
) -> (Result<Answer, StoreError>, Vec<Amendment>) {
    let mut all: SmallVec<[Option<BucketInfo>; FEW]> = SmallVec::from_elem(None, questions.len());
    let mut failed = None;
    let mut charged: SmallVec<[usize; 8]> = SmallVec::new();
    let mut denied = false;
    for (part, answer) in parts.iter().zip(answers) {
        match answer {
            Ok(Answer::ReplyReceiver { figures }) => {
                let own = || part.places.iter().zip(&figures);
                let fits = own().all(|(at, told)| told.fits || questions[*at].mode == Mode::Shadow);
                denied |= !fits;
                if fits {
                    let takes = |(at, told): &(&usize, &BucketInfo)| {
                        told.fits && questions[**at].mode != Mode::Peek
                    };
                    charged.extend(own().filter(takes).map(|(at, _)| *at));
                }
                own().for_each(|(at, told)| all[*at] = Some(*told));
            }
            Ok(Answer::BadKey(at)) => failed = Some(Ok(Answer::BadKey(part.places[at]))),
            Err(trouble) => failed = failed.or(Some(Err(trouble))),
        }
    }
    let mut back = Vec::new();
    if denied || failed.is_some() {
        for at in charged {
            if let Some(figures) = &mut all[at] {
                back.extend(given_back(&questions[at], figures));
                *figures = before(&questions[at], figures);
            }
        }
    }
    let answer = failed.unwrap_or_else(|| match all.into_iter().collect() {
        Some(figures) => Ok(Answer::ReplyReceiver { figures }),
        None => Err(StoreError::Broken),
    });
    (answer, back)
}

fn given_back(question: &Question, figures: &BucketInfo) -> Option<Amendment> {
    if !question.permits.is_empty() {
        let what = Amend::Permits {
            live: 0,
            names: question.permits.clone(),
        };
        return Some(Amendment {
            key: question.key.clone(),
            limit: question.limit,
            what,
        });
    }
    Receipt::of_all(question, figures).and_then(|receipt| receipt.corrected(0))
}

/// The figures of before the charge, as far as they can be told: a window or log still says when it
/// is fresh after it.
fn before(question: &Question, figures: &BucketInfo) -> BucketInfo {
    let cost = question.cost;
    let first = match question.limit {
        MicrosLimit::Unlimited => figures.first,
        MicrosLimit::Bucket { token, .. } | MicrosLimit::Pacing { token, .. } => {
            figures.first.saturating_sub(cost.saturating_mul(token))
        }
        MicrosLimit::Window { most, .. } | MicrosLimit::InFlight { most } => {
            figures.first.saturating_add(cost).min(most)
        }
    };
    BucketInfo { first, ..*figures }
}
