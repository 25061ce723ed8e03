//! Insertion and eviction.

use super::{
    BUSY, EMPTY, EntryView, LONG_FRESH_NANOS, PROBES, SLOTS, Slot, Table, VACANT, VERSION_BITS, tag,
};
use crate::clock::{Clock, Timestamp};
use crate::keyed::freshness::Freshness;
use crate::keyed::large_state::LargeState;
use crate::keyed::limit_version::{EntryState, LimitVersion};
use crate::sync::{Ordering, relax};

impl<C: Clock> Table<C> {
    /// Claims a slot for a new key, after evicting the key in it; `None` if all are busy or in
    /// flight.
    ///
    /// An empty slot comes first, or one whose key has not been used for long; then the one that
    /// has been fresh for longest, so that a key that is used now and then keeps its slot; then the
    /// one nearest to fresh.
    pub(super) fn claim_slot(&self, hash: u64, now: Timestamp) -> Option<Slot> {
        'again: for round in 0.. {
            if round > 0 {
                relax(round);
            }
            let mut best: Option<(Freshness, EntryView)> = None;
            'lanes: for probe in 0..PROBES {
                let cache_line = self.cache_line(hash, probe);
                for index in 0..SLOTS {
                    let slot = Slot(cache_line + index);
                    let tag = self.tag_at(slot).load(Ordering::Acquire);
                    if tag == EMPTY {
                        // Another new key may be taking it: slots fill in order.
                        let entry = EntryView {
                            slot,
                            tag,
                            stored: self.read(slot),
                        };
                        if !self.claim(&entry) {
                            continue 'again;
                        }
                        if self.tag_at(slot).load(Ordering::Relaxed) == EMPTY {
                            return Some(slot);
                        }
                        self.release(&entry);
                        continue 'again;
                    }
                    let stored = self.state_at(slot).load(Ordering::Acquire);
                    if stored == BUSY || self.tag_at(slot).load(Ordering::Acquire) != tag {
                        continue;
                    }
                    let entry = EntryView { slot, tag, stored };
                    match self.freshness(&entry, now) {
                        Some(fresh) if best.is_none_or(|(most, _)| fresh > most) => {
                            best = Some((fresh, entry));
                            if fresh > Freshness::FreshFor(LONG_FRESH_NANOS) {
                                break 'lanes;
                            }
                        }
                        _ => {}
                    }
                }
            }
            let (freshness, entry) = best?;
            if !self.claim(&entry) {
                continue;
            }
            self.evict(&entry, freshness, hash);
            return Some(entry.slot);
        }
        None
    }

    /// Returns how fresh an entry is; `None` if it must not be evicted, or has changed.
    pub(super) fn freshness(&self, entry: &EntryView, now: Timestamp) -> Option<Freshness> {
        if entry.tag == VACANT {
            return Some(Freshness::FreshFor(u64::MAX));
        }
        let version = self.version(entry.version());
        if version.fits_a_word() {
            return version.freshness(entry.word(), now);
        }
        let state = self.large_states.lock(entry.word());
        self.is_unchanged(entry)
            .then(|| Freshness::in_nanos(version.large_until_fresh(&state, now)))
    }

    /// Merges the state of a claimed entry into the floor of its limit, and counts the eviction.
    fn evict(&self, entry: &EntryView, freshness: Freshness, new_hash: u64) {
        if entry.tag == VACANT {
            return;
        }
        let version = self.version(entry.version());
        let state = if version.fits_a_word() {
            EntryState::Word(entry.word())
        } else {
            EntryState::Large(self.large_states.remove(entry.word()))
        };
        self.merge_into_floor(entry.tag >> VERSION_BITS, version.id, state);
        self.invalidate_charges(entry.slot);
        let stripe = self.stripe(new_hash);
        let count = if freshness.is_fresh() {
            &stripe.evicted_fresh
        } else {
            &stripe.evicted_live
        };
        count.fetch_add(1, Ordering::Relaxed);
        version
            .registered
            .count_evicted(freshness.is_fresh(), new_hash);
    }

    /// Frees bytes for a large state: evicts the large state nearest to fresh among the slots the
    /// new key may use.
    #[cold]
    fn evict_large_state(&self, hash: u64, now: Timestamp) -> bool {
        let mut best: Option<(Freshness, EntryView)> = None;
        for (probe, index) in
            (0..PROBES).flat_map(|probe| (0..SLOTS).map(move |index| (probe, index)))
        {
            let slot = Slot(self.cache_line(hash, probe) + index);
            let tag = self.tag_at(slot).load(Ordering::Acquire);
            let stored = self.state_at(slot).load(Ordering::Acquire);
            if tag == EMPTY
                || tag == VACANT
                || stored == BUSY
                || self.tag_at(slot).load(Ordering::Acquire) != tag
            {
                continue;
            }
            let entry = EntryView { slot, tag, stored };
            if self.version(entry.version()).fits_a_word() {
                continue;
            }
            match self.freshness(&entry, now) {
                Some(fresh) if best.is_none_or(|(most, _)| fresh > most) => {
                    best = Some((fresh, entry));
                }
                _ => {}
            }
        }
        let Some((freshness, entry)) = best.filter(|(_, entry)| self.claim(entry)) else {
            return false;
        };
        self.evict(&entry, freshness, hash);
        self.vacate(entry.slot);
        true
    }

    /// Returns the state that a key starts from when it is not in the table; `None` if `version` is
    /// no longer the current one.
    pub(super) fn initial_state(&self, hash: u64, version: &LimitVersion) -> Option<EntryState> {
        let start = version.initial_state(hash);
        // A key that was evicted since then is in the floor of the next version.
        (version.next.load(Ordering::Acquire) == 0).then_some(start)
    }

    /// Inserts a new key into the slot claimed for it, or, if there is none, merges its state into
    /// the floor. Only under the insert lock of its stripe.
    pub(super) fn insert(
        &self,
        slot: Option<Slot>,
        hash: u64,
        version: &LimitVersion,
        now: Timestamp,
        state: EntryState,
    ) {
        if let Some(slot) = slot {
            match state {
                EntryState::Word(word) => {
                    return self.release_to(slot, tag(hash, version.id), word);
                }
                EntryState::Large(state) => match self.insert_large_state(hash, now, state) {
                    Ok(handle) => return self.release_to(slot, tag(hash, version.id), handle),
                    Err(state) => {
                        self.vacate(slot);
                        return self.merge_into_floor(hash, version.id, EntryState::Large(state));
                    }
                },
            }
        }
        self.merge_into_floor(hash, version.id, state);
    }

    /// Stores a large state, after evicting others if needed.
    fn insert_large_state(
        &self,
        hash: u64,
        now: Timestamp,
        mut state: LargeState,
    ) -> Result<u64, LargeState> {
        loop {
            match self.large_states.insert(state) {
                Ok(handle) => return Ok(handle),
                Err(back) if !self.evict_large_state(hash, now) => return Err(back),
                Err(back) => state = back,
            }
        }
    }

    /// Returns the instant at which a key moves to another limit: not in the past, where it may
    /// have used less than it has.
    pub(super) fn present(&self, now: Timestamp) -> Timestamp {
        now.max(self.clock.now())
    }

    /// Releases a claimed slot without a key.
    fn vacate(&self, slot: Slot) {
        self.invalidate_charges(slot);
        self.release_to(slot, VACANT, 0);
    }

    /// Converts an entry to another version, if it is unchanged and not of a later version.
    #[cold]
    pub(super) fn convert(&self, entry: &EntryView, hash: u64, to: &LimitVersion, now: Timestamp) {
        if !self.claim(entry) {
            return;
        }
        let from = self.version(entry.version());
        let state = if from.fits_a_word() {
            EntryState::Word(entry.word())
        } else {
            EntryState::Large(self.large_states.lock(entry.word()).clone())
        };
        let Some(state) = self.convert_to(state, from.id, to, self.present(now)) else {
            return self.release(entry);
        };
        if from.registered.number != to.registered.number {
            // Charges made under one limit do not know what refills under another.
            self.invalidate_charges(entry.slot);
        }
        if !from.fits_a_word() {
            self.large_states.remove(entry.word());
        }
        match state {
            EntryState::Word(word) => self.release_to(entry.slot, tag(hash, to.id), word),
            EntryState::Large(state) => match self.insert_large_state(hash, now, state) {
                Ok(handle) => self.release_to(entry.slot, tag(hash, to.id), handle),
                Err(state) => {
                    // No bytes left for it: the key is evicted.
                    self.merge_into_floor(hash, to.id, EntryState::Large(state));
                    self.vacate(entry.slot);
                }
            },
        }
    }
}
