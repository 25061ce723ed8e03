//! Updates of one key, outside of decisions: settle, cancel, grant, reset, and releasing permits.

use super::{SlotRefunds, Table};
use crate::algorithm::tat_word::{Reach, reach};
use crate::clock::{Clock, Timestamp};
use crate::keyed::byte_budget::ByteBudget;
use crate::keyed::large_state::LargeState;
use crate::keyed::limit_version::{EntryState, LimitVersion};
use crate::limit::Kind;
use crate::sync::{back_off, relax};

impl<C: Clock> Table<C> {
    /// Returns how many of a key are in flight.
    pub(crate) fn in_flight(&self, hash: u64) -> u64 {
        self.find(hash).map_or(0, |entry| entry.word())
    }

    /// Releases permits that are in flight: their entry cannot have been evicted.
    pub(crate) fn release_permits(&self, hash: u64, cost: u64) {
        while let Some(entry) = self.find(hash) {
            if self.swap(&entry, entry.word().saturating_sub(cost)) {
                return;
            }
            back_off();
        }
    }

    /// Runs `change` on the claimed state of a key, with the refund counters of its slot if it has
    /// one. `absent` says what to do with a key that is not in the table. A key that has moved to
    /// another limit stays with that. `false` if it was evicted and is not inserted.
    pub(crate) fn update(
        &self,
        first_version: &LimitVersion,
        hash: u64,
        now: Timestamp,
        absent: AbsentKey,
        change: impl FnOnce(&LimitVersion, StateMut<'_>, Option<SlotRefunds<'_>>),
    ) -> bool {
        let mut round = 0;
        loop {
            if round > 0 {
                relax(round);
            }
            round += 1;
            let found = self.find(hash);
            let version = match found {
                Some(entry) => self.current(self.version(entry.version())),
                None => self.current(first_version),
            };
            if version.normal.kind == Kind::Unlimited {
                return true;
            }
            if !version.normal.is_machine()
                && let Reach::Late = reach(&version.normal, version.origin, now)
            {
                if !self.rebase(&version.registered, now) {
                    return true;
                }
                continue;
            }
            match found {
                Some(entry) if entry.version() != version.id => {
                    self.convert(&entry, hash, version, now);
                }
                Some(entry) if !self.claim(&entry) => back_off(),
                Some(entry) if version.fits_a_word() => {
                    let mut word = entry.word();
                    change(
                        version,
                        StateMut::Word(&mut word),
                        Some(self.slot_refunds(hash, entry.slot)),
                    );
                    self.release_with(&entry, word);
                    return true;
                }
                Some(entry) => {
                    let mut state = self.large_states.lock(entry.word());
                    change(
                        version,
                        StateMut::Large(&mut state, &self.large_states.budget),
                        Some(self.slot_refunds(hash, entry.slot)),
                    );
                    drop(state);
                    self.release(&entry);
                    return true;
                }
                None => {
                    let Some(start) = self.initial_state(hash, version) else {
                        continue;
                    };
                    if absent != AbsentKey::Insert && version.is_fresh(&start, now) {
                        return true;
                    }
                    if absent == AbsentKey::NeverInsert {
                        return false;
                    }
                    let _held = self.stripe(hash).insert_lock.lock();
                    if self.find(hash).is_some() {
                        continue;
                    }
                    let Some(mut start) = self.initial_state(hash, version) else {
                        continue;
                    };
                    let slot = self.claim_slot(hash, now);
                    let budget = self.large_states.budget.for_new_state();
                    let state = match &mut start {
                        EntryState::Word(word) => StateMut::Word(word),
                        EntryState::Large(state) => StateMut::Large(state, &budget),
                    };
                    change(
                        version,
                        state,
                        slot.map(|slot| self.slot_refunds(hash, slot)),
                    );
                    self.insert(slot, hash, version, now, start);
                    return true;
                }
            }
        }
    }
}

/// What to do with a key that is not in the table when its state is to be updated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AbsentKey {
    /// Skip a key that would start from fresh, because there is nothing to update; insert any
    /// other.
    InsertUnlessFresh,
    /// Insert no key, also not one that was evicted.
    NeverInsert,
    /// Insert the key.
    Insert,
}

/// The claimed state of a key.
pub(crate) enum StateMut<'a> {
    Word(&'a mut u64),
    Large(&'a mut LargeState, &'a ByteBudget),
}
