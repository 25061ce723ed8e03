//! The heaviest keys of an engine, in memory that does not grow: the space-saving sketch, set by
//! set.
//!
//! A key belongs to one set of four slots. A key that has no slot takes the one with the least
//! count of its set and inherits that count, which is then its error. So in a set into which the
//! weight N went, at any time:
//!
//! - the counts add up to N, so the least is at most N/4, and so is any error;
//! - a key that is shown has count − error ≤ its true weight ≤ count;
//! - a key that is not shown weighs at most the least count: whatever weighs more than N/4 is
//!   shown.
//!
//! With threads, an event may land on a slot that has just changed hands: at most one event a
//! thread each time. And a newcomer that finds its set busy is dropped; [`Sketch::missed`] says how
//! much weight that was.

#[cfg(test)]
mod tests;

use smallvec::SmallVec;
use std::fmt;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed, Release},
};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// So many pairs of words fill a cache line.
const SLOTS: usize = 4;

/// No key has this fingerprint.
const FREE: u64 = 0;

/// Counts stop here, and one event adds so much less that threads between an addition and the check
/// that follows it cannot carry a count over.
const MAX_COUNT: u64 = 1 << 62;
const MAX_WEIGHT: u64 = 1 << 48;

/// The heaviest keys, at 128 bytes a slot, and memory for keys that are not short.
#[derive(Debug)]
pub(crate) struct Sketch {
    sets: Box<[Set]>,
}

#[derive(Debug, Default)]
struct Set {
    slots: Slots,
    /// What goes with each slot. Held while a slot changes hands.
    owners: Mutex<[Owner; SLOTS]>,
    missed: AtomicU64,
}

/// All that a hit touches.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slots([Slot; SLOTS]);

#[derive(Debug, Default)]
struct Slot {
    fingerprint: AtomicU64,
    count: AtomicU64,
}

#[derive(Debug, Default)]
struct Owner {
    error: u64,
    policy: u32,
    key: StoredKey,
}

/// A key that takes more bytes is kept by what it is called: the memory of all slots together has a
/// bound.
pub(crate) const MAX_KEY_BYTES: usize = 1024;

/// What is kept of a key beside its hash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum StoredKey {
    /// All of it.
    Bytes(KeyBytes),
    /// What it is called, where it is too long to be kept.
    Long(Box<str>),
}

impl Default for StoredKey {
    fn default() -> Self {
        Self::Bytes(KeyBytes::default())
    }
}

/// The bytes of a key, which may hold a secret and so are not printed.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct KeyBytes(SmallVec<[u8; INLINE_KEY_BYTES]>);

/// A key of so many bytes is kept without memory of its own.
const INLINE_KEY_BYTES: usize = 64;

impl KeyBytes {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// Takes the place of what was there, in the memory that there is.
    fn set(&mut self, bytes: &[u8]) {
        self.0.clear();
        self.0.extend_from_slice(bytes);
    }
}

impl fmt::Debug for KeyBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// One of the heaviest keys: its true weight is at least `count - error` and at most `count`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HeavyHitter {
    /// The hash of the key.
    pub(crate) fingerprint: u64,
    /// The number of its policy.
    pub(crate) policy: u32,
    /// Its weight, or more.
    pub(crate) count: u64,
    /// By how much `count` may be too high.
    pub(crate) error: u64,
    /// The key.
    pub(crate) key: StoredKey,
}

impl Sketch {
    /// Room for this many keys, rounded up to whole sets of four. With none, nothing is counted.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            sets: (0..slots.div_ceil(SLOTS)).map(|_| Set::default()).collect(),
        }
    }

    /// Adds to a key's weight.
    ///
    /// The fingerprint alone tells keys apart, also those of two policies: it has to be a hash of
    /// both, and one that a caller cannot steer, or one set gets all the keys. 0 is taken for 1.
    /// `long` is what a key is called that is too long to be kept; it is called only if the key
    /// takes a slot, while its set is held.
    #[inline]
    pub(crate) fn add(
        &self,
        fingerprint: u64,
        policy: u32,
        weight: u64,
        key: &[u8],
        long: impl FnOnce() -> Box<str>,
    ) {
        let fingerprint = fingerprint.max(FREE + 1);
        let weight = weight.min(MAX_WEIGHT);
        let Some(set) = self.sets.get(self.set_of(fingerprint)) else {
            return;
        };
        match set.find(fingerprint) {
            Some(slot) => _ = slot.add(weight),
            // What weighs nothing displaces nobody.
            None if weight == 0 => (),
            None => set.insert(fingerprint, policy, weight, key, long),
        }
    }

    /// The `n` heaviest, heaviest first; of equals the lower fingerprint first.
    pub(crate) fn top(&self, n: usize) -> Vec<HeavyHitter> {
        let order = |count: u64, fingerprint: u64| (std::cmp::Reverse(count), fingerprint);
        let mut seen: Vec<_> = self.sets.iter().flat_map(Set::entries).collect();
        seen.sort_unstable_by_key(|&(fingerprint, count)| order(count, fingerprint));
        // Keys are copied for those few only, each while its set is held; whoever lost its slot
        // since is left out.
        let mut top: Vec<_> = seen
            .into_iter()
            .filter_map(|(fingerprint, _)| self.sets[self.set_of(fingerprint)].heavy(fingerprint))
            .take(n)
            .collect();
        top.sort_unstable_by_key(|heavy| order(heavy.count, heavy.fingerprint));
        top
    }

    /// The first thing that `find` makes of the keys that are kept, with the numbers of their
    /// policies.
    pub(crate) fn find<T>(&self, mut find: impl FnMut(u32, &[u8]) -> Option<T>) -> Option<T> {
        self.sets.iter().find_map(|set| {
            let owners = set.lock_owners();
            let taken = set
                .slots
                .0
                .iter()
                .zip(owners.iter())
                .filter(|(slot, _)| slot.fingerprint.load(Relaxed) != FREE);
            taken.into_iter().find_map(|(_, owner)| match &owner.key {
                StoredKey::Bytes(bytes) => find(owner.policy, bytes.as_slice()),
                StoredKey::Long(_) => None,
            })
        })
    }

    /// The weight that was dropped because two newcomers met in a set.
    pub(crate) fn missed(&self) -> u64 {
        self.sets
            .iter()
            .map(|set| set.missed.load(Relaxed))
            .fold(0, u64::saturating_add)
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        for set in &self.sets {
            let mut owners = set.lock_owners();
            for (slot, owner) in set.slots.0.iter().zip(owners.iter_mut()) {
                slot.free(0);
                *owner = Owner::default();
            }
            set.missed.store(0, Relaxed);
        }
    }

    /// Forgets the keys of one policy. What the sketch says of the others stays true.
    pub(crate) fn forget(&self, policy: u32) {
        for set in &self.sets {
            let mut owners = set.lock_owners();
            // A key without a slot may weigh as much as the least count: whoever takes a freed slot
            // inherits that.
            let least = set
                .slots
                .0
                .iter()
                .map(|slot| slot.count.load(Relaxed))
                .min()
                .unwrap_or(0);
            for (slot, owner) in set.slots.0.iter().zip(owners.iter_mut()) {
                if owner.policy == policy && slot.fingerprint.load(Relaxed) != FREE {
                    slot.free(least);
                    *owner = Owner::default();
                }
            }
        }
    }

    #[inline]
    fn set_of(&self, fingerprint: u64) -> usize {
        // Multiplied so that all bits have a say, then scaled to the number of sets.
        let mixed = fingerprint.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mixed) * self.sets.len() as u128) >> 64) as usize
    }
}

impl Set {
    #[inline]
    fn find(&self, fingerprint: u64) -> Option<&Slot> {
        self.slots
            .0
            .iter()
            .find(|slot| slot.fingerprint.load(Relaxed) == fingerprint)
    }

    /// Gives the slot with the least count to a key that has none.
    #[cold]
    fn insert(
        &self,
        fingerprint: u64,
        policy: u32,
        weight: u64,
        key: &[u8],
        long: impl FnOnce() -> Box<str>,
    ) {
        let mut owners = match self.owners.try_lock() {
            Ok(owners) => owners,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.missed.fetch_add(weight, Relaxed);
                return;
            }
        };
        // Another thread may have brought the same key meanwhile.
        if let Some(slot) = self.find(fingerprint) {
            slot.add(weight);
            return;
        }
        let by_count = |(_, slot): &(usize, &Slot)| {
            (
                slot.fingerprint.load(Relaxed) != FREE,
                slot.count.load(Relaxed),
            )
        };
        let Some((at, slot)) = self.slots.0.iter().enumerate().min_by_key(by_count) else {
            return;
        };
        // Before anything changes, since it may panic.
        let owner = &mut owners[at];
        match &mut owner.key {
            _ if key.len() > MAX_KEY_BYTES => owner.key = StoredKey::Long(long()),
            // The memory of the key before is used again.
            StoredKey::Bytes(bytes) => bytes.set(key),
            StoredKey::Long(_) => owner.key = StoredKey::Bytes(KeyBytes::new(key)),
        }
        // The name first: hits of the old key that come between the two count into the error, not
        // beside it.
        slot.fingerprint.store(fingerprint, Relaxed);
        let error = slot.add(weight);
        (owner.error, owner.policy) = (error, policy);
    }

    /// Fingerprints and counts. Held, so that no key is met twice on its way from one slot to
    /// another.
    fn entries(&self) -> impl Iterator<Item = (u64, u64)> {
        let _held = self.lock_owners();
        let each = self
            .slots
            .0
            .each_ref()
            .map(|slot| (slot.fingerprint.load(Relaxed), slot.count.load(Relaxed)));
        each.into_iter()
            .filter(|&(fingerprint, _)| fingerprint != FREE)
    }

    fn heavy(&self, fingerprint: u64) -> Option<HeavyHitter> {
        let owners = self.lock_owners();
        let at = self
            .slots
            .0
            .iter()
            .position(|slot| slot.fingerprint.load(Relaxed) == fingerprint)?;
        let Owner {
            error,
            policy,
            ref key,
        } = owners[at];
        let count = self.slots.0[at].count.load(Relaxed);
        Some(HeavyHitter {
            fingerprint,
            policy,
            count,
            error,
            key: key.clone(),
        })
    }

    fn lock_owners(&self) -> MutexGuard<'_, [Owner; SLOTS]> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Returns the count before.
    #[inline]
    fn add(&self, weight: u64) -> u64 {
        // Release and acquire: a thread that adds to a slot after it changed hands sees by then to
        // whom, so that it errs once at most.
        let before = self.count.fetch_add(weight, AcqRel);
        if before >= MAX_COUNT {
            self.count.fetch_min(MAX_COUNT, Relaxed);
        }
        before.min(MAX_COUNT)
    }

    fn free(&self, count: u64) {
        self.fingerprint.store(FREE, Relaxed);
        self.count.store(count, Release);
    }
}
