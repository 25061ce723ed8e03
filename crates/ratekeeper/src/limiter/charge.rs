//! What an admission took, for those who learn the true cost later.

use super::Limiter;
use super::view::Admission;
use crate::algorithm::Refund;
use crate::algorithm::token_bucket::{self, ChargeRecord};
use crate::clock::{Clock, DefaultClock, Timestamp};
#[cfg(feature = "std")]
use crate::keyed::OwnedKey;
use crate::limit::Kind;
use crate::sync::Ordering;
use core::cmp::Ordering::{Equal, Greater, Less};
use core::fmt;

/// What an admission took, to be settled once the true cost is known; dropping it keeps the charge.
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
pub struct Charge<C: Clock = DefaultClock> {
    owner: Owner<C>,
    cost: u64,
    /// For windows and logs, `tat` names the window or the instant. [`NOTHING`](Charged::NOTHING)
    /// if there was no limit.
    charged: ChargeRecord,
}

/// Whose state a charge or a reservation is about, and by which limit of it.
pub(super) enum Owner<C: Clock> {
    One {
        limiter: Limiter<C>,
        generation: u32,
    },
    #[cfg(feature = "std")]
    Key { key: OwnedKey<C> },
}

impl<C: Clock> Owner<C> {
    pub(super) fn now(&self) -> Timestamp {
        match self {
            Self::One { limiter, .. } => limiter.clock().now(),
            #[cfg(feature = "std")]
            Self::Key { key } => key.clock().now(),
        }
    }
}

impl<C: Clock> Charge<C> {
    #[inline]
    pub(super) fn new(limiter: &Limiter<C>, admitted: &Admission, cost: u64) -> Self {
        Self::of(
            Owner::One {
                limiter: limiter.clone(),
                generation: admitted.generation,
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
            normal,
            clock,
            tat,
            refunded,
            given,
            ..
        } = *admitted;
        let charged = match normal.kind {
            Kind::Unlimited => ChargeRecord::NOTHING,
            _ => ChargeRecord::new(&normal, tat, clock, cost, refunded, given),
        };
        Self {
            owner,
            cost,
            charged,
        }
    }

    /// What was charged.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Corrects the charge to what it really cost.
    ///
    /// Less comes back as far as time has not brought it back already and nobody has been promised
    /// it. More is charged at once as debt, at most a full bucket of it; that much is outside the
    /// limit's promise, and counted.
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

    /// Whether it is settled even if all of it was used.
    fn is_refundable(&self) -> bool {
        match &self.owner {
            Owner::One {
                limiter,
                generation,
            } => limiter.shared.cell(*generation).normal().kind == Kind::Refundable,
            #[cfg(feature = "std")]
            Owner::Key { key } => key.is_refundable(),
        }
    }

    fn give_back(&self, unused: u64, now: impl Fn() -> Timestamp) {
        let (shared, generation) = match &self.owner {
            Owner::One {
                limiter,
                generation,
            } => (&*limiter.shared, *generation),
            #[cfg(feature = "std")]
            Owner::Key { key } => return key.refund(&self.charged, self.cost, unused, now),
        };
        shared.locked(&now, |cell, normal, current| {
            if current != generation {
                return shared.cold().count_not_returned(unused);
            }
            if normal.is_machine() {
                let refund = Refund {
                    charged_in: self.charged.tat,
                    cost: self.cost,
                    unused,
                };
                return cell.window_give_back(normal, now(), refund);
            }
            if normal.kind == Kind::Pacing {
                // What is at the end of the queue and has not begun can be taken back; where that
                // is, gifts have moved.
                let no_gifts = cell.given.load(Ordering::Relaxed) == self.charged.given;
                cell.update(|free| {
                    let ahead = free.saturating_sub(cell.clock(normal, now()));
                    let is_last = no_gifts && free == self.charged.tat;
                    is_last.then(|| free - ahead.min(unused.saturating_mul(normal.token)))
                });
                return;
            }
            let (refunded, given) = (
                cell.refunded.load(Ordering::Relaxed),
                cell.given.load(Ordering::Relaxed),
            );
            let mut give = 0;
            cell.update(|tat| {
                // Read once the state is known, so that nothing in it is later than this.
                let clock = cell.clock(normal, now());
                give = token_bucket::refund(
                    normal,
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
            cell.refunded
                .store(refunded.wrapping_add(give), Ordering::Release);
        });
    }

    fn charge_more(&self, extra: u64, now: impl Fn() -> Timestamp) {
        let shared = match &self.owner {
            Owner::One { limiter, .. } => &*limiter.shared,
            #[cfg(feature = "std")]
            Owner::Key { key } => return key.charge_more(extra, now),
        };
        shared.locked(&now, |cell, normal, _| {
            if normal.kind == Kind::Unlimited {
                return;
            }
            let extra = extra.min(normal.burst());
            if normal.is_machine() {
                cell.window_charge(normal, now(), extra);
                return shared.cold().count_settled_up(extra);
            }
            let clock = cell.clock(normal, now());
            cell.update(|tat| Some(tat.max(clock).saturating_add(extra * normal.token)));
            shared.cold().count_settled_up(extra);
        });
    }
}

impl<C: Clock> fmt::Debug for Charge<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge").field("cost", &self.cost).finish()
    }
}
