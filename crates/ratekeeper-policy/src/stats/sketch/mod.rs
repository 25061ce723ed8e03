//! Top keys in bounded memory: a space-saving sketch, set-associative.
//!
//! A key belongs to one set of four slots. A key without a slot takes the slot with the lowest
//! count of its set and inherits that count, which is then its error. So in a set that was given
//! the weight N, at any time:
//!
//! - the counts add up to N, so the lowest is at most N/4, and so is any error;
//! - a listed key has count − error ≤ its true weight ≤ count;
//! - a key that is not listed weighs at most the lowest count: every key above N/4 is listed.
//!
//! With threads, an event may be added to a slot that has just been replaced: at most one event a
//! thread each time. And a new key that finds its set locked is dropped; [`Sketch::missed`] is the
//! weight of those.

#[cfg(test)]
mod tests;

use smallvec::SmallVec;
use std::fmt;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed, Release},
};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Number of pairs of words in a cache line.
const SLOTS: usize = 4;

/// Marks a free slot; no key has this fingerprint.
const FREE: u64 = 0;

/// Counts saturate here, and the weight of one event is so much lower that concurrent additions
/// before the check cannot overflow a count.
const MAX_COUNT: u64 = 1 << 62;
const MAX_WEIGHT: u64 = 1 << 48;

/// The top keys, at 128 bytes a slot, and memory for keys that are not short.
#[derive(Debug)]
pub(crate) struct Sketch {
    sets: Box<[Set]>,
}

#[derive(Debug, Default)]
struct Set {
    slots: Slots,
    /// The key of each slot. Locked while a slot is replaced.
    owners: Mutex<[Owner; SLOTS]>,
    missed: AtomicU64,
}

/// Everything that a hit touches.
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

/// A longer key is stored as its display text: this bounds the memory of all slots together.
pub(crate) const MAX_KEY_BYTES: usize = 1024;

/// A key as stored in a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum StoredKey {
    /// All of its bytes.
    Bytes(KeyBytes),
    /// Its display text, if it is too long to be stored.
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

/// Keys up to this length are stored inline.
const INLINE_KEY_BYTES: usize = 64;

impl KeyBytes {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// Replaces the bytes, in the same memory.
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

/// A top key: its true weight is at least `count - error` and at most `count`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HeavyHitter {
    /// The hash of the key.
    pub(crate) fingerprint: u64,
    /// The number of its policy.
    pub(crate) policy: u32,
    /// Upper bound of its weight.
    pub(crate) count: u64,
    /// The maximum error of `count`.
    pub(crate) error: u64,
    /// The key.
    pub(crate) key: StoredKey,
}

impl Sketch {
    /// Creates a sketch for this many keys, rounded up to whole sets of four. With 0, nothing is
    /// counted.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            sets: (0..slots.div_ceil(SLOTS)).map(|_| Set::default()).collect(),
        }
    }

    /// Adds to the weight of a key.
    ///
    /// The fingerprint alone identifies a key, also across policies: it has to be a hash of both,
    /// and one that a caller cannot steer, or one set gets all the keys. 0 is taken for 1. `long`
    /// makes the display text of a key that is too long to be stored; it is called only if the key
    /// takes a slot, while its set is locked.
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
            // A zero weight replaces no other key.
            None if weight == 0 => (),
            None => set.insert(fingerprint, policy, weight, key, long),
        }
    }

    /// The `n` top keys, heaviest first; of equals the lower fingerprint first.
    pub(crate) fn top(&self, n: usize) -> Vec<HeavyHitter> {
        let order = |count: u64, fingerprint: u64| (std::cmp::Reverse(count), fingerprint);
        let mut seen: Vec<_> = self.sets.iter().flat_map(Set::entries).collect();
        seen.sort_unstable_by_key(|&(fingerprint, count)| order(count, fingerprint));
        // Keys are copied for those few only, each while its set is locked; keys that lost their
        // slot since are left out.
        let mut top: Vec<_> = seen
            .into_iter()
            .filter_map(|(fingerprint, _)| self.sets[self.set_of(fingerprint)].heavy(fingerprint))
            .take(n)
            .collect();
        top.sort_unstable_by_key(|heavy| order(heavy.count, heavy.fingerprint));
        top
    }

    /// Searches the stored keys, with the numbers of their policies.
    pub(crate) fn find<T>(&self, mut find: impl FnMut(u32, &[u8]) -> Option<T>) -> Option<T> {
        self.sets.iter().find_map(|set| {
            let owners = set.lock_owners();
            let occupied = set
                .slots
                .0
                .iter()
                .zip(owners.iter())
                .filter(|(slot, _)| slot.fingerprint.load(Relaxed) != FREE);
            occupied
                .into_iter()
                .find_map(|(_, owner)| match &owner.key {
                    StoredKey::Bytes(bytes) => find(owner.policy, bytes.as_slice()),
                    StoredKey::Long(_) => None,
                })
        })
    }

    /// The weight that was dropped because two new keys met in a set.
    pub(crate) fn missed(&self) -> u64 {
        self.sets
            .iter()
            .map(|set| set.missed.load(Relaxed))
            .fold(0, u64::saturating_add)
    }

    /// Clears the sketch.
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

    /// Removes the keys of one policy. The bounds on the others stay valid.
    pub(crate) fn forget(&self, policy: u32) {
        for set in &self.sets {
            let mut owners = set.lock_owners();
            // A key without a slot may weigh as much as the lowest count: the next owner of a freed
            // slot inherits that.
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
        // Multiplied so that all bits matter, then scaled to the number of sets.
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

    /// Gives the slot with the lowest count to a key that has none.
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
        // Another thread may have inserted the same key meanwhile.
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
        // Before anything changes, since `long` may panic.
        let owner = &mut owners[at];
        match &mut owner.key {
            _ if key.len() > MAX_KEY_BYTES => owner.key = StoredKey::Long(long()),
            // Reuses the memory of the old key.
            StoredKey::Bytes(bytes) => bytes.set(key),
            StoredKey::Long(_) => owner.key = StoredKey::Bytes(KeyBytes::new(key)),
        }
        // The fingerprint first: hits of the old key between the two stores count into the error,
        // not in addition to it.
        slot.fingerprint.store(fingerprint, Relaxed);
        let error = slot.add(weight);
        owner.error = error;
        owner.policy = policy;
    }

    /// Fingerprints and counts. Locked, so that a key that moves from one slot to another is not
    /// seen twice.
    fn entries(&self) -> impl Iterator<Item = (u64, u64)> {
        let _guard = self.lock_owners();
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
    /// Adds to the count and returns the one before.
    #[inline]
    fn add(&self, weight: u64) -> u64 {
        // Release and acquire: a thread that adds to a slot after it was replaced sees the new
        // owner by then, so that it errs at most once.
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
