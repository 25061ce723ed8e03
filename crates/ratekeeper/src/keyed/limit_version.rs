//! Limit versions: one set of parameters of a limit, in force until the next live change.
//!
//! A table entry names the numbers it is counted by: its *terms*. A line is one limit over time; a
//! live change gives it new terms, and an entry is converted when it is next touched, as of the
//! instant of the change. Terms never move and stay until the table is dropped.

use super::eviction_floor::EvictionFloor;
use super::large_state::LargeState;
use super::registered_limit::{RegisteredLimit, Rule};
use crate::clock::Timestamp;
use crate::limit::{Kind, Limit, TickLimit};
use crate::limiter::Carry;
use crate::limiter::cell::{Generation, REACH, Reach, origin_for, reach};
use crate::limiter::change::NextGeneration;
use crate::sync::{AtomicU32, OnceBox, Ordering};
use std::sync::Arc;

// In this order, so that what every call needs is in one cache line.
#[repr(C)]
#[cfg_attr(not(ratekeeper_loom), repr(align(64)))]
pub(crate) struct LimitVersion {
    /// What names them in a tag: at least 1.
    pub(crate) id: u32,
    /// The terms that came after them; 0 while there are none.
    pub(super) next: AtomicU32,
    pub(crate) normal: TickLimit,
    pub(crate) origin: u64,
    pub(crate) registered: Arc<RegisteredLimit>,
    pub(crate) rule: Rule,
    /// Since when they are in force, and what became of the level then.
    pub(super) since: Timestamp,
    pub(super) carry: Carry,
    pub(super) floor: OnceBox<EvictionFloor>,
}
/// The state of one key.
#[derive(Clone)]
pub(crate) enum EntryState {
    Word(u64),
    Large(LargeState),
}

impl EntryState {
    pub(crate) const FRESH: Self = Self::Word(0);
}

impl LimitVersion {
    /// The first terms of a line.
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

    /// The terms after `before`, from `now` on.
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

    /// The state of a key that nobody has asked about.
    pub(crate) fn fresh(&self) -> EntryState {
        if self.fits_a_word() {
            EntryState::FRESH
        } else {
            EntryState::Large(LargeState::fresh(&self.normal))
        }
    }

    /// The clock in ticks; what is out of reach stands at the end it is beyond.
    pub(crate) fn clock_at(&self, now: Timestamp) -> u64 {
        match reach(&self.normal, self.origin, now) {
            Reach::Clock(clock) => clock,
            Reach::Early { .. } => 0,
            Reach::Late => REACH * self.normal.ticks,
        }
    }

    /// The state that is `state` of the terms before these, as of the change.
    pub(super) fn convert_from_previous(&self, before: &Self, state: &EntryState) -> EntryState {
        self.convert_from(before, state, self.carry, self.since)
    }

    /// The same level under these terms, of a key that comes from another line. What has been full
    /// there since some time has come on since then as it does here.
    pub(super) fn convert_from_other_limit(
        &self,
        before: &Self,
        state: &EntryState,
        now: Timestamp,
    ) -> EntryState {
        let at = before.fresh_since(state, now).unwrap_or(now);
        // Full at that instant, not before: what was clipped off is gone, also for whoever asks
        // since when it is full.
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

    /// A state that is counted from another origin, counted from this one.
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

    /// The state under `limit` from `at` on, and the origin it is counted from.
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
        let origin = later.cell.origin.load(Ordering::Relaxed);
        let normal = limit.normal();
        let state = match normal.fits_a_word() {
            true => EntryState::Word(later.cell.word.load(Ordering::Relaxed)),
            false => EntryState::Large(LargeState::read_from(&later.cell, normal)),
        };
        (state, origin)
    }
}
