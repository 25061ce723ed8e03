//! The verbs at a given instant.

use super::cell::{Attempt, Carry, Cell, Sealed};
use super::{Charge, Limiter, Reservation};
use crate::algorithm::token_bucket::{self, Step};
use crate::clock::{Clock, Instant, nanos};
use crate::decision::{Decision, Denied, Outcome};
use crate::limit::{Kind, Limit, Normal};
use crate::sync::Ordering;
use core::time::Duration;

/// A limiter at one instant, with the limiter's verbs; what [`Limiter::at`] returns.
pub struct At<'a, C: Clock> {
    limiter: &'a Limiter<C>,
    now: Instant,
}

/// An admission, before it is dressed as what the caller asked for.
pub(super) struct Admitted {
    pub(super) normal: Normal,
    pub(super) generation: u32,
    pub(super) clock: u64,
    /// The state that the call left behind.
    pub(super) tat: u64,
    /// Ticks until the tokens are there.
    pub(super) wait: u64,
    /// The cell's cold counters, read before the call was written.
    pub(super) given: u64,
    pub(super) refunded: u64,
}

impl<'a, C: Clock> At<'a, C> {
    #[inline]
    pub(super) fn new(limiter: &'a Limiter<C>, now: Instant) -> Self {
        Self { limiter, now }
    }

    /// See [`Limiter::check`].
    #[inline]
    pub fn check(&self) -> Decision {
        self.check_n(1)
    }

    /// See [`Limiter::check_n`].
    #[inline]
    pub fn check_n(&self, cost: u64) -> Decision {
        self.on_clock(|cell, normal, clock, _| {
            if normal.kind == Kind::Unlimited {
                return Ok(unlimited(normal));
            }
            let Attempt { step, tat, clock } = cell.attempt(normal, clock, cost, 0)?;
            let after = if let Step::Admit { tat, .. } = step { tat } else { tat };
            Ok(decision(normal, step, after, clock))
        })
    }

    /// See [`Limiter::peek`].
    pub fn peek(&self) -> Decision {
        self.peek_n(1)
    }

    /// See [`Limiter::peek_n`].
    pub fn peek_n(&self, cost: u64) -> Decision {
        self.on_clock(|cell, normal, clock, _| {
            if normal.kind == Kind::Unlimited {
                return Ok(unlimited(normal));
            }
            let tat = cell.read()?;
            Ok(decision(normal, token_bucket::step(normal, tat, clock, cost, 0), tat, clock))
        })
    }

    /// See [`Limiter::take`].
    pub fn take(&self, cost: u64) -> Result<Charge<C>, Denied> {
        self.admit(cost, 0).map(|admitted| Charge::new(self.limiter, &admitted, cost)).map_err(Denied)
    }

    /// See [`Limiter::reserve`].
    pub fn reserve(&self, cost: u64) -> Result<Reservation<C>, Denied> {
        self.reserve_within(cost, Duration::MAX)
    }

    /// See [`Limiter::reserve_within`].
    pub fn reserve_within(&self, cost: u64, longest: Duration) -> Result<Reservation<C>, Denied> {
        self.admit(cost, nanos(longest))
            .map(|admitted| Reservation::new(self.limiter, &admitted, cost, self.now))
            .map_err(Denied)
    }

    /// Gives back what no later reservation has been promised; see [`Reservation::cancel`].
    pub fn cancel(&self, reservation: Reservation<C>) {
        reservation.cancel_at(self.now);
    }

    /// Settles a charge at its true cost; see [`Charge::settle`].
    pub fn settle(&self, charge: Charge<C>, actual: u64) {
        charge.settle_at(actual, self.now);
    }

    /// See [`Limiter::tokens`].
    pub fn tokens(&self) -> f64 {
        self.on_clock(|cell, normal, clock, _| {
            if normal.kind == Kind::Unlimited {
                return Ok(f64::INFINITY);
            }
            Ok(token_bucket::level(normal, cell.read()?, clock) as f64 / normal.token as f64)
        })
    }

    /// See [`Limiter::set_limit`].
    pub fn set_limit(&self, limit: Limit) {
        self.set_limit_with(limit, Carry::Keep);
    }

    /// See [`Limiter::set_limit_with`].
    pub fn set_limit_with(&self, limit: Limit, carry: Carry) {
        self.limiter.shared.change(&limit, carry, || self.now);
    }

    /// See [`Limiter::set_burst`].
    pub fn set_burst(&self, burst: u64) {
        self.set_limit(self.limiter.limit().burst(burst));
    }

    /// See [`Limiter::reset`].
    pub fn reset(&self) {
        self.set_limit_with(self.limiter.limit(), Carry::Reset);
    }

    /// See [`Limiter::grant`].
    pub fn grant(&self, tokens: u64) {
        let granted = self.on_clock(|cell, normal, clock, _| {
            if normal.kind == Kind::Unlimited {
                return Ok(0);
            }
            let gift = |tat: u64| tat.saturating_sub(clock).min(tokens.saturating_mul(normal.token));
            let before = cell.update(|tat| Some(tat - gift(tat)))?;
            Ok(gift(before).div_ceil(normal.token))
        });
        self.limiter.shared.cold().count_granted(granted);
    }

    /// Leaves exactly `tokens` in the bucket, at most a full one.
    pub(super) fn fill_to(&self, tokens: u64) {
        self.on_clock(|cell, normal, clock, _| {
            if normal.kind != Kind::Unlimited {
                let spent = normal.capacity.saturating_sub(tokens.saturating_mul(normal.token));
                cell.update(|_| Some(clock.saturating_add(spent)))?;
            }
            Ok(())
        });
    }

    /// Takes `cost` with a patience in nanoseconds: the way of every verb that keeps something.
    pub(super) fn admit(&self, cost: u64, patience: u64) -> Result<Admitted, Decision> {
        self.on_clock(|cell, normal, clock, generation| {
            // Before the state moves: a gift that comes in between then counts against the caller, not for it.
            let given = cell.given.load(Ordering::Acquire);
            let refunded = cell.refunded.load(Ordering::Acquire);
            let admitted = |tat, wait| Admitted { normal: *normal, generation, clock, tat, wait, given, refunded };
            if normal.kind == Kind::Unlimited {
                return Ok(Ok(admitted(0, 0)));
            }
            let patience = patience.saturating_mul(normal.ticks);
            let Attempt { step, tat, clock } = cell.attempt(normal, clock, cost, patience)?;
            match step {
                Step::Admit { tat, wait } => Ok(Ok(admitted(tat, wait))),
                _ => Ok(Err(decision(normal, step, tat, clock))),
            }
        })
    }

    /// Runs `verb` on the current cell with its clock; past the horizon the cell is counted from a new origin first.
    #[inline]
    fn on_clock<T>(&self, mut verb: impl FnMut(&Cell, &Normal, u64, u32) -> Result<T, Sealed>) -> T {
        let shared = &*self.limiter.shared;
        loop {
            let done = shared.on_current(|cell, generation| {
                let normal = cell.normal();
                match cell.clock(&normal, self.now) {
                    Some(clock) => verb(cell, &normal, clock, generation).map(Some),
                    None if normal.kind == Kind::Bucket => Ok(None),
                    None => verb(cell, &normal, 0, generation).map(Some),
                }
            });
            match done {
                Some(done) => return done,
                None => shared.rebase(self.now),
            }
        }
    }
}

/// What the caller is told of a step that left the state at `tat`.
#[inline]
fn decision(normal: &Normal, step: Step, tat: u64, clock: u64) -> Decision {
    let (outcome, wait) = match step {
        Step::Admit { wait, .. } => (Outcome::Allowed, wait),
        Step::Deny { wait } => (Outcome::Denied, wait),
        Step::Never => (Outcome::Never, 0),
    };
    Decision::new(normal, outcome, tat.saturating_sub(clock), wait)
}

#[inline]
fn unlimited(normal: &Normal) -> Decision {
    Decision::new(normal, Outcome::Allowed, 0, 0)
}
