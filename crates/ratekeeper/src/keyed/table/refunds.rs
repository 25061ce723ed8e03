//! Per-slot refund counters.
//!
//! Counters stay with their slot, not with the key, and only grow: the next key in the slot
//! continues from what is there. So a charge records the counters before it, and its origin: once
//! the key has left the slot, was reset, or moved to another limit, the slot is in another epoch,
//! and earlier charges are not refunded.

use super::{
    MAX_VERSIONS, PROBES, SLOTS, Slot, Table, VERSION_BITS, WORDS, align_to_cache_line, zeroed,
};
use crate::algorithm::token_bucket::TokenRefund;
use crate::clock::Clock;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::boxed::Box;

/// The refund counters of all slots. Without refunds and evictions they stay untouched.
pub(super) struct RefundCounters {
    /// Two words for each slot; those of one cache line of entries share a cache line.
    words: Box<[AtomicU64]>,
    offset: usize,
    /// One for each slot, stored apart: an eviction advances it, also where there are never
    /// refunds.
    epochs: Box<[AtomicU32]>,
}

/// Bytes of the refund counters of one cache line of entries.
pub(super) const BYTES_PER_CACHE_LINE: usize = SLOTS * (2 * 8 + 4);

/// The refund counters of one slot. Only the thread that has claimed its entry writes them.
#[derive(Clone, Copy)]
pub(crate) struct SlotRefunds<'a> {
    slot_number: u8,
    epoch: &'a AtomicU32,
    given: &'a AtomicU64,
    refunded: &'a AtomicU64,
}

/// The refund counters of a slot before a charge; the default is of no slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RefundTotals {
    /// Which of the slots a key may be in, counted from 1; 0 is none.
    slot_number: u8,
    epoch: u32,
    /// What was refunded from before later reservations, or granted, in ticks.
    pub(crate) given: u64,
    /// What was refunded in all, in ticks.
    pub(crate) refunded: u64,
}

/// The limit version and slot of a charge; the default is no charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ChargeOrigin {
    /// Which of the slots the key may be in, then the version.
    at: u32,
    epoch: u32,
}

/// The last epoch: its charges are not refunded.
const FINAL_EPOCH: u32 = u32::MAX;

fn advance_epoch(epoch: &AtomicU32) {
    // No other thread writes it.
    let next = epoch.load(Ordering::Relaxed).saturating_add(1);
    epoch.store(next, Ordering::Release);
}

const _: () = assert!(
    PROBES * SLOTS < 1 << (u32::BITS - VERSION_BITS),
    "a slot number fits beside the version"
);

impl ChargeOrigin {
    /// The origin of a charge that is not of a table.
    pub(crate) const EXTERNAL: Self = Self {
        at: u32::MAX,
        epoch: u32::MAX,
    };

    /// Returns the id of the limit version; 0 if nothing was charged.
    pub(crate) fn version(self) -> u32 {
        self.at & MAX_VERSIONS
    }
}

impl RefundTotals {
    /// Returns the origin of a charge by this version.
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
        let offset = align_to_cache_line(&words);
        let epochs = zeroed(cache_lines.saturating_mul(SLOTS))?;
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
    /// Returns the refund counters of the slot, which holds the key of that hash.
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
        // The start of its cache line there, and two words for each slot before it.
        let words = &words[offset + at + index..][..2];
        SlotRefunds {
            slot_number: slot_number as u8,
            epoch: self.epoch(slot),
            given: &words[0],
            refunded: &words[1],
        }
    }

    /// Returns the number of the first slot of that cache line among those the key may be in.
    #[cold]
    fn first_slot_number(&self, hash: u64, cache_line: usize) -> usize {
        // The key is in one of its cache lines.
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

    /// Makes earlier charges on the key in this slot give nothing back. Only the thread that has
    /// claimed the entry may call it.
    pub(super) fn invalidate_charges(&self, slot: Slot) {
        advance_epoch(self.epoch(slot));
    }

    /// Returns the refund totals of that key's slot. To be read before its state is written: a
    /// refund in between then counts against the charge, not for it.
    #[inline(always)]
    pub(crate) fn refund_totals(&self, hash: u64, slot: Slot) -> RefundTotals {
        self.slot_refunds(hash, slot).refund_totals()
    }

    /// Reads the refund counters of a key's home cache line, to have them in the cache by the time
    /// its slot is known.
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
        let given = given.load(Ordering::Acquire);
        let refunded = refunded.load(Ordering::Acquire);
        RefundTotals {
            slot_number: *slot_number,
            epoch: epoch.load(Ordering::Acquire),
            given,
            refunded,
        }
    }

    /// Returns the totals, if a charge of that origin by that version can still be refunded.
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

    /// Makes earlier charges give nothing back.
    pub(crate) fn invalidate_charges(&self) {
        advance_epoch(self.epoch);
    }

    /// Counts ticks that come back from before later reservations and are not a refund.
    pub(crate) fn add_given(&self, ticks: u64) {
        self.given.fetch_add(ticks, Ordering::AcqRel);
    }

    /// Counts a refund.
    pub(crate) fn refund(&self, back: &TokenRefund) {
        if back.shifts {
            self.add_given(back.give);
        }
        self.refunded.fetch_add(back.give, Ordering::AcqRel);
    }
}
