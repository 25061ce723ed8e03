//! Many keys in a fixed number of cache lines.
//!
//! An entry is two words: a tag (which key, by hash, and which terms it is counted by) and a state.
//! Four share a cache line; a key has a home line and a few others it may live in, and is found in
//! its home line nearly always. The table never grows and never moves an entry. Nothing of a key is
//! stored but its hash.
//!
//! **Reading and writing.** A call that finds its entry decides with one compare-and-swap of the
//! state. A state is stored mixed with its tag, so that a swap succeeds on the entry it was read
//! from only, but for one chance in 2^63. Whatever is rarer *claims* the entry: the state becomes
//! `BUSY`, the others wait for the few instructions that takes, and the claimer may change the tag
//! as well.
//!
//! **Room.** Slots fill from the first line on and are never emptied, so the first empty slot ends
//! a search. A newcomer takes an empty slot, else that of the key which has been fresh for longest,
//! else the one nearest to fresh; what was there is joined into the floor of its limit before its
//! tag goes, so that whoever misses its key finds it in the floor. (Fresh or not: an instant before
//! the key was fresh may still come.) Inserts of one key exclude each other by a lock that a part
//! of all keys shares and that nobody takes who finds its key.

mod accounts;
mod calls;
mod figures;
mod held;
mod room;

pub(crate) use accounts::{ChargeOrigin, RefundTotals, SlotRefunds};
pub(crate) use calls::{AbsentKey, StateMut};
pub use figures::{KeyedStats, LimitKeyStats};
pub(crate) use held::{FEW, Transaction};

use super::hash::Secret;
use super::line::{RegisteredLimit, Rule};
use super::terms::{EntryState, LimitVersion};
use super::wide::LargeStates;
use crate::algorithm::tat_word::{Reach, reach};
use crate::append_vec::AppendVec;
use crate::clock::{Clock, Timestamp};
use crate::limiter::Carry;
use crate::sync::{AtomicU32, AtomicU64, Lock, OnceBox, Ordering, fence, relax};
use accounts::RefundCounters;
use core::hash::Hash;
use std::boxed::Box;
use std::sync::Arc;

const SLOTS: usize = 4;
const WORDS: usize = 2 * SLOTS;

/// Lines a key may live in. At the cap half of all slots are live: all slots of six lines are then
/// live for less than one newcomer in a million, and 96 of 100 keys live in their first line.
#[cfg(not(ratekeeper_loom))]
const LANES: usize = 6;
#[cfg(ratekeeper_loom)]
const LANES: usize = 1;

#[cfg(not(ratekeeper_loom))]
const STRIPES: usize = 256;
#[cfg(ratekeeper_loom)]
const STRIPES: usize = 1;

/// A line, and the accounts of its slots.
const BYTES_A_LINE: usize = WORDS * 8 + accounts::BYTES_A_LINE;
/// To begin both on a cache line.
const TO_BEGIN: usize = 2 * 8 * (WORDS - 1);
/// What a key may take, where half of all slots are live.
pub(crate) const BYTES_A_KEY: usize = 2 * BYTES_A_LINE / SLOTS;

/// The state of an entry that somebody has claimed.
const BUSY: u64 = u64::MAX;
const EMPTY: u64 = 0;
/// The tag of a slot whose key was displaced for want of bytes: no key has it.
const NOBODY: u64 = 1 << 63;

/// A key that has been fresh for so many nanoseconds makes room before empty slots further from
/// home do.
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

// In this order: what every call needs stands together.
#[repr(C)]
pub(crate) struct Table<C> {
    words: Box<[AtomicU64]>,
    /// Where the first line begins, so that each is a cache line.
    offset: usize,
    lines: u64,
    /// No other table has it.
    pub(crate) id: u64,
    secret: Secret,
    clock: C,
    terms: AppendVec<OnceBox<Arc<LimitVersion>>>,
    last_terms: AtomicU32,
    stripes: Box<[Stripe]>,
    accounts: RefundCounters,
    wides: LargeStates,
    max_keys: u64,
}

/// What a part of all keys shares.
#[cfg_attr(not(ratekeeper_loom), repr(align(64)))]
struct Stripe {
    inserting: Lock,
    evicted_fresh: AtomicU64,
    evicted_live: AtomicU64,
}

/// How large a table may be.
#[derive(Clone, Copy)]
pub(crate) struct TableSize {
    pub(crate) keys: usize,
    pub(crate) bytes: Option<usize>,
}

impl Default for TableSize {
    fn default() -> Self {
        Self {
            keys: 1_000_000,
            bytes: None,
        }
    }
}

/// Where an entry is: the index of its tag; its state is [`SLOTS`] further.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Slot(usize);

/// An entry as it was read.
#[derive(Clone, Copy)]
pub(crate) struct EntryView {
    pub(crate) place: Slot,
    pub(crate) tag: u64,
    stored: u64,
}

impl EntryView {
    pub(crate) fn terms(&self) -> u32 {
        self.tag as u32 & MOST_TERMS
    }

    /// The state, or the handle of a wide one.
    #[inline]
    pub(crate) fn word(&self) -> u64 {
        self.stored ^ spread(self.tag)
    }
}

/// A key that belongs to a line of several.
#[derive(Hash)]
struct NamedKey<'a> {
    line: u64,
    key: &'a [u8],
}

#[inline]
fn tag(hash: u64, terms: u32) -> u64 {
    (hash & ((1 << HASH_BITS) - 1)) << TERMS_BITS | u64::from(terms)
}

/// What a state is mixed with under a tag. Tags that differ in a bit differ in many of it, so no
/// two states that occur under them are stored alike. The highest bit is 0.
#[inline]
fn spread(tag: u64) -> u64 {
    tag.wrapping_mul(FACTORS[1]) >> 1
}

/// The state as it is stored under a tag: never `BUSY`. (Handles, counts and windows are below
/// 2^63: they are never moved.)
#[inline]
fn mix(tag: u64, word: u64) -> u64 {
    match word ^ spread(tag) {
        // One tick more is on the strict side.
        BUSY => (word + 1) ^ spread(tag),
        stored => stored,
    }
}

impl<C: Clock> Table<C> {
    /// A table in which a key takes about `wide` bytes beside it.
    pub(crate) fn new(cap: TableSize, clock: C, wide: usize) -> Self {
        Self::try_new(cap, clock, wide).expect("memory for as many keys as were asked for")
    }

    /// None if the system does not hand out as much memory.
    pub(crate) fn try_new(cap: TableSize, clock: C, wide: usize) -> Option<Self> {
        let lines = (cap.keys.max(1).saturating_mul(2)).div_ceil(SLOTS);
        let lines = match cap.bytes {
            Some(bytes) => lines
                .min(bytes.saturating_sub(TO_BEGIN) / (BYTES_A_LINE + wide * SLOTS / 2))
                .max(1),
            None => lines,
        };
        let max_keys = cap.keys.min(lines.saturating_mul(SLOTS / 2));
        let wide_bytes = match cap.bytes {
            Some(bytes) => {
                bytes.saturating_sub(lines.saturating_mul(BYTES_A_LINE).saturating_add(TO_BEGIN))
            }
            None => max_keys.saturating_mul(512),
        };
        // Seven more, to begin on a cache line wherever the allocation does.
        let words = zeroed(lines.saturating_mul(WORDS).saturating_add(WORDS - 1))?;
        let offset = begin_on_a_line(&words);
        static TABLES: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
        Some(Self {
            id: TABLES.fetch_add(1, core::sync::atomic::Ordering::Relaxed),
            words,
            offset,
            lines: lines as u64,
            clock,
            secret: Secret::new(),
            terms: AppendVec::new(),
            last_terms: AtomicU32::new(0),
            stripes: (0..STRIPES).map(|_| Stripe::new()).collect(),
            accounts: RefundCounters::try_new(lines)?,
            wides: LargeStates::new(wide_bytes as u64),
            max_keys: max_keys as u64,
        })
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
        self.secret.hash(&NamedKey { line, key })
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

    #[inline]
    fn tag_at(&self, place: Slot) -> &AtomicU64 {
        &self.words[place.0]
    }

    #[inline]
    fn state_at(&self, place: Slot) -> &AtomicU64 {
        &self.words[place.0 + SLOTS]
    }
}

/// # Terms
impl<C: Clock> Table<C> {
    #[inline]
    pub(crate) fn terms(&self, id: u32) -> &LimitVersion {
        // Every tag names terms that were registered before it was written.
        self.terms
            .get(u64::from(id))
            .and_then(|terms| terms.get())
            .expect("terms of a tag are registered")
    }

    fn register(&self, make: impl FnOnce(u32) -> LimitVersion) -> Option<Arc<LimitVersion>> {
        let taken = |last: u32| (last < MOST_TERMS).then_some(last + 1);
        let id = self
            .last_terms
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken)
            .ok()?
            + 1;
        let terms = Arc::new(make(id));
        self.terms
            .get_or_make(u64::from(id), OnceBox::new)
            .get_or_init(|| Box::new(terms.clone()));
        Some(terms)
    }

    /// A line of its own for a limit; none if there have been too many.
    pub(crate) fn new_line(
        &self,
        number: u64,
        name: &str,
        rule: Rule,
    ) -> Option<Arc<LimitVersion>> {
        let line = Arc::new(RegisteredLimit::new(self.id, number, name, rule));
        let terms = self.register(|id| LimitVersion::first(id, line, rule, self.clock.now()))?;
        terms.registered.current.store(terms.id, Ordering::SeqCst);
        Some(terms)
    }

    /// The terms in force on the line that began with `first`.
    #[inline]
    pub(crate) fn current<'a>(&'a self, first: &'a LimitVersion) -> &'a LimitVersion {
        // Those that have no next are in force; those that have one may be for a moment longer.
        if first.next.load(Ordering::Acquire) == 0 {
            first
        } else {
            self.successor(first)
        }
    }

    #[inline(never)]
    fn successor<'a>(&'a self, first: &'a LimitVersion) -> &'a LimitVersion {
        match first.registered.current.load(Ordering::Acquire) {
            id if id == first.id => first,
            id => self.terms(id),
        }
    }

    pub(crate) fn change(
        &self,
        line: &RegisteredLimit,
        rule: Rule,
        carry: Carry,
        now: impl FnOnce() -> Timestamp,
    ) {
        let _held = line.changing.lock();
        let old = self.terms(line.current.load(Ordering::SeqCst));
        if (carry != Carry::Reset && old.rule == rule) || !self.succeed(old, rule, carry, now()) {
            return;
        }
        line.changes.fetch_add(1, Ordering::Relaxed);
        line.set_rule(rule);
    }

    /// The same limit, counted from a new origin: `now` is more than eight years from the last.
    /// False if there have been too many terms.
    #[cold]
    pub(crate) fn rebase(&self, line: &RegisteredLimit, now: Timestamp) -> bool {
        let _held = line.changing.lock();
        let old = self.terms(line.current.load(Ordering::SeqCst));
        match reach(&old.normal, old.origin, now) {
            Reach::Late => self.succeed(old, old.rule, Carry::Keep, now),
            _ => true,
        }
    }

    fn succeed(&self, old: &LimitVersion, rule: Rule, carry: Carry, now: Timestamp) -> bool {
        let Some(next) = self.register(|id| LimitVersion::after(id, old, rule, carry, now)) else {
            return false;
        };
        next.inherit(old, &self.wides.budget);
        // Whoever displaces a key from here on joins it into the next floor; what came before is
        // inherited once more. The fences: either `sink` sees that there is a next, or what it sank
        // is seen here.
        old.next.store(next.id, Ordering::Release);
        fence(Ordering::SeqCst);
        next.inherit(old, &self.wides.budget);
        old.registered.current.store(next.id, Ordering::Release);
        true
    }

    /// The state as it is under `to`, and whether it could be brought there: not if it is already
    /// ahead of it.
    fn bring(
        &self,
        state: EntryState,
        from: u32,
        to: &LimitVersion,
        now: Timestamp,
    ) -> Option<EntryState> {
        let (mut state, mut terms) = (state, self.terms(from));
        while terms.id != to.id {
            match terms.next.load(Ordering::Acquire) {
                0 if terms.registered.number == to.registered.number && terms.id > to.id => {
                    return None;
                }
                0 => return Some(to.convert_from_other_limit(terms, &state, now)),
                next => {
                    let next = self.terms(next);
                    state = next.convert_from_previous(terms, &state);
                    terms = next;
                }
            }
        }
        Some(state)
    }

    /// Joins the state of a key that leaves into the floor of its limit.
    fn sink(&self, hash: u64, from: u32, mut state: EntryState) {
        let mut terms = self.terms(from);
        loop {
            let mut next = terms.next.load(Ordering::Acquire);
            if next == 0 {
                terms.sink(hash, &state, &self.wides.budget);
                // A change that came in between may have inherited the floor before.
                fence(Ordering::SeqCst);
                next = terms.next.load(Ordering::Acquire);
            }
            if next == 0 {
                return;
            }
            let next = self.terms(next);
            state = next.convert_from_previous(terms, &state);
            terms = next;
        }
    }
}

/// # Finding and claiming
impl<C: Clock> Table<C> {
    /// Reads the home line of a key, to have it in the cache.
    #[inline]
    pub(crate) fn touch(&self, hash: u64) -> u64 {
        self.words[self.line(hash, 0)].load(Ordering::Relaxed)
    }

    /// The entry of a key in one of its lines, if it is there under these terms and nobody is busy
    /// with it.
    #[inline(always)]
    fn glance(&self, hash: u64, terms: u32, lane: usize) -> Option<EntryView> {
        let (start, wanted) = (self.line(hash, lane), tag(hash, terms));
        let line = self.words[start..].first_chunk::<WORDS>()?;
        // Which slot it is cannot be predicted, so no branch is made of it: a wrong guess costs
        // more than all four.
        let is = |slot: usize| u32::from(line[slot].load(Ordering::Acquire) == wanted) << slot;
        let found = is(0) | is(1) | is(2) | is(3);
        if found == 0 {
            return None;
        }
        let slot = found.trailing_zeros() as usize % SLOTS;
        // A tag is written before the state of its key is, and a state that is not busy after its
        // tag: what is read between two looks at the same tag is the state of that key.
        let stored = line[slot + SLOTS].load(Ordering::Acquire);
        let same = line[slot].load(Ordering::Relaxed) == wanted;
        (same && stored != BUSY).then_some(EntryView {
            place: Slot(start + slot),
            tag: wanted,
            stored,
        })
    }

    /// The entry of a key under these terms, if nobody is busy with it.
    #[inline]
    pub(crate) fn seek(&self, hash: u64, terms: u32) -> Option<EntryView> {
        (0..LANES).find_map(|lane| self.glance(hash, terms, lane))
    }

    /// The entry of a key, under whichever terms.
    pub(crate) fn find(&self, hash: u64) -> Option<EntryView> {
        let wanted = tag(hash, 0);
        'again: loop {
            for lane in 0..LANES {
                let line = self.line(hash, lane);
                for slot in 0..SLOTS {
                    let place = Slot(line + slot);
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
                    return Some(EntryView { place, tag, stored });
                }
            }
            return None;
        }
    }

    /// The state of an entry, once nobody is busy with it.
    fn read(&self, place: Slot) -> u64 {
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
    fn swap(&self, seen: &EntryView, word: u64) -> bool {
        let (state, next) = (self.state_at(seen.place), mix(seen.tag, word));
        state
            .compare_exchange(seen.stored, next, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Makes an entry one's own, if it is what it was.
    fn claim(&self, seen: &EntryView) -> bool {
        let state = self.state_at(seen.place);
        state
            .compare_exchange(seen.stored, BUSY, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Writes several states at once, if all entries are what they were; otherwise none.
    pub(crate) fn swap_all(&self, writes: &mut [(EntryView, u64)]) -> bool {
        if let [(seen, word)] = writes {
            return self.swap(seen, *word);
        }
        // In the order of their addresses, as everybody claims: nobody waits here, but two that
        // give way to each other would do so for ever.
        writes.sort_unstable_by_key(|(seen, _)| seen.place);
        for (at, (seen, _)) in writes.iter().enumerate() {
            if !self.claim(seen) {
                writes[..at].iter().for_each(|(seen, _)| self.release(seen));
                return false;
            }
        }
        writes
            .iter()
            .for_each(|(seen, word)| self.release_as(seen, *word));
        true
    }

    /// Gives up a claim; the entry stays what it was.
    pub(crate) fn release(&self, seen: &EntryView) {
        self.state_at(seen.place)
            .store(seen.stored, Ordering::Release);
    }

    /// Gives up a claim, leaving another state.
    pub(crate) fn release_as(&self, seen: &EntryView, word: u64) {
        self.state_at(seen.place)
            .store(mix(seen.tag, word), Ordering::Release);
    }

    /// Gives up a claim, leaving another key or other terms.
    fn release_to(&self, place: Slot, tag: u64, word: u64) {
        self.tag_at(place).store(tag, Ordering::Release);
        self.state_at(place)
            .store(mix(tag, word), Ordering::Release);
    }
}

impl Stripe {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            inserting: Lock::new(),
            evicted_fresh: zero(),
            evicted_live: zero(),
        }
    }
}

/// Memory that the operating system hands out as it is touched.
#[cfg(not(ratekeeper_loom))]
fn zeroed<T: bytemuck::Zeroable>(count: usize) -> Option<Box<[T]>> {
    bytemuck::try_zeroed_slice_box(count).ok()
}

#[cfg(ratekeeper_loom)]
fn zeroed<T: Default>(count: usize) -> Option<Box<[T]>> {
    Some((0..count).map(|_| T::default()).collect())
}

/// How many of the words, which are up to seven more, come before the first cache line that begins
/// among them.
fn begin_on_a_line(words: &[AtomicU64]) -> usize {
    words.as_ptr().align_offset(64).min(WORDS - 1)
}
