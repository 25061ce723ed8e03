//! The verbs at a given instant.

use super::cell::{Attempt, Carry, Cell, Reach, Sealed, decision};
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
    #[inline(always)]
    pub fn check_n(&self, cost: u64) -> Decision {
        // The common case in a straight line: the limit was never changed, it refills, the instant is in reach.
        match self.limiter.shared.first().decide(self.now, cost) {
            Some(decision) => decision,
            None => self.check_on_current(cost),
        }
    }

    #[inline(never)]
    fn check_on_current(&self, cost: u64) -> Decision {
        self.on_current(|cell, normal, _| {
            if normal.kind == Kind::Unlimited {
                return Ok(Some(unlimited(normal)));
            }
            if let Some(decision) = cell.decide(self.now, cost) {
                return Ok(Some(decision));
            }
            let Reach::Clock(clock) = cell.reach(normal, self.now) else {
                // What charges nothing moves nothing.
                return match cost {
                    0 => self.look(cell, normal, 0, 0).map(Some),
                    _ => self.out_of_reach(cell, normal, cost, 0),
                };
            };
            let Attempt { step, tat } = cell.attempt(normal, clock, cost, 0)?;
            let after = if let Step::Admit { tat, .. } = step { tat } else { tat };
            Ok(Some(decision(normal, step, after.saturating_sub(clock))))
        })
    }

    /// See [`Limiter::peek`].
    pub fn peek(&self) -> Decision {
        self.peek_n(1)
    }

    /// See [`Limiter::peek_n`].
    pub fn peek_n(&self, cost: u64) -> Decision {
        self.on_current(|cell, normal, _| {
            if normal.kind == Kind::Unlimited {
                return Ok(Some(unlimited(normal)));
            }
            self.look(cell, normal, cost, 0).map(Some)
        })
    }

    /// What a call would be told, wherever its instant lies from the cell.
    fn look(&self, cell: &Cell, normal: &Normal, cost: u64, patience: u64) -> Result<Decision, Sealed> {
        let ahead = cell.ahead(normal, self.now)?;
        let step = match (cell.reach(normal, self.now), token_bucket::step(normal, ahead, 0, cost, patience)) {
            // So early that the distance is more than a word holds.
            (Reach::Early { wait }, _) if wait.max(ahead) == u64::MAX => Step::Never,
            (Reach::Early { wait: until_origin }, Step::Admit { wait, .. } | Step::Deny { wait }) => {
                Step::Deny { wait: wait.max(until_origin) }
            }
            (_, step) => step,
        };
        Ok(decision(normal, step, ahead))
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
    ///
    /// This instant is taken at its word: if it is older than calls that were decided since, what time has brought back
    /// already may come back again, at most what the reservation took.
    pub fn cancel(&self, reservation: Reservation<C>) {
        reservation.cancel_at(|| self.now);
    }

    /// Settles a charge at its true cost; see [`Charge::settle`]. The instant is taken at its word, as in
    /// [`cancel`](Self::cancel).
    pub fn settle(&self, charge: Charge<C>, actual: u64) {
        charge.settle_at(actual, || self.now);
    }

    /// See [`Limiter::tokens`].
    pub fn tokens(&self) -> f64 {
        self.on_current(|cell, normal, _| {
            if normal.kind == Kind::Unlimited {
                return Ok(Some(f64::INFINITY));
            }
            let level = i128::from(normal.capacity) - i128::from(cell.ahead(normal, self.now)?);
            Ok(Some(level as f64 / normal.token as f64))
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
        let shared = &self.limiter.shared;
        shared.locked(
            || self.now,
            |cell, normal, _| {
                if normal.kind == Kind::Unlimited {
                    return;
                }
                let clock = cell.clock(normal, self.now);
                let gift = |tat: u64| tat.saturating_sub(clock).min(tokens.saturating_mul(normal.token));
                let before = cell.update(|tat| Some(tat - gift(tat)));
                shared.cold().count_granted(gift(before).div_ceil(normal.token));
            },
        );
    }

    /// Leaves exactly `tokens` in the bucket, at most a full one.
    pub(super) fn fill_to(&self, tokens: u64) {
        self.limiter.shared.locked(
            || self.now,
            |cell, normal, _| {
                if normal.kind != Kind::Unlimited {
                    let spent = normal.capacity.saturating_sub(tokens.saturating_mul(normal.token));
                    cell.update(|_| Some(cell.clock(normal, self.now).saturating_add(spent)));
                }
            },
        );
    }

    /// Takes `cost` with a patience in nanoseconds: the way of every verb that keeps something.
    pub(super) fn admit(&self, cost: u64, patience: u64) -> Result<Admitted, Decision> {
        self.on_current(|cell, normal, generation| {
            // Before the state moves: a gift that comes in between then counts against the caller, not for it.
            let given = cell.given.load(Ordering::Acquire);
            let refunded = cell.refunded.load(Ordering::Acquire);
            let mut admitted = Admitted { normal: *normal, generation, clock: 0, tat: 0, wait: 0, given, refunded };
            if normal.kind == Kind::Unlimited {
                return Ok(Some(Ok(admitted)));
            }
            let patience = patience.saturating_mul(normal.ticks);
            let Reach::Clock(clock) = cell.reach(normal, self.now) else {
                return Ok(self.out_of_reach(cell, normal, cost, patience)?.map(Err));
            };
            admitted.clock = clock;
            let Attempt { step, tat } = cell.attempt(normal, clock, cost, patience)?;
            match step {
                Step::Admit { tat, wait } => {
                    (admitted.tat, admitted.wait) = (tat, wait);
                    Ok(Some(Ok(admitted)))
                }
                _ => Ok(Some(Err(decision(normal, step, tat.saturating_sub(clock))))),
            }
        })
    }

    /// A call at an instant that the cell cannot count. Beyond the horizon: the decision, unless it is to be admitted;
    /// then none, once the cell is counted from a new origin. Years in the past: turned away, which is only stricter.
    #[cold]
    fn out_of_reach(&self, cell: &Cell, normal: &Normal, cost: u64, patience: u64) -> Result<Option<Decision>, Sealed> {
        match self.look(cell, normal, cost, patience)? {
            would if would.is_denied() => Ok(Some(would)),
            _ => {
                self.limiter.shared.rebase(self.now);
                Ok(None)
            }
        }
    }

    /// Runs `verb` on the current cell until it has an answer.
    #[inline]
    fn on_current<T>(&self, mut verb: impl FnMut(&Cell, &Normal, u32) -> Result<Option<T>, Sealed>) -> T {
        loop {
            let done = self.limiter.shared.on_current(|cell, generation| {
                let normal = cell.normal();
                if normal.kind == Kind::Unlimited {
                    // Its verbs do not look at the word, so the seal is met here.
                    cell.read()?;
                }
                verb(cell, &normal, generation)
            });
            if let Some(done) = done {
                return done;
            }
        }
    }
}

#[inline]
fn unlimited(normal: &Normal) -> Decision {
    Decision::new(normal, Outcome::Allowed, 0, 0)
}
