//! Corrections of what was charged, as `amend.lua` reads them.

use super::decide::ColdState;
use super::{Call, CallBuilder, Integers, InvalidReplyError, PermitName, put};
use ratekeeper::limit::MicrosLimit;
use std::sync::Arc;

/// One correction of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Amendment {
    pub(crate) key: Arc<[u8]>,
    pub(crate) limit: MicrosLimit,
    pub(crate) what: Amend,
}

impl Amendment {
    /// Whether it comes to the same if the server does it twice.
    pub(crate) fn may_arrive_twice(&self) -> bool {
        matches!(
            self.what,
            Amend::Permits { .. } | Amend::LetGo { .. } | Amend::Once(_)
        )
    }
}

/// What to do with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Amend {
    /// What a charge did not use comes back.
    GiveBack(Refund),
    /// So many more, as debt if need be.
    ChargeMore(u64),
    /// An operator's gift.
    Grant(u64),
    /// As if it had never been used.
    MakeFresh,
    /// Permits that are still held, or, for no time, that are not.
    Permits { live: u64, names: Vec<PermitName> },
    /// Permits that nobody renews any more: they live so long, unless they are given up.
    LetGo { live: u64, names: Vec<PermitName> },
    /// What is done once, whoever asks for it how often.
    Once(AmendOnce),
}

/// What is done once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AmendOnce {
    /// The key that remembers it.
    pub(crate) mark: Arc<[u8]>,
    /// For how many milliseconds.
    pub(crate) keep: u64,
    /// Who does it: if that is who did it, it has come twice.
    pub(crate) who: [u8; 16],
    /// None if it is only remembered.
    pub(crate) then: Option<Box<Amend>>,
}

/// What came of something that somebody else has done before: more than can come of anything.
pub(crate) const BEFORE: u64 = (1 << 53) - 1;

/// A key that is none of a limit's.
const NO_LIMIT: MicrosLimit = MicrosLimit::InFlight { most: 0 };

impl Amendment {
    /// Only remembers that it was done.
    pub(crate) fn remember(once: AmendOnce) -> Self {
        Self {
            key: Arc::clone(&once.mark),
            limit: NO_LIMIT,
            what: Amend::Once(once),
        }
    }

    /// What is to be done, and whether only once.
    fn parts(&self) -> (Option<&Amend>, Option<&AmendOnce>) {
        match &self.what {
            Amend::Once(once) => (once.then.as_deref(), Some(once)),
            what => (Some(what), None),
        }
    }
}

impl Amend {
    /// As the script reads it.
    fn packed(&self) -> (u8, [u64; 7], &[PermitName]) {
        let one = |number| [number, 0, 0, 0, 0, 0, 0];
        let many = |live, names: &[PermitName]| [live, 16 * names.len() as u64, 0, 0, 0, 0, 0];
        match self {
            Self::GiveBack(back) => {
                let Refund {
                    unused,
                    charged_at,
                    after,
                    before,
                    cold,
                } = *back;
                (
                    0,
                    [
                        unused,
                        charged_at,
                        after,
                        before,
                        cold.refunded,
                        cold.given,
                        cold.resets,
                    ],
                    &[],
                )
            }
            Self::ChargeMore(extra) => (1, one(*extra), &[]),
            Self::Grant(tokens) => (2, one(*tokens), &[]),
            Self::MakeFresh => (3, [0; 7], &[]),
            Self::Permits { live, names } => (4, many(*live, names), names),
            Self::LetGo { live, names } => (5, many(*live, names), names),
            // Within another it is as good as that one.
            Self::Once(once) => once.then.as_ref().map_or(NOTHING, |then| then.packed()),
        }
    }
}

const NOTHING: (u8, [u64; 7], &[PermitName]) = (6, [0; 7], &[]);

/// Added to what is done once.
const ONCE: u8 = 16;

/// A charge, as it is given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refund {
    /// Units of a bucket or queue; how many of a window.
    pub(crate) unused: u64,
    /// When it was charged.
    pub(crate) charged_at: u64,
    /// Units ahead after it; of a window, which; of a refundable bucket, the units charged.
    pub(crate) after: u64,
    /// Units ahead before it; of a refundable bucket, tokens to charge beyond it.
    pub(crate) before: u64,
    /// What was known of the key beside its state.
    pub(crate) cold: ColdState,
}

/// One call for many amendments.
pub(crate) fn encode<'a>(amendments: impl Iterator<Item = &'a Amendment> + Clone) -> Call {
    let mut gathered = CallBuilder::default();
    let numbers: Vec<(u16, u16, u16)> = amendments
        .clone()
        .map(|one| {
            let (key, limit) = (
                gathered.key(&one.key, &one.limit),
                gathered.limit(&one.limit),
            );
            (
                key,
                limit,
                one.parts()
                    .1
                    .map_or(0, |once| gathered.key(&once.mark, &NO_LIMIT)),
            )
        })
        .collect();
    let mut body = Vec::new();
    for (amendment, (key, limit, mark)) in amendments.zip(numbers) {
        let (what, once) = amendment.parts();
        let (what, numbers, names) = what.map_or(NOTHING, Amend::packed);
        body.push(what + if once.is_some() { ONCE } else { 0 });
        body.extend_from_slice(&gathered.numbered(key).to_be_bytes());
        body.extend_from_slice(&limit.to_be_bytes());
        for number in numbers {
            put(&mut body, number.min(1 << 52) as f64);
        }
        if let Some(AmendOnce { keep, who, .. }) = once {
            body.extend_from_slice(&gathered.numbered(mark).to_be_bytes());
            put(&mut body, (*keep).min(1 << 52) as f64);
            body.extend_from_slice(who);
        }
        body.extend(names.iter().flatten());
    }
    gathered.into_call(body)
}

/// What came of each: so many tokens, permits or calls, or [`BEFORE`]; none where the key holds
/// what is not ours.
pub(crate) fn decode(reply: redis::Value) -> Result<Vec<Option<u64>>, InvalidReplyError> {
    let mut integers = Integers::of(reply)?;
    let mut came = Vec::new();
    while let Some(number) = integers.maybe()? {
        came.push(u64::try_from(number).ok());
    }
    Ok(came)
}
