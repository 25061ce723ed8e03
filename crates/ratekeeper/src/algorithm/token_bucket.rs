//! The token bucket (GCRA) on one number: the theoretical arrival time (TAT).
//!
//! TAT is the time at which the bucket will be full again. A call of cost c at the clock t moves it
//! to max(t, TAT) + c·P and is allowed while that is at most B·P ahead of t; the excess beyond B·P
//! is the wait until the tokens are there. Every operation is this one step with a different
//! `max_wait`: zero for a check, more for a reservation. The leaky bucket as a meter is the same
//! state machine, its level counted from the other end.
//!
//! All quantities are ticks of the limit's [`TickLimit`]; the clock is counted from an origin that
//! the caller chose.

use crate::limit::{MAX_DEBT, TickLimit};

/// The result of one call on a token bucket or a pacing queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Allowed: the new state, and the wait until the tokens are there (at most `max_wait`).
    Admit { tat: u64, wait: u64 },
    /// Denied, the state is unchanged: the same call is allowed after this many ticks.
    Deny { wait: u64 },
    /// Never allowed, however long the caller waits.
    Never,
}

/// One call of `cost` tokens at `clock` by a caller that waits at most `max_wait`.
///
/// Always inlined: this is the fast path of every check. What depends on the limit alone comes
/// first, so that one comparison is left once the time and the state are known.
#[inline(always)]
pub(crate) fn step(limit: &TickLimit, tat: u64, clock: u64, cost: u64, max_wait: u64) -> Step {
    let Some(charge) = limit.ticks_of(cost) else {
        return Step::Never;
    };
    // How far ahead the state may be for the cost to fit.
    let headroom = limit.capacity - charge;
    let ahead = tat.saturating_sub(clock);
    if ahead <= headroom {
        // [`TickLimit`] leaves headroom for a full bucket beyond every clock.
        return Step::Admit {
            tat: clock.max(tat) + charge,
            wait: 0,
        };
    }
    let wait = ahead - headroom;
    match clock.max(tat).checked_add(charge) {
        _ if limit.ticks == 0 => Step::Never,
        _ if wait > max_wait => Step::Deny { wait },
        Some(tat) if wait <= MAX_DEBT && tat < u64::MAX => Step::Admit { tat, wait },
        _ => Step::Never,
    }
}

/// The mark by which a reservation can be cancelled later: where its slot begins, shifted by what
/// was given back before it (`given`, a counter that wraps; only differences of marks are used).
pub(crate) fn mark(limit: &TickLimit, tat_after: u64, clock: u64, given: u64) -> u64 {
    clock
        .max(tat_after.saturating_sub(limit.capacity))
        .wrapping_add(given)
}

/// What a cancel or a settle gives back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TokenRefund {
    pub(crate) give: u64,
    /// Whether there are later reservations, whose marks must take what was given back into
    /// account.
    pub(crate) shifts: bool,
}

/// What comes back of a cancelled reservation that took `worth` ticks: all of it except what later
/// reservations were promised.
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

/// What a charge must remember in order to be settled later.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ChargeRecord {
    /// The state after the charge.
    pub(crate) tat: u64,
    pub(crate) ahead: u64,
    /// The totals given back before the charge: by all refunds and cancels, and by cancels from
    /// under later reservations.
    pub(crate) refunded: u64,
    pub(crate) given: u64,
}

impl ChargeRecord {
    /// The record of a charge without a limit. No state reaches this TAT.
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
/// by now and no later call was promised. Refunds since the charge count against it only as far as
/// they can have been of what was charged before it, so the order in which charges are settled does
/// not matter.
///
/// A charge whose slot has not come yet, because its caller waits for it, is a reservation: if all
/// of it is given up, it gives back as much as a cancelled one. (For a part of it that would be too
/// much: the rest still acts at its slot.)
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
