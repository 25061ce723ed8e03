//! Decisions: requests encoded for `decide.lua`, and its answers.

use super::{Call, CallBuilder, Integers, InvalidReplyError, PermitName, push_f64};
use crate::lease::node::LeaseDemand;
use ratekeeper::{Mode, store::backend::MicrosLimit};
use smallvec::SmallVec;
use std::sync::Arc;

/// Inline capacity for asks: most requests have no more.
pub(crate) const FEW: usize = 2;

/// The asks of one request about the same key in the same mode, merged.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) key: Arc<[u8]>,
    /// The whole limit, without subtracting the reserve.
    pub(crate) limit: MicrosLimit,
    pub(crate) cost: u64,
    pub(crate) reserve: u64,
    pub(crate) mode: Mode,
    /// How long the caller would wait, in microseconds.
    pub(crate) wait: Option<u64>,
    /// One name for each permit that the question takes.
    pub(crate) permits: Vec<PermitName>,
    /// If set, tokens are leased and nothing is decided. Such a question is a request of its own.
    pub(crate) lease: Option<LeaseDemand>,
}

/// The questions of one request.
pub(crate) type Questions = Arc<[Question]>;

/// The refund history of a bucket: what had been refunded to it, given to it, leased from it, and
/// how often it had been reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RefundHistory {
    /// Units refunded so far. For a refundable bucket: when it was charged.
    pub(crate) refunded: u64,
    pub(crate) given: u64,
    pub(crate) resets: u64,
    /// Tokens that were out on lease.
    pub(crate) out: u64,
}

/// The result of one question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QuestionResult {
    pub(crate) fits: bool,
    /// Buckets and queues: units ahead. Others: what remains.
    pub(crate) first: u64,
    /// Microseconds until the limit is full again, and until the same call is allowed; 0 for
    /// buckets and queues.
    pub(crate) reset_after: u64,
    pub(crate) retry_after: u64,
    /// The time of the server that answered, in microseconds.
    pub(crate) at: u64,
    /// The refund history of the key.
    pub(crate) history: RefundHistory,
    /// Tokens that were leased, and their TTL in microseconds.
    pub(crate) leased: (u64, u64),
}

/// The answer to one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// The result of each question.
    Decided {
        results: SmallVec<[QuestionResult; FEW]>,
    },
    /// The key of this question holds data of another kind.
    BadKey(usize),
}

/// Marks a request with a bad key: more than any result.
const BAD_KEY: i64 = (1 << 53) - 1;

/// Larger numbers exceed any limit and need not be distinguished.
const MAX_NUMBER: u64 = 1 << 52;

/// Encodes requests as one call.
pub(crate) fn encode<'q>(requests: impl Iterator<Item = &'q Questions> + Clone) -> Call {
    let mut builder = CallBuilder::default();
    let mut numbers: Vec<(u16, u16)> = Vec::with_capacity(64);
    for question in requests.clone().flat_map(|request| request.iter()) {
        numbers.push((
            builder.key(&question.key, &question.limit),
            builder.limit(&question.limit),
        ));
    }
    let mut body = Vec::with_capacity(8 * numbers.len());
    let mut numbers = numbers.into_iter();
    for request in requests {
        body.extend_from_slice(&(request.len() as u16).to_be_bytes());
        for (question, (key, limit)) in request.iter().zip(numbers.by_ref()) {
            body.extend_from_slice(&builder.numbered(key).to_be_bytes());
            body.extend_from_slice(&limit.to_be_bytes());
            let plain = question.cost == 1
                && question.reserve == 0
                && question.wait.is_none()
                && question.lease.is_none();
            let mode = match question.mode {
                Mode::Enforce => 0,
                Mode::Shadow => 1,
                Mode::Peek => 2,
            };
            let permits = !question.permits.is_empty();
            body.push(
                mode + 4 * u8::from(permits)
                    + 8 * u8::from(!plain)
                    + 16 * u8::from(question.lease.is_some()),
            );
            if !plain {
                push_f64(&mut body, question.cost.min(MAX_NUMBER) as f64);
                push_f64(&mut body, question.reserve.min(MAX_NUMBER) as f64);
                push_f64(
                    &mut body,
                    question
                        .wait
                        .map_or(-1.0, |wait| wait.min(MAX_NUMBER) as f64),
                );
            }
            if let Some(demand) = &question.lease {
                push_f64(&mut body, demand.want.min(MAX_NUMBER) as f64);
                push_f64(&mut body, demand.ttl.min(MAX_NUMBER) as f64);
                push_f64(&mut body, demand.expires.min(MAX_NUMBER) as f64);
            }
            body.extend(question.permits.iter().flatten());
        }
    }
    builder.into_call(body)
}

/// Decodes the answer to each request.
pub(crate) fn decode<'q>(
    requests: impl Iterator<Item = &'q Questions>,
    reply: redis::Value,
) -> Result<Vec<Answer>, InvalidReplyError> {
    let mut integers = Integers::of(reply)?;
    let time = integers.count()?;
    let mut answers = Vec::with_capacity(64);
    // The request and the index in it, for each question.
    let mut positions = Vec::with_capacity(64);
    for request in requests {
        positions.extend((0..request.len()).map(|index| (answers.len(), index)));
        answers.push(one(request, time, &mut integers)?);
    }
    while let Some(question) = integers.maybe()? {
        let refunded = integers.count()?;
        let given = integers.count()?;
        let resets = integers.count()?;
        let history = RefundHistory {
            refunded,
            given,
            resets,
            out: integers.count()?,
        };
        let index = usize::try_from(question)
            .ok()
            .and_then(|question| positions.get(question));
        let &(request, index) = index.ok_or(InvalidReplyError)?;
        match &mut answers[request] {
            Answer::Decided { results } => results[index].history = history,
            Answer::BadKey(_) => return Err(InvalidReplyError),
        }
    }
    Ok(answers)
}

fn one(
    request: &Questions,
    time: u64,
    integers: &mut Integers,
) -> Result<Answer, InvalidReplyError> {
    let mut results = SmallVec::new();
    for question in request.iter() {
        let first = integers.next()?;
        if first == BAD_KEY {
            let at = integers.count()? as usize;
            return if at < request.len() && results.is_empty() {
                Ok(Answer::BadKey(at))
            } else {
                Err(InvalidReplyError)
            };
        }
        let fits = first >= 0;
        let first = if fits { first } else { -1 - first } as u64;
        let counted = matches!(
            question.limit,
            MicrosLimit::Window { .. } | MicrosLimit::InFlight { .. }
        );
        let (reset_after, retry_after) = if counted {
            (integers.count()?, integers.count()?)
        } else {
            (0, 0)
        };
        let leased = if question.lease.is_some() {
            (integers.count()?, integers.count()?)
        } else {
            (0, 0)
        };
        results.push(QuestionResult {
            fits,
            first,
            reset_after,
            retry_after,
            at: time,
            history: RefundHistory::default(),
            leased,
        });
    }
    Ok(Answer::Decided { results })
}
