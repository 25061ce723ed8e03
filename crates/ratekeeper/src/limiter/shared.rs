//! What the clones of a limiter share: the first generation inline, and what only the rare
//! operations need.

use super::cell::{Generation, Reach, Sealed};
use super::change::{Carry, NextGeneration, ReservationClaim};
use crate::chunks::AppendVec;
use crate::clock::{Clock, Timestamp};
use crate::limit::{Limit, TickLimit};
use crate::sync::{AtomicU32, AtomicU64, Lock, OnceBox, Ordering, relax};
use alloc::boxed::Box;

/// Generation 0 lives in line, so that a limiter that never changes costs one cache line to decide.
#[cfg_attr(not(ratekeeper_loom), repr(C, align(64)))]
pub(super) struct Generations<C> {
    generation: AtomicU32,
    first: Generation,
    cold: OnceBox<ColdState>,
    clock: C,
}

/// What is made when the first rare operation comes: a cancel, a settle, a change, a wait that
/// waits.
pub(super) struct ColdState {
    lock: Lock,
    /// Generations 1 and on: they never move, and stay until the limiter is dropped.
    later: AppendVec<NextGeneration>,
    changes: AtomicU64,
    granted: AtomicU64,
    settled_up: AtomicU64,
    not_returned: AtomicU64,
    #[cfg(feature = "std")]
    pub(super) waiters: super::waiters::Waiters,
}

/// Units that came on top of a limiter's promise, or that a caller gave back too late.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Adjustments {
    /// Tokens an operator granted.
    pub granted: u64,
    /// Units that cost more than was charged when they were admitted, and were charged afterwards.
    pub settled_up: u64,
    /// Units that a settle did not bring back because the limit had changed or been reset, or the
    /// key been displaced, since they were charged.
    pub not_returned: u64,
    /// Live changes of the limit so far, resets among them.
    pub changes: u64,
}

impl<C: Clock> Generations<C> {
    pub(super) fn new(limit: Limit, clock: C) -> Self {
        let first = Generation::new(&limit, clock.now());
        Self {
            generation: AtomicU32::new(0),
            first,
            cold: OnceBox::new(),
            clock,
        }
    }

    #[inline]
    pub(super) fn clock(&self) -> &C {
        &self.clock
    }

    /// The cell that is current, or was a moment ago.
    #[inline(always)]
    pub(super) fn probable(&self) -> (u32, &Generation) {
        match self.generation.load(Ordering::Acquire) {
            0 => (0, &self.first),
            generation => (generation, self.cell(generation)),
        }
    }

    /// Runs `verb` on the cell that is current, again if that cell ends meanwhile.
    #[inline]
    pub(super) fn on_current<T>(
        &self,
        mut verb: impl FnMut(&Generation, u32) -> Result<T, Sealed>,
    ) -> T {
        match verb(&self.first, 0) {
            Ok(done) => done,
            Err(Sealed) => self.on_later(verb),
        }
    }

    #[inline(never)]
    fn on_later<T>(&self, mut verb: impl FnMut(&Generation, u32) -> Result<T, Sealed>) -> T {
        let mut over = 0;
        loop {
            let (generation, cell) = self.current_after(over);
            match verb(cell, generation) {
                Ok(done) => return done,
                Err(Sealed) => over = generation,
            }
        }
    }

    /// The current cell, once it is a later one than that of the generation `over`.
    #[inline]
    fn current_after(&self, over: u32) -> (u32, &Generation) {
        let mut round = 0;
        loop {
            let (generation, cell) = self.current();
            if generation != over {
                return (generation, cell);
            }
            // Sealed, and the next not published yet: a change is a few instructions from its end.
            relax(round);
            round += 1;
        }
    }

    #[inline]
    pub(super) fn current(&self) -> (u32, &Generation) {
        let generation = self.generation.load(Ordering::Acquire);
        (generation, self.cell(generation))
    }

    #[inline(never)]
    pub(super) fn cell(&self, generation: u32) -> &Generation {
        match self.later(generation) {
            Some(later) => &later.cell,
            None => &self.first,
        }
    }

    /// A generation after the first.
    #[inline]
    fn later(&self, generation: u32) -> Option<&NextGeneration> {
        self.cold
            .get()?
            .later
            .get(u64::from(generation.checked_sub(1)?))
    }

    pub(super) fn cold(&self) -> &ColdState {
        self.cold.get_or_init(|| Box::new(ColdState::new()))
    }

    #[cfg(feature = "std")]
    pub(super) fn cold_if_any(&self) -> Option<&ColdState> {
        self.cold.get()
    }

    /// Ends the current generation and starts the next with `limit`.
    pub(super) fn change(&self, limit: &Limit, carry: Carry, now: impl FnOnce() -> Timestamp) {
        let cold = self.cold();
        let _held = cold.lock.hold();
        let (generation, cell) = self.current();
        if carry != Carry::Reset && cell.limit() == *limit {
            return;
        }
        self.succeed(cold, generation, cell, limit, carry, now);
        cold.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Starts a generation of the same limit whose origin is near `now`, if the current one is too
    /// far from it.
    #[cold]
    pub(super) fn rebase(&self, now: Timestamp) {
        let cold = self.cold();
        let _held = cold.lock.hold();
        let (generation, cell) = self.current();
        let limit = cell.limit();
        if let Reach::Late = cell.reach(limit.normal(), now) {
            self.succeed(cold, generation, cell, &limit, Carry::Keep, || now);
        }
    }

    fn succeed(
        &self,
        cold: &ColdState,
        generation: u32,
        cell: &Generation,
        limit: &Limit,
        carry: Carry,
        now: impl FnOnce() -> Timestamp,
    ) {
        // Room first: nothing may fail between the seal and the successor.
        let Some(next) = generation.checked_add(1) else {
            return;
        };
        cell.hand_over(
            cold.later
                .get_or_make(u64::from(generation), NextGeneration::empty),
            limit,
            carry,
            now,
        );
        self.generation.store(next, Ordering::Release);
    }

    /// Runs `verb` on the current cell and its limit under the lock that checks never take: the
    /// cell cannot end meanwhile, and `now` is not beyond its horizon.
    pub(super) fn locked(
        &self,
        now: impl Fn() -> Timestamp,
        verb: impl FnOnce(&Generation, &TickLimit, u32),
    ) {
        let cold = self.cold();
        let mut held = cold.lock.hold();
        loop {
            let (generation, cell) = self.current();
            let (normal, now) = (cell.normal(), now());
            let Reach::Late = cell.reach(&normal, now) else {
                return verb(cell, &normal, generation);
            };
            drop(held);
            self.rebase(now);
            held = cold.lock.hold();
        }
    }

    /// What a claim made in `generation` is in the current one; none if nothing of it is left.
    pub(super) fn follow(
        &self,
        claim: ReservationClaim,
        generation: u32,
        current: u32,
    ) -> Option<ReservationClaim> {
        (generation..current).try_fold(claim, |claim, at| {
            self.later(at + 1)?.follow(self.cell(at), claim)
        })
    }

    pub(super) fn adjustments(&self) -> Adjustments {
        let Some(cold) = self.cold.get() else {
            return Adjustments::default();
        };
        Adjustments {
            granted: cold.granted.load(Ordering::Relaxed),
            settled_up: cold.settled_up.load(Ordering::Relaxed),
            not_returned: cold.not_returned.load(Ordering::Relaxed),
            changes: cold.changes.load(Ordering::Relaxed),
        }
    }
}

impl ColdState {
    fn new() -> Self {
        Self {
            lock: Lock::new(),
            later: AppendVec::new(),
            changes: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            settled_up: AtomicU64::new(0),
            not_returned: AtomicU64::new(0),
            #[cfg(feature = "std")]
            waiters: Default::default(),
        }
    }

    pub(super) fn count_granted(&self, tokens: u64) {
        self.granted.fetch_add(tokens, Ordering::Relaxed);
    }

    pub(super) fn count_settled_up(&self, tokens: u64) {
        self.settled_up.fetch_add(tokens, Ordering::Relaxed);
    }

    pub(super) fn count_not_returned(&self, tokens: u64) {
        self.not_returned.fetch_add(tokens, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(ratekeeper_loom)))]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn a_limiters_shared_part_is_two_cache_lines() {
        assert_eq!(size_of::<Generations<crate::clock::ManualClock>>(), 128);
    }

    #[test]
    fn ten_thousand_changes_keep_the_level() {
        let clock = ManualClock::new();
        let shared = Generations::new(Limit::per_second(10), clock.clone());
        for burst in 0..10_000 {
            shared.change(
                &Limit::per_second(10).burst(10 + burst % 2),
                Carry::Keep,
                || clock.now(),
            );
        }
        assert_eq!(shared.adjustments().changes, 9_999);
    }
}
