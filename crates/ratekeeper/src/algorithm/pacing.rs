//! Pacing: the leaky bucket as a queue. Calls start one interval apart, however they arrive.
//!
//! F is the time at which the queue will be empty. A call of cost c at t starts at max(t, F) if
//! that is at most M after t, and moves F by c·T.

use super::token_bucket::Step;
use crate::limit::{MAX_DEBT, TickLimit};

/// One call of `cost` units at `clock` by a caller that waits at most `max_wait`; `limit.capacity`
/// is the longest wait M of the queue. If it is allowed, `wait` is the time until its start.
#[inline]
pub(crate) fn step(limit: &TickLimit, free: u64, clock: u64, cost: u64, max_wait: u64) -> Step {
    if limit.ticks == 0 || cost > limit.burst() {
        return Step::Never;
    }
    let (wait, max_wait) = (free.saturating_sub(clock), limit.capacity.min(max_wait));
    if wait > max_wait {
        return Step::Deny {
            wait: wait - max_wait,
        };
    }
    match cost
        .checked_mul(limit.token)
        .and_then(|cost| free.max(clock).checked_add(cost))
    {
        Some(tat) if tat < u64::MAX && wait <= MAX_DEBT => Step::Admit { tat, wait },
        _ => Step::Never,
    }
}

/// How many units would be allowed now, one by one.
pub(crate) fn remaining(token: u64, max_wait: u64, ahead: u64) -> u64 {
    if ahead > max_wait {
        0
    } else {
        (max_wait - ahead) / token + 1
    }
}
