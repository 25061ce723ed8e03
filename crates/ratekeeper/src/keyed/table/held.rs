//! Several entries at once: claimed in the order of their addresses, worked on, and left all
//! together or as they were.

use super::{EntryView, RefundTotals, STRIPES, Slot, Table, tag};
use crate::algorithm::Refund;
use crate::algorithm::tat_word::{Reach, reach};
use crate::clock::{Clock, Timestamp};
use crate::keyed::terms::{CallRequest, CallResult, EntryState, LimitVersion};
use crate::limit::Kind;
use crate::sync::{Guard, Ordering, relax};
use smallvec::SmallVec;

/// So many entries are held without anything being allocated for it.
pub(crate) const FEW: usize = 8;

impl<C: Clock> Table<C> {
    /// Whether terms are of this table.
    #[inline]
    pub(crate) fn knows(&self, terms: &LimitVersion) -> bool {
        terms.registered.table == self.id
    }

    /// Whether two hashes are the same key, as far as the table can tell.
    #[inline]
    pub(crate) fn share_a_bucket(&self, a: u64, b: u64) -> bool {
        tag(a, 0) == tag(b, 0) && self.line(a, 0) == self.line(b, 0)
    }

    /// Makes the entries of several keys one's own, at the same time; none if something came in
    /// between. Keys that are not in the table are put in first, unless that has been tried too
    /// often already.
    pub(crate) fn transact<'a>(
        &'a self,
        keys: &[(&'a LimitVersion, u64)],
        now: Timestamp,
        tries: u32,
    ) -> Option<Transaction<'a, C>> {
        let mut held = Transaction {
            table: self,
            ones: SmallVec::new(),
            locks: SmallVec::new(),
        };
        let mut without_room: SmallVec<[usize; FEW]> = SmallVec::new();
        for (first, hash) in keys.iter().copied() {
            let terms = self.current(first);
            let mut one = TransactionEntry {
                terms,
                hash,
                seen: None,
                state: WorkingState::Word(0),
                claimed: false,
                undo: None,
            };
            if terms.normal.kind != Kind::Unlimited {
                if let (Reach::Late, false) = (
                    reach(&terms.normal, terms.origin, now),
                    terms.normal.is_machine(),
                ) {
                    self.rebase(&terms.registered, now);
                    return None;
                }
                one.seen = self.find_or_put(terms, hash, now, tries)?;
                if one.seen.is_none() {
                    without_room.push(hash as usize % STRIPES);
                }
            }
            held.ones.push(one);
        }
        if !without_room.is_empty() {
            // Locks come before claims: nobody waits for a lock with an entry in hand.
            without_room.sort_unstable();
            without_room.dedup();
            held.locks.extend(
                without_room
                    .iter()
                    .map(|stripe| self.stripes[*stripe].inserting.lock()),
            );
        }
        let mut order: SmallVec<[(Option<Slot>, usize); FEW]> = held
            .ones
            .iter()
            .enumerate()
            .map(|(at, one)| (one.seen.map(|seen| seen.place), at))
            .collect();
        order.sort_unstable();
        // One came to where another had just been: waiting for it would be waiting for oneself.
        if order
            .windows(2)
            .any(|two| two[0].0.is_some() && two[0].0 == two[1].0)
        {
            return None;
        }
        for (place, at) in order {
            let one = &mut held.ones[at];
            match place {
                None if one.terms.normal.kind == Kind::Unlimited => {}
                None if self.find(one.hash).is_some() => return None,
                None => one.state = WorkingState::OutOfTable(self.start(one.hash, one.terms)?),
                Some(_) => self.hold_one(one)?,
            }
        }
        Some(held)
    }

    fn find_or_put(
        &self,
        terms: &LimitVersion,
        hash: u64,
        now: Timestamp,
        tries: u32,
    ) -> Option<Option<EntryView>> {
        const ENOUGH: u32 = 16;
        let mut seen = self.find(hash);
        if seen.is_none() && tries < ENOUGH {
            let _held = self.stripe(hash).inserting.lock();
            if self.find(hash).is_none() {
                let start = self.start(hash, terms)?;
                // As if used now, so that the others of the same call do not take its place.
                self.put(
                    self.make_room(hash, now),
                    hash,
                    terms,
                    now,
                    terms.used_now(start, now),
                );
            }
            seen = self.find(hash);
        }
        match seen {
            Some(other) if other.terms() != terms.id => {
                self.convert(&other, hash, terms, now);
                None
            }
            seen => Some(seen),
        }
    }

    fn hold_one(&self, one: &mut TransactionEntry<'_>) -> Option<()> {
        let mut seen = one.seen?;
        for round in 0.. {
            seen.stored = self.read(seen.place);
            if self.tag_at(seen.place).load(Ordering::Acquire) != seen.tag {
                return None;
            }
            if self.claim(&seen) {
                break;
            }
            relax(round);
        }
        one.state = if one.terms.fits_a_word() {
            WorkingState::Word(seen.word())
        } else {
            WorkingState::Handle(seen.word())
        };
        (one.seen, one.claimed) = (Some(seen), true);
        Some(())
    }
}

/// Entries that are one's own for the moment, and what is to become of them. Dropped, they stay
/// what they were.
pub(crate) struct Transaction<'a, C: Clock> {
    table: &'a Table<C>,
    ones: SmallVec<[TransactionEntry<'a>; FEW]>,
    locks: SmallVec<[Guard<'a>; FEW]>,
}

struct TransactionEntry<'a> {
    terms: &'a LimitVersion,
    hash: u64,
    seen: Option<EntryView>,
    state: WorkingState,
    claimed: bool,
    /// What was logged, and when: to be taken back if it comes to nothing.
    undo: Option<(u64, u64)>,
}

/// A state that is being worked on.
enum WorkingState {
    Word(u64),
    Handle(u64),
    /// There is no room for it: what becomes of it goes into the floor.
    OutOfTable(EntryState),
}

impl<C: Clock> Transaction<'_, C> {
    pub(crate) fn terms(&self, at: usize) -> &LimitVersion {
        self.ones[at].terms
    }

    /// How its account stands.
    pub(crate) fn standing(&self, at: usize) -> RefundTotals {
        let one = &self.ones[at];
        one.seen
            .map(|seen| self.table.standing(one.hash, seen.place))
            .unwrap_or_default()
    }

    pub(crate) fn is_log(&self, at: usize) -> bool {
        self.ones[at].terms.normal.kind == Kind::Log
    }

    /// Whether there is no room for it, nor a floor it could go to.
    pub(crate) fn has_no_room(&self, at: usize) -> bool {
        let one = &self.ones[at];
        one.terms.normal.kind == Kind::InFlight && matches!(one.state, WorkingState::OutOfTable(_))
    }

    /// One call on what is held.
    pub(crate) fn judge(&mut self, at: usize, asked: &CallRequest) -> CallResult {
        let (table, one) = (self.table, &mut self.ones[at]);
        match &mut one.state {
            WorkingState::Word(word) => {
                let call = one.terms.judge_word(*word, asked);
                *word = call.after.unwrap_or(*word);
                call
            }
            WorkingState::Handle(handle) => {
                let call = one.terms.judge_large(
                    &mut table.wides.lock(*handle),
                    asked,
                    &table.wides.budget,
                );
                if asked.write && call.decision.is_allowed() {
                    let before = one.undo.map_or(0, |(_, units)| units);
                    one.undo = Some((call.charged, before + asked.cost));
                }
                call
            }
            WorkingState::OutOfTable(_) if one.terms.normal.kind == Kind::InFlight => {
                one.terms.no_room()
            }
            WorkingState::OutOfTable(state) => {
                let (call, after) = one.terms.judge(
                    core::mem::replace(state, EntryState::FRESH),
                    asked,
                    &table.wides.budget.of_one(),
                );
                *state = after;
                call
            }
        }
    }

    /// Leaves every entry as it was worked on.
    pub(crate) fn commit(mut self) {
        for one in self.ones.drain(..) {
            match (one.state, one.seen) {
                (WorkingState::Word(word), Some(seen)) => self.table.release_as(&seen, word),
                (WorkingState::Handle(_), Some(seen)) => self.table.release(&seen),
                (WorkingState::OutOfTable(state), _) => {
                    self.table.sink(one.hash, one.terms.id, state)
                }
                _ => {}
            }
        }
        self.locks.clear();
    }
}

impl<C: Clock> Drop for Transaction<'_, C> {
    fn drop(&mut self) {
        for one in &self.ones {
            if let (WorkingState::Handle(handle), Some((charged_in, units))) =
                (&one.state, one.undo)
            {
                let refund = Refund {
                    charged_in,
                    cost: units,
                    unused: units,
                };
                self.table
                    .wides
                    .lock(*handle)
                    .give_back(&one.terms.normal, 0, refund);
            }
            if let (Some(seen), true) = (&one.seen, one.claimed) {
                self.table.release(seen);
            }
        }
    }
}
