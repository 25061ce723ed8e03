//! Updates of one key: settling, granting, resetting and releasing, which change its state alone.

use super::{SlotRefunds, Table};
use crate::clock::{Clock, Timestamp};
use crate::keyed::byte_budget::ByteBudget;
use crate::keyed::large_state::LargeState;
use crate::keyed::limit_version::{EntryState, LimitVersion};
use crate::limit::Kind;
use crate::limiter::cell::{Reach, reach};
use crate::sync::{back_off, relax};

impl<C: Clock> Table<C> {
    /// How many of a key are in flight.
    pub(crate) fn in_flight(&self, hash: u64) -> u64 {
        self.find(hash).map_or(0, |seen| seen.word())
    }

    /// Takes back permits that are in flight: their entry cannot have gone.
    pub(crate) fn land(&self, hash: u64, cost: u64) {
        while let Some(seen) = self.find(hash) {
            if self.swap(&seen, seen.word().saturating_sub(cost)) {
                return;
            }
            back_off();
        }
    }

    /// Runs `change` on the state of a key, alone, with its account unless it has no place.
    /// `absent` says what of a key that is not in the table. A key that is judged by another plan
    /// by now stays with that. False if it was displaced and stays so.
    pub(crate) fn update(
        &self,
        first: &LimitVersion,
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
            let terms = match found {
                Some(seen) => self.current(self.terms(seen.terms())),
                None => self.current(first),
            };
            if terms.normal.kind == Kind::Unlimited {
                return true;
            }
            if let (Reach::Late, false) = (
                reach(&terms.normal, terms.origin, now),
                terms.normal.is_machine(),
            ) {
                if !self.rebase(&terms.registered, now) {
                    return true;
                }
                continue;
            }
            match found {
                Some(seen) if seen.terms() != terms.id => self.convert(&seen, hash, terms, now),
                Some(seen) if !self.claim(&seen) => back_off(),
                Some(seen) if terms.fits_a_word() => {
                    let mut word = seen.word();
                    change(
                        terms,
                        StateMut::Word(&mut word),
                        Some(self.account(hash, seen.place)),
                    );
                    self.release_as(&seen, word);
                    return true;
                }
                Some(seen) => {
                    let mut state = self.wides.lock(seen.word());
                    change(
                        terms,
                        StateMut::Wide(&mut state, &self.wides.budget),
                        Some(self.account(hash, seen.place)),
                    );
                    drop(state);
                    self.release(&seen);
                    return true;
                }
                None => {
                    let Some(start) = self.start(hash, terms) else {
                        continue;
                    };
                    if absent != AbsentKey::Comes && terms.is_fresh(&start, now) {
                        return true;
                    }
                    if absent == AbsentKey::StaysOut {
                        return false;
                    }
                    let _held = self.stripe(hash).inserting.hold();
                    if self.find(hash).is_some() {
                        continue;
                    }
                    let Some(mut start) = self.start(hash, terms) else {
                        continue;
                    };
                    let (room, budget) = (self.make_room(hash, now), self.wides.budget.of_one());
                    let state = match &mut start {
                        EntryState::Word(word) => StateMut::Word(word),
                        EntryState::Wide(state) => StateMut::Wide(state, &budget),
                    };
                    change(terms, state, room.map(|place| self.account(hash, place)));
                    self.put(room, hash, terms, now, start);
                    return true;
                }
            }
        }
    }
}

/// What becomes of a key that is not in the table when its state is to be altered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AbsentKey {
    /// One that would start from fresh stays so: there is nothing to alter.
    StaysFresh,
    /// The same, and one that was displaced stays so.
    StaysOut,
    /// It is put in.
    Comes,
}

/// The state of a key that is one's own for the moment.
pub(crate) enum StateMut<'a> {
    Word(&'a mut u64),
    Wide(&'a mut LargeState, &'a ByteBudget),
}
