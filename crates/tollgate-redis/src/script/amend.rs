//! Corrections of what was charged, as `amend.lua` reads them.

use super::decide::Cold;
use super::{Call, Gathered, Integers, PermitName, Unreadable, put};
use std::sync::Arc;
use tollgate::InMicros;

/// One correction of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Amendment {
    pub(crate) key: Arc<[u8]>,
    pub(crate) limit: InMicros,
    pub(crate) what: Amend,
}

impl Amendment {
    /// Whether it comes to the same if the server does it twice.
    pub(crate) fn may_arrive_twice(&self) -> bool {
        matches!(self.what, Amend::Permits { .. })
    }
}

/// What to do with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Amend {
    /// What a charge did not use comes back.
    GiveBack(GiveBack),
    /// So many more, as debt if need be.
    ChargeMore(u64),
    /// An operator's gift.
    Grant(u64),
    /// As if it had never been used.
    MakeFresh,
    /// Permits that are still held, or, for no time, that are not.
    Permits { live: u64, names: Vec<PermitName> },
}

/// A charge, as it is given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GiveBack {
    /// Units of a bucket or queue; how many of a window.
    pub(crate) unused: u64,
    /// When it was charged.
    pub(crate) charged_at: u64,
    /// Units ahead after it; of a window, which.
    pub(crate) after: u64,
    /// Units ahead before it.
    pub(crate) before: u64,
    /// What was known of the key beside its state.
    pub(crate) cold: Cold,
}

/// One call for many amendments.
pub(crate) fn encode<'a>(amendments: impl Iterator<Item = &'a Amendment> + Clone) -> Call {
    let mut gathered = Gathered::default();
    let numbers: Vec<(u16, u16)> =
        amendments.clone().map(|one| (gathered.key(&one.key, &one.limit), gathered.limit(&one.limit))).collect();
    let mut body = Vec::new();
    for (amendment, (key, limit)) in amendments.zip(numbers) {
        let (what, numbers, names): (u8, [u64; 7], &[PermitName]) = match &amendment.what {
            Amend::GiveBack(back) => {
                let GiveBack { unused, charged_at, after, before, cold } = *back;
                (0, [unused, charged_at, after, before, cold.refunded, cold.given, cold.resets], &[])
            }
            Amend::ChargeMore(extra) => (1, [*extra, 0, 0, 0, 0, 0, 0], &[]),
            Amend::Grant(tokens) => (2, [*tokens, 0, 0, 0, 0, 0, 0], &[]),
            Amend::MakeFresh => (3, [0; 7], &[]),
            Amend::Permits { live, names } => (4, [*live, 16 * names.len() as u64, 0, 0, 0, 0, 0], names),
        };
        body.push(what);
        body.extend_from_slice(&gathered.numbered(key).to_be_bytes());
        body.extend_from_slice(&limit.to_be_bytes());
        for number in numbers {
            put(&mut body, number.min(1 << 52) as f64);
        }
        body.extend(names.iter().flatten());
    }
    gathered.into_call(body)
}

/// What came of each: so many tokens, permits or calls; none where the key holds what is not ours.
pub(crate) fn decode(reply: redis::Value) -> Result<Vec<Option<u64>>, Unreadable> {
    let mut integers = Integers::of(reply)?;
    let mut came = Vec::new();
    while let Some(number) = integers.maybe()? {
        came.push(u64::try_from(number).ok());
    }
    Ok(came)
}
