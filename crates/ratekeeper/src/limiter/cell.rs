//! One generation of a limiter: the word, and the limit it is counted by.
//!
//! A live change seals the word of the old generation for good and publishes the next cell; whoever
//! meets the seal goes on to the cell that is current then. All fields are atomic because a cell is
//! filled in after the list that holds it is shared; apart from the word and the two cold counters
//! they are written once, before the cell is published.

use super::change::FULL;
use super::windowed::LargeWords;
use crate::algorithm::pacing;
use crate::algorithm::token_bucket::{self, Step};
use crate::clock::Timestamp;
use crate::decision::{Decision, Outcome};
use crate::limit::{Algorithm, HORIZON, Kind, Limit, TickLimit};
use crate::sync::{AtomicU64, OnceBox, Ordering, back_off};

/// The word of a generation that is over.
pub(crate) const SEALED: u64 = u64::MAX;

/// How far from its origin a cell is used: what is left of the horizon is room for debt.
pub(crate) const REACH: u64 = HORIZON / 5 * 4;

/// How far back a limiter's origin lies, so that a replay of older instants counts as well as the
/// present.
const BACKLOG: u64 = HORIZON / 2;

#[repr(C)]
pub(crate) struct Generation {
    /// The state: TAT in ticks since the origin, or a packed window.
    pub(crate) word: AtomicU64,
    pub(crate) origin: AtomicU64,
    token: AtomicU64,
    capacity: AtomicU64,
    /// Ticks a nanosecond, kind, algorithm: a byte each.
    pub(super) meta: AtomicU64,
    written: [AtomicU64; 3],
    /// What cancels gave back from under later reservations. Only they write it, under the lock.
    pub(super) given: AtomicU64,
    /// What refunds and cancels gave back in all. Only they write it, under the lock.
    pub(super) refunded: AtomicU64,
    /// The state of an algorithm that does not fit the word.
    pub(super) wide: OnceBox<LargeWords>,
}

/// Where an instant lies from the origin of a cell.
pub(crate) enum Reach {
    /// Within the horizon: the clock, in ticks.
    Clock(u64),
    /// Before the origin, by so many ticks: years behind the limiter's birth, or its last move of
    /// the origin.
    Early { wait: u64 },
    /// Beyond the horizon: the cell must be counted from a new origin before it can be written.
    Late,
}

/// The generation is over: look for the next.
pub(super) struct Sealed;

/// What one attempt on the word came to.
pub(super) struct Attempt {
    pub(super) step: Step,
    /// The state before.
    pub(super) tat: u64,
}

/// A call that went the way of nearly all.
pub(crate) struct FastDecision {
    pub(crate) limit: TickLimit,
    pub(crate) clock: u64,
    /// How far ahead of the clock the call left the state.
    pub(crate) ahead: u64,
    /// Zero if it was admitted, else the ticks until it would be.
    pub(crate) wait: u64,
}

impl FastDecision {
    #[inline(always)]
    pub(crate) fn decision(&self) -> Decision {
        let outcome = if self.wait == 0 {
            Outcome::Allowed
        } else {
            Outcome::Denied
        };
        Decision::new(&self.limit, outcome, self.ahead, self.wait)
    }
}

impl Generation {
    pub(super) fn new(limit: &Limit, now: Timestamp) -> Self {
        let cell = Self::empty();
        let full = match limit.normal().kind {
            Kind::Unlimited => FULL,
            _ => 0,
        };
        cell.fill(limit, origin_for(now), full);
        cell
    }

    /// A cell that has no limit yet.
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
            wide: OnceBox::new(),
        }
    }

    pub(crate) fn fill(&self, limit: &Limit, origin: u64, word: u64) {
        let normal = limit.normal();
        let (written, room) = limit.written();
        let meta = normal.ticks
            | (normal.kind as u64) << 8
            | (limit.algorithm_kind() as u64) << 16
            | u64::from(room) << 24;
        self.word.store(word, Ordering::Relaxed);
        self.origin.store(origin, Ordering::Relaxed);
        self.token.store(normal.token, Ordering::Relaxed);
        self.capacity.store(normal.capacity, Ordering::Relaxed);
        self.meta.store(meta, Ordering::Relaxed);
        for (slot, value) in self.written.iter().zip(written) {
            slot.store(value, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn normal(&self) -> TickLimit {
        let meta = self.meta.load(Ordering::Relaxed);
        let kind = Kind::from_byte((meta >> 8) as u8);
        TickLimit {
            ticks: meta & 0xff,
            token: self.token.load(Ordering::Relaxed),
            capacity: self.capacity.load(Ordering::Relaxed),
            kind,
        }
    }

    pub(super) fn limit(&self) -> Limit {
        let meta = self.meta.load(Ordering::Relaxed);
        let algorithm = Algorithm::ALL[(meta >> 16) as usize & 0xff];
        let written = [0, 1, 2].map(|at: usize| self.written[at].load(Ordering::Relaxed));
        Limit::from_written(written, (meta >> 24) as u8, algorithm)
    }

    /// Where `now` lies from here.
    #[inline]
    pub(super) fn reach(&self, limit: &TickLimit, now: Timestamp) -> Reach {
        reach(limit, self.origin.load(Ordering::Relaxed), now)
    }

    /// The clock in ticks; what is out of reach stands at the end it is beyond.
    pub(super) fn clock(&self, limit: &TickLimit, now: Timestamp) -> u64 {
        match self.reach(limit, now) {
            Reach::Clock(clock) => clock,
            Reach::Early { .. } => 0,
            Reach::Late => REACH * limit.ticks,
        }
    }

    /// How far the state is ahead of `now` in ticks, wherever `now` lies.
    pub(super) fn ahead(&self, limit: &TickLimit, now: Timestamp) -> Result<u64, Sealed> {
        Ok(ahead(
            limit,
            self.origin.load(Ordering::Relaxed),
            self.read()?,
            now,
        ))
    }

    /// One call of a bucket without patience where nothing is out of the ordinary: admitted, or
    /// turned away for now. None, and nothing is written, if the cell is sealed or not a bucket,
    /// the instant is out of reach, or it can never fit.
    ///
    /// It is [`token_bucket::step`] turned round: what depends on the limit alone comes first, so
    /// that one comparison is left once the time and the state are known. Always in line: a caller
    /// that asks no more than whether it passed pays for no more, and nothing goes through memory.
    #[inline(always)]
    pub(super) fn decide_fast(&self, now: Timestamp, cost: u64) -> Option<FastDecision> {
        let limit = self.normal();
        let charge = cost.checked_mul(limit.token)?;
        // How far ahead the state may be for the cost to fit.
        let room = limit.capacity.checked_sub(charge)?;
        let elapsed = now
            .as_unix_nanos()
            .checked_sub(self.origin.load(Ordering::Relaxed))?;
        if elapsed > REACH || limit.kind != Kind::Bucket {
            return None;
        }
        let clock = elapsed * limit.ticks;
        let tat = self.word.load(Ordering::Relaxed);
        let ahead = tat.saturating_sub(clock);
        if ahead > room {
            // The seal is further ahead than any room.
            return (tat < SEALED - charge).then_some(FastDecision {
                limit,
                clock,
                ahead,
                wait: ahead - room,
            });
        }
        let mut after = ahead + charge;
        if cost > 0 {
            // The normal form leaves room for a full bucket beyond every clock. Release: as in
            // `attempt`.
            let next = tat.max(clock) + charge;
            if self
                .word
                .compare_exchange(tat, next, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
            {
                after = self.collided(clock, charge, room)?;
            }
        }
        Some(FastDecision {
            limit,
            clock,
            ahead: after,
            wait: 0,
        })
    }

    /// The rest of a quick call that another thread got in the way of: how far ahead it left the
    /// state. None, and nothing is written, if it does not fit any more. Numbers in and out, so
    /// that the quick call stays in registers.
    #[cold]
    #[inline(never)]
    fn collided(&self, clock: u64, charge: u64, room: u64) -> Option<u64> {
        loop {
            back_off();
            let tat = self.word.load(Ordering::Relaxed);
            let ahead = tat.saturating_sub(clock);
            if ahead > room {
                return None;
            }
            let next = tat.max(clock) + charge;
            if self
                .word
                .compare_exchange(tat, next, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return Some(ahead + charge);
            }
        }
    }

    /// One call. Admitted, it is written; otherwise nothing is.
    #[inline]
    pub(super) fn attempt(
        &self,
        limit: &TickLimit,
        clock: u64,
        cost: u64,
        patience: u64,
    ) -> Result<Attempt, Sealed> {
        let mut tat = self.word.load(Ordering::Relaxed);
        loop {
            if tat == SEALED {
                return Err(Sealed);
            }
            let step = step(limit, tat, clock, cost, patience);
            let next = match step {
                Step::Admit { tat: next, .. } if cost > 0 => next,
                _ => return Ok(Attempt { step, tat }),
            };
            // Release: a reservation's reading of `given` stays before it.
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

    /// The state as it is.
    #[inline]
    pub(super) fn read(&self) -> Result<u64, Sealed> {
        match self.word.load(Ordering::Acquire) {
            SEALED => Err(Sealed),
            tat => Ok(tat),
        }
    }

    /// Moves the state by what `next` says of it (none: leave it) and returns what it was. Only
    /// under the lock: the cell is not sealed then.
    pub(super) fn update(&self, mut next: impl FnMut(u64) -> Option<u64>) -> u64 {
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

/// Where `now` lies from `origin`.
#[inline]
pub(crate) fn reach(limit: &TickLimit, origin: u64, now: Timestamp) -> Reach {
    let nanos = now.as_unix_nanos();
    let elapsed = nanos.wrapping_sub(origin);
    if nanos >= origin && elapsed <= REACH {
        // At most 58 · 8 years, which fits.
        return Reach::Clock(elapsed * limit.ticks);
    }
    out_of_reach(limit, origin, nanos)
}

#[cold]
fn out_of_reach(limit: &TickLimit, origin: u64, now: u64) -> Reach {
    if limit.ticks == 0 {
        // Time stands still.
        return Reach::Clock(0);
    }
    match origin.checked_sub(now) {
        Some(early) => Reach::Early {
            wait: early.saturating_mul(limit.ticks),
        },
        None => Reach::Late,
    }
}

/// How far a state is ahead of `now` in ticks, wherever `now` lies.
pub(crate) fn ahead(limit: &TickLimit, origin: u64, tat: u64, now: Timestamp) -> u64 {
    let clock = match reach(limit, origin, now) {
        Reach::Clock(clock) => i128::from(clock),
        _ => (i128::from(now.as_unix_nanos()) - i128::from(origin)) * i128::from(limit.ticks),
    };
    (i128::from(tat) - clock).clamp(0, i128::from(SEALED)) as u64
}

/// What a call would be told by a bucket or a queue, wherever its instant lies.
pub(crate) fn look(
    limit: &TickLimit,
    origin: u64,
    tat: u64,
    now: Timestamp,
    cost: u64,
    patience: u64,
) -> Decision {
    let ahead = ahead(limit, origin, tat, now);
    let step = match (
        reach(limit, origin, now),
        step(limit, ahead, 0, cost, patience),
    ) {
        // So early that the distance is more than a word holds.
        (Reach::Early { wait }, _) if wait.max(ahead) == u64::MAX => Step::Never,
        (Reach::Early { wait: until_origin }, Step::Admit { wait, .. } | Step::Deny { wait }) => {
            Step::Deny {
                wait: wait.max(until_origin),
            }
        }
        (_, step) => step,
    };
    decision(limit, step, ahead)
}

/// One call on the word of a bucket or a queue.
#[inline]
pub(crate) fn step(limit: &TickLimit, tat: u64, clock: u64, cost: u64, patience: u64) -> Step {
    match limit.kind {
        Kind::Pacing => pacing::step(limit, tat, clock, cost, patience),
        _ => token_bucket::step(limit, tat, clock, cost, patience),
    }
}

/// What the caller is told of a step that left the state so far ahead of the clock.
#[inline]
pub(crate) fn decision(normal: &TickLimit, step: Step, ahead: u64) -> Decision {
    let (outcome, wait) = match step {
        Step::Admit { wait, .. } => (Outcome::Allowed, wait),
        Step::Deny { wait } => (Outcome::Denied, wait),
        Step::Never => (Outcome::Never, 0),
    };
    Decision::new(normal, outcome, ahead, wait)
}

pub(crate) fn origin_for(now: Timestamp) -> u64 {
    now.as_unix_nanos().saturating_sub(BACKLOG)
}
