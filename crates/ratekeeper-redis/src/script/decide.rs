//! Requests to decide, as `decide.lua` reads them, and what it answers.

use super::{Call, CallBuilder, Integers, InvalidReplyError, PermitName, put};
use crate::lease::node::LeaseDemand;
use ratekeeper::{Mode, limit::MicrosLimit};
use smallvec::SmallVec;
use std::sync::Arc;

/// As many asks as most requests have.
pub(crate) const FEW: usize = 2;

/// The asks of one request that are about the same key in the same mode, as one.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) key: Arc<[u8]>,
    /// The whole limit, reserve included.
    pub(crate) limit: MicrosLimit,
    pub(crate) cost: u64,
    pub(crate) reserve: u64,
    pub(crate) mode: Mode,
    /// How long the caller would wait, in microseconds.
    pub(crate) wait: Option<u64>,
    /// As many names as the cost, if it is for permits.
    pub(crate) permits: Vec<PermitName>,
    /// Nothing is decided, but tokens are leased. Such a question is a request of its own.
    pub(crate) lease: Option<LeaseDemand>,
}

/// One request.
pub(crate) type Questions = Arc<[Question]>;

/// What had been refunded to, and given from under, a bucket, and how often it had been made fresh
/// by hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ColdState {
    /// Of a refundable bucket: when it was charged.
    pub(crate) refunded: u64,
    pub(crate) given: u64,
    pub(crate) resets: u64,
    /// Tokens that were out on lease.
    pub(crate) out: u64,
}

/// What one question came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BucketInfo {
    pub(crate) fits: bool,
    /// Buckets and queues: units ahead. Others: what remains.
    pub(crate) first: u64,
    /// Microseconds until it is fresh, and until the same call passes; nothing for buckets and
    /// queues.
    pub(crate) reset_after: u64,
    pub(crate) retry_after: u64,
    /// The time of the server that told it.
    pub(crate) at: u64,
    /// What was known of the key beside its state.
    pub(crate) cold: ColdState,
    /// Tokens that were leased, and how long they live, in microseconds.
    pub(crate) leased: (u64, u64),
}

/// What one request came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// The figures of each question.
    ReplyReceiver {
        figures: SmallVec<[BucketInfo; FEW]>,
    },
    /// The key of this question holds what is not ours.
    BadKey(usize),
}

/// What stands for a request with a bad key: more than any figure.
const BAD: i64 = (1 << 53) - 1;

/// More than this is more than any limit: it is not told apart.
const MOST: u64 = 1 << 52;

/// One call for many requests.
pub(crate) fn encode<'q>(requests: impl Iterator<Item = &'q Questions> + Clone) -> Call {
    let mut gathered = CallBuilder::default();
    let mut numbers: Vec<(u16, u16)> = Vec::with_capacity(64);
    for question in requests.clone().flat_map(|request| request.iter()) {
        numbers.push((
            gathered.key(&question.key, &question.limit),
            gathered.limit(&question.limit),
        ));
    }
    let mut body = Vec::with_capacity(8 * numbers.len());
    let mut numbers = numbers.into_iter();
    for request in requests {
        body.extend_from_slice(&(request.len() as u16).to_be_bytes());
        for (question, (key, limit)) in request.iter().zip(numbers.by_ref()) {
            body.extend_from_slice(&gathered.numbered(key).to_be_bytes());
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
                put(&mut body, question.cost.min(MOST) as f64);
                put(&mut body, question.reserve.min(MOST) as f64);
                put(
                    &mut body,
                    question.wait.map_or(-1.0, |wait| wait.min(MOST) as f64),
                );
            }
            if let Some(wish) = &question.lease {
                put(&mut body, wish.want.min(MOST) as f64);
                put(&mut body, wish.lives.min(MOST) as f64);
                put(&mut body, wish.expires.min(MOST) as f64);
            }
            body.extend(question.permits.iter().flatten());
        }
    }
    gathered.into_call(body)
}

/// What each of the requests came to.
pub(crate) fn decode<'q>(
    requests: impl Iterator<Item = &'q Questions>,
    reply: redis::Value,
) -> Result<Vec<Answer>, InvalidReplyError> {
    let mut integers = Integers::of(reply)?;
    let time = integers.count()?;
    let mut answers = Vec::with_capacity(64);
    // Where each question is: its request, and its place there.
    let mut places = Vec::with_capacity(64);
    for request in requests {
        places.extend((0..request.len()).map(|place| (answers.len(), place)));
        answers.push(one(request, time, &mut integers)?);
    }
    while let Some(question) = integers.maybe()? {
        let (refunded, given, resets) = (integers.count()?, integers.count()?, integers.count()?);
        let cold = ColdState {
            refunded,
            given,
            resets,
            out: integers.count()?,
        };
        let place = usize::try_from(question)
            .ok()
            .and_then(|question| places.get(question));
        let &(request, place) = place.ok_or(InvalidReplyError)?;
        match &mut answers[request] {
            Answer::ReplyReceiver { figures } => figures[place].cold = cold,
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
    let mut figures = SmallVec::new();
    for question in request.iter() {
        let first = integers.next()?;
        if first == BAD {
            let at = integers.count()? as usize;
            return if at < request.len() && figures.is_empty() {
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
        figures.push(BucketInfo {
            fits,
            first,
            reset_after,
            retry_after,
            at: time,
            cold: ColdState::default(),
            leased,
        });
    }
    Ok(Answer::ReplyReceiver { figures })
}
