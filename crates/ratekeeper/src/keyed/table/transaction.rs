//! Transactions over several entries: claimed in the order of their addresses, worked on, and
//! committed all together or left unchanged.

use super::{EntryView, RefundTotals, STRIPES, Slot, Table, tag};
use crate::algorithm::Refund;
use crate::algorithm::tat_word::{Reach, reach};
use crate::clock::{Clock, Timestamp};
use crate::keyed::judge::{CallRequest, CallResult};
use crate::keyed::limit_version::{EntryState, LimitVersion};
use crate::limit::Kind;
use crate::sync::{Guard, Ordering, relax};
use smallvec::SmallVec;

/// Up to this many entries are claimed without an allocation.
pub(crate) const INLINE_ENTRIES: usize = 8;

impl<C: Clock> Table<C> {
    /// Whether a limit version is of this table.
    #[inline]
    pub(crate) fn owns(&self, version: &LimitVersion) -> bool {
        version.registered.table == self.id
    }

    /// Whether two hashes are the same key, as far as the table can tell.
    #[inline]
    pub(crate) fn is_same_bucket(&self, a: u64, b: u64) -> bool {
        tag(a, 0) == tag(b, 0) && self.cache_line(a, 0) == self.cache_line(b, 0)
    }

    /// Claims the entries of several keys together; `None` if another thread interfered. Keys that
    /// are not in the table are inserted first, unless that has been tried too often already.
    pub(crate) fn transact<'a>(
        &'a self,
        keys: &[(&'a LimitVersion, u64)],
        now: Timestamp,
        attempts: u32,
    ) -> Option<Transaction<'a, C>> {
        let mut transaction = Transaction {
            table: self,
            entries: SmallVec::new(),
            locks: SmallVec::new(),
        };
        let mut without_slot: SmallVec<[usize; INLINE_ENTRIES]> = SmallVec::new();
        for (first_version, hash) in keys.iter().copied() {
            let version = self.current(first_version);
            let mut entry = TransactionEntry {
                version,
                hash,
                view: None,
                state: WorkingState::Word(0),
                claimed: false,
                undo: None,
            };
            if version.normal.kind != Kind::Unlimited {
                if !version.normal.is_machine()
                    && let Reach::Late = reach(&version.normal, version.origin, now)
                {
                    self.rebase(&version.registered, now);
                    return None;
                }
                entry.view = self.find_or_insert(version, hash, now, attempts)?;
                if entry.view.is_none() {
                    without_slot.push(hash as usize % STRIPES);
                }
            }
            transaction.entries.push(entry);
        }
        if !without_slot.is_empty() {
            // Locks come before claims: no thread waits for a lock while it holds a claimed entry.
            without_slot.sort_unstable();
            without_slot.dedup();
            transaction.locks.extend(
                without_slot
                    .iter()
                    .map(|stripe| self.stripes[*stripe].insert_lock.lock()),
            );
        }
        let mut order: SmallVec<[(Option<Slot>, usize); INLINE_ENTRIES]> = transaction
            .entries
            .iter()
            .enumerate()
            .map(|(at, entry)| (entry.view.map(|view| view.slot), at))
            .collect();
        order.sort_unstable();
        // One key was inserted where another had just been: claiming both would wait for itself.
        if order
            .windows(2)
            .any(|pair| pair[0].0.is_some() && pair[0].0 == pair[1].0)
        {
            return None;
        }
        for (slot, at) in order {
            let entry = &mut transaction.entries[at];
            match slot {
                None if entry.version.normal.kind == Kind::Unlimited => {}
                None if self.find(entry.hash).is_some() => return None,
                None => {
                    entry.state =
                        WorkingState::OutOfTable(self.initial_state(entry.hash, entry.version)?);
                }
                Some(_) => self.claim_entry(entry)?,
            }
        }
        Some(transaction)
    }

    fn find_or_insert(
        &self,
        version: &LimitVersion,
        hash: u64,
        now: Timestamp,
        attempts: u32,
    ) -> Option<Option<EntryView>> {
        const MAX_INSERT_ATTEMPTS: u32 = 16;
        let mut view = self.find(hash);
        if view.is_none() && attempts < MAX_INSERT_ATTEMPTS {
            let _held = self.stripe(hash).insert_lock.lock();
            if self.find(hash).is_none() {
                let start = self.initial_state(hash, version)?;
                // Marked as used now, so that the other keys of the same call do not evict it.
                self.insert(
                    self.claim_slot(hash, now),
                    hash,
                    version,
                    now,
                    version.mark_used_now(start, now),
                );
            }
            view = self.find(hash);
        }
        match view {
            Some(other) if other.version() != version.id => {
                self.convert(&other, hash, version, now);
                None
            }
            view => Some(view),
        }
    }

    fn claim_entry(&self, entry: &mut TransactionEntry<'_>) -> Option<()> {
        let mut view = entry.view?;
        for round in 0.. {
            view.stored = self.read(view.slot);
            if self.tag_at(view.slot).load(Ordering::Acquire) != view.tag {
                return None;
            }
            if self.claim(&view) {
                break;
            }
            relax(round);
        }
        entry.state = if entry.version.fits_a_word() {
            WorkingState::Word(view.word())
        } else {
            WorkingState::Handle(view.word())
        };
        (entry.view, entry.claimed) = (Some(view), true);
        Some(())
    }
}

/// Claimed entries and their new states. Dropped without a commit, the entries stay unchanged.
pub(crate) struct Transaction<'a, C: Clock> {
    table: &'a Table<C>,
    entries: SmallVec<[TransactionEntry<'a>; INLINE_ENTRIES]>,
    locks: SmallVec<[Guard<'a>; INLINE_ENTRIES]>,
}

/// One key of a transaction: its claimed entry, if it has one, and its working state.
struct TransactionEntry<'a> {
    version: &'a LimitVersion,
    hash: u64,
    view: Option<EntryView>,
    state: WorkingState,
    claimed: bool,
    /// What was logged, and when: to be removed if nothing is committed.
    undo: Option<(u64, u64)>,
}

/// The working state of an entry.
enum WorkingState {
    Word(u64),
    Handle(u64),
    /// There is no slot for it: the new state goes into the floor.
    OutOfTable(EntryState),
}

impl<C: Clock> Transaction<'_, C> {
    pub(crate) fn version(&self, at: usize) -> &LimitVersion {
        self.entries[at].version
    }

    /// Returns the refund totals of its slot.
    pub(crate) fn refund_totals(&self, at: usize) -> RefundTotals {
        let entry = &self.entries[at];
        entry
            .view
            .map(|view| self.table.refund_totals(entry.hash, view.slot))
            .unwrap_or_default()
    }

    pub(crate) fn is_log(&self, at: usize) -> bool {
        self.entries[at].version.normal.kind == Kind::Log
    }

    /// Whether it has neither a slot nor a floor its state could go to.
    pub(crate) fn has_no_slot(&self, at: usize) -> bool {
        let entry = &self.entries[at];
        entry.version.normal.kind == Kind::InFlight
            && matches!(entry.state, WorkingState::OutOfTable(_))
    }

    /// Judges one call on a claimed entry.
    pub(crate) fn judge(&mut self, at: usize, request: &CallRequest) -> CallResult {
        let table = self.table;
        let entry = &mut self.entries[at];
        match &mut entry.state {
            WorkingState::Word(word) => {
                let call = entry.version.judge_word(*word, request);
                *word = call.after.unwrap_or(*word);
                call
            }
            WorkingState::Handle(handle) => {
                let call = entry.version.judge_large(
                    &mut table.large_states.lock(*handle),
                    request,
                    &table.large_states.budget,
                );
                if request.write && call.decision.is_allowed() {
                    let before = entry.undo.map_or(0, |(_, units)| units);
                    entry.undo = Some((call.charged, before + request.cost));
                }
                call
            }
            WorkingState::OutOfTable(_) if entry.version.normal.kind == Kind::InFlight => {
                entry.version.table_full()
            }
            WorkingState::OutOfTable(state) => {
                let (call, after) = entry.version.judge(
                    core::mem::replace(state, EntryState::FRESH),
                    request,
                    &table.large_states.budget.for_new_state(),
                );
                *state = after;
                call
            }
        }
    }

    /// Writes every new state and releases the entries.
    pub(crate) fn commit(mut self) {
        for entry in self.entries.drain(..) {
            match (entry.state, entry.view) {
                (WorkingState::Word(word), Some(view)) => self.table.release_with(&view, word),
                (WorkingState::Handle(_), Some(view)) => self.table.release(&view),
                (WorkingState::OutOfTable(state), _) => {
                    self.table
                        .merge_into_floor(entry.hash, entry.version.id, state);
                }
                _ => {}
            }
        }
        self.locks.clear();
    }
}

impl<C: Clock> Drop for Transaction<'_, C> {
    fn drop(&mut self) {
        for entry in &self.entries {
            if let (WorkingState::Handle(handle), Some((charged_in, units))) =
                (&entry.state, entry.undo)
            {
                let refund = Refund {
                    charged_in,
                    cost: units,
                    unused: units,
                };
                self.table
                    .large_states
                    .lock(*handle)
                    .refund(&entry.version.normal, 0, refund);
            }
            if let (Some(view), true) = (&entry.view, entry.claimed) {
                self.table.release(view);
            }
        }
    }
}
