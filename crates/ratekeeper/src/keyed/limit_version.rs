//! Limit versions: one set of parameters of a limit, in force until the next live change.
//!
//! A table entry names the version it is counted by. A live change creates a new version; an entry
//! is converted when it is next touched, as of the instant of the change. Versions never move and
//! stay until the table is dropped.

use super::eviction_floor::EvictionFloor;
use super::large_state::LargeState;
use super::registered_limit::{RegisteredLimit, Rule};
use crate::algorithm::tat_word::{REACH, Reach, origin_for, reach};
use crate::clock::Timestamp;
use crate::generation::{Carry, Generation, NextGeneration};
use crate::limit::{Kind, Limit, TickLimit};
use crate::sync::{AtomicU32, OnceBox, Ordering};
use std::sync::Arc;

/// One version of a limit: its parameters from one live change to the next, and its eviction floor.
// In this order, so that what every call needs is in one cache line.
#[repr(C)]
#[cfg_attr(not(ratekeeper_loom), repr(align(64)))]
pub(crate) struct LimitVersion {
    /// Names the version in a tag; at least 1.
    pub(crate) id: u32,
    /// The id of the next version; 0 while there is none.
    pub(super) next: AtomicU32,
    pub(crate) normal: TickLimit,
    /// Where the ticks of a word are counted from, in nanoseconds.
    pub(crate) origin: u64,
    pub(crate) registered: Arc<RegisteredLimit>,
    pub(crate) rule: Rule,
    /// Since when it is in force.
    pub(super) since: Timestamp,
    /// What happened to the tokens at the change to it.
    pub(super) carry: Carry,
    pub(super) floor: OnceBox<EvictionFloor>,
}

/// The state of one key.
#[derive(Clone)]
pub(crate) enum EntryState {
    /// A state that fits the word of an entry.
    Word(u64),
    /// A state that is stored beside the table.
    Large(LargeState),
}

impl EntryState {
    pub(crate) const FRESH: Self = Self::Word(0);
}

impl LimitVersion {
    /// Creates the first version of a limit.
    pub(super) fn initial(
        id: u32,
        registered: Arc<RegisteredLimit>,
        rule: Rule,
        now: Timestamp,
    ) -> Self {
        let origin = match rule.normal().kind {
            Kind::Unlimited => now.as_unix_nanos(),
            _ => origin_for(now),
        };
        Self::new(id, registered, rule, origin, now, Carry::Keep)
    }

    /// Creates the version after `before`, in force from `now` on.
    pub(super) fn after(id: u32, before: &Self, rule: Rule, carry: Carry, now: Timestamp) -> Self {
        let origin = match (before.rule, rule) {
            (Rule::Rate(_), Rule::Rate(limit)) => {
                before
                    .convert_to_limit(&EntryState::FRESH, &limit, carry, now)
                    .1
            }
            _ => before.origin,
        };
        Self::new(id, before.registered.clone(), rule, origin, now, carry)
    }

    fn new(
        id: u32,
        registered: Arc<RegisteredLimit>,
        rule: Rule,
        origin: u64,
        since: Timestamp,
        carry: Carry,
    ) -> Self {
        let normal = rule.normal();
        Self {
            id,
            registered,
            rule,
            normal,
            origin,
            since,
            carry,
            next: AtomicU32::new(0),
            floor: OnceBox::new(),
        }
    }

    /// Whether a state fits the word of an entry.
    #[inline]
    pub(crate) fn fits_a_word(&self) -> bool {
        self.normal.fits_a_word()
    }

    /// Returns the state of a key that has never been used.
    pub(crate) fn fresh(&self) -> EntryState {
        if self.fits_a_word() {
            EntryState::FRESH
        } else {
            EntryState::Large(LargeState::fresh(&self.normal))
        }
    }

    /// Returns the clock in ticks, clamped to the range a word can count.
    pub(crate) fn clock_at(&self, now: Timestamp) -> u64 {
        match reach(&self.normal, self.origin, now) {
            Reach::Clock(clock) => clock,
            Reach::Early { .. } => 0,
            Reach::Late => REACH * self.normal.ticks,
        }
    }

    /// Converts a state of the previous version to this one, as of the change.
    pub(super) fn convert_from_previous(&self, before: &Self, state: &EntryState) -> EntryState {
        self.convert_from(before, state, self.carry, self.since)
    }

    /// Converts the state of a key that moves here from another limit, keeping its level. A state
    /// that has been full there for some time counts as refilled at this limit's rate since then.
    pub(super) fn convert_from_other_limit(
        &self,
        before: &Self,
        state: &EntryState,
        now: Timestamp,
    ) -> EntryState {
        let at = before.fresh_since(state, now).unwrap_or(now);
        // Full at that instant, not before: what was clipped off is gone, also for
        // [`fresh_since`](Self::fresh_since).
        self.mark_used_now(self.convert_from(before, state, Carry::Keep, at), at)
    }

    pub(super) fn convert_from(
        &self,
        before: &Self,
        state: &EntryState,
        carry: Carry,
        at: Timestamp,
    ) -> EntryState {
        match (&before.rule, &self.rule) {
            (Rule::Rate(_), Rule::Rate(limit)) => {
                let (state, origin) = before.convert_to_limit(state, limit, carry, at);
                self.rebase_state(state, origin)
            }
            (Rule::InFlight(_), Rule::InFlight(_)) => state.clone(),
            _ => self.fresh(),
        }
    }

    /// Converts a state from another origin to this version's origin.
    fn rebase_state(&self, state: EntryState, origin: u64) -> EntryState {
        match state {
            EntryState::Word(word)
                if origin != self.origin && !self.normal.is_windowed() && word > 0 =>
            {
                let ticks =
                    (i128::from(origin) - i128::from(self.origin)) * i128::from(self.normal.ticks);
                EntryState::Word(
                    (i128::from(word) + ticks).clamp(0, i128::from(u64::MAX - 1)) as u64,
                )
            }
            state => state,
        }
    }

    /// Returns the state under `limit` from `at` on, and the origin it is counted from.
    fn convert_to_limit(
        &self,
        state: &EntryState,
        limit: &Limit,
        carry: Carry,
        at: Timestamp,
    ) -> (EntryState, u64) {
        let cell = Generation::empty();
        let own = self.rule.limit().unwrap_or_else(Limit::unlimited);
        match state {
            EntryState::Word(word) => cell.fill(&own, self.origin, *word),
            EntryState::Large(state) => {
                cell.fill(&own, self.origin, 0);
                state.write_to(&cell, &self.normal);
            }
        }
        let later = NextGeneration::empty();
        cell.hand_over(&later, limit, carry, || at);
        let origin = later.generation.origin.load(Ordering::Relaxed);
        let normal = limit.tick_limit();
        let state = if normal.fits_a_word() {
            EntryState::Word(later.generation.word.load(Ordering::Relaxed))
        } else {
            EntryState::Large(LargeState::read_from(&later.generation, normal))
        };
        (state, origin)
    }
}
