//! The key table: a hash table of fixed size that holds one state per key.
//!
//! An entry is two words: a tag (the key's hash, and the limit version it is counted by) and a
//! state. Four entries share a cache line; a key has a home cache line and a few others it may be
//! in, and is nearly always in its home line. The table never grows and never moves an entry.
//! Nothing of a key is stored but its hash.
//!
//! **Reading and writing.** A call that finds its entry decides with one compare-and-swap of the
//! state. A state is stored mixed with its tag, so that a swap succeeds only on the entry it was
//! read from, but for one chance in 2^63. Every rarer operation *claims* the entry: the state
//! becomes `BUSY`, other threads wait for the few instructions that takes, and the claimer may
//! change the tag as well.
//!
//! **Insertion.** Slots fill from the first cache line on and are never emptied, so the first empty
//! slot ends a search. A new key takes an empty slot, else that of the key which has been fresh for
//! longest, else that of the key nearest to fresh; the evicted state is merged into the floor of
//! its limit before its tag is replaced, so that a call that no longer finds its key finds it in
//! the floor. (Whether fresh or not: a call at an instant before the key was fresh may still come.)
//! Inserts of one key exclude each other by a lock that a part of all keys shares; a call that
//! finds its key does not take it.

mod decide;
mod eviction;
mod refunds;
mod stats;
mod transaction;
mod update;

pub(crate) use decide::TableDecision;
pub(crate) use refunds::{ChargeOrigin, RefundTotals, SlotRefunds};
pub use stats::{KeyedStats, LimitKeyStats};
pub(crate) use transaction::{INLINE_ENTRIES, Transaction};
pub(crate) use update::{AbsentKey, StateMut};

use super::hash::Secret;
use super::large_state::LargeStates;
use super::limit_version::{EntryState, LimitVersion};
use super::registered_limit::{RegisteredLimit, Rule};
use crate::algorithm::tat_word::{Reach, reach};
use crate::append_vec::AppendVec;
use crate::clock::{Clock, Timestamp};
use crate::generation::Carry;
use crate::sync::{AtomicU32, AtomicU64, Lock, OnceBox, Ordering, fence, relax};
use core::hash::Hash;
use refunds::RefundCounters;
use std::boxed::Box;
use std::sync::Arc;

const SLOTS: usize = 4;
const WORDS: usize = 2 * SLOTS;

/// Cache lines a key may be in. At capacity half of all slots are live: all slots of six cache
/// lines are then live for less than one new key in a million, and 96 of 100 keys are in their home
/// line.
#[cfg(not(ratekeeper_loom))]
const PROBES: usize = 6;
#[cfg(ratekeeper_loom)]
const PROBES: usize = 1;

#[cfg(not(ratekeeper_loom))]
const STRIPES: usize = 256;
#[cfg(ratekeeper_loom)]
const STRIPES: usize = 1;

/// A cache line of entries, and the refund counters of its slots.
const BYTES_PER_CACHE_LINE: usize = WORDS * 8 + refunds::BYTES_PER_CACHE_LINE;
/// To align both to a cache line.
const ALIGNMENT_BYTES: usize = 2 * 8 * (WORDS - 1);
/// What a key may take, where half of all slots are live.
pub(crate) const BYTES_PER_KEY: usize = 2 * BYTES_PER_CACHE_LINE / SLOTS;

/// The state of a claimed entry.
const BUSY: u64 = u64::MAX;
const EMPTY: u64 = 0;
/// The tag of a slot whose key was evicted for want of bytes: it matches no key.
const VACANT: u64 = 1 << 63;

/// A key that has been fresh for longer than this many nanoseconds is evicted before empty slots
/// further from home are used.
const LONG_FRESH_NANOS: u64 = 60_000_000_000;

/// A tag: 39 bits of hash, then the id of the limit version. The highest bit is 0.
const VERSION_BITS: u32 = 24;
const MAX_VERSIONS: u32 = (1 << VERSION_BITS) - 1;
const HASH_BITS: u32 = 39;

/// One odd factor per probe: the highest bits of the product choose the cache line.
const FACTORS: [u64; 6] = [
    1,
    0x9e37_79b9_7f4a_7c15,
    0xc2b2_ae3d_27d4_eb4f,
    0x1656_67b1_9e37_79f9,
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
];

/// The key table: entries, limit versions, refund counters and large states.
// In this order: what every call needs is together.
#[repr(C)]
pub(crate) struct Table<C> {
    words: Box<[AtomicU64]>,
    /// Index of the first word that begins a cache line.
    offset: usize,
    cache_lines: u64,
    /// Unique among the tables of this process.
    pub(crate) id: u64,
    secret: Secret,
    clock: C,
    versions: AppendVec<OnceBox<Arc<LimitVersion>>>,
    last_version: AtomicU32,
    stripes: Box<[Stripe]>,
    refund_counters: RefundCounters,
    large_states: LargeStates,
    max_keys: u64,
}

/// The insert lock and eviction counters of a part of all keys.
#[cfg_attr(not(ratekeeper_loom), repr(align(64)))]
struct Stripe {
    insert_lock: Lock,
    evicted_fresh: AtomicU64,
    evicted_live: AtomicU64,
}

/// The size of a table: how many keys, or how many bytes.
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

/// The position of an entry: the index of its tag; its state is [`SLOTS`] further.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Slot(usize);

/// A snapshot of an entry.
#[derive(Clone, Copy)]
pub(crate) struct EntryView {
    pub(crate) slot: Slot,
    pub(crate) tag: u64,
    stored: u64,
}

impl EntryView {
    pub(crate) fn version(&self) -> u32 {
        self.tag as u32 & MAX_VERSIONS
    }

    /// Returns the state, or the handle of a large state.
    #[inline]
    pub(crate) fn word(&self) -> u64 {
        self.stored ^ spread(self.tag)
    }
}

/// What is hashed for a key in a table of several limits.
#[derive(Hash)]
struct LimitKey<'a> {
    limit: u64,
    key: &'a [u8],
}

#[inline]
fn tag(hash: u64, version: u32) -> u64 {
    (hash & ((1 << HASH_BITS) - 1)) << VERSION_BITS | u64::from(version)
}

/// Returns what a state is mixed with under a tag. Tags that differ in one bit differ in many bits
/// of it, so no two states that occur under them are stored alike. The highest bit is 0.
#[inline]
fn spread(tag: u64) -> u64 {
    tag.wrapping_mul(FACTORS[1]) >> 1
}

/// Returns the state as it is stored under a tag: never `BUSY`. (Handles, counts and windows are
/// below 2^63: they are never changed by this.)
#[inline]
fn mix(tag: u64, word: u64) -> u64 {
    match word ^ spread(tag) {
        // One tick more is on the strict side.
        BUSY => (word + 1) ^ spread(tag),
        stored => stored,
    }
}

impl<C: Clock> Table<C> {
    /// Creates a table in which a key takes about `large_state_bytes` beside it.
    pub(crate) fn new(size: TableSize, clock: C, large_state_bytes: usize) -> Self {
        Self::try_new(size, clock, large_state_bytes).expect("not enough memory for this many keys")
    }

    /// Creates a table, or returns `None` if the memory cannot be reserved.
    pub(crate) fn try_new(size: TableSize, clock: C, large_state_bytes: usize) -> Option<Self> {
        let cache_lines = (size.keys.max(1).saturating_mul(2)).div_ceil(SLOTS);
        let cache_lines = match size.bytes {
            Some(bytes) => cache_lines
                .min(
                    bytes.saturating_sub(ALIGNMENT_BYTES)
                        / (BYTES_PER_CACHE_LINE + large_state_bytes * SLOTS / 2),
                )
                .max(1),
            None => cache_lines,
        };
        let max_keys = size.keys.min(cache_lines.saturating_mul(SLOTS / 2));
        let budget_bytes = match size.bytes {
            Some(bytes) => bytes.saturating_sub(
                cache_lines
                    .saturating_mul(BYTES_PER_CACHE_LINE)
                    .saturating_add(ALIGNMENT_BYTES),
            ),
            None => max_keys.saturating_mul(512),
        };
        // Seven more, to align to a cache line wherever the allocation begins.
        let words = zeroed(cache_lines.saturating_mul(WORDS).saturating_add(WORDS - 1))?;
        let offset = align_to_cache_line(&words);
        static TABLES: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
        Some(Self {
            id: TABLES.fetch_add(1, core::sync::atomic::Ordering::Relaxed),
            words,
            offset,
            cache_lines: cache_lines as u64,
            clock,
            secret: Secret::new(),
            versions: AppendVec::new(),
            last_version: AtomicU32::new(0),
            stripes: (0..STRIPES).map(|_| Stripe::new()).collect(),
            refund_counters: RefundCounters::try_new(cache_lines)?,
            large_states: LargeStates::new(budget_bytes as u64),
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

    /// Hashes a key of one of several limits.
    #[inline]
    pub(crate) fn hash_for_limit(&self, limit: u64, key: &[u8]) -> u64 {
        self.secret.hash(&LimitKey { limit, key })
    }

    #[inline]
    fn cache_line(&self, hash: u64, probe: usize) -> usize {
        let spread = hash.wrapping_mul(FACTORS[probe]);
        let cache_line = (u128::from(spread) * u128::from(self.cache_lines)) >> 64;
        self.offset + cache_line as usize * WORDS
    }

    fn stripe(&self, hash: u64) -> &Stripe {
        // Other bits than those that choose the home line, which are the highest.
        &self.stripes[hash as usize % STRIPES]
    }

    #[inline]
    fn tag_at(&self, slot: Slot) -> &AtomicU64 {
        &self.words[slot.0]
    }

    #[inline]
    fn state_at(&self, slot: Slot) -> &AtomicU64 {
        &self.words[slot.0 + SLOTS]
    }
}

/// # Limit versions
impl<C: Clock> Table<C> {
    #[inline]
    pub(crate) fn version(&self, id: u32) -> &LimitVersion {
        // Every tag names a version that was registered before the tag was written.
        self.versions
            .get(u64::from(id))
            .and_then(|version| version.get())
            .expect("the version of a tag is registered")
    }

    fn register(&self, make: impl FnOnce(u32) -> LimitVersion) -> Option<Arc<LimitVersion>> {
        let next = |last: u32| (last < MAX_VERSIONS).then_some(last + 1);
        let id = self
            .last_version
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, next)
            .ok()?
            + 1;
        let version = Arc::new(make(id));
        self.versions
            .get_or_make(u64::from(id), OnceBox::new)
            .get_or_init(|| Box::new(version.clone()));
        Some(version)
    }

    /// Registers a limit; `None` if there have been too many versions.
    pub(crate) fn register_limit(
        &self,
        number: u64,
        name: &str,
        rule: Rule,
    ) -> Option<Arc<LimitVersion>> {
        let registered = Arc::new(RegisteredLimit::new(self.id, number, name, rule));
        let version =
            self.register(|id| LimitVersion::initial(id, registered, rule, self.clock.now()))?;
        version
            .registered
            .current
            .store(version.id, Ordering::SeqCst);
        Some(version)
    }

    /// Returns the version in force of the limit whose first version is `first_version`.
    #[inline]
    pub(crate) fn current<'a>(&'a self, first_version: &'a LimitVersion) -> &'a LimitVersion {
        // A version without a next is in force; one with a next may be for a moment longer.
        if first_version.next.load(Ordering::Acquire) == 0 {
            first_version
        } else {
            self.current_slow(first_version)
        }
    }

    #[inline(never)]
    fn current_slow<'a>(&'a self, first_version: &'a LimitVersion) -> &'a LimitVersion {
        match first_version.registered.current.load(Ordering::Acquire) {
            id if id == first_version.id => first_version,
            id => self.version(id),
        }
    }

    pub(crate) fn change_limit(
        &self,
        registered: &RegisteredLimit,
        rule: Rule,
        carry: Carry,
        now: impl FnOnce() -> Timestamp,
    ) {
        let _held = registered.change_lock.lock();
        let old = self.version(registered.current.load(Ordering::SeqCst));
        if (carry != Carry::Reset && old.rule == rule)
            || !self.replace_version(old, rule, carry, now())
        {
            return;
        }
        registered.changes.fetch_add(1, Ordering::Relaxed);
        registered.set_rule(rule);
    }

    /// Continues the same limit from a new origin: `now` is more than eight years from the last
    /// one. `false` if there have been too many versions.
    #[cold]
    pub(crate) fn rebase(&self, registered: &RegisteredLimit, now: Timestamp) -> bool {
        let _held = registered.change_lock.lock();
        let old = self.version(registered.current.load(Ordering::SeqCst));
        match reach(&old.normal, old.origin, now) {
            Reach::Late => self.replace_version(old, old.rule, Carry::Keep, now),
            _ => true,
        }
    }

    fn replace_version(
        &self,
        old: &LimitVersion,
        rule: Rule,
        carry: Carry,
        now: Timestamp,
    ) -> bool {
        let Some(next) = self.register(|id| LimitVersion::after(id, old, rule, carry, now)) else {
            return false;
        };
        next.inherit_floor(old, &self.large_states.budget);
        // Evictions from here on merge into the next floor; what was merged before is inherited
        // once more. The fences: either `merge_into_floor` sees that there is a next version, or
        // what it merged is seen here.
        old.next.store(next.id, Ordering::Release);
        fence(Ordering::SeqCst);
        next.inherit_floor(old, &self.large_states.budget);
        old.registered.current.store(next.id, Ordering::Release);
        true
    }

    /// Converts a state to version `to`; `None` if the state is already of a later version.
    fn convert_to(
        &self,
        state: EntryState,
        from: u32,
        to: &LimitVersion,
        now: Timestamp,
    ) -> Option<EntryState> {
        let mut state = state;
        let mut version = self.version(from);
        while version.id != to.id {
            match version.next.load(Ordering::Acquire) {
                0 if version.registered.number == to.registered.number && version.id > to.id => {
                    return None;
                }
                0 => return Some(to.convert_from_other_limit(version, &state, now)),
                next => {
                    let next = self.version(next);
                    state = next.convert_from_previous(version, &state);
                    version = next;
                }
            }
        }
        Some(state)
    }

    /// Merges the state of an evicted key into the floor of its limit.
    fn merge_into_floor(&self, hash: u64, from: u32, mut state: EntryState) {
        let mut version = self.version(from);
        loop {
            let mut next = version.next.load(Ordering::Acquire);
            if next == 0 {
                version.merge_into_floor(hash, &state, &self.large_states.budget);
                // A concurrent change may have inherited the floor before this.
                fence(Ordering::SeqCst);
                next = version.next.load(Ordering::Acquire);
            }
            if next == 0 {
                return;
            }
            let next = self.version(next);
            state = next.convert_from_previous(version, &state);
            version = next;
        }
    }
}

/// # Finding and claiming
impl<C: Clock> Table<C> {
    /// Reads the home cache line of a key, to have it in the cache.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) -> u64 {
        self.words[self.cache_line(hash, 0)].load(Ordering::Relaxed)
    }

    /// Returns the entry of a key in one of its cache lines, if it is there under this version and
    /// is not claimed.
    #[inline(always)]
    fn try_find_in(&self, hash: u64, version: u32, probe: usize) -> Option<EntryView> {
        let start = self.cache_line(hash, probe);
        let wanted = tag(hash, version);
        let cache_line = self.words[start..].first_chunk::<WORDS>()?;
        // Which slot it is cannot be predicted, so there is no branch on it: a misprediction costs
        // more than comparing all four.
        let is =
            |index: usize| u32::from(cache_line[index].load(Ordering::Acquire) == wanted) << index;
        let found = is(0) | is(1) | is(2) | is(3);
        if found == 0 {
            return None;
        }
        let index = found.trailing_zeros() as usize % SLOTS;
        // A tag is written before the state of its key, and a state that is not busy after its tag:
        // what is read between two reads of the same tag is the state of that key.
        let stored = cache_line[index + SLOTS].load(Ordering::Acquire);
        let same = cache_line[index].load(Ordering::Relaxed) == wanted;
        (same && stored != BUSY).then_some(EntryView {
            slot: Slot(start + index),
            tag: wanted,
            stored,
        })
    }

    /// Returns the entry of a key under this version, if it is not claimed.
    #[inline]
    pub(crate) fn try_find(&self, hash: u64, version: u32) -> Option<EntryView> {
        (0..PROBES).find_map(|probe| self.try_find_in(hash, version, probe))
    }

    /// Returns the entry of a key, under any version.
    pub(crate) fn find(&self, hash: u64) -> Option<EntryView> {
        let wanted = tag(hash, 0);
        'again: loop {
            for probe in 0..PROBES {
                let cache_line = self.cache_line(hash, probe);
                for index in 0..SLOTS {
                    let slot = Slot(cache_line + index);
                    let tag = self.tag_at(slot).load(Ordering::Acquire);
                    if tag == EMPTY {
                        return None;
                    }
                    if (tag ^ wanted) >> VERSION_BITS != 0 {
                        continue;
                    }
                    let stored = self.read(slot);
                    if self.tag_at(slot).load(Ordering::Acquire) != tag {
                        continue 'again;
                    }
                    return Some(EntryView { slot, tag, stored });
                }
            }
            return None;
        }
    }

    /// Returns the stored state of an entry, once it is not claimed.
    fn read(&self, slot: Slot) -> u64 {
        let mut round = 0;
        loop {
            match self.state_at(slot).load(Ordering::Acquire) {
                BUSY => relax(round),
                stored => return stored,
            }
            round += 1;
        }
    }

    /// Writes a state, if the entry is unchanged.
    #[inline(always)]
    fn swap(&self, entry: &EntryView, word: u64) -> bool {
        let state = self.state_at(entry.slot);
        let next = mix(entry.tag, word);
        state
            .compare_exchange(entry.stored, next, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Claims an entry, if it is unchanged.
    fn claim(&self, entry: &EntryView) -> bool {
        let state = self.state_at(entry.slot);
        state
            .compare_exchange(entry.stored, BUSY, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Writes several states at once, if all entries are unchanged; otherwise none.
    pub(crate) fn swap_all(&self, writes: &mut [(EntryView, u64)]) -> bool {
        if let [(entry, word)] = writes {
            return self.swap(entry, *word);
        }
        // In the order of their addresses, as everywhere: nothing waits here, but two calls that
        // give way to each other would do so for ever.
        writes.sort_unstable_by_key(|(entry, _)| entry.slot);
        for (at, (entry, _)) in writes.iter().enumerate() {
            if !self.claim(entry) {
                writes[..at]
                    .iter()
                    .for_each(|(entry, _)| self.release(entry));
                return false;
            }
        }
        writes
            .iter()
            .for_each(|(entry, word)| self.release_with(entry, *word));
        true
    }

    /// Releases a claimed entry unchanged.
    pub(crate) fn release(&self, entry: &EntryView) {
        self.state_at(entry.slot)
            .store(entry.stored, Ordering::Release);
    }

    /// Releases a claimed entry with another state.
    pub(crate) fn release_with(&self, entry: &EntryView, word: u64) {
        self.state_at(entry.slot)
            .store(mix(entry.tag, word), Ordering::Release);
    }

    /// Releases a claimed entry with another key or version.
    fn release_to(&self, slot: Slot, tag: u64, word: u64) {
        self.tag_at(slot).store(tag, Ordering::Release);
        self.state_at(slot).store(mix(tag, word), Ordering::Release);
    }
}

impl Stripe {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            insert_lock: Lock::new(),
            evicted_fresh: zero(),
            evicted_live: zero(),
        }
    }
}

/// Allocates zeroed memory, which the operating system hands out as it is touched.
#[cfg(not(ratekeeper_loom))]
fn zeroed<T: bytemuck::Zeroable>(count: usize) -> Option<Box<[T]>> {
    bytemuck::try_zeroed_slice_box(count).ok()
}

#[cfg(ratekeeper_loom)]
fn zeroed<T: Default>(count: usize) -> Option<Box<[T]>> {
    Some((0..count).map(|_| T::default()).collect())
}

/// Returns how many of the words, up to seven, come before the first cache line that begins among
/// them.
fn align_to_cache_line(words: &[AtomicU64]) -> usize {
    words.as_ptr().align_offset(64).min(WORDS - 1)
}
