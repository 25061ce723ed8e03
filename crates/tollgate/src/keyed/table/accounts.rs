//! What came back to keys: an account for each slot.
//!
//! An account stays with its slot, not with the key, and its words only grow: whoever comes to a slot goes on from what is there. So a
//! charge remembers how the account stood before it, and by which number: once the key has left the slot, was reset, or was judged by
//! another plan, the account has another number, and what was charged under the old one does not come back.

use super::{Place, SLOTS, Table, WORDS, begin_on_a_line, zeroed};
use crate::algorithm::token_bucket::Cancelled;
use crate::clock::Clock;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::boxed::Box;

/// The accounts of all slots. Where nothing comes back and nobody leaves they stay untouched.
pub(super) struct Accounts {
    /// Two for each slot, those of a line in a cache line.
    words: Box<[AtomicU64]>,
    offset: usize,
    /// One for each slot, apart: whoever leaves moves it, also where nothing ever comes back.
    epochs: Box<[AtomicU32]>,
}

/// What the accounts of a line take.
pub(super) const BYTES_A_LINE: usize = SLOTS * (2 * 8 + 4);

/// The account of one slot. Only who has claimed its entry writes it.
#[derive(Clone, Copy)]
pub(crate) struct Account<'a> {
    slot: u32,
    epoch: &'a AtomicU32,
    given: &'a AtomicU64,
    refunded: &'a AtomicU64,
}

/// How an account stood before a charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Standing {
    pub(crate) number: AccountNumber,
    /// What came back from under later reservations, in ticks.
    pub(crate) given: u64,
    /// What came back in all.
    pub(crate) refunded: u64,
}

/// Which account a charge is of; the default is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct AccountNumber {
    /// Counted from 1.
    slot: u32,
    epoch: u32,
}

impl Accounts {
    pub(super) fn try_new(lines: usize) -> Option<Self> {
        let words = zeroed(lines.saturating_mul(WORDS).saturating_add(WORDS - 1))?;
        let (offset, epochs) = (begin_on_a_line(&words), zeroed(lines.saturating_mul(SLOTS))?);
        Some(Self { words, offset, epochs })
    }

    pub(super) fn bytes(&self) -> usize {
        8 * self.words.len() + 4 * self.epochs.len()
    }
}

impl<C: Clock> Table<C> {
    #[inline]
    pub(super) fn account(&self, place: Place) -> Account<'_> {
        let Accounts { words, offset, epochs } = &self.accounts;
        let at = place.0 - self.offset;
        let (line, slot) = (at / WORDS, at % WORDS);
        let words = &words[offset + line * WORDS + 2 * slot..][..2];
        let slot = line * SLOTS + slot;
        // A table with more slots than that has some without a number: what is charged there does not come back.
        let number = u32::try_from(slot + 1).unwrap_or(0);
        Account { slot: number, epoch: &epochs[slot], given: &words[0], refunded: &words[1] }
    }

    /// How the account of the key that is there stands. To be read before its state moves: what comes back in between then counts
    /// against who is charged, not for them.
    #[inline]
    pub(crate) fn standing(&self, place: Place) -> Standing {
        self.account(place).standing()
    }

    /// Reads the accounts of a key's home line, to have them in the cache by the time its slot is known.
    #[inline]
    pub(crate) fn touch_accounts(&self, hash: u64) {
        let (line, accounts) = ((self.line(hash, 0) - self.offset) / WORDS, &self.accounts);
        accounts.words[accounts.offset + line * WORDS].load(Ordering::Relaxed);
        accounts.epochs[line * SLOTS].load(Ordering::Relaxed);
    }
}

impl Account<'_> {
    #[inline]
    pub(crate) fn standing(&self) -> Standing {
        let number = AccountNumber { slot: self.slot, epoch: self.epoch.load(Ordering::Acquire) };
        Standing { number, given: self.given.load(Ordering::Acquire), refunded: self.refunded.load(Ordering::Acquire) }
    }

    /// How it stands, if it is still the account of that number.
    pub(crate) fn if_still(&self, number: AccountNumber) -> Option<Standing> {
        Some(self.standing()).filter(|standing| standing.number == number && number.slot != 0)
    }

    /// Makes all that was charged so far give nothing back.
    pub(crate) fn void(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// So much comes back from under later reservations, and is no refund.
    pub(crate) fn give(&self, ticks: u64) {
        self.given.fetch_add(ticks, Ordering::AcqRel);
    }

    /// So much comes back.
    pub(crate) fn refund(&self, back: &Cancelled) {
        if back.shifts {
            self.give(back.give);
        }
        self.refunded.fetch_add(back.give, Ordering::AcqRel);
    }
}
