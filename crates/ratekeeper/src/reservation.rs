//! [`Reservation`]: a slot in the future.

use crate::algorithm::token_bucket;
use crate::charge::{Admission, Owner};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::generation::ReservationClaim;
#[cfg(feature = "std")]
use crate::keyed::OwnedKey;
use crate::limit::Kind;
use crate::limiter::Limiter;
use crate::sync::Ordering;
use core::fmt;
use core::time::Duration;

/// A reserved slot: act when [`delay`](Self::delay) has passed, or [`cancel`](Self::cancel) it.
///
/// The time is fixed when the slot is reserved: neither a change of the limit nor another caller's
/// cancel moves it. Dropping a reservation keeps the slot.
///
/// ```
/// use std::time::Duration;
/// use ratekeeper::{Limit, Limiter};
///
/// let limiter = Limiter::new(Limit::per_minute(6).burst(1));
/// let now = limiter.reserve(1)?;
/// assert_eq!(now.delay(), Duration::ZERO);
///
/// let later = limiter.reserve(1)?;
/// if later.delay() > Duration::from_secs(1) {
///     later.cancel(); // the next caller gets the slot
/// }
/// # Ok::<_, ratekeeper::decision::ReserveError>(())
/// ```
#[must_use = "a reservation takes its slot whether or not you act; cancel it to give the slot back"]
pub struct Reservation<C: Clock = SystemClock> {
    owner: Owner<C>,
    act_at: Timestamp,
    /// What it took; worth 0 if there is nothing to give back.
    claim: ReservationClaim,
}

impl<C: Clock> Reservation<C> {
    #[inline]
    pub(crate) fn new(
        limiter: &Limiter<C>,
        admitted: &Admission,
        cost: u64,
        now: Timestamp,
    ) -> Self {
        Self::of(
            Owner::One {
                limiter: limiter.clone(),
                generation_id: admitted.generation_id,
            },
            admitted,
            cost,
            now,
        )
    }

    #[cfg(feature = "std")]
    pub(crate) fn of_key(
        key: OwnedKey<C>,
        admitted: &Admission,
        cost: u64,
        now: Timestamp,
    ) -> Self {
        Self::of(Owner::Key { key }, admitted, cost, now)
    }

    #[inline]
    fn of(owner: Owner<C>, admitted: &Admission, cost: u64, now: Timestamp) -> Self {
        let Admission {
            limit,
            clock,
            tat,
            wait,
            given,
            ..
        } = *admitted;
        let delay = if wait == 0 { 0 } else { limit.nanos_ceil(wait) };
        Self {
            owner,
            act_at: now + Duration::from_nanos(delay),
            claim: ReservationClaim {
                worth: if limit.kind == Kind::Unlimited {
                    0
                } else {
                    cost.saturating_mul(limit.token)
                },
                // A pacing slot is identified by its end, corrected for grants.
                mark: if limit.kind == Kind::Pacing {
                    tat.wrapping_add(given)
                } else {
                    token_bucket::mark(&limit, tat, clock, given)
                },
            },
        }
    }

    /// How long to wait from now.
    pub fn delay(&self) -> Duration {
        self.delay_from(self.owner.now())
    }

    /// How long to wait from `now`.
    pub fn delay_from(&self, now: Timestamp) -> Duration {
        self.act_at.saturating_since(now)
    }

    /// When to act. Slots are exact to the tick; this time is rounded up to a nanosecond, so two
    /// slots may appear up to 1 ns closer than they are.
    pub fn act_at(&self) -> Timestamp {
        self.act_at
    }

    /// Gives back its tokens, except those that later reservations count on. Nothing comes back
    /// once the time to act has passed.
    pub fn cancel(self) {
        self.cancel_at(|| self.owner.now());
    }

    pub(crate) fn cancel_at(&self, now: impl Fn() -> Timestamp) {
        if self.claim.worth == 0 || self.act_at < now() {
            return;
        }
        let (shared, generation_id) = match &self.owner {
            Owner::One {
                limiter,
                generation_id,
            } => (&*limiter.shared, *generation_id),
            #[cfg(feature = "std")]
            Owner::Key { key } => return key.cancel(self.claim, self.act_at, now),
        };
        shared.locked(&now, |generation, limit, current| {
            if limit.kind == Kind::Unlimited {
                return;
            }
            if limit.kind == Kind::Pacing {
                // Only the last slot of a queue can be taken back, and only before it begins.
                let given = generation.given.load(Ordering::Relaxed);
                generation.update(|free| {
                    let is_last = free.wrapping_add(given) == self.claim.mark;
                    let now = now();
                    let last = current == generation_id && is_last && now < self.act_at;
                    last.then(|| {
                        free - self
                            .claim
                            .worth
                            .min(free.saturating_sub(generation.clock(limit, now)))
                    })
                });
                return;
            }
            let Some(claim) = shared.convert_claim(self.claim, generation_id, current) else {
                return;
            };
            let given = generation.given.load(Ordering::Relaxed);
            let mut back = token_bucket::TokenRefund {
                give: 0,
                shifts: false,
            };
            generation.update(|tat| {
                // The clock is read after the state, so that it is not earlier than any charge in
                // the state.
                let now = now();
                back = token_bucket::cancel(
                    limit,
                    tat,
                    generation.clock(limit, now),
                    given,
                    claim.worth,
                    claim.mark,
                );
                // After a change to a faster rate, the slot may have come before `act_at`.
                let come = current != generation_id
                    && (claim.mark.wrapping_sub(generation.clock(limit, now)) as i64) < 0;
                if self.act_at < now || come {
                    back.give = 0;
                }
                (back.give > 0).then(|| tat.saturating_sub(back.give))
            });
            if back.give == 0 {
                return;
            }
            // Written after the state: a reservation made in between can then get back too little,
            // never too much.
            if back.shifts {
                generation
                    .given
                    .store(given.wrapping_add(back.give), Ordering::Release);
            }
            let refunded = generation.refunded.load(Ordering::Relaxed);
            generation
                .refunded
                .store(refunded.wrapping_add(back.give), Ordering::Release);
        });
    }
}

impl<C: Clock> fmt::Debug for Reservation<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("act_at", &self.act_at)
            .finish_non_exhaustive()
    }
}
