//! [`At`]: the methods of a limiter at a given instant, and their slow paths.

use super::Limiter;
#[cfg(feature = "std")]
use crate::algorithm::tat_word::step;
use crate::algorithm::tat_word::{Reach, decision, max_wait_of_check, peek};
use crate::algorithm::token_bucket::Step;
use crate::charge::{Admission, Charge};
use crate::clock::{Clock, Timestamp, nanos};
use crate::decision::{Decision, DeniedError, Outcome, ReserveError};
use crate::generation::{Attempt, Carry, FastStep, Generation, SealedError};
use crate::limit::{Algorithm, Kind, Limit, TickLimit};
use crate::reservation::Reservation;
use crate::sync::Ordering;
use core::time::Duration;

/// A limiter at one instant, with the limiter's methods; what [`Limiter::at`] returns.
pub struct At<'a, C: Clock> {
    limiter: &'a Limiter<C>,
    now: Timestamp,
}

/// The longest wait that a caller accepts.
pub(crate) enum MaxWait {
    /// No wait for tokens, any wait for the start in a pacing queue.
    Check,
    /// At most this many nanoseconds, for a slot of its own.
    Slot(u64),
}

/// Why a call was not allowed.
pub(crate) enum AdmitError {
    Denied(Decision),
    /// The algorithm cannot assign slots ahead of time.
    NoSlots(Algorithm),
}

impl<'a, C: Clock> At<'a, C> {
    #[inline]
    pub(crate) fn new(limiter: &'a Limiter<C>, now: Timestamp) -> Self {
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
        // The fast path: a token bucket that refills, an instant in reach, no contention.
        match self.limiter.shared.probable().1.decide_fast(self.now, cost) {
            Some(fast) => decision(
                &fast.limit,
                fast.step,
                fast.after.saturating_sub(fast.clock),
            ),
            None => check_slow(self.limiter, self.now, cost),
        }
    }

    /// See [`Limiter::peek`].
    pub fn peek(&self) -> Decision {
        self.peek_n(1)
    }

    /// See [`Limiter::peek_n`].
    pub fn peek_n(&self, cost: u64) -> Decision {
        self.on_current(|generation, limit, _| {
            if limit.kind == Kind::Unlimited {
                return Ok(Some(unlimited(limit)));
            }
            self.peek_generation(generation, limit, cost, max_wait_of_check(limit))
                .map(Some)
        })
    }

    /// The decision on a call without writing, also if its instant is out of the generation's
    /// reach.
    fn peek_generation(
        &self,
        generation: &Generation,
        limit: &TickLimit,
        cost: u64,
        max_wait: u64,
    ) -> Result<Decision, SealedError> {
        if limit.is_machine() {
            return Ok(generation
                .window_step(limit, self.now, cost, false, false)?
                .decision);
        }
        let origin = generation.origin.load(Ordering::Relaxed);
        Ok(peek(
            limit,
            origin,
            generation.read()?,
            self.now,
            cost,
            max_wait,
        ))
    }

    /// See [`Limiter::take`].
    #[inline]
    pub fn take(&self, cost: u64) -> Result<Charge<C>, DeniedError> {
        match self.admit(cost, MaxWait::Check) {
            Ok(admitted) => Ok(Charge::new(self.limiter, &admitted, cost)),
            Err(AdmitError::Denied(decision)) => Err(DeniedError(decision)),
            // Only `MaxWait::Slot` is refused by the algorithm.
            Err(AdmitError::NoSlots(_)) => Err(DeniedError(self.peek_n(cost))),
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
        max_wait: Duration,
    ) -> Result<Reservation<C>, ReserveError> {
        match self.admit(cost, MaxWait::Slot(nanos(max_wait))) {
            Ok(admitted) => Ok(Reservation::new(self.limiter, &admitted, cost, self.now)),
            Err(AdmitError::Denied(decision)) => Err(ReserveError::Denied(DeniedError(decision))),
            Err(AdmitError::NoSlots(algorithm)) => Err(ReserveError::NoSlots(algorithm)),
        }
    }

    /// Gives back what later reservations were not promised; see [`Reservation::cancel`].
    ///
    /// The instant is not checked against the clock: if it is older than calls that were decided
    /// since, tokens that time has already brought back may come back again, at most as many as the
    /// reservation took.
    pub fn cancel(&self, reservation: Reservation<C>) {
        reservation.cancel_at(|| self.now);
    }

    /// Settles a charge at its actual cost; see [`Charge::settle`]. The instant is not checked
    /// against the clock, as in [`cancel`](Self::cancel).
    pub fn settle(&self, charge: Charge<C>, actual: u64) {
        charge.settle_at(actual, || self.now);
    }

    /// See [`Limiter::tokens`].
    pub fn tokens(&self) -> f64 {
        self.on_current(|generation, limit, _| {
            if limit.kind == Kind::Unlimited {
                return Ok(Some(f64::INFINITY));
            }
            if limit.is_machine() || limit.kind == Kind::Pacing {
                return Ok(Some(
                    self.peek_generation(generation, limit, 0, u64::MAX)?
                        .level(),
                ));
            }
            let level = i128::from(limit.capacity) - i128::from(generation.ahead(limit, self.now)?);
            Ok(Some(level as f64 / limit.token as f64))
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
            |generation, limit, _| {
                if limit.kind == Kind::Unlimited {
                    return;
                }
                if limit.is_machine() {
                    return shared
                        .cold()
                        .count_granted(generation.window_grant(limit, self.now, tokens));
                }
                let clock = generation.clock(limit, self.now);
                let granted = |tat: u64| {
                    tat.saturating_sub(clock)
                        .min(tokens.saturating_mul(limit.token))
                };
                let given = granted(generation.update(|tat| Some(tat - granted(tat))));
                // A settle or a cancel of an earlier call must not mistake the grant for its own
                // tokens.
                generation.given.store(
                    generation.given.load(Ordering::Relaxed).wrapping_add(given),
                    Ordering::Release,
                );
                shared.cold().count_granted(given.div_ceil(limit.token));
            },
        );
    }

    /// Sets the bucket to exactly `tokens`, at most a full one.
    pub(crate) fn fill_to(&self, tokens: u64) {
        self.limiter.shared.locked(
            || self.now,
            |generation, limit, _| {
                generation.charge_unconditionally(
                    limit,
                    self.now,
                    limit.burst().saturating_sub(tokens),
                );
            },
        );
    }

    /// Charges `cost`: the common path of `take`, `reserve` and waits.
    #[inline]
    pub(crate) fn admit(&self, cost: u64, max_wait: MaxWait) -> Result<Admission, AdmitError> {
        let (generation_id, generation) = self.limiter.shared.probable();
        // Read before the state changes: a refund in between then counts against the caller, not
        // for it.
        let given = generation.given.load(Ordering::Acquire);
        let refunded = generation.refunded.load(Ordering::Acquire);
        match generation.decide_fast(self.now, cost) {
            Some(FastStep {
                limit,
                clock,
                step: Step::Admit { tat, .. },
                ..
            }) => Ok(Admission {
                limit,
                generation_id,
                clock,
                tat,
                wait: 0,
                given,
                refunded,
            }),
            _ => self.admit_slow(cost, max_wait),
        }
    }

    /// `admit` for any limit, in any generation, at any instant.
    #[cold]
    #[inline(never)]
    fn admit_slow(&self, cost: u64, max_wait: MaxWait) -> Result<Admission, AdmitError> {
        self.on_current(|generation, limit, generation_id| {
            // Read before the state changes: a refund in between then counts against the caller,
            // not for it.
            let given = generation.given.load(Ordering::Acquire);
            let refunded = generation.refunded.load(Ordering::Acquire);
            let mut admitted = Admission {
                limit: *limit,
                generation_id,
                clock: 0,
                tat: 0,
                wait: 0,
                given,
                refunded,
            };
            if limit.kind == Kind::Unlimited {
                return Ok(Some(Ok(admitted)));
            }
            if limit.is_machine() {
                if let MaxWait::Slot(_) = max_wait {
                    // A sealed generation must not answer for its successor.
                    generation.read()?;
                    return Ok(Some(Err(AdmitError::NoSlots(
                        generation.limit().algorithm_kind(),
                    ))));
                }
                let call = generation.window_step(limit, self.now, cost, true, false)?;
                admitted.tat = call.charged_in;
                return Ok(Some(if call.decision.is_allowed() {
                    Ok(admitted)
                } else {
                    Err(AdmitError::Denied(call.decision))
                }));
            }
            let max_wait = match max_wait {
                MaxWait::Check => max_wait_of_check(limit),
                MaxWait::Slot(max_wait) => max_wait.saturating_mul(limit.ticks),
            };
            let Reach::Clock(clock) = generation.reach(limit, self.now) else {
                return Ok(self
                    .out_of_reach(generation, limit, cost, max_wait)?
                    .map(|denied| Err(AdmitError::Denied(denied))));
            };
            admitted.clock = clock;
            let Attempt { step, tat } = generation.attempt(limit, clock, cost, max_wait)?;
            match step {
                Step::Admit { tat, wait } => {
                    (admitted.tat, admitted.wait) = (tat, wait);
                    Ok(Some(Ok(admitted)))
                }
                _ => Ok(Some(Err(AdmitError::Denied(decision(
                    limit,
                    step,
                    tat.saturating_sub(clock),
                ))))),
            }
        })
    }

    /// How long a slot for `cost` would be away without a deadline.
    #[cfg(feature = "std")]
    pub(crate) fn peek_slot(&self, cost: u64) -> Duration {
        self.on_current(|generation, limit, _| {
            if limit.kind == Kind::Unlimited {
                return Ok(Some(Duration::ZERO));
            }
            let wait = match limit.kind {
                // A pacing queue denies by its own longest wait; the slot itself is where the queue
                // is free.
                Kind::Pacing => generation.ahead(limit, self.now)?,
                _ => match step(limit, generation.ahead(limit, self.now)?, 0, cost, 0) {
                    Step::Admit { wait, .. } | Step::Deny { wait } => wait,
                    Step::Never => 0,
                },
            };
            Ok(Some(Duration::from_nanos(limit.nanos_ceil(wait))))
        })
    }

    /// A call at an instant that the generation cannot count. Beyond the horizon: returns the
    /// decision if it is a denial; otherwise moves the origin and returns none, and the caller
    /// tries again. Years in the past: denied, which is only stricter.
    #[cold]
    fn out_of_reach(
        &self,
        generation: &Generation,
        limit: &TickLimit,
        cost: u64,
        max_wait: u64,
    ) -> Result<Option<Decision>, SealedError> {
        match self.peek_generation(generation, limit, cost, max_wait)? {
            would if would.is_denied() => Ok(Some(would)),
            _ => {
                self.limiter.shared.rebase(self.now);
                Ok(None)
            }
        }
    }

    /// Runs `op` on the current generation until it returns a result.
    #[inline]
    fn on_current<T>(
        &self,
        mut op: impl FnMut(&Generation, &TickLimit, u32) -> Result<Option<T>, SealedError>,
    ) -> T {
        loop {
            let done = self.limiter.shared.on_current(|generation, generation_id| {
                let limit = generation.tick_limit();
                if limit.kind == Kind::Unlimited {
                    // An unlimited generation's word is never read otherwise, so the seal is
                    // checked here.
                    generation.read()?;
                }
                op(generation, &limit, generation_id)
            });
            if let Some(done) = done {
                return done;
            }
        }
    }
}

/// `check_n` for any limit, in any generation, at any instant.
///
/// Out of line and by value: the fast path then has nothing that must be in memory.
#[inline(never)]
fn check_slow<C: Clock>(limiter: &Limiter<C>, now: Timestamp, cost: u64) -> Decision {
    let at = At { limiter, now };
    at.on_current(|generation, limit, _| {
        if limit.is_machine() {
            let call = generation.window_step(limit, now, cost, true, true)?;
            return Ok(Some(call.decision));
        }
        if limit.kind == Kind::Unlimited {
            return Ok(Some(unlimited(limit)));
        }
        let max_wait = max_wait_of_check(limit);
        let Reach::Clock(clock) = generation.reach(limit, now) else {
            // A call of cost 0 never moves the origin.
            return match cost {
                0 => at.peek_generation(generation, limit, 0, max_wait).map(Some),
                _ => at.out_of_reach(generation, limit, cost, max_wait),
            };
        };
        let Attempt { step, tat } = generation.attempt(limit, clock, cost, max_wait)?;
        let after = match step {
            Step::Admit { tat, .. } => tat,
            _ => tat,
        };
        Ok(Some(decision(limit, step, after.saturating_sub(clock))))
    })
}

#[inline]
fn unlimited(limit: &TickLimit) -> Decision {
    Decision::new(limit, Outcome::Allowed, 0, 0)
}
