//! The verbs at a given instant.

#[cfg(feature = "std")]
use super::cell::step;
use super::cell::{Attempt, FastDecision, Generation, Reach, Sealed, decision, look};
use super::change::Carry;
use super::{Charge, Limiter, Reservation, ReserveError};
use crate::algorithm::token_bucket::Step;
use crate::clock::{Clock, Timestamp, nanos};
use crate::decision::{Decision, DeniedError, Outcome};
use crate::limit::{Algorithm, Kind, Limit, TickLimit};
use crate::sync::Ordering;
use core::time::Duration;

/// A limiter at one instant, with the limiter's verbs; what [`Limiter::at`] returns.
pub struct At<'a, C: Clock> {
    limiter: &'a Limiter<C>,
    now: Timestamp,
}

/// How long a caller would wait.
pub(super) enum MaxWait {
    /// As a check does.
    OfACheck,
    /// So many nanoseconds, for a slot of its own.
    Slot(u64),
}

/// Why nothing was taken.
pub(super) enum NotAdmitted {
    Denied(Decision),
    /// The algorithm has no slots to give out ahead of time.
    NoSlots(Algorithm),
}

/// An admission, before it is dressed as what the caller asked for.
pub(crate) struct Admission {
    pub(crate) normal: TickLimit,
    pub(crate) generation: u32,
    pub(crate) clock: u64,
    /// The state that the call left behind.
    pub(crate) tat: u64,
    /// Ticks until the tokens are there.
    pub(crate) wait: u64,
    /// The cell's cold counters, read before the call was written.
    pub(crate) given: u64,
    pub(crate) refunded: u64,
}

impl<'a, C: Clock> At<'a, C> {
    #[inline]
    pub(super) fn new(limiter: &'a Limiter<C>, now: Timestamp) -> Self {
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
        // The common case in a straight line: the limit refills, the instant is in reach, nobody
        // comes in between.
        match self.limiter.shared.probable().1.decide_fast(self.now, cost) {
            Some(quick) => quick.decision(),
            None => check_on_current(self.limiter, self.now, cost),
        }
    }

    /// The same for any limit, in any generation, at any instant.
    #[inline(never)]
    fn check_on_current(&self, cost: u64) -> Decision {
        self.on_current(|cell, normal, _| {
            if normal.kind == Kind::Unlimited {
                return Ok(Some(unlimited(normal)));
            }
            if normal.is_machine() {
                return Ok(Some(
                    cell.window_step(normal, self.now, cost, true, true)?
                        .decision,
                ));
            }
            if let Some(quick) = cell.decide_fast(self.now, cost) {
                return Ok(Some(quick.decision()));
            }
            let patience = patience_of_a_check(normal);
            let Reach::Clock(clock) = cell.reach(normal, self.now) else {
                // What charges nothing moves nothing.
                return match cost {
                    0 => self.look(cell, normal, 0, patience).map(Some),
                    _ => self.out_of_reach(cell, normal, cost, patience),
                };
            };
            let Attempt { step, tat } = cell.attempt(normal, clock, cost, patience)?;
            let after = if let Step::Admit { tat, .. } = step {
                tat
            } else {
                tat
            };
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
            self.look(cell, normal, cost, patience_of_a_check(normal))
                .map(Some)
        })
    }

    /// What a call would be told, wherever its instant lies from the cell.
    fn look(
        &self,
        cell: &Generation,
        normal: &TickLimit,
        cost: u64,
        patience: u64,
    ) -> Result<Decision, Sealed> {
        if normal.is_machine() {
            return Ok(cell
                .window_step(normal, self.now, cost, false, false)?
                .decision);
        }
        let origin = cell.origin.load(Ordering::Relaxed);
        Ok(look(normal, origin, cell.read()?, self.now, cost, patience))
    }

    /// See [`Limiter::take`].
    #[inline]
    pub fn take(&self, cost: u64) -> Result<Charge<C>, DeniedError> {
        match self.admit(cost, MaxWait::OfACheck) {
            Ok(admitted) => Ok(Charge::new(self.limiter, &admitted, cost)),
            Err(NotAdmitted::Denied(decision)) => Err(DeniedError(decision)),
            // Only a slot is refused by the algorithm.
            Err(NotAdmitted::NoSlots(_)) => Err(DeniedError(self.peek_n(cost))),
        }
    }

    /// See [`Limiter::reserve`].
    #[inline]
    pub fn reserve(&self, cost: u64) -> Result<Reservation<C>, ReserveError> {
        self.reserve_within(cost, Duration::MAX)
    }

    /// See [`Limiter::reserve_within`].
    #[inline]
    pub fn reserve_within(
        &self,
        cost: u64,
        longest: Duration,
    ) -> Result<Reservation<C>, ReserveError> {
        match self.admit(cost, MaxWait::Slot(nanos(longest))) {
            Ok(admitted) => Ok(Reservation::new(self.limiter, &admitted, cost, self.now)),
            Err(NotAdmitted::Denied(decision)) => Err(ReserveError::Denied(DeniedError(decision))),
            Err(NotAdmitted::NoSlots(algorithm)) => Err(ReserveError::NoSlots(algorithm)),
        }
    }

    /// Gives back what no later reservation has been promised; see [`Reservation::cancel`].
    ///
    /// This instant is taken at its word: if it is older than calls that were decided since, what
    /// time has brought back already may come back again, at most what the reservation took.
    pub fn cancel(&self, reservation: Reservation<C>) {
        reservation.cancel_at(|| self.now);
    }

    /// Settles a charge at its true cost; see [`Charge::settle`]. The instant is taken at its word,
    /// as in [`cancel`](Self::cancel).
    pub fn settle(&self, charge: Charge<C>, actual: u64) {
        charge.settle_at(actual, || self.now);
    }

    /// See [`Limiter::tokens`].
    pub fn tokens(&self) -> f64 {
        self.on_current(|cell, normal, _| {
            if normal.kind == Kind::Unlimited {
                return Ok(Some(f64::INFINITY));
            }
            if normal.is_machine() || normal.kind == Kind::Pacing {
                return Ok(Some(self.look(cell, normal, 0, u64::MAX)?.level()));
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
                if normal.is_machine() {
                    return shared
                        .cold()
                        .count_granted(cell.window_grant(normal, self.now, tokens));
                }
                let clock = cell.clock(normal, self.now);
                let gift = |tat: u64| {
                    tat.saturating_sub(clock)
                        .min(tokens.saturating_mul(normal.token))
                };
                let given = gift(cell.update(|tat| Some(tat - gift(tat))));
                // A settle or a cancel of before is not to take the gift for its own.
                cell.given.store(
                    cell.given.load(Ordering::Relaxed).wrapping_add(given),
                    Ordering::Release,
                );
                shared.cold().count_granted(given.div_ceil(normal.token));
            },
        );
    }

    /// Leaves exactly `tokens` in the bucket, at most a full one.
    pub(super) fn fill_to(&self, tokens: u64) {
        self.limiter.shared.locked(
            || self.now,
            |cell, normal, _| {
                cell.charge_unconditionally(
                    normal,
                    self.now,
                    normal.burst().saturating_sub(tokens),
                );
            },
        );
    }

    /// Takes `cost`: the way of every verb that keeps something.
    #[inline]
    pub(super) fn admit(&self, cost: u64, patience: MaxWait) -> Result<Admission, NotAdmitted> {
        let (generation, cell) = self.limiter.shared.probable();
        // Before the state moves: a gift that comes in between then counts against the caller, not
        // for it.
        let given = cell.given.load(Ordering::Acquire);
        let refunded = cell.refunded.load(Ordering::Acquire);
        match cell.decide_fast(self.now, cost) {
            Some(FastDecision {
                limit: normal,
                clock,
                ahead,
                wait: 0,
            }) => Ok(Admission {
                normal,
                generation,
                clock,
                tat: clock + ahead,
                wait: 0,
                given,
                refunded,
            }),
            _ => self.admit_on_current(cost, patience),
        }
    }

    /// The same for any limit, in any generation, at any instant.
    #[cold]
    #[inline(never)]
    fn admit_on_current(&self, cost: u64, patience: MaxWait) -> Result<Admission, NotAdmitted> {
        self.on_current(|cell, normal, generation| {
            // Before the state moves: a gift that comes in between then counts against the caller,
            // not for it.
            let given = cell.given.load(Ordering::Acquire);
            let refunded = cell.refunded.load(Ordering::Acquire);
            let mut admitted = Admission {
                normal: *normal,
                generation,
                clock: 0,
                tat: 0,
                wait: 0,
                given,
                refunded,
            };
            if normal.kind == Kind::Unlimited {
                return Ok(Some(Ok(admitted)));
            }
            if normal.is_machine() {
                if let MaxWait::Slot(_) = patience {
                    // What is over says nothing of what came after it.
                    cell.read()?;
                    return Ok(Some(Err(NotAdmitted::NoSlots(
                        cell.limit().algorithm_kind(),
                    ))));
                }
                let call = cell.window_step(normal, self.now, cost, true, false)?;
                admitted.tat = call.charged_in;
                return Ok(Some(if call.decision.is_allowed() {
                    Ok(admitted)
                } else {
                    Err(NotAdmitted::Denied(call.decision))
                }));
            }
            let patience = match patience {
                MaxWait::OfACheck => patience_of_a_check(normal),
                MaxWait::Slot(longest) => longest.saturating_mul(normal.ticks),
            };
            let Reach::Clock(clock) = cell.reach(normal, self.now) else {
                return Ok(self
                    .out_of_reach(cell, normal, cost, patience)?
                    .map(|denied| Err(NotAdmitted::Denied(denied))));
            };
            admitted.clock = clock;
            let Attempt { step, tat } = cell.attempt(normal, clock, cost, patience)?;
            match step {
                Step::Admit { tat, wait } => {
                    (admitted.tat, admitted.wait) = (tat, wait);
                    Ok(Some(Ok(admitted)))
                }
                _ => Ok(Some(Err(NotAdmitted::Denied(decision(
                    normal,
                    step,
                    tat.saturating_sub(clock),
                ))))),
            }
        })
    }

    /// How long a slot for `cost` would be away, were there patience for it.
    #[cfg(feature = "std")]
    pub(super) fn peek_slot(&self, cost: u64) -> Duration {
        self.on_current(|cell, normal, _| {
            if normal.kind == Kind::Unlimited {
                return Ok(Some(Duration::ZERO));
            }
            let wait = match normal.kind {
                // A queue denies by its own longest wait; the slot itself is where it is free.
                Kind::Pacing => cell.ahead(normal, self.now)?,
                _ => match step(normal, cell.ahead(normal, self.now)?, 0, cost, 0) {
                    Step::Admit { wait, .. } | Step::Deny { wait } => wait,
                    Step::Never => 0,
                },
            };
            Ok(Some(Duration::from_nanos(normal.nanos_ceil(wait))))
        })
    }

    /// A call at an instant that the cell cannot count. Beyond the horizon: the decision, unless it
    /// is to be admitted; then none, once the cell is counted from a new origin. Years in the past:
    /// turned away, which is only stricter.
    #[cold]
    fn out_of_reach(
        &self,
        cell: &Generation,
        normal: &TickLimit,
        cost: u64,
        patience: u64,
    ) -> Result<Option<Decision>, Sealed> {
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
    fn on_current<T>(
        &self,
        mut verb: impl FnMut(&Generation, &TickLimit, u32) -> Result<Option<T>, Sealed>,
    ) -> T {
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

/// How long a call that only asks would wait: not at all for tokens; a queue tells it its start.
pub(crate) fn patience_of_a_check(normal: &TickLimit) -> u64 {
    if normal.kind == Kind::Pacing {
        u64::MAX
    } else {
        0
    }
}

/// Out of line and by value: a quick check then has nothing that must be in memory. Cold to the
/// caller, but what it leads to is not: windows and logs all come this way.
#[cold]
#[inline(never)]
fn check_on_current<C: Clock>(limiter: &Limiter<C>, now: Timestamp, cost: u64) -> Decision {
    check_window_or_other(limiter, now, cost)
}

#[inline(never)]
fn check_window_or_other<C: Clock>(limiter: &Limiter<C>, now: Timestamp, cost: u64) -> Decision {
    let (_, cell) = limiter.shared.probable();
    let normal = cell.normal();
    if normal.is_machine()
        && let Ok(call) = cell.window_call(&normal, now, cost, true, true)
    {
        return call.decision;
    }
    At { limiter, now }.check_on_current(cost)
}

#[inline]
fn unlimited(normal: &TickLimit) -> Decision {
    Decision::new(normal, Outcome::Allowed, 0, 0)
}
