//! What came back to keys: an account for each slot.
//!
//! An account stays with its slot, not with the key, and its words only grow: whoever comes to a
//! slot goes on from what is there. So a charge remembers how the account stood before it, and
//! where it was booked: once the key has left the slot, was reset, or was judged by another plan,
//! the account is in another epoch, and what was booked before does not come back.

use super::{
    MAX_VERSIONS, PROBES, SLOTS, Slot, Table, VERSION_BITS, WORDS, align_to_cache_line, zeroed,
};
use crate::algorithm::token_bucket::TokenRefund;
use crate::clock::Clock;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::boxed::Box;

/// The accounts of all slots. Where nothing comes back and nobody leaves they stay untouched.
pub(super) struct RefundCounters {
    /// Two for each slot, those of a line in a cache line.
    words: Box<[AtomicU64]>,
    offset: usize,
    /// One for each slot, apart: whoever leaves moves it, also where nothing ever comes back.
    epochs: Box<[AtomicU32]>,
}

/// What the accounts of a line take.
pub(super) const BYTES_PER_CACHE_LINE: usize = SLOTS * (2 * 8 + 4);

/// The account of one slot. Only who has claimed its entry writes it.
#[derive(Clone, Copy)]
pub(crate) struct SlotRefunds<'a> {
    slot_number: u8,
    epoch: &'a AtomicU32,
    given: &'a AtomicU64,
    refunded: &'a AtomicU64,
}

/// How an account stood before a charge; the default is that there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RefundTotals {
    /// Which of the slots that a key may have, counted from 1; 0 is in none.
    slot_number: u8,
    epoch: u32,
    /// What came back from under later reservations, in ticks.
    pub(crate) given: u64,
    /// What came back in all.
    pub(crate) refunded: u64,
}

/// By which terms something was charged, and where it was booked; the default is nothing, by none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ChargeOrigin {
    /// Which of the slots that the key may have, then the terms.
    at: u32,
    epoch: u32,
}

/// The epoch that does not end: nothing of it comes back.
const FINAL_EPOCH: u32 = u32::MAX;

fn advance_epoch(epoch: &AtomicU32) {
    // Nobody else writes it.
    let next = epoch.load(Ordering::Relaxed).saturating_add(1);
    epoch.store(next, Ordering::Release);
}

const _: () = assert!(
    PROBES * SLOTS < 1 << (u32::BITS - VERSION_BITS),
    "a slot beside the terms"
);

impl ChargeOrigin {
    /// Stands for a charge that is not of a table.
    pub(crate) const EXTERNAL: Self = Self {
        at: u32::MAX,
        epoch: u32::MAX,
    };

    /// 0 if nothing was charged.
    pub(crate) fn version(self) -> u32 {
        self.at & MAX_VERSIONS
    }
}

impl RefundTotals {
    /// The booking of a charge by these terms.
    #[inline]
    pub(crate) fn charge_origin(&self, version: u32) -> ChargeOrigin {
        ChargeOrigin {
            at: u32::from(self.slot_number) << VERSION_BITS | version,
            epoch: self.epoch,
        }
    }
}

impl RefundCounters {
    pub(super) fn try_new(cache_lines: usize) -> Option<Self> {
        let words = zeroed(cache_lines.saturating_mul(WORDS).saturating_add(WORDS - 1))?;
        let (offset, epochs) = (
            align_to_cache_line(&words),
            zeroed(cache_lines.saturating_mul(SLOTS))?,
        );
        Some(Self {
            words,
            offset,
            epochs,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        8 * self.words.len() + 4 * self.epochs.len()
    }
}

impl<C: Clock> Table<C> {
    /// The account of the key of that hash, which is there.
    #[inline(always)]
    pub(super) fn slot_refunds(&self, hash: u64, slot: Slot) -> SlotRefunds<'_> {
        let RefundCounters { words, offset, .. } = &self.refund_counters;
        let at = slot.0 - self.offset;
        let index = at % WORDS;
        let slot_number = if self.cache_line(hash, 0) + index == slot.0 {
            index + 1
        } else {
            self.first_slot_number(hash, slot.0 - index) + index
        };
        // Where its line begins there, and two words for each slot before it.
        let words = &words[offset + at + index..][..2];
        SlotRefunds {
            slot_number: slot_number as u8,
            epoch: self.epoch(slot),
            given: &words[0],
            refunded: &words[1],
        }
    }

    /// Which is the first slot of that line, of those that a key may have.
    #[cold]
    fn first_slot_number(&self, hash: u64, cache_line: usize) -> usize {
        // It is in one of its lines.
        (0..PROBES)
            .find(|probe| self.cache_line(hash, *probe) == cache_line)
            .unwrap_or(0)
            * SLOTS
            + 1
    }

    #[inline]
    fn epoch(&self, slot: Slot) -> &AtomicU32 {
        let at = slot.0 - self.offset;
        &self.refund_counters.epochs[at / WORDS * SLOTS + at % WORDS]
    }

    /// Makes all that was charged so far to who is there give nothing back. Only who has claimed
    /// the entry does.
    pub(super) fn invalidate_charges(&self, slot: Slot) {
        advance_epoch(self.epoch(slot));
    }

    /// How the account of that key stands. To be read before its state moves: what comes back in
    /// between then counts against who is charged, not for them.
    #[inline(always)]
    pub(crate) fn refund_totals(&self, hash: u64, slot: Slot) -> RefundTotals {
        self.slot_refunds(hash, slot).refund_totals()
    }

    /// Reads the words of a key's home line, to have them in the cache by the time its slot is
    /// known.
    #[inline(always)]
    pub(crate) fn prefetch_refunds(&self, hash: u64) {
        let RefundCounters { words, offset, .. } = &self.refund_counters;
        words[self.cache_line(hash, 0) - self.offset + offset].load(Ordering::Relaxed);
    }
}

impl SlotRefunds<'_> {
    #[inline(always)]
    fn refund_totals(&self) -> RefundTotals {
        let Self {
            slot_number,
            epoch,
            given,
            refunded,
        } = self;
        let (given, refunded) = (
            given.load(Ordering::Acquire),
            refunded.load(Ordering::Acquire),
        );
        RefundTotals {
            slot_number: *slot_number,
            epoch: epoch.load(Ordering::Acquire),
            given,
            refunded,
        }
    }

    /// How it stands, if what was booked so is still on it, by those terms.
    pub(crate) fn totals_if_current(
        &self,
        charge_origin: ChargeOrigin,
        version: u32,
    ) -> Option<RefundTotals> {
        Some(self.refund_totals()).filter(|refund_totals| {
            refund_totals.epoch != FINAL_EPOCH
                && refund_totals.charge_origin(version) == charge_origin
        })
    }

    /// Makes all that was charged so far give nothing back.
    pub(crate) fn invalidate_charges(&self) {
        advance_epoch(self.epoch);
    }

    /// So much comes back from under later reservations, and is no refund.
    pub(crate) fn add_given(&self, ticks: u64) {
        self.given.fetch_add(ticks, Ordering::AcqRel);
    }

    /// So much comes back.
    pub(crate) fn refund(&self, back: &TokenRefund) {
        if back.shifts {
            self.add_given(back.give);
        }
        self.refunded.fetch_add(back.give, Ordering::AcqRel);
    }
}
