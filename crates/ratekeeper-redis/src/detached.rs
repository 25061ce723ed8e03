//! Receipts of detached verdicts: what a verdict charged, as bytes that any node can settle by.
//!
//! Besides the charges a receipt has a number of its own. Settling writes a key with that number
//! for every bucket, in the same script and on the same server as the amendment, so that a second
//! settle finds it.

use crate::limits::Limits;
use crate::random::random_bytes;
use crate::request::Receipt;
use crate::script::PermitName;
use crate::script::amend::{Amend, AmendOnce, Amendment};
use crate::script::decide::RefundHistory;
use ratekeeper::{
    Timestamp, store::SettleError, store::backend::MicrosLimit, store::backend::WindowCounter,
};
use std::fmt::Write;
use std::sync::Arc;

/// How far the clocks of two nodes may be apart, in milliseconds: the mark of a settled receipt is
/// stored that much longer.
const MAX_CLOCK_SKEW_MS: u64 = 60_000;

/// First byte of a receipt: charged in Redis (`SHARED`), or by the node that decided without Redis
/// (`LOCAL`).
const SHARED: u8 = 1;
const LOCAL: u8 = 2;

/// The permits of one key.
pub(crate) type PermitSet = (Arc<[u8]>, MicrosLimit, Vec<PermitName>);

/// The contents of a receipt.
pub(crate) enum ReceiptCharges {
    Shared(RedisCharge),
    /// The indices of the asks that the node counted itself, and the memory store's receipt of
    /// them.
    Local {
        indices: Vec<usize>,
        receipt: Vec<u8>,
    },
}

/// What was charged in Redis.
pub(crate) struct RedisCharge {
    pub(crate) number: [u8; 16],
    pub(crate) until: Timestamp,
    /// One entry an ask, with the [id](crate::key::KeyPrefix::id) of its limit.
    pub(crate) charges: Vec<Option<(u64, Receipt)>>,
    pub(crate) permits: Vec<PermitSet>,
}

impl RedisCharge {
    /// The amendments that settle the receipt, and how many units cannot be given back because
    /// their limit has changed.
    pub(crate) fn settled(
        self,
        actual: &[u64],
        limits: &Limits,
        now: Timestamp,
    ) -> (Vec<Amendment>, u64) {
        let left = u64::try_from(self.until.saturating_since(now).as_millis()).unwrap_or(u64::MAX);
        let mark_ttl = left.saturating_add(MAX_CLOCK_SKEW_MS);
        let attempt = receipt_number();
        // Every charge gets a mark beside its bucket, whatever it really cost: then either all
        // marks are written or all are found.
        let mut marks = 0..;
        let mut once = |key: &[u8], then: Option<Amend>| {
            let mark = mark(
                limits.prefix(),
                key,
                &self.number,
                marks.next().unwrap_or_default(),
            );
            AmendOnce {
                mark,
                mark_ttl,
                attempt,
                then: then.map(Box::new),
            }
        };
        let mut amendments = Vec::new();
        let mut not_returned = 0_u64;
        let actuals = actual.iter().map(Some).chain(std::iter::repeat(None));
        for (charge, actual) in self.charges.into_iter().zip(actuals) {
            let Some((name, receipt)) = charge else {
                continue;
            };
            let actual = actual.copied().unwrap_or(receipt.cost);
            let key = Arc::clone(&receipt.key);
            let limit = receipt.limit;
            let unused = receipt.cost.saturating_sub(actual);
            // Units charged before a change of the limit are not counted in the limit of now.
            let is_changed = unused > 0 && !limits.contains(name, &limit);
            not_returned += if is_changed { unused } else { 0 };
            let then = if is_changed {
                None
            } else {
                receipt.corrected(actual).map(|amendment| amendment.change)
            };
            amendments.push(Amendment {
                change: Amend::Once(once(&key, then)),
                key,
                limit,
            });
        }
        for (key, limit, names) in self.permits {
            let then = Some(Amend::RenewPermits { ttl: 0, names });
            amendments.push(Amendment {
                change: Amend::Once(once(&key, then)),
                key,
                limit,
            });
        }
        if amendments.is_empty() {
            amendments.push(Amendment::remember(once(b"", None)));
        }
        (amendments, not_returned)
    }
}

/// The key of a mark, in the slot of its bucket: in a Cluster the first braces of a name decide the
/// slot, and the name of the bucket, which has them, is part of the mark's.
fn mark(prefix: &str, key: &[u8], number: &[u8; 16], which: u32) -> Arc<[u8]> {
    let mut name = Vec::with_capacity(prefix.len() + key.len() + 48);
    name.extend_from_slice(prefix.as_bytes());
    name.extend_from_slice(b":settled:");
    if !key.is_empty() {
        name.extend_from_slice(key);
        name.push(b':');
    }
    let mut text = String::with_capacity(36);
    for byte in number {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    let _ = write!(text, "{which}");
    name.extend_from_slice(text.as_bytes());
    name.into()
}

/// A random receipt number: unique among all nodes, and not to be guessed from other receipts.
pub(crate) fn receipt_number() -> [u8; 16] {
    random_bytes()
}

impl ReceiptCharges {
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut packed = ReceiptWriter(Vec::with_capacity(128));
        match self {
            Self::Local { indices, receipt } => {
                packed.0.push(LOCAL);
                packed.number(indices.len() as u64);
                indices
                    .iter()
                    .for_each(|index| packed.number(*index as u64));
                packed.0.extend_from_slice(receipt);
            }
            Self::Shared(RedisCharge {
                number,
                until,
                charges,
                permits,
            }) => {
                packed.0.push(SHARED);
                packed.0.extend_from_slice(number);
                packed.number(until.as_unix_nanos());
                packed.number(charges.len() as u64);
                charges
                    .iter()
                    .for_each(|charge| packed.charge(charge.as_ref()));
                packed.number(permits.len() as u64);
                for (key, limit, names) in permits {
                    packed.text(key);
                    packed.limit(limit);
                    packed.number(names.len() as u64);
                    packed.0.extend(names.iter().flatten());
                }
            }
        }
        packed.0
    }

    pub(crate) fn unpack(bytes: &[u8]) -> Result<Self, SettleError> {
        let (kind, rest) = bytes.split_first().ok_or(SettleError::InvalidReceipt)?;
        let mut read = ReceiptReader(rest);
        let read = match *kind {
            LOCAL => read.local(),
            SHARED => read
                .shared()
                .filter(|_| read.0.is_empty())
                .map(Self::Shared),
            _ => None,
        };
        read.ok_or(SettleError::InvalidReceipt)
    }
}

/// Packs a receipt.
struct ReceiptWriter(Vec<u8>);

impl ReceiptWriter {
    /// A variable-length integer: seven bits a byte, lowest first; the highest bit is set if more
    /// follow.
    fn number(&mut self, mut number: u64) {
        while number > 0x7f {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn text(&mut self, text: &[u8]) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text);
    }

    fn charge(&mut self, charge: Option<&(u64, Receipt)>) {
        let Some((
            name,
            Receipt {
                key,
                limit,
                cost,
                time,
                after,
                before,
                history,
                ..
            },
        )) = charge
        else {
            return self.number(0);
        };
        self.text(key);
        self.limit(limit);
        let RefundHistory {
            refunded,
            given,
            resets,
            out,
        } = *history;
        for number in [
            *name, *cost, *time, *after, *before, refunded, given, resets, out,
        ] {
            self.number(number);
        }
    }

    fn limit(&mut self, limit: &MicrosLimit) {
        let (kind, numbers) = match *limit {
            MicrosLimit::Bucket {
                per_micro,
                token,
                capacity,
                refundable,
            } => (if refundable { 9 } else { 0 }, [per_micro, token, capacity]),
            MicrosLimit::Pacing {
                per_micro,
                token,
                max_ahead,
            } => (1, [per_micro, token, max_ahead]),
            MicrosLimit::Window { count, window, max } => match count {
                WindowCounter::Fixed => (2, [window, max, 0]),
                WindowCounter::FirstHit => (3, [window, max, 0]),
                WindowCounter::Sliding { grain } => (4, [window, max, grain]),
                WindowCounter::Strict { steps } => (5, [window, max, steps]),
                WindowCounter::Log => (6, [window, max, 0]),
            },
            MicrosLimit::InFlight { max } => (7, [max, 0, 0]),
            MicrosLimit::Unlimited => (8, [0; 3]),
        };
        self.0.push(kind);
        numbers.into_iter().for_each(|number| self.number(number));
    }
}

/// Reads a packed receipt; its methods return `None` if the bytes are invalid.
struct ReceiptReader<'a>(&'a [u8]);

impl ReceiptReader<'_> {
    fn bytes(&mut self, count: usize) -> Option<&[u8]> {
        let (read, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(read)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if *byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// How many items follow. Each takes a byte at least, which bounds the count.
    fn count(&mut self) -> Option<usize> {
        let count = usize::try_from(self.number()?).ok()?;
        (count <= self.0.len()).then_some(count)
    }

    fn text(&mut self) -> Option<Arc<[u8]>> {
        let length = self.count()?;
        self.bytes(length).map(Arc::from)
    }

    fn limit(&mut self) -> Option<MicrosLimit> {
        let kind = *self.bytes(1)?.first()?;
        let [a, b, c] = [self.number()?, self.number()?, self.number()?];
        let window = |count| MicrosLimit::Window {
            count,
            window: a,
            max: b,
        };
        Some(match kind {
            0 | 9 => MicrosLimit::Bucket {
                per_micro: a,
                token: b,
                capacity: c,
                refundable: kind == 9,
            },
            1 => MicrosLimit::Pacing {
                per_micro: a,
                token: b,
                max_ahead: c,
            },
            2 => window(WindowCounter::Fixed),
            3 => window(WindowCounter::FirstHit),
            4 => window(WindowCounter::Sliding { grain: c }),
            5 => window(WindowCounter::Strict { steps: c }),
            6 => window(WindowCounter::Log),
            7 => MicrosLimit::InFlight { max: a },
            _ => return None,
        })
    }

    fn charge(&mut self) -> Option<Option<(u64, Receipt)>> {
        let key = self.text()?;
        if key.is_empty() {
            return Some(None);
        }
        let limit = self.limit()?;
        let name = self.number()?;
        let cost = self.number()?;
        let time = self.number()?;
        let after = self.number()?;
        let before = self.number()?;
        let [refunded, given] = [self.number()?, self.number()?];
        let history = RefundHistory {
            refunded,
            given,
            resets: self.number()?,
            out: self.number()?,
        };
        // The limit's number on this node is not known; it is found by its id.
        Some(Some((
            name,
            Receipt {
                key,
                limit,
                cost,
                number: u64::MAX,
                time,
                after,
                before,
                history,
            },
        )))
    }

    fn permits(&mut self) -> Option<PermitSet> {
        let key = self.text()?;
        let limit = self.limit()?;
        let count = self.count()?;
        let names = self.bytes(count.checked_mul(16)?)?;
        let names = names
            .chunks_exact(16)
            .filter_map(|name| name.try_into().ok())
            .collect();
        Some((key, limit, names))
    }

    fn shared(&mut self) -> Option<RedisCharge> {
        let number = self.bytes(16)?.try_into().ok()?;
        let until = Timestamp::from_unix_nanos(self.number()?);
        let charges = (0..self.count()?)
            .map(|_| self.charge())
            .collect::<Option<_>>()?;
        let permits = (0..self.count()?)
            .map(|_| self.permits())
            .collect::<Option<_>>()?;
        Some(RedisCharge {
            number,
            until,
            charges,
            permits,
        })
    }

    fn local(&mut self) -> Option<ReceiptCharges> {
        let indices = (0..self.count()?)
            .map(|_| usize::try_from(self.number()?).ok())
            .collect::<Option<_>>()?;
        Some(ReceiptCharges::Local {
            indices,
            receipt: self.0.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper::Limit;

    fn receipt(limit: &str) -> (u64, Receipt) {
        let limit = limit.parse::<Limit>().unwrap().in_micros();
        let history = RefundHistory {
            refunded: 1,
            given: u64::MAX,
            resets: 3,
            out: 4,
        };
        let key = Arc::from(&b"ratekeeper:login:b:x"[..]);
        (
            u64::MAX,
            Receipt {
                key,
                limit,
                cost: 4,
                number: u64::MAX,
                time: 1 << 50,
                after: 200,
                before: 127,
                history,
            },
        )
    }

    fn packed() -> Vec<u8> {
        let mut charges: Vec<_> = [
            "3/s",
            "2/s wait 1s",
            "9/s fixed_window",
            "9/s fixed_window_first_hit",
        ]
        .into_iter()
        .chain([
            "9/s sliding_window",
            "9/s sliding_window_strict",
            "9/s sliding_log",
        ])
        .map(|limit| Some(receipt(limit)))
        .collect();
        charges.push(None);
        let permits = vec![(
            Arc::from(&b"k"[..]),
            MicrosLimit::InFlight { max: 3 },
            vec![[7; 16], [8; 16]],
        )];
        let until = Timestamp::from_unix_nanos(1_700_000_000_000_000_000);
        ReceiptCharges::Shared(RedisCharge {
            number: [9; 16],
            until,
            charges,
            permits,
        })
        .pack()
    }

    /// Two nodes may have the same seed, and a seed may be found out from the numbers it has given.
    #[test]
    fn receipt_numbers_do_not_depend_on_a_seed() {
        let mut numbers = [[0; 16]; 100];
        for number in &mut numbers {
            fastrand::seed(7);
            *number = receipt_number();
        }
        assert_eq!(
            numbers
                .iter()
                .collect::<std::collections::HashSet<_>>()
                .len(),
            numbers.len()
        );
    }

    #[test]
    fn a_packed_receipt_is_unpacked() {
        let bytes = packed();
        let again = ReceiptCharges::unpack(&bytes).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again.pack(), bytes);
        let local = ReceiptCharges::Local {
            indices: vec![0, 300],
            receipt: vec![1, 2, 3],
        }
        .pack();
        assert_eq!(
            ReceiptCharges::unpack(&local).map(|local| local.pack()),
            Ok(local)
        );
    }

    #[test]
    fn truncated_or_changed_receipts_never_panic() {
        let bytes = packed();
        for length in 0..bytes.len() {
            assert!(
                ReceiptCharges::unpack(&bytes[..length]).is_err(),
                "{length}"
            );
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                drop(ReceiptCharges::unpack(&changed));
            }
        }
    }
}
