//! The token bucket on one number: the theoretical arrival time.
//!
//! TAT is when the bucket will be full again. A call of cost c at the clock t moves it to max(t,
//! TAT) + c·P and is admitted while that is at most B·P ahead of t; what it is ahead beyond that is
//! the wait until the tokens are there. Every verb is this one step with another patience: none for
//! a check, some for a reservation. The leaky bucket as a meter is the same machine, its level
//! counted from the other end.
//!
//! All quantities are ticks of the limit's [`Normal`] form, the clock counted from an origin that
//! the caller chose.

use crate::limit::{MAX_DEBT, TickLimit};

/// What became of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Admitted: the new state, and the wait until the tokens are there (at most the patience).
    Admit { tat: u64, wait: u64 },
    /// Not admitted, nothing changes: it would be after this many ticks.
    Deny { wait: u64 },
    /// No time will admit it.
    Never,
}

/// One call of `cost` tokens at `clock` by a caller that would wait for `patience`.
#[inline]
pub(crate) fn step(limit: &TickLimit, tat: u64, clock: u64, cost: u64, max_wait: u64) -> Step {
    let Some(cost) = limit.ticks_of(cost) else {
        return Step::Never;
    };
    let Some(ahead) = tat.saturating_sub(clock).checked_add(cost) else {
        return Step::Never;
    };
    if ahead <= limit.capacity {
        // The normal form leaves room for a full bucket beyond every clock.
        return Step::Admit {
            tat: clock.max(tat) + cost,
            wait: 0,
        };
    }
    late(
        limit,
        clock.max(tat).checked_add(cost),
        ahead - limit.capacity,
        max_wait,
    )
}

#[inline]
fn late(limit: &TickLimit, next: Option<u64>, wait: u64, max_wait: u64) -> Step {
    match next {
        _ if limit.ticks == 0 => Step::Never,
        _ if wait > max_wait => Step::Deny { wait },
        Some(tat) if wait <= MAX_DEBT && tat < u64::MAX => Step::Admit { tat, wait },
        _ => Step::Never,
    }
}

/// What a reservation remembers to be cancelled by: where its slot begins, shifted by what was
/// given back before it (`given`, a counter that wraps; only differences of marks are used).
pub(crate) fn mark(limit: &TickLimit, tat_after: u64, clock: u64, given: u64) -> u64 {
    clock
        .max(tat_after.saturating_sub(limit.capacity))
        .wrapping_add(given)
}

/// What cancelling gives back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TokenRefund {
    pub(crate) give: u64,
    /// Whether later reservations stand behind it, so that their marks must see the gift.
    pub(crate) shifts: bool,
}

/// A cancelled reservation that took `worth` ticks gives back what no later one has been promised.
pub(crate) fn cancel(
    limit: &TickLimit,
    tat: u64,
    clock: u64,
    given: u64,
    worth: u64,
    mark: u64,
) -> TokenRefund {
    let zero = tat
        .max(clock)
        .wrapping_sub(limit.capacity)
        .wrapping_add(given);
    let promised_since = (zero.wrapping_sub(mark) as i64).max(0) as u64;
    let give = worth.saturating_sub(promised_since);
    TokenRefund {
        give,
        shifts: give > 0 && promised_since > 0,
    }
}

/// What a charge remembers to be settled by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ChargeRecord {
    /// The state it left behind, and how far the state was ahead of the clock before it.
    pub(crate) tat: u64,
    pub(crate) ahead: u64,
    /// What refunds and cancels had given back by then, in all and from under later reservations.
    pub(crate) refunded: u64,
    pub(crate) given: u64,
}

impl ChargeRecord {
    /// Of that which has no limit: no state comes as far.
    pub(crate) const NOTHING: Self = Self {
        tat: u64::MAX,
        ahead: 0,
        refunded: 0,
        given: 0,
    };

    /// A charge of `cost` at `clock` that left the state at `tat`.
    #[inline]
    pub(crate) fn new(
        limit: &TickLimit,
        tat: u64,
        clock: u64,
        cost: u64,
        refunded: u64,
        given: u64,
    ) -> Self {
        let ahead = tat
            .saturating_sub(clock)
            .saturating_sub(cost.saturating_mul(limit.token));
        Self {
            tat,
            ahead,
            refunded,
            given,
        }
    }
}

/// What comes back of a charge of which `unused` tokens were not needed: what time has not repaid
/// by now and nobody has been promised. Refunds since then count against it only as far as they can
/// have been of what stood before it, so the order in which charges are settled does not matter.
///
/// A charge whose time has not come, because the caller waits for it, is a reservation: if all of
/// it is given up, it gives back as one that is cancelled. (Of a part that would be too much: the
/// rest still acts when it was told to.)
#[allow(clippy::too_many_arguments)]
pub(crate) fn refund(
    limit: &TickLimit,
    tat: u64,
    clock: u64,
    unused: u64,
    is_all: bool,
    charged: &ChargeRecord,
    refunded: u64,
    given: u64,
) -> TokenRefund {
    let unused = unused.saturating_mul(limit.token);
    if is_all && charged.tat.saturating_sub(clock) > limit.capacity {
        let mark = charged
            .tat
            .wrapping_sub(limit.capacity)
            .wrapping_add(charged.given);
        return cancel(limit, tat, clock, given, unused, mark);
    }
    let before_it = refunded.wrapping_sub(charged.refunded).min(charged.ahead);
    let unrepaid = charged.tat.saturating_sub(before_it).saturating_sub(clock);
    let promised = tat.saturating_add(given.wrapping_sub(charged.given));
    let debt = promised
        .saturating_sub(clock)
        .saturating_sub(limit.capacity);
    TokenRefund {
        give: unused.min(unrepaid).saturating_sub(debt),
        shifts: false,
    }
}
