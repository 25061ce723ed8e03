//! Reservations: requests decided on one node and settled, by a receipt, on any.
//!
//! A receipt holds what settling needs as numbers: the charge of each limit, which completions
//! count, and the cost factor. The policies may change in between.

use super::open_verdict::{OpenVerdict, Purpose};
use super::query::{INLINE_ITEMS, QueryItem};
use super::verdict::PolicyVerdict;
use super::{Completion, Engine, Rule};
use crate::policy::{Cost, Count, StatusRange};
use crate::subject::Subject;
use ratekeeper::{Store, Timestamp, store::DetachError, store::SettleError};
use smallvec::SmallVec;
use std::time::Duration;

/// The format version, the first byte of a receipt.
const VERSION: u8 = 1;

/// # Reservations
impl<S: Store> Engine<S> {
    /// Decides for a caller that acts later, and would wait up to `max_wait` before it does: see
    /// [`PolicyVerdict::delay`]. The longest waits of policies also hold. Without `max_wait`, it
    /// waits as long as the policies allow.
    ///
    /// A [cost](Subject::cost) is corrected by the one of the [completion](Completion::cost) in
    /// every policy; without one, only in policies that have no fixed cost.
    pub async fn reserve(
        &self,
        subject: &Subject<'_>,
        max_wait: Option<Duration>,
    ) -> PolicyVerdict {
        let open = {
            let _no_reload = self.inner.reload_lock.read();
            let mut verdict = self.begin(subject);
            let query = &mut verdict.state.query;
            query.max_wait = max_wait;
            query.explicit_cost = subject.has_cost();
            query.is_reservation = true;
            let mut open = OpenVerdict::new(verdict, Purpose::Charge, subject.time_limit());
            open.advance(self);
            open
        };
        self.complete(open).await
    }

    /// Detaches a verdict from this process, as a receipt: see [`Store::detach`].
    pub async fn detach(
        &self,
        verdict: PolicyVerdict,
        until: Timestamp,
    ) -> Result<Vec<u8>, DetachError> {
        let mut verdict = verdict;
        let store = &self.inner.store;
        let mut receipt = vec![VERSION];
        write_varint(&mut receipt, verdict.state.query.items.len() as u64);
        for item in &verdict.state.query.items {
            ReceiptItem::of(item, verdict.rule(item), verdict.state.query.explicit_cost)
                .pack(&mut receipt);
        }
        // A request without limits can also be settled once.
        let inner = match verdict.state.take_store_verdict() {
            Some(inner) => inner,
            None => store.decide(&[]).await,
        };
        receipt.extend(store.detach(inner, until).await?);
        Ok(receipt)
    }

    /// Settles a [detached](Self::detach) verdict, as [`settle`](Self::settle) does.
    pub async fn settle_detached(
        &self,
        receipt: &[u8],
        completion: Completion,
    ) -> Result<(), SettleError> {
        let (items, receipt) = parse_receipt(receipt).ok_or(SettleError::InvalidReceipt)?;
        let actual: SmallVec<[u64; INLINE_ITEMS]> =
            items.iter().map(|item| item.actual(&completion)).collect();
        self.inner.store.settle_detached(receipt, &actual).await
    }
}

/// The charge of one limit, with what is needed to settle it.
#[derive(PartialEq, Debug)]
pub(super) struct ReceiptItem {
    cost: u64,
    count: Count,
    /// The statuses that count as failures; empty where all requests count.
    failures: SmallVec<[StatusRange; 1]>,
    /// The factor of the actual cost; `None` if the actual cost does not matter.
    cost_factor: Option<u64>,
}

impl ReceiptItem {
    /// `explicit_cost`: whether the caller gave a cost.
    pub(super) fn of(item: &QueryItem, rule: &Rule, explicit_cost: bool) -> Self {
        let policy = &rule.policy;
        let failures = match policy.count {
            Count::All => SmallVec::new(),
            _ => policy.failure_status.iter().copied().collect(),
        };
        let cost_factor = match policy.cost {
            Cost::Attribute { .. } => Some(1),
            Cost::Units(units) => explicit_cost.then_some(units),
        };
        Self {
            cost: item.cost,
            count: policy.count,
            failures,
            cost_factor,
        }
    }

    pub(super) fn actual(&self, completion: &Completion) -> u64 {
        let failed = || {
            completion
                .failed_with(|status| self.failures.iter().any(|range| range.contains(status)))
        };
        let counts = match self.count {
            _ if completion.is_cancelled() => false,
            Count::All => true,
            Count::Failures => failed().unwrap_or(true),
            Count::Successes => failed().is_none_or(|failed| !failed),
        };
        match (counts, completion.true_cost(), self.cost_factor) {
            (false, ..) => 0,
            (true, Some(cost), Some(cost_factor)) => cost.saturating_mul(cost_factor),
            _ => self.cost,
        }
    }

    fn pack(&self, into: &mut Vec<u8>) {
        let count = match self.count {
            Count::All => 0,
            Count::Failures => 1,
            Count::Successes => 2,
        };
        into.push(
            count
                | if self.cost_factor.is_some() {
                    HAS_COST_FACTOR
                } else {
                    0
                },
        );
        write_varint(into, self.cost);
        if let Some(cost_factor) = self.cost_factor {
            write_varint(into, cost_factor);
        }
        if self.count != Count::All {
            write_varint(into, self.failures.len() as u64);
            for StatusRange { first, last } in &self.failures {
                write_varint(into, u64::from(*first));
                write_varint(into, u64::from(*last));
            }
        }
    }

    fn unpack(from: &mut &[u8]) -> Option<Self> {
        let flags = *take_bytes(from, 1)?.first()?;
        let count = match flags & !HAS_COST_FACTOR {
            0 => Count::All,
            1 => Count::Failures,
            2 => Count::Successes,
            _ => return None,
        };
        let cost = read_varint(from)?;
        let cost_factor = if flags & HAS_COST_FACTOR == 0 {
            None
        } else {
            Some(read_varint(from)?)
        };
        let mut failures = SmallVec::new();
        if count != Count::All {
            for _ in 0..read_count(from)? {
                let first = u16::try_from(read_varint(from)?).ok()?;
                let last = u16::try_from(read_varint(from)?).ok()?;
                failures.push(StatusRange { first, last });
            }
        }
        Some(Self {
            cost,
            count,
            failures,
            cost_factor,
        })
    }
}

/// Flag: a cost factor follows.
const HAS_COST_FACTOR: u8 = 4;

/// Parses a receipt; the rest is the receipt of the store.
fn parse_receipt(receipt: &[u8]) -> Option<(SmallVec<[ReceiptItem; INLINE_ITEMS]>, &[u8])> {
    let (version, mut rest) = receipt.split_first()?;
    if *version != VERSION {
        return None;
    }
    let items = (0..read_count(&mut rest)?)
        .map(|_| ReceiptItem::unpack(&mut rest))
        .collect::<Option<_>>()?;
    Some((items, rest))
}

/// Writes a varint: seven bits a byte, lowest first; the highest bit is set if more follow.
fn write_varint(into: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

fn take_bytes<'a>(from: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = from.split_at_checked(count)?;
    *from = rest;
    Some(taken)
}

fn read_varint(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = *take_bytes(from, 1)?.first()?;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Reads a number of items, each of which is at least one byte.
fn read_count(from: &mut &[u8]) -> Option<usize> {
    let count = usize::try_from(read_varint(from)?).ok()?;
    (count <= from.len()).then_some(count)
}
