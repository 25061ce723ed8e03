//! One generation of a limiter: the word, and the limit it is counted by.
//!
//! A live change seals the word of the old generation for good and publishes the next cell; whoever meets the seal goes
//! on to the cell that is current then. All fields are atomic because a cell is filled in after the list that holds it
//! is shared; apart from the word and the two cold counters they are written once, before the cell is published.

use super::windowed::Wide;
use crate::algorithm::pacing;
use crate::algorithm::token_bucket::{self, Step};
use crate::clock::Instant;
use crate::decision::{Decision, Outcome};
use crate::limit::{Algorithm, HORIZON, Kind, Limit, Normal};
use crate::sync::{AtomicU64, OnceBox, Ordering, back_off};

/// The word of a generation that is over.
pub(super) const SEALED: u64 = u64::MAX;

/// How far from its origin a cell is used: what is left of the horizon is room for debt.
const REACH: u64 = HORIZON / 5 * 4;

/// How far back a limiter's origin lies, so that a replay of older instants counts as well as the present.
const BACKLOG: u64 = HORIZON / 2;

/// The word of an unlimited cell holds the level it was entered with, shifted by this; `FULL` stands for any level.
const UNLIMITED_BIAS: i128 = 1 << 62;
const FULL: u64 = 1 << 63;

#[repr(C)]
pub(super) struct Cell {
    /// The state: TAT in ticks since the origin, or a packed window.
    pub(super) word: AtomicU64,
    origin: AtomicU64,
    token: AtomicU64,
    capacity: AtomicU64,
    /// Ticks a nanosecond, kind, algorithm: a byte each.
    meta: AtomicU64,
    written: [AtomicU64; 3],
    /// What cancels gave back from under later reservations. Only they write it, under the lock.
    pub(super) given: AtomicU64,
    /// What refunds and cancels gave back in all. Only they write it, under the lock.
    pub(super) refunded: AtomicU64,
    /// The state of an algorithm that does not fit the word.
    pub(super) wide: OnceBox<Wide>,
}

/// A generation after the first, and how claims of the one before it find themselves in it.
pub(super) struct Later {
    pub(super) cell: Cell,
    carried: Carried,
}

struct Carried {
    /// The old zero of the bucket, in the old ticks.
    from: AtomicU64,
    /// The same level in the new ticks.
    to: AtomicU64,
    /// The level at the change in the old ticks (signed): a slot whose mark is that far from zero, or less, was due.
    level: AtomicU64,
}

/// What a reservation can give back, and from where on others stand behind it: in the ticks of one generation.
#[derive(Clone, Copy)]
pub(super) struct Claim {
    pub(super) worth: u64,
    pub(super) mark: u64,
}

/// How a limiter's level survives a change of its limit. See [`Limiter::set_limit_with`](super::Limiter::set_limit_with).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Carry {
    /// The tokens stay what they are, clipped to the new burst. Debt stays debt. Nothing is minted.
    #[default]
    Keep,
    /// The bucket stays as full as it was: half full of 10 becomes half full of 20. Debt stays as it is.
    Proportional,
    /// A larger burst brings the difference at once; a smaller one clips.
    Additive,
    /// The bucket starts full. Older charges and reservations give nothing back.
    Reset,
}

/// Where an instant lies from the origin of a cell.
pub(super) enum Reach {
    /// Within the horizon: the clock, in ticks.
    Clock(u64),
    /// Before the origin, by so many ticks: years behind the limiter's birth, or its last move of the origin.
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
pub(super) struct Quick {
    pub(super) limit: Normal,
    pub(super) clock: u64,
    /// How far ahead of the clock the call left the state.
    pub(super) ahead: u64,
    /// Zero if it was admitted, else the ticks until it would be.
    pub(super) wait: u64,
}

impl Quick {
    #[inline(always)]
    pub(super) fn decision(&self) -> Decision {
        let outcome = if self.wait == 0 { Outcome::Allowed } else { Outcome::Denied };
        Decision::new(&self.limit, outcome, self.ahead, self.wait)
    }
}

impl Cell {
    pub(super) fn new(limit: &Limit, now: Instant) -> Self {
        let cell = Self::empty();
        let full = match limit.normal().kind {
            Kind::Unlimited => FULL,
            _ => 0,
        };
        cell.fill(limit, origin_for(now), full);
        cell
    }

    /// A cell that has no limit yet.
    pub(super) fn empty() -> Self {
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

    fn fill(&self, limit: &Limit, origin: u64, word: u64) {
        let normal = limit.normal();
        let (written, room) = limit.written();
        let meta = normal.ticks | (normal.kind as u64) << 8 | (limit.judged_by() as u64) << 16 | u64::from(room) << 24;
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
    pub(super) fn normal(&self) -> Normal {
        let meta = self.meta.load(Ordering::Relaxed);
        let kind = Kind::from_byte((meta >> 8) as u8);
        Normal {
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
    pub(super) fn reach(&self, limit: &Normal, now: Instant) -> Reach {
        let (now_nanos, origin) = (now.as_unix_nanos(), self.origin.load(Ordering::Relaxed));
        let elapsed = now_nanos.wrapping_sub(origin);
        if now_nanos >= origin && elapsed <= REACH {
            // At most 58 · 8 years, which fits.
            return Reach::Clock(elapsed * limit.ticks);
        }
        self.reach_out(limit, now)
    }

    #[cold]
    fn reach_out(&self, limit: &Normal, now: Instant) -> Reach {
        let (now, origin) = (now.as_unix_nanos(), self.origin.load(Ordering::Relaxed));
        if limit.ticks == 0 {
            // Time stands still.
            return Reach::Clock(0);
        }
        match origin.checked_sub(now) {
            Some(early) => Reach::Early { wait: early.saturating_mul(limit.ticks) },
            None => Reach::Late,
        }
    }

    /// The clock in ticks; what is out of reach stands at the end it is beyond.
    pub(super) fn clock(&self, limit: &Normal, now: Instant) -> u64 {
        match self.reach(limit, now) {
            Reach::Clock(clock) => clock,
            Reach::Early { .. } => 0,
            Reach::Late => REACH * limit.ticks,
        }
    }

    /// How far the state is ahead of `now` in ticks, wherever `now` lies.
    pub(super) fn ahead(&self, limit: &Normal, now: Instant) -> Result<u64, Sealed> {
        let tat = i128::from(self.read()?);
        let clock = match self.reach(limit, now) {
            Reach::Clock(clock) => i128::from(clock),
            _ => {
                let elapsed = i128::from(now.as_unix_nanos()) - i128::from(self.origin.load(Ordering::Relaxed));
                elapsed * i128::from(limit.ticks)
            }
        };
        Ok((tat - clock).clamp(0, i128::from(SEALED)) as u64)
    }

    /// One call of a bucket without patience where nothing is out of the ordinary: admitted, or turned away for now. None,
    /// and nothing is written, if the cell is sealed or not a bucket, the instant is out of reach, or it can never fit.
    ///
    /// It is [`token_bucket::step`] turned round: what depends on the limit alone comes first, so that one comparison is
    /// left once the time and the state are known. Always in line: a caller that asks no more than whether it passed
    /// pays for no more, and nothing goes through memory.
    #[inline(always)]
    pub(super) fn quick(&self, now: Instant, cost: u64) -> Option<Quick> {
        let limit = self.normal();
        let charge = cost.checked_mul(limit.token)?;
        // How far ahead the state may be for the cost to fit.
        let room = limit.capacity.checked_sub(charge)?;
        let elapsed = now.as_unix_nanos().checked_sub(self.origin.load(Ordering::Relaxed))?;
        if elapsed > REACH || limit.kind != Kind::Bucket {
            return None;
        }
        let clock = elapsed * limit.ticks;
        let tat = self.word.load(Ordering::Relaxed);
        let ahead = tat.saturating_sub(clock);
        if ahead > room {
            // The seal is further ahead than any room.
            return (tat < SEALED - charge).then_some(Quick { limit, clock, ahead, wait: ahead - room });
        }
        let mut after = ahead + charge;
        if cost > 0 {
            // The normal form leaves room for a full bucket beyond every clock. Release: as in `attempt`.
            let next = tat.max(clock) + charge;
            if self.word.compare_exchange(tat, next, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                after = self.collided(clock, charge, room)?;
            }
        }
        Some(Quick { limit, clock, ahead: after, wait: 0 })
    }

    /// The rest of a quick call that another thread got in the way of: how far ahead it left the state. None, and nothing
    /// is written, if it does not fit any more. Numbers in and out, so that the quick call stays in registers.
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
            if self.word.compare_exchange(tat, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Some(ahead + charge);
            }
        }
    }

    /// One call. Admitted, it is written; otherwise nothing is.
    #[inline]
    pub(super) fn attempt(&self, limit: &Normal, clock: u64, cost: u64, patience: u64) -> Result<Attempt, Sealed> {
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
            match self.word.compare_exchange_weak(tat, next, Ordering::AcqRel, Ordering::Relaxed) {
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

    /// Moves the state by what `next` says of it (none: leave it) and returns what it was. Only under the lock: the cell
    /// is not sealed then.
    pub(super) fn update(&self, mut next: impl FnMut(u64) -> Option<u64>) -> u64 {
        let mut tat = self.word.load(Ordering::Acquire);
        while let Some(wanted) = next(tat) {
            match self.word.compare_exchange_weak(tat, wanted.min(SEALED - 1), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(seen) => tat = seen,
            }
        }
        tat
    }

    /// Ends this generation: the word is sealed for good. Returns what it was.
    fn seal(&self) -> u64 {
        // Whoever is inside a wide state ends first; whoever comes after meets the seal.
        let _held = self.wide.get().map(|wide| wide.lock.hold());
        self.word.swap(SEALED, Ordering::AcqRel)
    }

    /// Ends this generation and fills `next` with the same level under `limit`. Only one thread at a time does this.
    ///
    /// The time is read once the word is sealed, so that no decision of this generation is later than it.
    pub(super) fn hand_over(&self, next: &Later, limit: &Limit, carry: Carry, now: impl FnOnce() -> Instant) {
        let word = self.seal();
        let now = now();
        let (old, new) = (self.normal(), limit.normal());
        match (family(&old), family(new)) {
            (Family::Tokens, Family::Tokens) => self.hand_over_tokens(next, limit, carry, word, now),
            (Family::Queue, Family::Queue) if carry != Carry::Reset => {
                // The time at which the queue is empty stays that time.
                let empty = i128::from(word) - i128::from(self.clock_at(&old, now));
                let empty = (empty * i128::from(new.ticks)).div_euclid(i128::from(old.ticks.max(1))) + 1;
                let origin = self.origin_after(now);
                let clock = now.as_unix_nanos().saturating_sub(origin) * new.ticks;
                let ahead = if empty <= 1 { 0 } else { empty.min(i128::from(SEALED / 2)) as u64 };
                next.cell.fill(limit, origin, clock.saturating_add(ahead).min(SEALED - 1));
                next.cell.meta.fetch_or(FORGETS, Ordering::Relaxed);
            }
            _ => {
                next.cell.fill(limit, self.origin_after(now), 0);
                next.cell.meta.fetch_or(FORGETS, Ordering::Relaxed);
                if carry == Carry::Reset || self.hand_over_window(&next.cell, word) {
                    return;
                }
                let (used, most) = (self.used(&old, word, now), old.burst());
                let used = match carry {
                    Carry::Proportional if most > 0 => {
                        (u128::from(used) * u128::from(new.burst())).div_ceil(u128::from(most)) as u64
                    }
                    Carry::Additive => used.saturating_sub(new.burst().saturating_sub(most)),
                    _ => used,
                };
                next.cell.charge_unconditionally(new, now, used.min(new.burst()));
            }
        }
    }

    /// The origin of the next cell. A stale instant is to be judged at its own time: the origin stays while it can.
    fn origin_after(&self, now: Instant) -> u64 {
        let origin = self.origin.load(Ordering::Relaxed);
        let near = now.as_unix_nanos().saturating_sub(origin) <= REACH;
        if near && self.normal().kind != Kind::Unlimited { origin } else { origin_for(now) }
    }

    /// The clock of this cell, which may be past its reach.
    fn clock_at(&self, limit: &Normal, now: Instant) -> u64 {
        let elapsed = now.as_unix_nanos().saturating_sub(self.origin.load(Ordering::Relaxed));
        elapsed.saturating_mul(limit.ticks)
    }

    /// What was used of the limit at `now`, rounded up, for a successor that counts in other terms.
    fn used(&self, limit: &Normal, word: u64, now: Instant) -> u64 {
        match limit.kind {
            Kind::Unlimited => 0,
            Kind::Bucket | Kind::Frozen | Kind::Pacing => {
                word.saturating_sub(self.clock_at(limit, now)).div_ceil(limit.token)
            }
            _ => self.window_used(limit, word, now),
        }
    }

    /// Leaves the state as if `used` had just been taken from a fresh one. Only under the lock, or before the cell is known.
    pub(super) fn charge_unconditionally(&self, limit: &Normal, now: Instant, used: u64) {
        match limit.kind {
            Kind::Unlimited => self.word.store(FULL, Ordering::Relaxed),
            Kind::Bucket | Kind::Frozen | Kind::Pacing => {
                let spent = used.saturating_mul(limit.token);
                self.update(|_| Some(self.clock(limit, now).saturating_add(spent)));
            }
            _ => self.window_charge(limit, now, used),
        }
    }

    fn hand_over_tokens(&self, next: &Later, limit: &Limit, carry: Carry, word: u64, now: Instant) {
        let (old, new) = (self.normal(), limit.normal());
        let zero = Zero::of(self, &old, word, now);
        let token = |units: i128| floor_div(units * i128::from(new.token), i128::from(old.token));
        let full = i128::from(new.capacity);
        let level = match (zero, carry) {
            (Zero::Full, _) | (_, Carry::Reset) => full,
            (Zero::Level { level, .. }, Carry::Proportional) if level > 0 && old.capacity > 0 => {
                floor_div(level * full, i128::from(old.capacity))
            }
            (Zero::Level { level, .. }, Carry::Additive) => {
                let grown = new.burst().saturating_sub(old.burst());
                (token(level) + i128::from(grown) * i128::from(new.token)).min(full)
            }
            (Zero::Level { level, .. }, _) => token(level),
        };
        if new.kind == Kind::Unlimited {
            let word = match zero {
                Zero::Full => FULL,
                Zero::Level { .. } => (level + UNLIMITED_BIAS).clamp(0, i128::from(FULL - 1)) as u64,
            };
            next.cell.fill(limit, now.as_unix_nanos(), word);
            return;
        }
        let origin = self.origin_after(now);
        let clock = i128::from(now.as_unix_nanos().saturating_sub(origin) * new.ticks);
        let empty_at = clock - level;
        let tat = (empty_at + full).clamp(0, i128::from(SEALED - 1));
        next.cell.fill(limit, origin, tat as u64);
        if let Zero::Level { at, level: before } = zero {
            let carried = &next.carried;
            carried.level.store(before as u64, Ordering::Relaxed);
            carried.from.store(at.wrapping_add(self.given.load(Ordering::Relaxed)), Ordering::Relaxed);
            carried.to.store(empty_at as u64, Ordering::Relaxed);
        }
        // A claim of before is worth something only if the level it was made on lives on.
        let lives_on = matches!(zero, Zero::Level { .. }) && old.kind != Kind::Unlimited && carry != Carry::Reset;
        if !lives_on {
            next.cell.meta.fetch_or(FORGETS, Ordering::Relaxed);
        }
    }
}

impl Later {
    /// A generation that has no limit yet.
    pub(super) fn empty() -> Self {
        let zero = || AtomicU64::new(0);
        Self { cell: Cell::empty(), carried: Carried { from: zero(), to: zero(), level: zero() } }
    }

    /// What a claim of the generation before is in this one; none if this one knows nothing of it.
    pub(super) fn follow(&self, before: &Cell, claim: Claim) -> Option<Claim> {
        let (old, new) = (before.normal(), self.cell.normal());
        if self.cell.meta.load(Ordering::Relaxed) & FORGETS != 0 || new.kind == Kind::Unlimited {
            return None;
        }
        let convert = |ticks: i128| floor_div(ticks * i128::from(new.token), i128::from(old.token));
        let (from, to) = (self.carried.from.load(Ordering::Relaxed), self.carried.to.load(Ordering::Relaxed));
        let distance = claim.mark.wrapping_sub(from) as i64;
        // What a smaller bucket clipped off cannot come back, and of a slot that was due nobody knows how much that was.
        if distance <= self.carried.level.load(Ordering::Relaxed) as i64 && new.burst() < old.burst() {
            return None;
        }
        let mark = to.wrapping_add(convert(i128::from(distance)) as u64);
        // Nor can more come back than a bucket holds: what was promised behind it rests on that.
        let worth = convert(i128::from(claim.worth)).min(i128::from(new.capacity)) as u64;
        Some(Claim { worth, mark })
    }
}

/// Algorithms that count in the same terms.
enum Family {
    Tokens,
    Queue,
    Window,
}

fn family(limit: &Normal) -> Family {
    match limit.kind {
        Kind::Bucket | Kind::Frozen | Kind::Unlimited => Family::Tokens,
        Kind::Pacing => Family::Queue,
        _ => Family::Window,
    }
}

/// Set in `meta` of a cell whose level has nothing to do with the one before it.
const FORGETS: u64 = 1 << 63;

/// Where the level of a bucket stands at the moment of a change.
#[derive(Clone, Copy)]
enum Zero {
    /// Anything that was spent is forgotten.
    Full,
    /// `level` ticks are in it (negative: debt); it was, or will be, empty `at`.
    Level { level: i128, at: u64 },
}

impl Zero {
    fn of(cell: &Cell, limit: &Normal, word: u64, now: Instant) -> Self {
        if limit.kind == Kind::Unlimited {
            let since = cell.origin.load(Ordering::Relaxed);
            return match word {
                // Time without a limit forgives everything.
                FULL => Self::Full,
                _ if now.as_unix_nanos() > since => Self::Full,
                word => Self::Level { level: i128::from(word) - UNLIMITED_BIAS, at: 0 },
            };
        }
        // This may be past the horizon, where the clock is more than a word holds.
        let elapsed = now.as_unix_nanos().saturating_sub(cell.origin.load(Ordering::Relaxed));
        let clock = i128::from(elapsed) * i128::from(limit.ticks);
        let tat = clock.max(i128::from(word));
        let capacity = i128::from(limit.capacity);
        Self::Level { level: clock + capacity - tat, at: (tat - capacity) as u64 }
    }
}

/// One call on the word of a bucket or a queue.
#[inline]
pub(super) fn step(limit: &Normal, tat: u64, clock: u64, cost: u64, patience: u64) -> Step {
    match limit.kind {
        Kind::Pacing => pacing::step(limit, tat, clock, cost, patience),
        _ => token_bucket::step(limit, tat, clock, cost, patience),
    }
}

/// What the caller is told of a step that left the state so far ahead of the clock.
#[inline]
pub(super) fn decision(normal: &Normal, step: Step, ahead: u64) -> Decision {
    let (outcome, wait) = match step {
        Step::Admit { wait, .. } => (Outcome::Allowed, wait),
        Step::Deny { wait } => (Outcome::Denied, wait),
        Step::Never => (Outcome::Never, 0),
    };
    Decision::new(normal, outcome, ahead, wait)
}

fn origin_for(now: Instant) -> u64 {
    now.as_unix_nanos().saturating_sub(BACKLOG)
}

fn floor_div(a: i128, b: i128) -> i128 {
    a.div_euclid(b)
}
