//! A slot in the future.

use super::Limiter;
use super::view::Admitted;
use crate::algorithm::token_bucket;
use crate::clock::{Clock, DefaultClock, Instant};
use crate::limit::Kind;
use crate::sync::Ordering;
use core::fmt;
use core::time::Duration;

/// A slot that is yours: act when [`delay`](Self::delay) has passed, or [`cancel`](Self::cancel) it.
///
/// The time is fixed when the slot is granted: no later change of the limit and nobody else's cancel moves it. Dropping
/// a reservation keeps the slot.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limit, Limiter};
///
/// let limiter = Limiter::new(Limit::per_minute(6).burst(1));
/// let now = limiter.reserve(1)?;
/// assert_eq!(now.delay(), Duration::ZERO);
///
/// let later = limiter.reserve(1)?;
/// if later.delay() > Duration::from_secs(1) {
///     later.cancel(); // the next caller gets the slot
/// }
/// # Ok::<_, tollgate::Denied>(())
/// ```
#[must_use = "a reservation takes its slot whether or not you act; cancel it to give the slot back"]
pub struct Reservation<C: Clock = DefaultClock> {
    limiter: Limiter<C>,
    act: Instant,
    mark: u64,
    /// What it took; 0 if there is nothing to give back.
    cost: u64,
    generation: u32,
}

impl<C: Clock> Reservation<C> {
    pub(super) fn new(limiter: &Limiter<C>, admitted: &Admitted, cost: u64, now: Instant) -> Self {
        let Admitted { normal, generation, clock, tat, wait, given, .. } = *admitted;
        let delay = if wait == 0 { 0 } else { normal.nanos_ceil(wait) };
        Self {
            limiter: limiter.clone(),
            act: now + Duration::from_nanos(delay),
            mark: token_bucket::mark(&normal, tat, clock, given),
            cost: if normal.kind == Kind::Unlimited { 0 } else { cost },
            generation,
        }
    }

    /// How long to wait from now on.
    pub fn delay(&self) -> Duration {
        self.delay_from(self.limiter.clock().now())
    }

    /// How long to wait from `now` on.
    pub fn delay_from(&self, now: Instant) -> Duration {
        self.act.saturating_since(now)
    }

    /// When to act.
    pub fn act_at(&self) -> Instant {
        self.act
    }

    /// Gives back what no later reservation has been promised. Nothing comes back once the time to act has passed.
    pub fn cancel(self) {
        let now = self.limiter.clock().now();
        self.cancel_at(now);
    }

    pub(super) fn cancel_at(self, now: Instant) {
        if self.cost == 0 || self.act < now {
            return;
        }
        let shared = &*self.limiter.shared;
        shared.locked(now, |cell, normal, clock, current| {
            if normal.kind == Kind::Unlimited {
                return;
            }
            let Some(mark) = shared.follow(self.mark, self.generation, current) else { return };
            let given = cell.given.load(Ordering::Relaxed);
            let mut back = token_bucket::Cancelled { give: 0, shifts: false };
            let moved = cell.update(|tat| {
                back = token_bucket::cancel(normal, tat, clock, given, self.cost, mark);
                (back.give > 0).then(|| tat.saturating_sub(back.give))
            });
            if moved.is_err() || back.give == 0 {
                return;
            }
            // After the state: a reservation in between then counts on less, not on more.
            if back.shifts {
                cell.given.store(given.wrapping_add(back.give), Ordering::Release);
            }
            let refunded = cell.refunded.load(Ordering::Relaxed);
            cell.refunded.store(refunded.wrapping_add(back.give), Ordering::Release);
        });
    }
}

impl<C: Clock> fmt::Debug for Reservation<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("act_at", &self.act).field("cost", &self.cost).finish()
    }
}
