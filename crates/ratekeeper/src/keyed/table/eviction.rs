//! Coming and going: how a newcomer finds room, and what becomes of who was there.

use super::{BUSY, EMPTY, EntryView, LANES, LONG, NOBODY, SLOTS, Slot, TERMS_BITS, Table, tag};
use crate::clock::{Clock, Timestamp};
use crate::keyed::freshness::Freshness;
use crate::keyed::large_state::LargeState;
use crate::keyed::limit_version::{EntryState, LimitVersion};
use crate::sync::{Ordering, relax};

impl<C: Clock> Table<C> {
    /// Claims a slot for a newcomer, having evicted who was there; none if all are busy or in
    /// flight.
    ///
    /// An empty slot comes first, or one whose key has not been used for long; then the one that
    /// has been fresh for longest, so that a key that comes back now and then stays where it is;
    /// then the one that is nearest to fresh.
    pub(super) fn make_room(&self, hash: u64, now: Timestamp) -> Option<Slot> {
        'again: for round in 0.. {
            if round > 0 {
                relax(round);
            }
            let mut best: Option<(Freshness, EntryView)> = None;
            'lanes: for lane in 0..LANES {
                let line = self.line(hash, lane);
                for slot in 0..SLOTS {
                    let place = Slot(line + slot);
                    let tag = self.tag_at(place).load(Ordering::Acquire);
                    if tag == EMPTY {
                        // Another newcomer may be at it: slots fill in order.
                        let seen = EntryView {
                            place,
                            tag,
                            stored: self.read(place),
                        };
                        if !self.claim(&seen) {
                            continue 'again;
                        }
                        if self.tag_at(place).load(Ordering::Relaxed) == EMPTY {
                            return Some(place);
                        }
                        self.release(&seen);
                        continue 'again;
                    }
                    let stored = self.state_at(place).load(Ordering::Acquire);
                    if stored == BUSY || self.tag_at(place).load(Ordering::Acquire) != tag {
                        continue;
                    }
                    let seen = EntryView { place, tag, stored };
                    match self.freshness(&seen, now) {
                        Some(fresh) if best.is_none_or(|(most, _)| fresh > most) => {
                            best = Some((fresh, seen));
                            if fresh > Freshness::For(LONG) {
                                break 'lanes;
                            }
                        }
                        _ => {}
                    }
                }
            }
            let (freshness, seen) = best?;
            if !self.claim(&seen) {
                continue;
            }
            self.evict(&seen, freshness, hash);
            return Some(seen.place);
        }
        None
    }

    /// How fresh an entry is; none if it may not go at all, or is gone already.
    pub(super) fn freshness(&self, seen: &EntryView, now: Timestamp) -> Option<Freshness> {
        if seen.tag == NOBODY {
            return Some(Freshness::For(u64::MAX));
        }
        let terms = self.terms(seen.terms());
        if terms.fits_a_word() {
            return terms.freshness(seen.word(), now);
        }
        let held = self.wides.lock(seen.word());
        self.is_still(seen)
            .then(|| Freshness::of(terms.large_until_fresh(&held, now)))
    }

    /// Joins the state of a claimed entry into the floor of its limit, and counts it.
    fn evict(&self, seen: &EntryView, freshness: Freshness, newcomer: u64) {
        if seen.tag == NOBODY {
            return;
        }
        let terms = self.terms(seen.terms());
        let state = match terms.fits_a_word() {
            true => EntryState::Word(seen.word()),
            false => EntryState::Wide(self.wides.forget(seen.word())),
        };
        self.sink(seen.tag >> TERMS_BITS, terms.id, state);
        self.void(seen.place);
        let stripe = self.stripe(newcomer);
        let count = if freshness.is_fresh() {
            &stripe.evicted_fresh
        } else {
            &stripe.evicted_live
        };
        count.fetch_add(1, Ordering::Relaxed);
        terms
            .registered
            .count_evicted(freshness.is_fresh(), newcomer);
    }

    /// Frees bytes for a wide state: evicts wide states of those a newcomer may displace, nearest
    /// to fresh first.
    #[cold]
    fn shed(&self, hash: u64, now: Timestamp) -> bool {
        let mut best: Option<(Freshness, EntryView)> = None;
        for place in (0..LANES).flat_map(|lane| (0..SLOTS).map(move |slot| (lane, slot))) {
            let place = Slot(self.line(hash, place.0) + place.1);
            let tag = self.tag_at(place).load(Ordering::Acquire);
            let stored = self.state_at(place).load(Ordering::Acquire);
            if tag == EMPTY
                || tag == NOBODY
                || stored == BUSY
                || self.tag_at(place).load(Ordering::Acquire) != tag
            {
                continue;
            }
            let seen = EntryView { place, tag, stored };
            if self.terms(seen.terms()).fits_a_word() {
                continue;
            }
            match self.freshness(&seen, now) {
                Some(fresh) if best.is_none_or(|(most, _)| fresh > most) => {
                    best = Some((fresh, seen))
                }
                _ => {}
            }
        }
        let Some((freshness, seen)) = best.filter(|(_, seen)| self.claim(seen)) else {
            return false;
        };
        self.evict(&seen, freshness, hash);
        self.vacate(seen.place);
        true
    }

    /// The state that a key starts from when it is not in the table. `None` if `terms` is no longer
    /// the current version.
    pub(super) fn start(&self, hash: u64, terms: &LimitVersion) -> Option<EntryState> {
        let start = terms.start(hash);
        // A key that was displaced since then is in the floor of the next terms.
        (terms.next.load(Ordering::Acquire) == 0).then_some(start)
    }

    /// Puts a newcomer where room was made for it, or, if there is none, into the floor. Only with
    /// the lock of its stripe.
    pub(super) fn put(
        &self,
        room: Option<Slot>,
        hash: u64,
        terms: &LimitVersion,
        now: Timestamp,
        state: EntryState,
    ) {
        if let Some(place) = room {
            match state {
                EntryState::Word(word) => return self.release_to(place, tag(hash, terms.id), word),
                EntryState::Wide(wide) => match self.keep(hash, now, wide) {
                    Ok(handle) => return self.release_to(place, tag(hash, terms.id), handle),
                    Err(wide) => {
                        self.vacate(place);
                        return self.sink(hash, terms.id, EntryState::Wide(wide));
                    }
                },
            }
        }
        self.sink(hash, terms.id, state);
    }

    /// Keeps a wide state, if need be in the place of others.
    fn keep(&self, hash: u64, now: Timestamp, mut state: LargeState) -> Result<u64, LargeState> {
        loop {
            match self.wides.keep(state) {
                Ok(handle) => return Ok(handle),
                Err(back) if !self.shed(hash, now) => return Err(back),
                Err(back) => state = back,
            }
        }
    }

    /// The instant at which a key changes plan: not in the past, where it may have used less than
    /// it has.
    pub(super) fn present(&self, now: Timestamp) -> Timestamp {
        now.max(self.clock.now())
    }

    /// Leaves a claimed slot to nobody.
    fn vacate(&self, place: Slot) {
        self.void(place);
        self.release_to(place, NOBODY, 0);
    }

    /// Brings an entry to other terms than it is counted by, if it is what it was and not ahead of
    /// them.
    #[cold]
    pub(super) fn convert(&self, seen: &EntryView, hash: u64, to: &LimitVersion, now: Timestamp) {
        if !self.claim(seen) {
            return;
        }
        let from = self.terms(seen.terms());
        let state = match from.fits_a_word() {
            true => EntryState::Word(seen.word()),
            false => EntryState::Wide(self.wides.lock(seen.word()).clone()),
        };
        let Some(state) = self.bring(state, from.id, to, self.present(now)) else {
            return self.release(seen);
        };
        if from.registered.number != to.registered.number {
            // What time brings under one plan is not known to charges that were made under another.
            self.void(seen.place);
        }
        if !from.fits_a_word() {
            self.wides.forget(seen.word());
        }
        match state {
            EntryState::Word(word) => self.release_to(seen.place, tag(hash, to.id), word),
            EntryState::Wide(wide) => match self.keep(hash, now, wide) {
                Ok(handle) => self.release_to(seen.place, tag(hash, to.id), handle),
                Err(wide) => {
                    // No bytes left for it: the key is displaced.
                    self.sink(hash, to.id, EntryState::Wide(wide));
                    self.vacate(seen.place);
                }
            },
        }
    }
}
