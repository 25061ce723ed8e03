//! Pacing: the leaky bucket as a queue. Calls leave it one interval apart, however they came in.
//!
//! F is when the queue will be empty. A call at t starts at max(t, F) if that is at most M away,
//! and moves F by c·T.

use super::token_bucket::Step;
use crate::limit::{LONGEST_DEBT, TickLimit};

/// One call of `cost` units at `clock` by a caller that would wait for `patience`; `capacity` is
/// the longest wait M. Admitted, its wait is the time to its start.
#[inline]
pub(crate) fn step(limit: &TickLimit, free: u64, clock: u64, cost: u64, patience: u64) -> Step {
    if limit.ticks == 0 || cost > limit.burst() {
        return Step::Never;
    }
    let (wait, longest) = (free.saturating_sub(clock), limit.capacity.min(patience));
    if wait > longest {
        return Step::Deny {
            wait: wait - longest,
        };
    }
    match cost
        .checked_mul(limit.token)
        .and_then(|cost| free.max(clock).checked_add(cost))
    {
        Some(tat) if tat < u64::MAX && wait <= LONGEST_DEBT => Step::Admit { tat, wait },
        _ => Step::Never,
    }
}

/// How many units would be admitted now, one by one.
pub(crate) fn remaining(token: u64, longest: u64, ahead: u64) -> u64 {
    if ahead > longest {
        0
    } else {
        (longest - ahead) / token + 1
    }
}
