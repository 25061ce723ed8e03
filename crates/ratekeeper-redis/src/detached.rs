//! Receipts: what a verdict charged, as bytes that any node settles by.
//!
//! Beside what the verdict would be settled by they have a number of their own. Settling leaves a
//! key of that number for every bucket, in the same script and on the same server as the
//! correction: whoever comes later, or twice, finds it.

use crate::limits::Limits;
use crate::random::random_bytes;
use crate::request::Receipt;
use crate::script::PermitName;
use crate::script::amend::{Amend, AmendOnce, Amendment};
use crate::script::decide::ColdState;
use ratekeeper::{Timestamp, limit::MicrosLimit, limit::WindowCounter, store::SettleError};
use std::fmt::Write;
use std::sync::Arc;

/// What nodes may be apart on what time it is, in milliseconds: what was settled is remembered that
/// much longer.
const SKEW: u64 = 60_000;

/// The first byte: settled on Redis, or by the node that decided without it.
const SHARED: u8 = 1;
const LOCAL: u8 = 2;

/// Permits of one key.
pub(crate) type PermitSet = (Arc<[u8]>, MicrosLimit, Vec<PermitName>);

/// What a receipt says.
pub(crate) enum ReceiptCharges {
    Shared(RedisCharge),
    /// Those asks that the node counted, by their places, and its own receipt of them.
    Local {
        places: Vec<usize>,
        receipt: Vec<u8>,
    },
}

/// What was charged on Redis.
pub(crate) struct RedisCharge {
    pub(crate) number: [u8; 16],
    pub(crate) until: Timestamp,
    /// By ask, with what its limit is called.
    pub(crate) charges: Vec<Option<(u64, Receipt)>>,
    pub(crate) permits: Vec<PermitSet>,
}

impl RedisCharge {
    /// What settles it, and how many units cannot be given back because their limit is another now.
    pub(crate) fn settled(
        self,
        actual: &[u64],
        limits: &Limits,
        now: Timestamp,
    ) -> (Vec<Amendment>, u64) {
        let left = u64::try_from(self.until.saturating_since(now).as_millis()).unwrap_or(u64::MAX);
        let (keep, who) = (left.saturating_add(SKEW), receipt_number());
        // Each has a mark of its own, where its bucket is, whatever it really cost: all are left,
        // or all are found.
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
                keep,
                who,
                then: then.map(Box::new),
            }
        };
        let (mut amendments, mut not_returned) = (Vec::new(), 0_u64);
        let told = actual.iter().map(Some).chain(std::iter::repeat(None));
        for (charge, actual) in self.charges.into_iter().zip(told) {
            let Some((name, receipt)) = charge else {
                continue;
            };
            let actual = actual.copied().unwrap_or(receipt.cost);
            let (key, limit, unused) = (
                Arc::clone(&receipt.key),
                receipt.limit,
                receipt.cost.saturating_sub(actual),
            );
            // What was charged before a change is not of what is counted now.
            let is_another = unused > 0 && !limits.hold(name, &limit);
            not_returned += if is_another { unused } else { 0 };
            let then = if is_another {
                None
            } else {
                receipt.corrected(actual).map(|amendment| amendment.what)
            };
            amendments.push(Amendment {
                what: Amend::Once(once(&key, then)),
                key,
                limit,
            });
        }
        for (key, limit, names) in self.permits {
            let then = Some(Amend::Permits { live: 0, names });
            amendments.push(Amendment {
                what: Amend::Once(once(&key, then)),
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

/// The key that remembers, in the slot of the bucket: in a Cluster it is the first braces that name
/// the slot, and its keys have them.
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

/// The number of a receipt: unique among all nodes, and no guess for who has others.
pub(crate) fn receipt_number() -> [u8; 16] {
    random_bytes()
}

impl ReceiptCharges {
    pub(crate) fn pack(&self) -> Vec<u8> {
        let mut packed = ReceiptWriter(Vec::with_capacity(128));
        match self {
            Self::Local { places, receipt } => {
                packed.0.push(LOCAL);
                packed.number(places.len() as u64);
                places.iter().for_each(|place| packed.number(*place as u64));
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

struct ReceiptWriter(Vec<u8>);

impl ReceiptWriter {
    /// Seven bits a byte, the lowest first; the highest bit says that more follow.
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
                cold,
                ..
            },
        )) = charge
        else {
            return self.number(0);
        };
        self.text(key);
        self.limit(limit);
        let ColdState {
            refunded,
            given,
            resets,
            out,
        } = *cold;
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
                longest,
            } => (1, [per_micro, token, longest]),
            MicrosLimit::Window {
                count,
                window,
                most,
            } => match count {
                WindowCounter::Fixed => (2, [window, most, 0]),
                WindowCounter::FirstHit => (3, [window, most, 0]),
                WindowCounter::Sliding { grain } => (4, [window, most, grain]),
                WindowCounter::Strict { steps } => (5, [window, most, steps]),
                WindowCounter::Log => (6, [window, most, 0]),
            },
            MicrosLimit::InFlight { most } => (7, [most, 0, 0]),
            MicrosLimit::Unlimited => (8, [0; 3]),
        };
        self.0.push(kind);
        numbers.into_iter().for_each(|number| self.number(number));
    }
}

/// Reads what was packed; none where it was not.
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

    /// How many follow: each is a byte at least.
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
            most: b,
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
                longest: c,
            },
            2 => window(WindowCounter::Fixed),
            3 => window(WindowCounter::FirstHit),
            4 => window(WindowCounter::Sliding { grain: c }),
            5 => window(WindowCounter::Strict { steps: c }),
            6 => window(WindowCounter::Log),
            7 => MicrosLimit::InFlight { most: a },
            _ => return None,
        })
    }

    fn charge(&mut self) -> Option<Option<(u64, Receipt)>> {
        let key = self.text()?;
        if key.is_empty() {
            return Some(None);
        }
        let limit = self.limit()?;
        let (name, cost, time) = (self.number()?, self.number()?, self.number()?);
        let (after, before) = (self.number()?, self.number()?);
        let [refunded, given] = [self.number()?, self.number()?];
        let cold = ColdState {
            refunded,
            given,
            resets: self.number()?,
            out: self.number()?,
        };
        // Which number its limit has on this node nobody knows: it is found by its name.
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
                cold,
            },
        )))
    }

    fn permits(&mut self) -> Option<PermitSet> {
        let (key, limit, count) = (self.text()?, self.limit()?, self.count()?);
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
        let places = (0..self.count()?)
            .map(|_| usize::try_from(self.number()?).ok())
            .collect::<Option<_>>()?;
        Some(ReceiptCharges::Local {
            places,
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
        let cold = ColdState {
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
                cold,
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
            MicrosLimit::InFlight { most: 3 },
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

    /// Two nodes may have the same seed, and a seed may be found out from what it has given.
    #[test]
    fn the_number_of_a_receipt_depends_on_no_seed() {
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
    fn what_is_packed_is_read_back() {
        let bytes = packed();
        let again = ReceiptCharges::unpack(&bytes).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again.pack(), bytes);
        let local = ReceiptCharges::Local {
            places: vec![0, 300],
            receipt: vec![1, 2, 3],
        }
        .pack();
        assert_eq!(
            ReceiptCharges::unpack(&local).map(|local| local.pack()),
            Ok(local)
        );
    }

    #[test]
    fn what_is_cut_off_or_changed_never_panics() {
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
