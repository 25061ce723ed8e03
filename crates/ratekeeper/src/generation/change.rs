//! Live changes: one generation hands its level over to the next.
//!
//! The old word is sealed for good, the clock is read, and the new generation is filled before it
//! is published.

use super::Generation;
use crate::algorithm::tat_word::{REACH, SEALED, origin_for};
use crate::clock::Timestamp;
use crate::limit::{Kind, Limit, TickLimit};
use crate::sync::{AtomicU64, Ordering};

/// The word of an unlimited generation holds the level it was entered with, shifted by this;
/// `FULL`: the bucket is full, whatever its capacity.
const UNLIMITED_BIAS: i128 = 1 << 62;
pub(crate) const FULL: u64 = 1 << 63;

/// A generation after the first, with what is needed to convert claims of the generation before it.
pub(crate) struct NextGeneration {
    pub(crate) generation: Generation,
    carried: CarriedLevel,
}

struct CarriedLevel {
    /// The position, in old ticks, at which the old bucket is empty; marks of claims are measured
    /// from it.
    from: AtomicU64,
    /// The same level in the new ticks.
    to: AtomicU64,
    /// The level at the change in the old ticks (signed): a reservation whose mark is at most this
    /// far after `from` was due at the change.
    level: AtomicU64,
}

/// What a reservation can give back (`worth`), and the position after which later reservations
/// stand (`mark`): in the ticks of one generation.
#[derive(Clone, Copy)]
pub(crate) struct ReservationClaim {
    pub(crate) worth: u64,
    pub(crate) mark: u64,
}

/// What happens to a limiter's tokens when its limit changes. See
/// [`Limiter::set_limit_with`](crate::Limiter::set_limit_with).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Carry {
    /// The number of tokens stays, clipped to the new burst. Debt stays debt. No tokens are added.
    #[default]
    Keep,
    /// The bucket stays as full as it was: half full of 10 becomes half full of 20. Debt stays as
    /// it is.
    Proportional,
    /// A larger burst adds the difference at once; a smaller one clips.
    Additive,
    /// The bucket starts full. Charges and reservations made before give nothing back.
    Reset,
}

impl Generation {
    /// Ends this generation: seals the word for good. Returns the last state.
    fn seal(&self) -> u64 {
        // A thread that holds the lock of a large state finishes first; one that comes later finds
        // the seal.
        let _guard = self.large.get().map(|large| large.lock.lock());
        self.word.swap(SEALED, Ordering::AcqRel)
    }

    /// Ends this generation and fills `next` with the same level under `limit`. Only one thread at
    /// a time calls this.
    ///
    /// The time is read after the word is sealed, so that no decision of this generation is later
    /// than it.
    pub(crate) fn hand_over(
        &self,
        next: &NextGeneration,
        limit: &Limit,
        carry: Carry,
        now: impl FnOnce() -> Timestamp,
    ) {
        let word = self.seal();
        let now = now();
        let ((old, word), new) = (self.as_bucket(word), limit.tick_limit());
        match (family(&old), family(new)) {
            (AlgorithmFamily::Tokens, AlgorithmFamily::Tokens) => {
                self.hand_over_tokens(&old, next, limit, carry, word, now);
            }
            (AlgorithmFamily::Queue, AlgorithmFamily::Queue) if carry != Carry::Reset => {
                // The time at which the queue will be empty stays the same.
                let empty = i128::from(word) - i128::from(self.clock_at(&old, now));
                let empty =
                    (empty * i128::from(new.ticks)).div_euclid(i128::from(old.ticks.max(1))) + 1;
                let origin = self.origin_after(now);
                let clock = now.as_unix_nanos().saturating_sub(origin) * new.ticks;
                let ahead = if empty <= 1 {
                    0
                } else {
                    empty.min(i128::from(SEALED / 2)) as u64
                };
                next.generation
                    .fill(limit, origin, clock.saturating_add(ahead).min(SEALED - 1));
                next.generation
                    .meta
                    .fetch_or(DISCARDS_CLAIMS, Ordering::Relaxed);
            }
            _ => {
                next.generation.fill(limit, self.origin_after(now), 0);
                next.generation
                    .meta
                    .fetch_or(DISCARDS_CLAIMS, Ordering::Relaxed);
                if carry == Carry::Reset || self.hand_over_window(&next.generation, word) {
                    return;
                }
                let (used, most) = (self.used(&old, word, now), old.burst());
                let used = match carry {
                    Carry::Proportional if most > 0 => (u128::from(used) * u128::from(new.burst()))
                        .div_ceil(u128::from(most))
                        as u64,
                    Carry::Additive => used.saturating_sub(new.burst().saturating_sub(most)),
                    _ => used,
                };
                next.generation
                    .charge_unconditionally(new, now, used.min(new.burst()));
            }
        }
    }

    /// The numbers and the word of this generation; for a refundable bucket those of the plain
    /// bucket with the same TAT.
    fn as_bucket(&self, word: u64) -> (TickLimit, u64) {
        let limit = self.tick_limit();
        if limit.kind != Kind::Refundable {
            return (limit, word);
        }
        let origin = u128::from(self.origin.load(Ordering::Relaxed)) * u128::from(limit.ticks);
        let tat = self
            .refundable_tat()
            .saturating_sub(origin)
            .min(u128::from(SEALED - 1)) as u64;
        (
            TickLimit {
                kind: Kind::Bucket,
                ..limit
            },
            tat,
        )
    }

    /// The origin of the next generation. It stays the same while it can, so that a call at an
    /// older instant is judged at its own time.
    fn origin_after(&self, now: Timestamp) -> u64 {
        let origin = self.origin.load(Ordering::Relaxed);
        let near = now.as_unix_nanos().saturating_sub(origin) <= REACH;
        if near && self.tick_limit().kind != Kind::Unlimited {
            origin
        } else {
            origin_for(now)
        }
    }

    /// The clock at `now`; unlike in `clock`, it is not clamped to the reach.
    fn clock_at(&self, limit: &TickLimit, now: Timestamp) -> u64 {
        let elapsed = now
            .as_unix_nanos()
            .saturating_sub(self.origin.load(Ordering::Relaxed));
        elapsed.saturating_mul(limit.ticks)
    }

    /// The cost in use at `now`, rounded up, for a successor that counts in different units.
    fn used(&self, limit: &TickLimit, word: u64, now: Timestamp) -> u64 {
        match limit.kind {
            Kind::Unlimited => 0,
            Kind::Bucket | Kind::Frozen | Kind::Pacing => word
                .saturating_sub(self.clock_at(limit, now))
                .div_ceil(limit.token),
            _ => self.window_used(limit, word, now),
        }
    }

    /// Sets the state as if `used` had just been taken from a fresh one. Only under the lock, or
    /// before the generation is published.
    pub(crate) fn charge_unconditionally(&self, limit: &TickLimit, now: Timestamp, used: u64) {
        match limit.kind {
            Kind::Unlimited => self.word.store(FULL, Ordering::Relaxed),
            Kind::Bucket | Kind::Frozen | Kind::Pacing => {
                let spent = used.saturating_mul(limit.token);
                self.update(|_| Some(self.clock(limit, now).saturating_add(spent)));
            }
            _ => self.window_charge(limit, now, used),
        }
    }

    fn hand_over_tokens(
        &self,
        old: &TickLimit,
        next: &NextGeneration,
        limit: &Limit,
        carry: Carry,
        word: u64,
        now: Timestamp,
    ) {
        let new = limit.tick_limit();
        let zero = BucketLevel::of(self, old, word, now);
        let token = |units: i128| floor_div(units * i128::from(new.token), i128::from(old.token));
        let full = i128::from(new.capacity);
        let level = match (zero, carry) {
            (BucketLevel::Full, _) | (_, Carry::Reset) => full,
            (BucketLevel::Level { level, .. }, Carry::Proportional)
                if level > 0 && old.capacity > 0 =>
            {
                floor_div(level * full, i128::from(old.capacity))
            }
            (BucketLevel::Level { level, .. }, Carry::Additive) => {
                let grown = new.burst().saturating_sub(old.burst());
                (token(level) + i128::from(grown) * i128::from(new.token)).min(full)
            }
            (BucketLevel::Level { level, .. }, _) => token(level),
        };
        if new.kind == Kind::Unlimited {
            let word = match zero {
                BucketLevel::Full => FULL,
                BucketLevel::Level { .. } => {
                    (level + UNLIMITED_BIAS).clamp(0, i128::from(FULL - 1)) as u64
                }
            };
            next.generation.fill(limit, now.as_unix_nanos(), word);
            return;
        }
        let origin = self.origin_after(now);
        let clock = i128::from(now.as_unix_nanos().saturating_sub(origin) * new.ticks);
        let empty_at = clock - level;
        let tat = (empty_at + full).clamp(0, i128::from(SEALED - 1));
        if new.kind == Kind::Refundable {
            // A refundable bucket tracks its own charges; those made before are not among them.
            next.generation.fill(limit, origin, 0);
            next.generation
                .set_refundable_tat(u128::from(origin) * u128::from(new.ticks) + tat as u128);
            next.generation
                .meta
                .fetch_or(DISCARDS_CLAIMS, Ordering::Relaxed);
            return;
        }
        next.generation.fill(limit, origin, tat as u64);
        if let BucketLevel::Level { at, level: before } = zero {
            let carried = &next.carried;
            carried.level.store(before as u64, Ordering::Relaxed);
            carried.from.store(
                at.wrapping_add(self.given.load(Ordering::Relaxed)),
                Ordering::Relaxed,
            );
            carried.to.store(empty_at as u64, Ordering::Relaxed);
        }
        // Earlier reservations can be cancelled only if this generation continues the level they
        // were made at.
        let is_plain = self.tick_limit().kind == old.kind && old.kind != Kind::Unlimited;
        let lives_on =
            matches!(zero, BucketLevel::Level { .. }) && is_plain && carry != Carry::Reset;
        if !lives_on {
            next.generation
                .meta
                .fetch_or(DISCARDS_CLAIMS, Ordering::Relaxed);
        }
    }
}

impl NextGeneration {
    /// A generation without a limit, to be filled by [`Generation::hand_over`].
    pub(crate) fn empty() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            generation: Generation::empty(),
            carried: CarriedLevel {
                from: zero(),
                to: zero(),
                level: zero(),
            },
        }
    }

    /// Converts a claim made under the previous generation, `before`, to this one; `None` if the
    /// change voided it.
    pub(crate) fn convert_claim(
        &self,
        before: &Generation,
        claim: ReservationClaim,
    ) -> Option<ReservationClaim> {
        let (old, new) = (before.tick_limit(), self.generation.tick_limit());
        if self.generation.meta.load(Ordering::Relaxed) & DISCARDS_CLAIMS != 0
            || new.kind == Kind::Unlimited
        {
            return None;
        }
        let convert = |ticks: i128| floor_div(ticks * i128::from(new.token), i128::from(old.token));
        let (from, to) = (
            self.carried.from.load(Ordering::Relaxed),
            self.carried.to.load(Ordering::Relaxed),
        );
        let distance = claim.mark.wrapping_sub(from) as i64;
        // Tokens that a smaller bucket clipped off cannot come back, and for a slot that was due it
        // is unknown how many those were.
        if distance <= self.carried.level.load(Ordering::Relaxed) as i64
            && new.burst() < old.burst()
        {
            return None;
        }
        let mark = to.wrapping_add(convert(i128::from(distance)) as u64);
        // Never more than a full bucket: later reservations rely on that.
        let worth = convert(i128::from(claim.worth)).min(i128::from(new.capacity)) as u64;
        Some(ReservationClaim { worth, mark })
    }
}

/// Algorithms that count in the same units.
enum AlgorithmFamily {
    Tokens,
    Queue,
    Window,
}

fn family(limit: &TickLimit) -> AlgorithmFamily {
    match limit.kind {
        Kind::Bucket | Kind::Refundable | Kind::Frozen | Kind::Unlimited => AlgorithmFamily::Tokens,
        Kind::Pacing => AlgorithmFamily::Queue,
        _ => AlgorithmFamily::Window,
    }
}

/// Set in `meta` of a generation that does not continue the level of its predecessor: earlier
/// claims are void.
const DISCARDS_CLAIMS: u64 = 1 << 63;

/// The level of a bucket at the moment of a change.
#[derive(Clone, Copy)]
enum BucketLevel {
    /// The bucket is full, whatever was spent.
    Full,
    /// `level` ticks are in the bucket (negative: debt); it was, or will be, empty `at`.
    Level { level: i128, at: u64 },
}

impl BucketLevel {
    fn of(generation: &Generation, limit: &TickLimit, word: u64, now: Timestamp) -> Self {
        if limit.kind == Kind::Unlimited {
            let since = generation.origin.load(Ordering::Relaxed);
            return match word {
                // Any time spent without a limit fills the bucket.
                FULL => Self::Full,
                _ if now.as_unix_nanos() > since => Self::Full,
                word => Self::Level {
                    level: i128::from(word) - UNLIMITED_BIAS,
                    at: 0,
                },
            };
        }
        // This may be past the horizon, where the clock is more than a word holds.
        let elapsed = now
            .as_unix_nanos()
            .saturating_sub(generation.origin.load(Ordering::Relaxed));
        let clock = i128::from(elapsed) * i128::from(limit.ticks);
        let tat = clock.max(i128::from(word));
        let capacity = i128::from(limit.capacity);
        Self::Level {
            level: clock + capacity - tat,
            at: (tat - capacity) as u64,
        }
    }
}

fn floor_div(a: i128, b: i128) -> i128 {
    a.div_euclid(b)
}
