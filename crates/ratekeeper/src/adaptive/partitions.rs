//! [`Partitions`]: shares of an adaptive limit that are guaranteed to a part of the callers.

use crate::sync::{AtomicU64, Ordering};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// A part of the callers with a guaranteed share of an adaptive limit; what
/// [`AdaptiveConcurrency::partition`](super::AdaptiveConcurrency::partition) returns for its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partition(pub(super) usize);

/// Error: a share that is not between 0 and 1 or more than is left, or a name that is already in
/// use.
#[derive(Clone, PartialEq, Debug)]
pub struct PartitionShareError {
    name: String,
    share: f64,
    left: f64,
    duplicate: bool,
}

impl fmt::Display for PartitionShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            share,
            left,
            duplicate,
        } = self;
        if *duplicate {
            write!(
                f,
                "the partition {name} is defined twice; use each name once"
            )
        } else {
            write!(
                f,
                "the partition {name} cannot have {share} of the limit; set a share from 0 to {left}, which is left"
            )
        }
    }
}

impl core::error::Error for PartitionShareError {}

/// Shares are counted in millionths, so that they add up.
const MILLIONTHS: u64 = 1_000_000;

/// The partitions of an adaptive limit, and the permits that each holds.
///
/// A permit is taken from the guarantee of its partition or, if that is used up, from the part that
/// is guaranteed to none. Each of the two has a count of its own that never exceeds its bound, so
/// an idle guarantee is free for its owner, whatever the other load; and all of them together are
/// the limit.
pub(super) struct Partitions {
    partitions: Box<[PartitionState]>,
    /// Permits in flight beyond the guarantees.
    borrowed: AtomicU64,
}

/// The part of the limit that a permit was taken from.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum PermitSource {
    /// The guarantee of its partition.
    Guaranteed,
    /// The part that is guaranteed to none.
    Shared,
}

struct PartitionState {
    name: Box<str>,
    /// In millionths of the limit.
    share: u64,
    /// Permits in flight under the guarantee (low half) and beyond it (high half): one word, so
    /// that a permit that comes back is first counted against the borrowed ones.
    out: AtomicU64,
}

const HALF: u32 = 32;
const ONE_BORROWED: u64 = 1 << HALF;
const GUARANTEED_MASK: u64 = ONE_BORROWED - 1;

impl Partitions {
    pub(super) fn new(partitions: Vec<(String, u64)>) -> Self {
        let partition = |(name, share): (String, u64)| PartitionState {
            name: name.into(),
            share,
            out: AtomicU64::new(0),
        };
        Self {
            partitions: partitions.into_iter().map(partition).collect(),
            borrowed: AtomicU64::new(0),
        }
    }

    /// The share in millionths, if that much is left beside the others.
    pub(super) fn validate_share(
        others: &[(String, u64)],
        name: &str,
        share: f64,
    ) -> Result<u64, PartitionShareError> {
        let left = MILLIONTHS - others.iter().map(|(_, share)| share).sum::<u64>();
        let duplicate = others.iter().any(|(other, _)| other == name);
        // Rounded; NaN becomes 0 and is rejected by the comparison.
        let millionths = (share * MILLIONTHS as f64 + 0.5) as u64;
        if !duplicate && (0.0..=1.0).contains(&share) && millionths <= left {
            Ok(millionths)
        } else {
            Err(PartitionShareError {
                name: name.into(),
                share,
                left: left as f64 / MILLIONTHS as f64,
                duplicate,
            })
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    pub(super) fn find(&self, name: &str) -> Option<Partition> {
        self.partitions
            .iter()
            .position(|partition| &*partition.name == name)
            .map(Partition)
    }

    /// The permits of `limit` that are guaranteed to a partition, rounded down.
    pub(super) fn guaranteed(&self, partition: Partition, limit: u64) -> u64 {
        self.partitions
            .get(partition.0)
            .map_or(0, |partition| partition.guaranteed(limit))
    }

    pub(super) fn in_flight(&self, partition: Partition) -> u64 {
        let out = self
            .partitions
            .get(partition.0)
            .map_or(0, |partition| partition.out.load(Ordering::Relaxed));
        (out & GUARANTEED_MASK) + (out >> HALF)
    }

    /// Takes one permit for a partition, or for a request in none.
    pub(super) fn take(&self, partition: Option<Partition>, limit: u64) -> Option<PermitSource> {
        let partition = partition.and_then(|partition| self.partitions.get(partition.0));
        if let Some(partition) = partition {
            let guaranteed = partition.guaranteed(limit);
            let within = |out: u64| (out & GUARANTEED_MASK < guaranteed).then_some(out + 1);
            if partition
                .out
                .fetch_update(Ordering::AcqRel, Ordering::Relaxed, within)
                .is_ok()
            {
                return Some(PermitSource::Guaranteed);
            }
        }
        let guaranteed: u64 = self
            .partitions
            .iter()
            .map(|partition| partition.guaranteed(limit))
            .sum();
        let spare = limit.saturating_sub(guaranteed);
        let fits = |borrowed: u64| (borrowed < spare).then_some(borrowed + 1);
        let taken = self
            .borrowed
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits)
            .is_ok();
        if let Some(partition) = partition.filter(|_| taken) {
            partition.out.fetch_add(ONE_BORROWED, Ordering::AcqRel);
        }
        taken.then_some(PermitSource::Shared)
    }

    /// Gives one permit back: a borrowed one first, so that requests that borrow meanwhile do not
    /// keep a guarantee free.
    pub(super) fn give_back(&self, partition: Option<Partition>) {
        let Some(partition) = partition.and_then(|partition| self.partitions.get(partition.0))
        else {
            self.borrowed.fetch_sub(1, Ordering::AcqRel);
            return;
        };
        let less = |out: u64| {
            Some(if out >= ONE_BORROWED {
                out - ONE_BORROWED
            } else {
                out.saturating_sub(1)
            })
        };
        let before = partition
            .out
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, less)
            .unwrap_or_default();
        if before >= ONE_BORROWED {
            self.borrowed.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl PartitionState {
    fn guaranteed(&self, limit: u64) -> u64 {
        limit * self.share / MILLIONTHS
    }
}
