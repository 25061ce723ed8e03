//! [`Charge`]: what an allowed call took, for callers that learn the actual cost later.

use crate::algorithm::Refund;
use crate::algorithm::token_bucket::{self, ChargeRecord};
use crate::clock::{Clock, SystemClock, Timestamp};
#[cfg(feature = "std")]
use crate::keyed::OwnedKey;
use crate::limit::{Kind, TickLimit};
use crate::limiter::Limiter;
use crate::sync::Ordering;
use core::cmp::Ordering::{Equal, Greater, Less};
use core::fmt;

/// An allowed call, from which a charge or a reservation is made.
pub(crate) struct Admission {
    pub(crate) limit: TickLimit,
    pub(crate) generation_id: u32,
    pub(crate) clock: u64,
    /// The state after the call.
    pub(crate) tat: u64,
    /// Ticks until the tokens are there.
    pub(crate) wait: u64,
    /// The generation's refund counters, read before the call was written.
    pub(crate) given: u64,
    pub(crate) refunded: u64,
}

/// What an allowed call took, to be settled once the actual cost is known; dropping it keeps the
/// charge.
///
/// ```
/// use ratekeeper::{Limit, Limiter};
///
/// let limiter = Limiter::new(Limit::per_hour(1_000));
/// let charge = limiter.take(500)?; // an estimate
/// // … the work turns out to cost 120 …
/// charge.settle(120);
/// assert_eq!(limiter.peek().remaining(), 880);
/// # Ok::<_, ratekeeper::decision::DeniedError>(())
/// ```
#[must_use = "settle the charge when the true cost is known, or drop it with `drop(charge)` to keep it"]
pub struct Charge<C: Clock = SystemClock> {
    owner: Owner<C>,
    cost: u64,
    /// For a window or a log, its `tat` holds the window or the instant of the charge.
    /// [`NOTHING`](ChargeRecord::NOTHING) if there was no limit.
    charged: ChargeRecord,
}

/// The limiter or key whose state a charge or a reservation belongs to.
pub(crate) enum Owner<C: Clock> {
    One {
        limiter: Limiter<C>,
        generation_id: u32,
    },
    #[cfg(feature = "std")]
    Key { key: OwnedKey<C> },
}

impl<C: Clock> Owner<C> {
    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Self::One { limiter, .. } => limiter.clock().now(),
            #[cfg(feature = "std")]
            Self::Key { key } => key.clock().now(),
        }
    }
}

impl<C: Clock> Charge<C> {
    #[inline]
    pub(crate) fn new(limiter: &Limiter<C>, admitted: &Admission, cost: u64) -> Self {
        Self::of(
            Owner::One {
                limiter: limiter.clone(),
                generation_id: admitted.generation_id,
            },
            admitted,
            cost,
        )
    }

    #[cfg(feature = "std")]
    pub(crate) fn of_key(key: OwnedKey<C>, admitted: &Admission, cost: u64) -> Self {
        Self::of(Owner::Key { key }, admitted, cost)
    }

    #[inline]
    fn of(owner: Owner<C>, admitted: &Admission, cost: u64) -> Self {
        let Admission {
            limit,
            clock,
            tat,
            refunded,
            given,
            ..
        } = *admitted;
        let charged = match limit.kind {
            Kind::Unlimited => ChargeRecord::NOTHING,
            _ => ChargeRecord::new(&limit, tat, clock, cost, refunded, given),
        };
        Self {
            owner,
            cost,
            charged,
        }
    }

    /// The cost that was charged.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Corrects the charge to the actual cost.
    ///
    /// If it is less, the difference is refunded, except for what has refilled since or was
    /// promised to a later call. If it is more, the difference is charged at once as debt, at most
    /// a full bucket; that part may exceed the limit, and is counted in
    /// [`Adjustments::settled_up`](crate::limiter::Adjustments::settled_up).
    pub fn settle(self, actual: u64) {
        self.settle_at(actual, || self.owner.now());
    }

    pub(crate) fn settle_at(&self, actual: u64, now: impl Fn() -> Timestamp) {
        match actual.cmp(&self.cost) {
            _ if self.charged == ChargeRecord::NOTHING => {}
            Equal => {
                if self.is_refundable() {
                    self.give_back(0, now);
                }
            }
            Less => self.give_back(self.cost - actual, now),
            Greater => {
                if self.is_refundable() {
                    self.give_back(0, &now);
                }
                self.charge_more(actual - self.cost, now);
            }
        }
    }

    /// Whether the charge must be settled even if all of it was used.
    fn is_refundable(&self) -> bool {
        match &self.owner {
            Owner::One {
                limiter,
                generation_id,
            } => limiter.shared.generation(*generation_id).tick_limit().kind == Kind::Refundable,
            #[cfg(feature = "std")]
            Owner::Key { key } => key.is_refundable(),
        }
    }

    fn give_back(&self, unused: u64, now: impl Fn() -> Timestamp) {
        let (shared, generation_id) = match &self.owner {
            Owner::One {
                limiter,
                generation_id,
            } => (&*limiter.shared, *generation_id),
            #[cfg(feature = "std")]
            Owner::Key { key } => return key.refund(&self.charged, self.cost, unused, now),
        };
        shared.locked(&now, |generation, limit, current| {
            if current != generation_id {
                return shared.cold().count_not_returned(unused);
            }
            if limit.is_machine() {
                let refund = Refund {
                    charged_in: self.charged.tat,
                    cost: self.cost,
                    unused,
                };
                return generation.window_give_back(limit, now(), refund);
            }
            if limit.kind == Kind::Pacing {
                // Only the last slot of the queue can be taken back, and only before it begins.
                // After a grant it can no longer be identified.
                let no_grants = generation.given.load(Ordering::Relaxed) == self.charged.given;
                generation.update(|free| {
                    let ahead = free.saturating_sub(generation.clock(limit, now()));
                    let is_last = no_grants && free == self.charged.tat;
                    is_last.then(|| free - ahead.min(unused.saturating_mul(limit.token)))
                });
                return;
            }
            let (refunded, given) = (
                generation.refunded.load(Ordering::Relaxed),
                generation.given.load(Ordering::Relaxed),
            );
            let mut give = 0;
            generation.update(|tat| {
                // The clock is read after the state, so that it is not earlier than any charge in
                // the state.
                let clock = generation.clock(limit, now());
                give = token_bucket::refund(
                    limit,
                    tat,
                    clock,
                    unused,
                    false,
                    &self.charged,
                    refunded,
                    given,
                )
                .give;
                (give > 0).then(|| tat.saturating_sub(give))
            });
            generation
                .refunded
                .store(refunded.wrapping_add(give), Ordering::Release);
        });
    }

    fn charge_more(&self, extra: u64, now: impl Fn() -> Timestamp) {
        let shared = match &self.owner {
            Owner::One { limiter, .. } => &*limiter.shared,
            #[cfg(feature = "std")]
            Owner::Key { key } => return key.charge_more(extra, now),
        };
        shared.locked(&now, |generation, limit, _| {
            if limit.kind == Kind::Unlimited {
                return;
            }
            let extra = extra.min(limit.burst());
            if limit.is_machine() {
                generation.window_charge(limit, now(), extra);
                return shared.cold().count_settled_up(extra);
            }
            let clock = generation.clock(limit, now());
            generation.update(|tat| Some(tat.max(clock).saturating_add(extra * limit.token)));
            shared.cold().count_settled_up(extra);
        });
    }
}

impl<C: Clock> fmt::Debug for Charge<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge").field("cost", &self.cost).finish()
    }
}
