//! Coming and going: how a newcomer finds room, and what becomes of who was there.

use super::{BUSY, EMPTY, LANES, LONG, NOBODY, Place, SLOTS, Seen, TERMS_BITS, Table, tag};
use crate::clock::{Clock, Instant};
use crate::keyed::terms::{Freshness, State, Terms};
use crate::keyed::wide::WideState;
use crate::sync::{Ordering, relax};

impl<C: Clock> Table<C> {
    /// Claims a slot for a newcomer, having evicted who was there; none if all are busy or in
    /// flight.
    ///
    /// An empty slot comes first, or one whose key has not been used for long; then the one that
    /// has been fresh for longest, so that a key that comes back now and then stays where it is;
    /// then the one that is nearest to fresh.
    pub(super) fn make_room(&self, hash: u64, now: Instant) -> Option<Place> {
        'again: for round in 0.. {
            if round > 0 {
                relax(round);
            }
            let mut best: Option<(Freshness, Seen)> = None;
            'lanes: for lane in 0..LANES {
                let line = self.line(hash, lane);
                for slot in 0..SLOTS {
                    let place = Place(line + slot);
                    let tag = self.tag_at(place).load(Ordering::Acquire);
                    if tag == EMPTY {
                        // Another newcomer may be at it: slots fill in order.
                        let seen = Seen {
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
                    let seen = Seen { place, tag, stored };
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
    pub(super) fn freshness(&self, seen: &Seen, now: Instant) -> Option<Freshness> {
        if seen.tag == NOBODY {
            return Some(Freshness::For(u64::MAX));
        }
        let terms = self.terms(seen.terms());
        if terms.fits_a_word() {
            return terms.freshness(seen.word(), now);
        }
        let held = self.wides.lock(seen.word());
        self.is_still(seen)
            .then(|| Freshness::of(terms.wide_until_fresh(&held, now)))
    }

    /// Joins the state of a claimed entry into the floor of its limit, and counts it.
    fn evict(&self, seen: &Seen, freshness: Freshness, newcomer: u64) {
        if seen.tag == NOBODY {
            return;
        }
        let terms = self.terms(seen.terms());
        let state = match terms.fits_a_word() {
            true => State::Word(seen.word()),
            false => State::Wide(self.wides.forget(seen.word())),
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
        terms.line.count_evicted(freshness.is_fresh(), newcomer);
    }

    /// Frees bytes for a wide state: evicts wide states of those a newcomer may displace, nearest
    /// to fresh first.
    #[cold]
    fn shed(&self, hash: u64, now: Instant) -> bool {
        let mut best: Option<(Freshness, Seen)> = None;
        for place in (0..LANES).flat_map(|lane| (0..SLOTS).map(move |slot| (lane, slot))) {
            let place = Place(self.line(hash, place.0) + place.1);
            let tag = self.tag_at(place).load(Ordering::Acquire);
            let stored = self.state_at(place).load(Ordering::Acquire);
            if tag == EMPTY
                || tag == NOBODY
                || stored == BUSY
                || self.tag_at(place).load(Ordering::Acquire) != tag
            {
                continue;
            }
            let seen = Seen { place, tag, stored };
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
    pub(super) fn start(&self, hash: u64, terms: &Terms) -> Option<State> {
        let start = terms.start(hash);
        // A key that was displaced since then is in the floor of the next terms.
        (terms.next.load(Ordering::Acquire) == 0).then_some(start)
    }

    /// Puts a newcomer where room was made for it, or, if there is none, into the floor. Only with
    /// the lock of its stripe.
    pub(super) fn put(
        &self,
        room: Option<Place>,
        hash: u64,
        terms: &Terms,
        now: Instant,
        state: State,
    ) {
        if let Some(place) = room {
            match state {
                State::Word(word) => return self.release_to(place, tag(hash, terms.id), word),
                State::Wide(wide) => match self.keep(hash, now, wide) {
                    Ok(handle) => return self.release_to(place, tag(hash, terms.id), handle),
                    Err(wide) => {
                        self.vacate(place);
                        return self.sink(hash, terms.id, State::Wide(wide));
                    }
                },
            }
        }
        self.sink(hash, terms.id, state);
    }

    /// Keeps a wide state, if need be in the place of others.
    fn keep(&self, hash: u64, now: Instant, mut state: WideState) -> Result<u64, WideState> {
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
    pub(super) fn present(&self, now: Instant) -> Instant {
        now.max(self.clock.now())
    }

    /// Leaves a claimed slot to nobody.
    fn vacate(&self, place: Place) {
        self.void(place);
        self.release_to(place, NOBODY, 0);
    }

    /// Brings an entry to other terms than it is counted by, if it is what it was and not ahead of
    /// them.
    #[cold]
    pub(super) fn convert(&self, seen: &Seen, hash: u64, to: &Terms, now: Instant) {
        if !self.claim(seen) {
            return;
        }
        let from = self.terms(seen.terms());
        let state = match from.fits_a_word() {
            true => State::Word(seen.word()),
            false => State::Wide(self.wides.lock(seen.word()).clone()),
        };
        let Some(state) = self.bring(state, from.id, to, self.present(now)) else {
            return self.release(seen);
        };
        if from.line.number != to.line.number {
            // What time brings under one plan is not known to charges that were made under another.
            self.void(seen.place);
        }
        if !from.fits_a_word() {
            self.wides.forget(seen.word());
        }
        match state {
            State::Word(word) => self.release_to(seen.place, tag(hash, to.id), word),
            State::Wide(wide) => match self.keep(hash, now, wide) {
                Ok(handle) => self.release_to(seen.place, tag(hash, to.id), handle),
                Err(wide) => {
                    // No bytes left for it: the key is displaced.
                    self.sink(hash, to.id, State::Wide(wide));
                    self.vacate(seen.place);
                }
            },
        }
    }
}
