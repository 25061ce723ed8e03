//! What comes back to keys: two words a slot, beside its entry.
//!
//! They stay with the slot, not with the key: whoever comes to one goes on from what is there. So a charge remembers its slot along
//! with the words, and a key that has moved since then gets nothing back.

use super::{Place, SLOTS, Table, WORDS};
use crate::algorithm::token_bucket::Cancelled;
use crate::clock::Clock;
use crate::sync::{AtomicU64, Ordering};

/// As many words as the slots of a line take.
pub(super) const A_LINE: usize = 2 * SLOTS;
const _: () = assert!(A_LINE == WORDS, "a line of entries and what came back to them have the same index");

/// What had come back to a key when it was charged, and where the key was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Returned {
    pub(crate) slot: Slot,
    /// From under later reservations.
    pub(crate) given: u64,
    /// In all.
    pub(crate) refunded: u64,
}

/// Which slot it is; 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Slot(u32);

/// The words of a slot. Only who has claimed its entry writes them.
#[derive(Clone, Copy)]
pub(crate) struct Returns<'a> {
    slot: Slot,
    given: &'a AtomicU64,
    refunded: &'a AtomicU64,
}

impl<C: Clock> Table<C> {
    /// What has come back to the key that is there. To be read before its state moves: what comes back in between then counts
    /// against who is charged, not for them.
    #[inline]
    pub(crate) fn returned(&self, place: Place) -> Returned {
        let Returns { slot, given, refunded } = self.returns(place);
        Returned { slot, given: given.load(Ordering::Acquire), refunded: refunded.load(Ordering::Acquire) }
    }

    #[inline]
    pub(super) fn returns(&self, place: Place) -> Returns<'_> {
        let at = place.0 - self.offset;
        // Of the line that begins at the same index, two words for each slot before.
        let words = &self.returns[at + at % WORDS..][..2];
        // A table with more slots than that has some without a number: what is charged there does not come back.
        let slot = Slot(u32::try_from(at + 1).unwrap_or(0));
        Returns { slot, given: &words[0], refunded: &words[1] }
    }

    /// Reads the words of a key's home line, to have them in the cache by the time its slot is known.
    #[inline]
    pub(crate) fn touch_returns(&self, hash: u64) {
        self.returns[self.line(hash, 0) - self.offset].load(Ordering::Relaxed);
    }
}

impl Returns<'_> {
    /// Whether a charge that remembers this was of the key that is here now, as far as that can be known.
    pub(crate) fn are_of(&self, slot: Slot) -> bool {
        self.slot == slot && slot != Slot::default()
    }

    pub(crate) fn given(&self) -> u64 {
        self.given.load(Ordering::Acquire)
    }

    pub(crate) fn refunded(&self) -> u64 {
        self.refunded.load(Ordering::Acquire)
    }

    /// So much comes back from under later reservations.
    pub(crate) fn give(&self, ticks: u64) {
        self.given.fetch_add(ticks, Ordering::AcqRel);
    }

    /// So much comes back.
    pub(crate) fn add(&self, back: &Cancelled) {
        if back.shifts {
            self.give(back.give);
        }
        self.refunded.fetch_add(back.give, Ordering::AcqRel);
    }
}
