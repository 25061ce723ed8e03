//! Amendments: changes of what was charged, encoded for `amend.lua`.

use super::decide::RefundHistory;
use super::{Call, CallBuilder, Integers, InvalidReplyError, PermitName, push_f64};
use ratekeeper::store::backend::MicrosLimit;
use std::sync::Arc;

/// One amendment of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Amendment {
    pub(crate) key: Arc<[u8]>,
    pub(crate) limit: MicrosLimit,
    pub(crate) change: Amend,
}

impl Amendment {
    /// Whether executing it twice has the same effect as once.
    pub(crate) fn is_idempotent(&self) -> bool {
        matches!(
            self.change,
            Amend::RenewPermits { .. } | Amend::DetachPermits { .. } | Amend::Once(_)
        )
    }
}

/// The kinds of amendments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Amend {
    /// Gives back what a charge did not use.
    Refund(Refund),
    /// Charges more tokens, going into debt if need be.
    ChargeMore(u64),
    /// Gives tokens, for an operator.
    Grant(u64),
    /// Makes the key as if it had never been used.
    Reset,
    /// Renews permits for `ttl` microseconds, or releases them if that is 0.
    RenewPermits { ttl: u64, names: Vec<PermitName> },
    /// Stops the renewal of permits: they live for `ttl` microseconds, unless they are released.
    DetachPermits { ttl: u64, names: Vec<PermitName> },
    /// Executes an amendment once, however often it is sent.
    Once(AmendOnce),
}

/// An amendment that is executed once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AmendOnce {
    /// The key of the mark that it was executed.
    pub(crate) mark: Arc<[u8]>,
    /// The TTL of the mark, in milliseconds.
    pub(crate) mark_ttl: u64,
    /// The number of this attempt: if the mark has it, the same attempt arrived twice.
    pub(crate) attempt: [u8; 16],
    /// The amendment; `None` to write only the mark.
    pub(crate) then: Option<Box<Amend>>,
}

/// The outcome of an amendment that another attempt has executed: more than any other outcome.
pub(crate) const ALREADY_DONE: u64 = (1 << 53) - 1;

/// For a key that does not belong to a limit.
const NO_LIMIT: MicrosLimit = MicrosLimit::InFlight { max: 0 };

impl Amendment {
    /// Only writes the mark.
    pub(crate) fn remember(once: AmendOnce) -> Self {
        Self {
            key: Arc::clone(&once.mark),
            limit: NO_LIMIT,
            change: Amend::Once(once),
        }
    }

    /// The amendment itself, and the mark if it is executed once.
    fn split(&self) -> (Option<&Amend>, Option<&AmendOnce>) {
        match &self.change {
            Amend::Once(once) => (once.then.as_deref(), Some(once)),
            change => (Some(change), None),
        }
    }
}

impl Amend {
    /// The encoding that the script reads: a kind, seven numbers, and permit names.
    fn encoded(&self) -> (u8, [u64; 7], &[PermitName]) {
        let one = |number| [number, 0, 0, 0, 0, 0, 0];
        let permits = |ttl, names: &[PermitName]| [ttl, 16 * names.len() as u64, 0, 0, 0, 0, 0];
        match self {
            Self::Refund(refund) => {
                let Refund {
                    unused,
                    charged_at,
                    after,
                    before,
                    history,
                } = *refund;
                (
                    0,
                    [
                        unused,
                        charged_at,
                        after,
                        before,
                        history.refunded,
                        history.given,
                        history.resets,
                    ],
                    &[],
                )
            }
            Self::ChargeMore(extra) => (1, one(*extra), &[]),
            Self::Grant(tokens) => (2, one(*tokens), &[]),
            Self::Reset => (3, [0; 7], &[]),
            Self::RenewPermits { ttl, names } => (4, permits(*ttl, names), names),
            Self::DetachPermits { ttl, names } => (5, permits(*ttl, names), names),
            // A nested mark has no effect of its own.
            Self::Once(once) => once.then.as_ref().map_or(NOTHING, |then| then.encoded()),
        }
    }
}

/// The encoding of an amendment without effect.
const NOTHING: (u8, [u64; 7], &[PermitName]) = (6, [0; 7], &[]);

/// Added to the kind of amendments that are executed once.
const ONCE: u8 = 16;

/// A charge to be given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refund {
    /// Units of a bucket or queue; the count of a window.
    pub(crate) unused: u64,
    /// When it was charged, in microseconds.
    pub(crate) charged_at: u64,
    /// Units ahead after the charge. For a window: which window. For a refundable bucket: the units
    /// charged.
    pub(crate) after: u64,
    /// Units ahead before the charge. For a refundable bucket: tokens to charge in addition.
    pub(crate) before: u64,
    /// The refund history of the key at the charge.
    pub(crate) history: RefundHistory,
}

/// Encodes amendments as one call.
pub(crate) fn encode<'a>(amendments: impl Iterator<Item = &'a Amendment> + Clone) -> Call {
    let mut builder = CallBuilder::default();
    let numbers: Vec<(u16, u16, u16)> = amendments
        .clone()
        .map(|one| {
            let key = builder.key(&one.key, &one.limit);
            let limit = builder.limit(&one.limit);
            (
                key,
                limit,
                one.split()
                    .1
                    .map_or(0, |once| builder.key(&once.mark, &NO_LIMIT)),
            )
        })
        .collect();
    let mut body = Vec::new();
    for (amendment, (key, limit, mark)) in amendments.zip(numbers) {
        let (change, once) = amendment.split();
        let (kind, numbers, names) = change.map_or(NOTHING, Amend::encoded);
        body.push(kind + if once.is_some() { ONCE } else { 0 });
        body.extend_from_slice(&builder.numbered(key).to_be_bytes());
        body.extend_from_slice(&limit.to_be_bytes());
        for number in numbers {
            push_f64(&mut body, number.min(1 << 52) as f64);
        }
        if let Some(AmendOnce {
            mark_ttl, attempt, ..
        }) = once
        {
            body.extend_from_slice(&builder.numbered(mark).to_be_bytes());
            push_f64(&mut body, (*mark_ttl).min(1 << 52) as f64);
            body.extend_from_slice(attempt);
        }
        body.extend(names.iter().flatten());
    }
    builder.into_call(body)
}

/// Decodes the outcome of each amendment: tokens, permits or calls, or [`ALREADY_DONE`]; `None`
/// where the key holds data of another kind.
pub(crate) fn decode(reply: redis::Value) -> Result<Vec<Option<u64>>, InvalidReplyError> {
    let mut integers = Integers::of(reply)?;
    let mut outcomes = Vec::new();
    while let Some(number) = integers.maybe()? {
        outcomes.push(u64::try_from(number).ok());
    }
    Ok(outcomes)
}
