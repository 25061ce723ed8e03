//! [`Generations`]: the state that the clones of a limiter share. The first generation is inline,
//! everything that only rare operations need is allocated on first use.

use crate::adjustments::Adjustments;
use crate::algorithm::tat_word::Reach;
use crate::append_vec::AppendVec;
use crate::clock::{Clock, Timestamp};
use crate::generation::{Carry, Generation, NextGeneration, ReservationClaim, SealedError};
use crate::limit::{Limit, TickLimit};
use crate::sync::{AtomicU32, AtomicU64, Lock, OnceBox, Ordering, relax};
use alloc::boxed::Box;

/// The generations of a limiter. Generation 0 is inline, so that a limiter that never changes costs
/// one cache line per decision.
#[cfg_attr(not(ratekeeper_loom), repr(C, align(64)))]
pub(crate) struct Generations<C> {
    generation_id: AtomicU32,
    first: Generation,
    cold: OnceBox<ColdState>,
    clock: C,
}

/// The state of rare operations, allocated by the first of them: a cancel, a settle, a change, a
/// wait that has to wait.
pub(crate) struct ColdState {
    lock: Lock,
    /// Generations 1 and later: they never move, and stay until the limiter is dropped.
    later: AppendVec<NextGeneration>,
    changes: AtomicU64,
    granted: AtomicU64,
    settled_up: AtomicU64,
    not_returned: AtomicU64,
    #[cfg(feature = "std")]
    pub(crate) waiters: crate::waiters::Waiters,
}

impl<C: Clock> Generations<C> {
    pub(crate) fn new(limit: Limit, clock: C) -> Self {
        let first = Generation::new(&limit, clock.now());
        Self {
            generation_id: AtomicU32::new(0),
            first,
            cold: OnceBox::new(),
            clock,
        }
    }

    #[inline]
    pub(crate) fn clock(&self) -> &C {
        &self.clock
    }

    /// The current generation, or one that was current a moment ago.
    #[inline(always)]
    pub(crate) fn probable(&self) -> (u32, &Generation) {
        match self.generation_id.load(Ordering::Acquire) {
            0 => (0, &self.first),
            generation_id => (generation_id, self.generation(generation_id)),
        }
    }

    /// Runs `op` on the current generation, again on the next one if that generation is sealed
    /// meanwhile.
    #[inline]
    pub(crate) fn on_current<T>(
        &self,
        mut op: impl FnMut(&Generation, u32) -> Result<T, SealedError>,
    ) -> T {
        match op(&self.first, 0) {
            Ok(done) => done,
            Err(SealedError) => self.on_later(op),
        }
    }

    #[inline(never)]
    fn on_later<T>(&self, mut op: impl FnMut(&Generation, u32) -> Result<T, SealedError>) -> T {
        let mut over = 0;
        loop {
            let (generation_id, generation) = self.current_after(over);
            match op(generation, generation_id) {
                Ok(done) => return done,
                Err(SealedError) => over = generation_id,
            }
        }
    }

    /// The current generation, once it is later than `over`.
    #[inline]
    fn current_after(&self, over: u32) -> (u32, &Generation) {
        let mut round = 0;
        loop {
            let (generation_id, generation) = self.current();
            if generation_id != over {
                return (generation_id, generation);
            }
            // Sealed, and the next one not published yet: a change is a few instructions from its
            // end.
            relax(round);
            round += 1;
        }
    }

    #[inline]
    pub(crate) fn current(&self) -> (u32, &Generation) {
        let generation_id = self.generation_id.load(Ordering::Acquire);
        (generation_id, self.generation(generation_id))
    }

    #[inline(never)]
    pub(crate) fn generation(&self, generation_id: u32) -> &Generation {
        match self.later(generation_id) {
            Some(later) => &later.generation,
            None => &self.first,
        }
    }

    /// A generation after the first.
    #[inline]
    fn later(&self, generation_id: u32) -> Option<&NextGeneration> {
        self.cold
            .get()?
            .later
            .get(u64::from(generation_id.checked_sub(1)?))
    }

    pub(crate) fn cold(&self) -> &ColdState {
        self.cold.get_or_init(|| Box::new(ColdState::new()))
    }

    #[cfg(feature = "std")]
    pub(crate) fn cold_if_any(&self) -> Option<&ColdState> {
        self.cold.get()
    }

    /// Ends the current generation and starts the next one with `limit`.
    pub(crate) fn change(&self, limit: &Limit, carry: Carry, now: impl FnOnce() -> Timestamp) {
        let cold = self.cold();
        let _guard = cold.lock.lock();
        let (generation_id, generation) = self.current();
        if carry != Carry::Reset && generation.limit() == *limit {
            return;
        }
        self.start_next(cold, generation_id, generation, limit, carry, now);
        cold.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Starts a generation of the same limit with an origin near `now`, if the current one is too
    /// far from it.
    #[cold]
    pub(crate) fn rebase(&self, now: Timestamp) {
        let cold = self.cold();
        let _guard = cold.lock.lock();
        let (generation_id, generation) = self.current();
        let limit = generation.limit();
        if let Reach::Late = generation.reach(limit.tick_limit(), now) {
            self.start_next(cold, generation_id, generation, &limit, Carry::Keep, || now);
        }
    }

    fn start_next(
        &self,
        cold: &ColdState,
        generation_id: u32,
        generation: &Generation,
        limit: &Limit,
        carry: Carry,
        now: impl FnOnce() -> Timestamp,
    ) {
        // Checked first: nothing may fail between the seal and the successor.
        let Some(next) = generation_id.checked_add(1) else {
            return;
        };
        generation.hand_over(
            cold.later
                .get_or_make(u64::from(generation_id), NextGeneration::empty),
            limit,
            carry,
            now,
        );
        self.generation_id.store(next, Ordering::Release);
    }

    /// Runs `op` on the current generation and its limit under the lock, which checks never take:
    /// the generation cannot be sealed meanwhile, and `now` is not beyond its horizon.
    pub(crate) fn locked(
        &self,
        now: impl Fn() -> Timestamp,
        op: impl FnOnce(&Generation, &TickLimit, u32),
    ) {
        let cold = self.cold();
        let mut guard = cold.lock.lock();
        loop {
            let (generation_id, generation) = self.current();
            let (limit, now) = (generation.tick_limit(), now());
            let Reach::Late = generation.reach(&limit, now) else {
                return op(generation, &limit, generation_id);
            };
            drop(guard);
            self.rebase(now);
            guard = cold.lock.lock();
        }
    }

    /// Converts a claim of generation `generation_id` to the current one; `None` if nothing of it is
    /// left.
    pub(crate) fn convert_claim(
        &self,
        claim: ReservationClaim,
        generation_id: u32,
        current: u32,
    ) -> Option<ReservationClaim> {
        (generation_id..current).try_fold(claim, |claim, at| {
            self.later(at + 1)?
                .convert_claim(self.generation(at), claim)
        })
    }

    pub(crate) fn adjustments(&self) -> Adjustments {
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

    pub(crate) fn count_granted(&self, tokens: u64) {
        self.granted.fetch_add(tokens, Ordering::Relaxed);
    }

    pub(crate) fn count_settled_up(&self, tokens: u64) {
        self.settled_up.fetch_add(tokens, Ordering::Relaxed);
    }

    pub(crate) fn count_not_returned(&self, tokens: u64) {
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
