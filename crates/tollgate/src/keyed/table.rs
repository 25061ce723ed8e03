//! Many keys in a fixed number of cache lines.
//!
//! An entry is two words: a tag (which key, by hash, and which terms it is counted by) and a state. Four share a cache
//! line; a key has a home line and a few others it may live in, and is found in its home line nearly always. The table
//! never grows and never moves an entry. Nothing of a key is stored but its hash.
//!
//! **Reading and writing.** A call that finds its entry decides with one compare-and-swap of the state. A state is stored
//! mixed with its tag, so that a swap can succeed only on the entry it was read from. Whatever is rarer *claims* the
//! entry: the state becomes `BUSY`, the others wait for the few instructions that takes, and the claimer may change the
//! tag as well.
//!
//! **Room.** Slots fill from the first line on and are never emptied, so the first empty slot ends a search. A newcomer
//! takes an empty slot, else that of the key which has been fresh for longest, else the one nearest to fresh; what was there is joined into the
//! floor of its limit before its tag goes, so that whoever misses its key finds it in the floor. (Fresh or not: an instant
//! before the key was fresh may still come.) Inserts of one key exclude each other by a lock that a part of all keys
//! shares and that nobody takes who finds its key.

use super::hash::Secret;
use super::terms::{Asked, Call, Freshness, Line, Rule, State, Terms};
use super::wide::{Budget, WideState, Wides};
use crate::chunks::Chunks;
use crate::clock::{Clock, Instant};
use crate::decision::Decision;
use crate::limit::{Kind, Limit};
use crate::limiter::Carry;
use crate::limiter::cell::{Quick, REACH, Reach, reach};
use crate::store::FEW;
use crate::sync::{AtomicU32, AtomicU64, Guard, Lock, OnceBox, Ordering, back_off, fence, relax};
use core::hash::Hash;
use smallvec::SmallVec;
use std::boxed::Box;
use std::sync::Arc;

const SLOTS: usize = 4;
const WORDS: usize = 2 * SLOTS;

/// Lines a key may live in. At the cap half of all slots are live: all slots of six lines are then live for less than
/// one newcomer in a million, and 96 of 100 keys live in their first line.
#[cfg(not(tollgate_loom))]
const LANES: usize = 6;
#[cfg(tollgate_loom)]
const LANES: usize = 1;

#[cfg(not(tollgate_loom))]
const STRIPES: usize = 256;
#[cfg(tollgate_loom)]
const STRIPES: usize = 1;

/// A line, and its cold words.
const BYTES_A_LINE: usize = WORDS * 8 + 2 * 8;

/// The state of an entry that somebody has claimed.
const BUSY: u64 = u64::MAX;
const EMPTY: u64 = 0;
/// The tag of a slot whose key was displaced for want of bytes: no key has it.
const NOBODY: u64 = 1 << 63;

/// A key that has been fresh for so many nanoseconds makes room before empty slots further from home do.
const LONG: u64 = 60_000_000_000;

/// A tag: 39 bits of hash, then the number of the terms. The highest bit is 0.
const TERMS_BITS: u32 = 24;
const MOST_TERMS: u32 = (1 << TERMS_BITS) - 1;
const HASH_BITS: u32 = 39;

/// One odd factor a lane: the highest bits of the product choose the line.
const FACTORS: [u64; 6] = [
    1,
    0x9e37_79b9_7f4a_7c15,
    0xc2b2_ae3d_27d4_eb4f,
    0x1656_67b1_9e37_79f9,
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
];

pub(crate) struct Table<C> {
    words: Box<[AtomicU64]>,
    /// Where the first line begins, so that each is a cache line.
    offset: usize,
    lines: u64,
    clock: C,
    secret: Secret,
    terms: Chunks<OnceBox<Arc<Terms>>>,
    last_terms: AtomicU32,
    stripes: Box<[Stripe]>,
    /// Two words a line: what cancels gave back from under later reservations, and what came back in all. Shared by the
    /// keys of a home line, which is only stricter.
    cold: Box<[AtomicU64]>,
    wides: Wides,
    max_keys: u64,
}

/// What a part of all keys shares.
#[cfg_attr(not(tollgate_loom), repr(align(64)))]
struct Stripe {
    inserting: Lock,
    evicted_fresh: AtomicU64,
    evicted_live: AtomicU64,
}

/// How many keys a table holds, and what became of others. What [`Keyed::figures`](crate::Keyed::figures) returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Figures {
    /// Keys that it was made for.
    pub max_keys: u64,
    /// Keys in it, fresh ones that nobody has needed the room of among them.
    pub keys: u64,
    /// Keys in it that have used something which has not come back yet. Counting them reads the whole table.
    pub live: u64,
    /// Fresh keys that were forgotten, which changes no decision.
    pub evicted_fresh: u64,
    /// Live keys that were displaced into the floor of their limit.
    pub evicted_live: u64,
    /// Bytes it may use by now: the table, and states that do not fit it.
    pub bytes: u64,
}

/// How large a table may be.
#[derive(Clone, Copy)]
pub(crate) struct Cap {
    pub(crate) keys: usize,
    pub(crate) bytes: Option<usize>,
}

impl Default for Cap {
    fn default() -> Self {
        Self { keys: 1_000_000, bytes: None }
    }
}

/// Where an entry is: the index of its tag; its state is [`SLOTS`] further.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place(usize);

/// An entry as it was read.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) place: Place,
    pub(crate) tag: u64,
    stored: u64,
}

impl Seen {
    pub(crate) fn terms(&self) -> u32 {
        self.tag as u32 & MOST_TERMS
    }

    /// The state, or the handle of a wide one.
    #[inline]
    pub(crate) fn word(&self) -> u64 {
        self.stored ^ self.tag
    }
}

/// A key that belongs to a line of several.
#[derive(Hash)]
struct Named<'a> {
    line: u64,
    key: &'a [u8],
}

#[inline]
fn tag(hash: u64, terms: u32) -> u64 {
    (hash & ((1 << HASH_BITS) - 1)) << TERMS_BITS | u64::from(terms)
}

/// The state as it is stored under a tag: never `BUSY`. (Handles and counts are below 2^63, so they are never moved.)
#[inline]
fn mix(tag: u64, word: u64) -> u64 {
    match word ^ tag {
        // One tick more, or one count, is on the strict side.
        BUSY => (word + 1) ^ tag,
        stored => stored,
    }
}

impl<C: Clock> Table<C> {
    pub(crate) fn new(cap: Cap, clock: C) -> Self {
        let lines = (cap.keys.max(1).saturating_mul(2)).div_ceil(SLOTS);
        let lines = match cap.bytes {
            Some(bytes) => lines.min(bytes.saturating_sub(8 * WORDS) / BYTES_A_LINE).max(1),
            None => lines,
        };
        let max_keys = cap.keys.min(lines * SLOTS / 2);
        let wide_bytes = match cap.bytes {
            Some(bytes) => bytes.saturating_sub(lines * BYTES_A_LINE + 8 * WORDS),
            None => max_keys.saturating_mul(256),
        };
        // Seven more, to begin on a cache line wherever the allocation does.
        let words = zeroed(lines * WORDS + WORDS - 1);
        let offset = words.as_ptr().align_offset(64).min(WORDS - 1);
        Self {
            words,
            offset,
            lines: lines as u64,
            clock,
            secret: Secret::new(),
            terms: Chunks::new(),
            last_terms: AtomicU32::new(0),
            stripes: (0..STRIPES).map(|_| Stripe::new()).collect(),
            cold: zeroed(2 * lines),
            wides: Wides::new(wide_bytes as u64),
            max_keys: max_keys as u64,
        }
    }

    #[inline]
    pub(crate) fn clock(&self) -> &C {
        &self.clock
    }

    #[inline]
    pub(crate) fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.secret.hash(key)
    }

    /// The hash of a key that belongs to a line of several.
    #[inline]
    pub(crate) fn hash_in(&self, line: u64, key: &[u8]) -> u64 {
        self.secret.hash(&Named { line, key })
    }

    #[inline]
    fn line(&self, hash: u64, lane: usize) -> usize {
        let spread = hash.wrapping_mul(FACTORS[lane]);
        let line = (u128::from(spread) * u128::from(self.lines)) >> 64;
        self.offset + line as usize * WORDS
    }

    fn stripe(&self, hash: u64) -> &Stripe {
        // Other bits than the home line's, which are the highest.
        &self.stripes[hash as usize % STRIPES]
    }

    /// What cancels gave back from under later reservations, and what came back in all, of the keys around this one.
    pub(crate) fn cold(&self, hash: u64) -> (&AtomicU64, &AtomicU64) {
        let at = 2 * (self.line(hash, 0) - self.offset) / WORDS;
        (&self.cold[at], &self.cold[at + 1])
    }

    #[inline]
    fn tag_at(&self, place: Place) -> &AtomicU64 {
        &self.words[place.0]
    }

    #[inline]
    fn state_at(&self, place: Place) -> &AtomicU64 {
        &self.words[place.0 + SLOTS]
    }
}

/// # Terms
impl<C: Clock> Table<C> {
    #[inline]
    pub(crate) fn terms(&self, id: u32) -> &Terms {
        // Every tag names terms that were registered before it was written.
        self.terms.get(u64::from(id)).and_then(|terms| terms.get()).expect("terms of a tag are registered")
    }

    fn register(&self, make: impl FnOnce(u32) -> Terms) -> Option<Arc<Terms>> {
        let taken = |last: u32| (last < MOST_TERMS).then_some(last + 1);
        let id = self.last_terms.fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken).ok()? + 1;
        let terms = Arc::new(make(id));
        self.terms.get_or_make(u64::from(id), OnceBox::new).get_or_init(|| Box::new(terms.clone()));
        Some(terms)
    }

    /// A line of its own for a limit; none if there have been too many.
    pub(crate) fn new_line(&self, number: u64, name: &str, rule: Rule) -> Option<Arc<Terms>> {
        let line = Arc::new(Line::new(number, name, rule));
        let terms = self.register(|id| Terms::first(id, line, rule, self.clock.now()))?;
        terms.line.current.store(terms.id, Ordering::SeqCst);
        Some(terms)
    }

    /// The terms in force on the line that began with `first`.
    #[inline]
    pub(crate) fn current<'a>(&'a self, first: &'a Terms) -> &'a Terms {
        match first.line.current.load(Ordering::Acquire) {
            id if id == first.id => first,
            id => self.terms(id),
        }
    }

    pub(crate) fn change(&self, line: &Line, rule: Rule, carry: Carry, now: impl FnOnce() -> Instant) {
        let _held = line.changing.hold();
        let old = self.terms(line.current.load(Ordering::SeqCst));
        if (carry != Carry::Reset && old.rule == rule) || !self.succeed(old, rule, carry, now()) {
            return;
        }
        line.changes.fetch_add(1, Ordering::Relaxed);
        line.set_rule(rule);
    }

    /// The same limit, counted from a new origin: `now` is more than eight years from the last.
    #[cold]
    pub(crate) fn rebase(&self, line: &Line, now: Instant) {
        let _held = line.changing.hold();
        let old = self.terms(line.current.load(Ordering::SeqCst));
        if let Reach::Late = reach(&old.normal, old.origin, now) {
            self.succeed(old, old.rule, Carry::Keep, now);
        }
    }

    fn succeed(&self, old: &Terms, rule: Rule, carry: Carry, now: Instant) -> bool {
        let Some(next) = self.register(|id| Terms::after(id, old, rule, carry, now)) else { return false };
        next.inherit(old);
        // Whoever displaces a key from here on joins it into the next floor; what came before is inherited once more.
        // The fences: either `sink` sees that there is a next, or what it sank is seen here.
        old.next.store(next.id, Ordering::Release);
        fence(Ordering::SeqCst);
        next.inherit(old);
        old.line.current.store(next.id, Ordering::Release);
        true
    }

    /// The state as it is under `to`, and whether it could be brought there: not if it is already ahead of it.
    fn bring(&self, state: State, from: u32, to: &Terms, now: Instant) -> Option<State> {
        let (mut state, mut terms) = (state, self.terms(from));
        while terms.id != to.id {
            match terms.next.load(Ordering::Acquire) {
                0 if terms.line.number == to.line.number && terms.id > to.id => return None,
                0 => return Some(to.adopt(terms, &state, now)),
                next => {
                    let next = self.terms(next);
                    state = next.succeed(terms, &state);
                    terms = next;
                }
            }
        }
        Some(state)
    }

    /// Joins the state of a key that leaves into the floor of its limit.
    fn sink(&self, hash: u64, from: u32, mut state: State) {
        let mut terms = self.terms(from);
        loop {
            let mut next = terms.next.load(Ordering::Acquire);
            if next == 0 {
                terms.sink(hash, &state);
                // A change that came in between may have inherited the floor before.
                fence(Ordering::SeqCst);
                next = terms.next.load(Ordering::Acquire);
            }
            if next == 0 {
                return;
            }
            let next = self.terms(next);
            state = next.succeed(terms, &state);
            terms = next;
        }
    }
}

/// # Finding and claiming
impl<C: Clock> Table<C> {
    /// The entry of a key in one of its lines, if it is there under these terms and nobody is busy with it.
    #[inline(always)]
    fn glance(&self, hash: u64, terms: u32, lane: usize) -> Option<Seen> {
        let (start, wanted) = (self.line(hash, lane), tag(hash, terms));
        let line = self.words[start..].first_chunk::<WORDS>()?;
        // Which slot it is cannot be predicted, so no branch is made of it: a wrong guess costs more than all four.
        let is = |slot: usize| usize::from(line[slot].load(Ordering::Relaxed) == wanted);
        let (one, two, three) = (is(1), is(2), is(3));
        let slot = one | two << 1 | three | three << 1;
        let stored = line[slot + SLOTS].load(Ordering::Acquire);
        // A tag is written before the state of its key is: if it is what was wanted, so is the state.
        let same = line[slot].load(Ordering::Relaxed) == wanted;
        (same && stored != BUSY).then_some(Seen { place: Place(start + slot), tag: wanted, stored })
    }

    /// The entry of a key, under whichever terms.
    pub(crate) fn find(&self, hash: u64) -> Option<Seen> {
        let wanted = tag(hash, 0);
        'again: loop {
            for lane in 0..LANES {
                let line = self.line(hash, lane);
                for slot in 0..SLOTS {
                    let place = Place(line + slot);
                    let tag = self.tag_at(place).load(Ordering::Acquire);
                    if tag == EMPTY {
                        return None;
                    }
                    if (tag ^ wanted) >> TERMS_BITS != 0 {
                        continue;
                    }
                    let stored = self.read(place);
                    if self.tag_at(place).load(Ordering::Acquire) != tag {
                        continue 'again;
                    }
                    return Some(Seen { place, tag, stored });
                }
            }
            return None;
        }
    }

    /// The state of an entry, once nobody is busy with it.
    fn read(&self, place: Place) -> u64 {
        let mut round = 0;
        loop {
            match self.state_at(place).load(Ordering::Acquire) {
                BUSY => relax(round),
                stored => return stored,
            }
            round += 1;
        }
    }

    /// Writes a state, if the entry is what it was.
    #[inline(always)]
    fn swap(&self, seen: &Seen, word: u64) -> bool {
        let (state, next) = (self.state_at(seen.place), mix(seen.tag, word));
        state.compare_exchange(seen.stored, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Makes an entry one's own, if it is what it was.
    fn claim(&self, seen: &Seen) -> bool {
        let state = self.state_at(seen.place);
        state.compare_exchange(seen.stored, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Gives up a claim; the entry stays what it was.
    pub(crate) fn release(&self, seen: &Seen) {
        self.state_at(seen.place).store(seen.stored, Ordering::Release);
    }

    /// Gives up a claim, leaving another state.
    pub(crate) fn release_as(&self, seen: &Seen, word: u64) {
        self.state_at(seen.place).store(mix(seen.tag, word), Ordering::Release);
    }

    /// Gives up a claim, leaving another key or other terms.
    fn release_to(&self, place: Place, tag: u64, word: u64) {
        self.tag_at(place).store(tag, Ordering::Release);
        self.state_at(place).store(mix(tag, word), Ordering::Release);
    }
}

/// # Coming and going
impl<C: Clock> Table<C> {
    /// Claims a slot for a newcomer, having evicted who was there; none if all are busy or in flight.
    ///
    /// An empty slot comes first, or one whose key has not been used for long; then the one that has been fresh for
    /// longest, so that a key that comes back now and then stays where it is; then the one that is nearest to fresh.
    fn make_room(&self, hash: u64, now: Instant) -> Option<Place> {
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
                        let seen = Seen { place, tag, stored: self.read(place) };
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
    fn freshness(&self, seen: &Seen, now: Instant) -> Option<Freshness> {
        if seen.tag == NOBODY {
            return Some(Freshness::For(u64::MAX));
        }
        let terms = self.terms(seen.terms());
        if terms.fits_a_word() {
            return terms.freshness(seen.word(), now);
        }
        let held = self.wides.lock(seen.word());
        self.is_still(seen).then(|| Freshness::of(terms.wide_until_fresh(&held, now)))
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
        let stripe = self.stripe(newcomer);
        let count = if freshness.is_fresh() { &stripe.evicted_fresh } else { &stripe.evicted_live };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Frees bytes for a wide state: evicts wide states of those a newcomer may displace, nearest to fresh first.
    #[cold]
    fn shed(&self, hash: u64, now: Instant) -> bool {
        let mut best: Option<(Freshness, Seen)> = None;
        for place in (0..LANES).flat_map(|lane| (0..SLOTS).map(move |slot| (lane, slot))) {
            let place = Place(self.line(hash, place.0) + place.1);
            let tag = self.tag_at(place).load(Ordering::Acquire);
            let stored = self.state_at(place).load(Ordering::Acquire);
            if tag == EMPTY || tag == NOBODY || stored == BUSY || self.tag_at(place).load(Ordering::Acquire) != tag {
                continue;
            }
            let seen = Seen { place, tag, stored };
            if self.terms(seen.terms()).fits_a_word() {
                continue;
            }
            match self.freshness(&seen, now) {
                Some(fresh) if best.is_none_or(|(most, _)| fresh > most) => best = Some((fresh, seen)),
                _ => {}
            }
        }
        let Some((freshness, seen)) = best.filter(|(_, seen)| self.claim(seen)) else { return false };
        self.evict(&seen, freshness, hash);
        self.release_to(seen.place, NOBODY, 0);
        true
    }

    /// What a key starts from that is not in the table; none if the terms are not in force any more. `plans` are lines
    /// that know the same keys.
    fn start(&self, hash: u64, terms: &Terms, now: Instant, plans: Option<&Plans>) -> Option<State> {
        let mut start = terms.start(hash);
        if let Some(plans) = plans.filter(|plans| plans.len() > 1) {
            for other in plans.iter().map(|first| self.current(first)) {
                if other.id == terms.id || !other.has_floor() {
                    continue;
                }
                start = terms.joined(start, terms.adopt(other, &other.start(hash), now));
            }
        }
        // A key that was displaced since then is in the floor of the next terms.
        (terms.next.load(Ordering::Acquire) == 0).then_some(start)
    }

    /// Puts a newcomer in, or, if there is no room, into the floor. Only with the lock of its stripe.
    fn put(&self, hash: u64, terms: &Terms, now: Instant, state: State) {
        if let Some(place) = self.make_room(hash, now) {
            match state {
                State::Word(word) => return self.release_to(place, tag(hash, terms.id), word),
                State::Wide(wide) => match self.keep(hash, now, wide) {
                    Ok(handle) => return self.release_to(place, tag(hash, terms.id), handle),
                    Err(wide) => {
                        self.release_to(place, NOBODY, 0);
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

    /// Brings an entry to other terms than it is counted by, if it is what it was and not ahead of them.
    #[cold]
    fn convert(&self, seen: &Seen, hash: u64, to: &Terms, now: Instant) {
        if !self.claim(seen) {
            return;
        }
        let from = self.terms(seen.terms());
        let state = match from.fits_a_word() {
            true => State::Word(seen.word()),
            false => State::Wide(self.wides.lock(seen.word()).clone()),
        };
        let Some(state) = self.bring(state, from.id, to, now) else { return self.release(seen) };
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
                    self.release_to(seen.place, NOBODY, 0);
                }
            },
        }
    }
}

/// # Calls
impl<C: Clock> Table<C> {
    /// A check that wants nothing but a decision. The common case in a straight line: the key is at home, its limit a
    /// bucket, nobody comes in between.
    ///
    /// The clock is read once the line is on its way: the two waits are one.
    #[inline(always)]
    pub(crate) fn check(
        &self,
        first: &Terms,
        hash: u64,
        now: impl FnOnce() -> Instant,
        cost: u64,
        plans: Option<&Plans>,
    ) -> Decision {
        let terms = self.current(first);
        let seen = self.glance(hash, terms.id, 0);
        let now = now();
        match seen.and_then(|seen| self.quick(terms, &seen, now, cost)) {
            Some(quick) => quick.decision(),
            None => self.check_anyhow(first, hash, now, cost, plans),
        }
    }

    #[inline(never)]
    fn check_anyhow(&self, first: &Terms, hash: u64, now: Instant, cost: u64, plans: Option<&Plans>) -> Decision {
        let terms = self.current(first);
        for lane in 1..LANES {
            if let Some(seen) = self.glance(hash, terms.id, lane)
                && let Some(quick) = self.quick(terms, &seen, now, cost)
            {
                return quick.decision();
            }
        }
        let asked = Asked { now, cost, longest: None, reserve: 0, write: true };
        self.call(first, hash, &asked, plans).0.decision
    }

    /// One call of a bucket without patience, where nothing is out of the ordinary. As [`Cell::quick`] does it.
    ///
    /// [`Cell::quick`]: crate::limiter::cell::Cell
    #[inline(always)]
    fn quick(&self, terms: &Terms, seen: &Seen, now: Instant, cost: u64) -> Option<Quick> {
        let (limit, tat) = (terms.normal, seen.word());
        let charge = cost.checked_mul(limit.token)?;
        let room = limit.capacity.checked_sub(charge)?;
        let elapsed = now.as_unix_nanos().checked_sub(terms.origin)?;
        if elapsed > REACH || limit.kind != Kind::Bucket {
            return None;
        }
        let clock = elapsed * limit.ticks;
        let ahead = tat.saturating_sub(clock);
        if ahead > room {
            return Some(Quick { limit, clock, ahead, wait: ahead - room });
        }
        let passed = cost == 0 || self.swap(seen, tat.max(clock) + charge);
        passed.then_some(Quick { limit, clock, ahead: ahead + charge, wait: 0 })
    }

    /// One call on one key, and the terms it was judged by.
    pub(crate) fn call<'a>(
        &'a self,
        first: &'a Terms,
        hash: u64,
        asked: &Asked,
        plans: Option<&Plans>,
    ) -> (Call, &'a Terms) {
        for round in 0.. {
            let terms = self.current(first);
            if terms.normal.kind == Kind::Unlimited {
                return (terms.judge_word(0, asked), terms);
            }
            let call = match self.find(hash) {
                Some(seen) if seen.terms() != terms.id => {
                    self.convert(&seen, hash, terms, asked.now);
                    None
                }
                Some(seen) if terms.fits_a_word() => self.call_word(terms, &seen, asked),
                Some(seen) => self.call_wide(terms, &seen, asked),
                None => self.call_absent(terms, hash, asked, plans),
            };
            match call {
                Some(call) if call.late => self.rebase(&terms.line, asked.now),
                Some(call) => return (call, terms),
                // Another thread came in between.
                None => relax(round),
            }
        }
        unreachable!("a loop without an end")
    }

    fn call_word(&self, terms: &Terms, seen: &Seen, asked: &Asked) -> Option<Call> {
        let call = terms.judge_word(seen.word(), asked);
        match call.after {
            Some(after) if !self.swap(seen, after) => {
                // As a single limiter does: it pays on a hot key.
                back_off();
                None
            }
            _ => Some(call),
        }
    }

    fn call_wide(&self, terms: &Terms, seen: &Seen, asked: &Asked) -> Option<Call> {
        let mut state = self.wides.lock(seen.word());
        // A claimer that comes now waits for this lock.
        self.is_still(seen).then(|| terms.judge_wide(&mut state, asked, &self.wides.budget))
    }

    fn call_absent(&self, terms: &Terms, hash: u64, asked: &Asked, plans: Option<&Plans>) -> Option<Call> {
        let (call, _) = terms.judge(self.start(hash, terms, asked.now, plans)?, asked);
        if !call.decision.is_allowed() || asked.cost == 0 || !asked.write || call.late {
            return Some(call);
        }
        let _held = self.stripe(hash).inserting.hold();
        if self.find(hash).is_some() {
            return None;
        }
        // Again: the key may have come and gone meanwhile.
        let (call, state) = terms.judge(self.start(hash, terms, asked.now, plans)?, asked);
        if call.decision.is_allowed() {
            if terms.normal.kind == Kind::InFlight {
                return self.put_in_flight(terms, hash, asked, call);
            }
            self.put(hash, terms, asked.now, state);
        }
        Some(call)
    }

    /// What is in flight has no floor to go to: without room it is turned away.
    fn put_in_flight(&self, terms: &Terms, hash: u64, asked: &Asked, call: Call) -> Option<Call> {
        match self.make_room(hash, asked.now) {
            Some(place) => {
                self.release_to(place, tag(hash, terms.id), call.after.unwrap_or(0));
                Some(call)
            }
            None => Some(terms.no_room()),
        }
    }

    fn is_still(&self, seen: &Seen) -> bool {
        self.state_at(seen.place).load(Ordering::Acquire) == seen.stored
            && self.tag_at(seen.place).load(Ordering::Acquire) == seen.tag
    }

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

    /// Runs `change` on the state of a key, alone; not if the key is not in the table and would start from fresh.
    pub(crate) fn alter(
        &self,
        first: &Terms,
        hash: u64,
        now: Instant,
        plans: Option<&Plans>,
        change: impl FnOnce(&Terms, Altered<'_>),
    ) {
        self.alter_if(first, hash, now, plans, false, change);
    }

    /// The same for every key.
    pub(crate) fn alter_or_put(
        &self,
        first: &Terms,
        hash: u64,
        now: Instant,
        plans: Option<&Plans>,
        change: impl FnOnce(&Terms, Altered<'_>),
    ) {
        self.alter_if(first, hash, now, plans, true, change);
    }

    fn alter_if(
        &self,
        first: &Terms,
        hash: u64,
        now: Instant,
        plans: Option<&Plans>,
        even_if_fresh: bool,
        change: impl FnOnce(&Terms, Altered<'_>),
    ) {
        let mut round = 0;
        loop {
            if round > 0 {
                relax(round);
            }
            round += 1;
            let terms = self.current(first);
            if terms.normal.kind == Kind::Unlimited {
                return;
            }
            if let (Reach::Late, false) = (reach(&terms.normal, terms.origin, now), terms.normal.is_windowed()) {
                self.rebase(&terms.line, now);
                continue;
            }
            match self.find(hash) {
                Some(seen) if seen.terms() != terms.id => self.convert(&seen, hash, terms, now),
                Some(seen) if !self.claim(&seen) => back_off(),
                Some(seen) if terms.fits_a_word() => {
                    let mut word = seen.word();
                    change(terms, Altered::Word(&mut word));
                    return self.release_as(&seen, word);
                }
                Some(seen) => {
                    change(terms, Altered::Wide(&mut self.wides.lock(seen.word()), &self.wides.budget));
                    return self.release(&seen);
                }
                None => {
                    let Some(start) = self.start(hash, terms, now, plans) else { continue };
                    if !even_if_fresh && terms.is_fresh(&start, now) {
                        return;
                    }
                    let _held = self.stripe(hash).inserting.hold();
                    if self.find(hash).is_some() {
                        continue;
                    }
                    let Some(start) = self.start(hash, terms, now, plans) else { continue };
                    let changed = match start {
                        State::Word(mut word) => {
                            change(terms, Altered::Word(&mut word));
                            State::Word(word)
                        }
                        State::Wide(mut state) => {
                            change(terms, Altered::Wide(&mut state, &Budget::unlimited()));
                            State::Wide(state)
                        }
                    };
                    return self.put(hash, terms, now, changed);
                }
            }
        }
    }

    pub(crate) fn figures(&self, now: Instant) -> Figures {
        let sum = |count: fn(&Stripe) -> &AtomicU64| -> u64 {
            self.stripes.iter().map(|stripe| count(stripe).load(Ordering::Relaxed)).sum()
        };
        let mut figures = Figures {
            max_keys: self.max_keys,
            evicted_fresh: sum(|stripe| &stripe.evicted_fresh),
            evicted_live: sum(|stripe| &stripe.evicted_live),
            bytes: (self.words.len() + self.cold.len()) as u64 * 8 + self.wides.budget.taken(),
            ..Figures::default()
        };
        self.each(|seen| {
            figures.keys += 1;
            figures.live += u64::from(self.is_live(seen, now));
        });
        figures
    }

    /// How many keys of a line are live.
    pub(crate) fn live(&self, line: &Line, now: Instant) -> u64 {
        let mut live = 0;
        self.each(|seen| {
            let of_line = self.terms(seen.terms()).line.number == line.number;
            live += u64::from(of_line && self.is_live(seen, now));
        });
        live
    }

    fn is_live(&self, seen: &Seen, now: Instant) -> bool {
        self.freshness(seen, now).is_none_or(|freshness| !freshness.is_fresh())
    }

    /// Every entry, as it is when it is come by.
    fn each(&self, mut look: impl FnMut(&Seen)) {
        for place in (0..self.lines as usize * WORDS).filter(|at| at % WORDS < SLOTS) {
            let place = Place(self.offset + place);
            let tag = self.tag_at(place).load(Ordering::Acquire);
            if tag == EMPTY || tag == NOBODY {
                continue;
            }
            let stored = self.read(place);
            if self.tag_at(place).load(Ordering::Acquire) == tag {
                look(&Seen { place, tag, stored });
            }
        }
    }
}

/// # Several at once
impl<C: Clock> Table<C> {
    /// Whether terms are of this table.
    pub(crate) fn knows(&self, terms: &Terms) -> bool {
        let own = self.terms.get(u64::from(terms.id)).and_then(OnceBox::get);
        own.is_some_and(|own| core::ptr::eq(&**own, terms))
    }

    /// Whether two hashes are the same key, as far as the table can tell.
    pub(crate) fn share_a_bucket(&self, a: u64, b: u64) -> bool {
        tag(a, 0) == tag(b, 0) && self.line(a, 0) == self.line(b, 0)
    }

    /// Makes the entries of several keys one's own, at the same time; none if something came in between. Keys that are not
    /// in the table are put in first, unless that has been tried too often already.
    pub(crate) fn hold<'a>(&'a self, keys: &[(&'a Terms, u64)], now: Instant, tries: u32) -> Option<Held<'a, C>> {
        let mut held = Held { table: self, ones: SmallVec::new(), locks: SmallVec::new() };
        let mut without_room: SmallVec<[usize; FEW]> = SmallVec::new();
        for (first, hash) in keys.iter().copied() {
            let terms = self.current(first);
            let mut one = One { terms, hash, seen: None, state: Working::Word(0), claimed: false, undo: None };
            if terms.normal.kind != Kind::Unlimited {
                if let (Reach::Late, false) = (reach(&terms.normal, terms.origin, now), terms.normal.is_windowed()) {
                    self.rebase(&terms.line, now);
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
            held.locks.extend(without_room.iter().map(|stripe| self.stripes[*stripe].inserting.hold()));
        }
        let mut order: SmallVec<[(Option<Place>, usize); FEW]> =
            held.ones.iter().enumerate().map(|(at, one)| (one.seen.map(|seen| seen.place), at)).collect();
        order.sort_unstable();
        // One came to where another had just been: waiting for it would be waiting for oneself.
        if order.windows(2).any(|two| two[0].0.is_some() && two[0].0 == two[1].0) {
            return None;
        }
        for (place, at) in order {
            let one = &mut held.ones[at];
            match place {
                None if one.terms.normal.kind == Kind::Unlimited => {}
                None if self.find(one.hash).is_some() => return None,
                None => one.state = Working::OutOfTable(self.start(one.hash, one.terms, now, None)?),
                Some(_) => self.hold_one(one)?,
            }
        }
        Some(held)
    }

    fn find_or_put(&self, terms: &Terms, hash: u64, now: Instant, tries: u32) -> Option<Option<Seen>> {
        const ENOUGH: u32 = 16;
        let mut seen = self.find(hash);
        if seen.is_none() && tries < ENOUGH {
            let _held = self.stripe(hash).inserting.hold();
            if self.find(hash).is_none() {
                let start = self.start(hash, terms, now, None)?;
                // As if used now, so that the others of the same call do not take its place.
                self.put(hash, terms, now, terms.used_now(start, now));
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

    fn hold_one(&self, one: &mut One<'_>) -> Option<()> {
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
        one.state = if one.terms.fits_a_word() { Working::Word(seen.word()) } else { Working::Handle(seen.word()) };
        (one.seen, one.claimed) = (Some(seen), true);
        Some(())
    }
}

/// Entries that are one's own for the moment, and what is to become of them. Dropped, they stay what they were.
pub(crate) struct Held<'a, C: Clock> {
    table: &'a Table<C>,
    ones: SmallVec<[One<'a>; FEW]>,
    locks: SmallVec<[Guard<'a>; FEW]>,
}

struct One<'a> {
    terms: &'a Terms,
    hash: u64,
    seen: Option<Seen>,
    state: Working,
    claimed: bool,
    /// What was logged, and when: to be taken back if it comes to nothing.
    undo: Option<(u64, u64)>,
}

/// A state that is being worked on.
enum Working {
    Word(u64),
    Handle(u64),
    /// There is no room for it: what becomes of it goes into the floor.
    OutOfTable(State),
}

impl<C: Clock> Held<'_, C> {
    pub(crate) fn terms(&self, at: usize) -> &Terms {
        self.ones[at].terms
    }

    pub(crate) fn is_log(&self, at: usize) -> bool {
        self.ones[at].terms.normal.kind == Kind::Log
    }

    /// Whether there is no room for it, nor a floor it could go to.
    pub(crate) fn has_no_room(&self, at: usize) -> bool {
        let one = &self.ones[at];
        one.terms.normal.kind == Kind::InFlight && matches!(one.state, Working::OutOfTable(_))
    }

    /// One call on what is held.
    pub(crate) fn judge(&mut self, at: usize, asked: &Asked) -> Call {
        let (table, one) = (self.table, &mut self.ones[at]);
        match &mut one.state {
            Working::Word(word) => {
                let call = one.terms.judge_word(*word, asked);
                *word = call.after.unwrap_or(*word);
                call
            }
            Working::Handle(handle) => {
                let call = one.terms.judge_wide(&mut table.wides.lock(*handle), asked, &table.wides.budget);
                if asked.write && call.decision.is_allowed() {
                    let before = one.undo.map_or(0, |(_, units)| units);
                    one.undo = Some((call.charged, before + asked.cost));
                }
                call
            }
            Working::OutOfTable(_) if one.terms.normal.kind == Kind::InFlight => one.terms.no_room(),
            Working::OutOfTable(state) => {
                let (call, after) = one.terms.judge(core::mem::replace(state, State::FRESH), asked);
                *state = after;
                call
            }
        }
    }

    /// Leaves every entry as it was worked on.
    pub(crate) fn commit(mut self) {
        for one in self.ones.drain(..) {
            match (one.state, one.seen) {
                (Working::Word(word), Some(seen)) => self.table.release_as(&seen, word),
                (Working::Handle(_), Some(seen)) => self.table.release(&seen),
                (Working::OutOfTable(state), _) => self.table.sink(one.hash, one.terms.id, state),
                _ => {}
            }
        }
        self.locks.clear();
    }
}

impl<C: Clock> Drop for Held<'_, C> {
    fn drop(&mut self) {
        for one in &self.ones {
            if let (Working::Handle(handle), Some((charged_in, units))) = (&one.state, one.undo) {
                self.table.wides.lock(*handle).give_back(&one.terms.normal, 0, charged_in, units);
            }
            if let (Some(seen), true) = (&one.seen, one.claimed) {
                self.table.release(seen);
            }
        }
    }
}

/// The state of a key that is one's own for the moment.
pub(crate) enum Altered<'a> {
    Word(&'a mut u64),
    Wide(&'a mut WideState, &'a Budget),
}

impl Stripe {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self { inserting: Lock::new(), evicted_fresh: zero(), evicted_live: zero() }
    }
}

/// Memory that the operating system hands out as it is touched.
#[cfg(not(tollgate_loom))]
fn zeroed(words: usize) -> Box<[AtomicU64]> {
    bytemuck::zeroed_slice_box(words)
}

#[cfg(tollgate_loom)]
fn zeroed(words: usize) -> Box<[AtomicU64]> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

/// Limits that judge the same keys: the one a table was made with, and those that came with a call.
pub(crate) struct Plans {
    list: Chunks<OnceBox<Arc<Terms>>>,
    length: AtomicU32,
    /// By the hash of the limit, one more than the index at which it was found last.
    recent: [AtomicU32; RECENT],
    adding: Lock,
}

const RECENT: usize = 64;
const MOST_PLANS: u32 = 1024;

impl Plans {
    pub(crate) fn new(first: Arc<Terms>) -> Self {
        let plans = Self {
            list: Chunks::new(),
            length: AtomicU32::new(1),
            recent: core::array::from_fn(|_| AtomicU32::new(0)),
            adding: Lock::new(),
        };
        plans.list.get_or_make(0, OnceBox::new).get_or_init(|| Box::new(first));
        plans
    }

    fn len(&self) -> u32 {
        self.length.load(Ordering::Acquire)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Terms>> {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    fn get(&self, at: u32) -> Option<&Arc<Terms>> {
        self.list.get(u64::from(at))?.get()
    }

    /// The terms of a limit that comes with a call; none if there have been too many.
    pub(crate) fn under<C: Clock>(&self, table: &Table<C>, limit: Limit) -> Option<&Arc<Terms>> {
        let rule = Rule::Rate(limit);
        let recent = &self.recent[table.hash(&limit) as usize % RECENT];
        let known = |at: &u32| *at > 0 && self.get(*at).is_some_and(|terms| terms.rule == rule);
        if let Some(at) = recent.load(Ordering::Acquire).checked_sub(1).filter(known) {
            return self.get(at);
        }
        let _held = self.adding.hold();
        let length = self.len();
        let at = (1..length).find(known).unwrap_or(length);
        if at == length {
            if length > MOST_PLANS {
                return None;
            }
            let terms = table.new_line(u64::from(length), "", rule)?;
            self.list.get_or_make(u64::from(at), OnceBox::new).get_or_init(|| Box::new(terms));
            self.length.store(length + 1, Ordering::Release);
        }
        recent.store(at + 1, Ordering::Release);
        self.get(at)
    }
}
