//! [`Generation`]: a state word and its limit. A limiter decides on one; keyed tables use them to
//! convert the states of keys when a limit changes.
//!
//! A live change seals the word of the old generation for good and publishes the next generation; a
//! thread that finds the seal moves on to the current one. All fields are atomic because a
//! generation is filled in after the list that holds it is shared; apart from the word and the two
//! refund counters they are written once, before the generation is published.

pub(crate) mod change;
mod windows;

pub use change::Carry;
pub(crate) use change::{NextGeneration, ReservationClaim};
pub(crate) use windows::LargeWords;

use crate::algorithm::tat_word::{REACH, Reach, SEALED, ahead, origin_for, reach, step};
use crate::algorithm::token_bucket::{self, Step};
use crate::clock::Timestamp;
use crate::limit::{Algorithm, Kind, Limit, TickLimit};
use crate::sync::{AtomicU64, OnceBox, Ordering, back_off};
use change::FULL;

#[repr(C)]
pub(crate) struct Generation {
    /// The state: TAT in ticks since the origin, or a packed window.
    pub(crate) word: AtomicU64,
    pub(crate) origin: AtomicU64,
    token: AtomicU64,
    capacity: AtomicU64,
    /// Ticks per nanosecond, kind, algorithm, burst tag: a byte each.
    pub(crate) meta: AtomicU64,
    /// The limit as the user wrote it; see `Limit::as_written`.
    written: [AtomicU64; 3],
    /// Ticks given back by grants, and by cancelled reservations that had later ones behind them.
    /// Written only by those, under the lock.
    pub(crate) given: AtomicU64,
    /// What refunds and cancels gave back in total. Only they write it, under the lock.
    pub(crate) refunded: AtomicU64,
    /// The state of an algorithm that does not fit the word.
    pub(crate) large: OnceBox<LargeWords>,
}

/// The generation was sealed by a live change: retry on the current one.
pub(crate) struct SealedError;

/// The result of a call that took the fast path.
pub(crate) struct FastStep {
    pub(crate) limit: TickLimit,
    pub(crate) clock: u64,
    pub(crate) step: Step,
    /// The state after the call.
    pub(crate) after: u64,
}

/// The result of one attempt to change the word.
pub(crate) struct Attempt {
    pub(crate) step: Step,
    /// The state before.
    pub(crate) tat: u64,
}

impl Generation {
    pub(crate) fn new(limit: &Limit, now: Timestamp) -> Self {
        let generation = Self::empty();
        let full = match limit.tick_limit().kind {
            Kind::Unlimited => FULL,
            _ => 0,
        };
        generation.fill(limit, origin_for(now), full);
        generation
    }

    /// A generation without a limit, to be [filled](Self::fill).
    pub(crate) fn empty() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            word: zero(),
            origin: zero(),
            token: zero(),
            capacity: zero(),
            meta: zero(),
            written: [zero(), zero(), zero()],
            given: zero(),
            refunded: zero(),
            large: OnceBox::new(),
        }
    }

    pub(crate) fn fill(&self, limit: &Limit, origin: u64, word: u64) {
        let ticks = limit.tick_limit();
        let (written, burst_tag) = limit.as_written();
        let meta = ticks.ticks
            | (ticks.kind as u64) << 8
            | (limit.algorithm_kind() as u64) << 16
            | u64::from(burst_tag) << 24;
        self.word.store(word, Ordering::Relaxed);
        self.origin.store(origin, Ordering::Relaxed);
        self.token.store(ticks.token, Ordering::Relaxed);
        self.capacity.store(ticks.capacity, Ordering::Relaxed);
        self.meta.store(meta, Ordering::Relaxed);
        for (slot, value) in self.written.iter().zip(written) {
            slot.store(value, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn tick_limit(&self) -> TickLimit {
        let meta = self.meta.load(Ordering::Relaxed);
        let kind = Kind::from_byte((meta >> 8) as u8);
        TickLimit {
            ticks: meta & 0xff,
            token: self.token.load(Ordering::Relaxed),
            capacity: self.capacity.load(Ordering::Relaxed),
            kind,
        }
    }

    pub(crate) fn limit(&self) -> Limit {
        let meta = self.meta.load(Ordering::Relaxed);
        let algorithm = Algorithm::ALL[(meta >> 16) as usize & 0xff];
        let written = [0, 1, 2].map(|at: usize| self.written[at].load(Ordering::Relaxed));
        Limit::from_written(written, (meta >> 24) as u8, algorithm)
    }

    /// The position of `now` relative to this generation's origin.
    #[inline]
    pub(crate) fn reach(&self, limit: &TickLimit, now: Timestamp) -> Reach {
        reach(limit, self.origin.load(Ordering::Relaxed), now)
    }

    /// The clock in ticks; an instant out of reach is clamped to the nearer end.
    pub(crate) fn clock(&self, limit: &TickLimit, now: Timestamp) -> u64 {
        match self.reach(limit, now) {
            Reach::Clock(clock) => clock,
            Reach::Early { .. } => 0,
            Reach::Late => REACH * limit.ticks,
        }
    }

    /// How far the state is ahead of `now` in ticks, also if `now` is out of reach.
    pub(crate) fn ahead(&self, limit: &TickLimit, now: Timestamp) -> Result<u64, SealedError> {
        Ok(ahead(
            limit,
            self.origin.load(Ordering::Relaxed),
            self.read()?,
            now,
        ))
    }

    /// The fast path: one step of a token bucket without a wait. Returns `None`, and writes nothing,
    /// if the limit is of another kind, the generation is sealed, the instant is out of reach, the
    /// cost can never fit, or another thread interfered.
    ///
    /// Always inlined: results that the caller does not use are optimized away, and the rest stays
    /// in registers.
    #[inline(always)]
    pub(crate) fn decide_fast(&self, now: Timestamp, cost: u64) -> Option<FastStep> {
        let limit = self.tick_limit();
        if limit.kind != Kind::Bucket {
            return None;
        }
        let Reach::Clock(clock) = self.reach(&limit, now) else {
            return None;
        };
        let tat = self.word.load(Ordering::Relaxed);
        let step = token_bucket::step(&limit, tat, clock, cost, 0);
        let after = match step {
            Step::Admit { tat: next, .. } => {
                // Release: as in `attempt`.
                if cost > 0
                    && self
                        .word
                        .compare_exchange(tat, next, Ordering::AcqRel, Ordering::Relaxed)
                        .is_err()
                {
                    back_off();
                    return None;
                }
                next
            }
            // `SEALED` is the greatest word, so `step` denies it too: leave that to the slow path.
            Step::Deny { .. } if tat != SEALED => tat,
            _ => return None,
        };
        Some(FastStep {
            limit,
            clock,
            step,
            after,
        })
    }

    /// One call. The state is written only if the call is allowed.
    #[inline]
    pub(crate) fn attempt(
        &self,
        limit: &TickLimit,
        clock: u64,
        cost: u64,
        max_wait: u64,
    ) -> Result<Attempt, SealedError> {
        let mut tat = self.word.load(Ordering::Relaxed);
        loop {
            if tat == SEALED {
                return Err(SealedError);
            }
            let step = step(limit, tat, clock, cost, max_wait);
            let next = match step {
                Step::Admit { tat: next, .. } if cost > 0 => next,
                _ => return Ok(Attempt { step, tat }),
            };
            // Release: a reservation's earlier load of `given` must not move after this store.
            match self
                .word
                .compare_exchange_weak(tat, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return Ok(Attempt { step, tat }),
                Err(_) => {
                    back_off();
                    tat = self.word.load(Ordering::Relaxed);
                }
            }
        }
    }

    /// The current state.
    #[inline]
    pub(crate) fn read(&self) -> Result<u64, SealedError> {
        match self.word.load(Ordering::Acquire) {
            SEALED => Err(SealedError),
            tat => Ok(tat),
        }
    }

    /// Updates the state to what `next` returns for it (`None` leaves it unchanged) and returns the
    /// state before. Called only under the lock, which keeps the generation from being sealed, or
    /// before it is published.
    pub(crate) fn update(&self, mut next: impl FnMut(u64) -> Option<u64>) -> u64 {
        let mut tat = self.word.load(Ordering::Acquire);
        while let Some(wanted) = next(tat) {
            match self.word.compare_exchange_weak(
                tat,
                wanted.min(SEALED - 1),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => break,
                Err(seen) => tat = seen,
            }
        }
        tat
    }
}
