//! The token bucket and pacing on one word: a TAT in ticks, counted from an origin.

use super::{
    pacing,
    token_bucket::{self, Step},
};
use crate::clock::Timestamp;
use crate::decision::{Decision, Outcome};
use crate::limit::{HORIZON, Kind, TickLimit};

/// The word of a sealed generation: one that a live change has replaced.
pub(crate) const SEALED: u64 = u64::MAX;

/// How far from its origin a word is used; the rest of the horizon is headroom for debt.
pub(crate) const REACH: u64 = HORIZON / 5 * 4;

/// How far before its creation a limiter's origin lies, so that a replay of older instants works as
/// well as the present.
const BACKLOG: u64 = HORIZON / 2;

/// The position of an instant relative to the origin of a word.
pub(crate) enum Reach {
    /// Within reach: the clock, in ticks.
    Clock(u64),
    /// Before the origin by `wait` ticks: years before the limiter was created or its origin last
    /// moved.
    Early { wait: u64 },
    /// Beyond reach: the word must get a new origin before it can be written.
    Late,
}

/// The position of `now` relative to `origin`.
#[inline]
pub(crate) fn reach(limit: &TickLimit, origin: u64, now: Timestamp) -> Reach {
    let nanos = now.as_unix_nanos();
    let elapsed = nanos.wrapping_sub(origin);
    if nanos >= origin && elapsed <= REACH {
        // At most 58 · 8 years, which fits.
        return Reach::Clock(elapsed * limit.ticks);
    }
    out_of_reach(limit, origin, nanos)
}

#[cold]
fn out_of_reach(limit: &TickLimit, origin: u64, now: u64) -> Reach {
    if limit.ticks == 0 {
        // Time stands still: the rate is zero.
        return Reach::Clock(0);
    }
    match origin.checked_sub(now) {
        Some(early) => Reach::Early {
            wait: early.saturating_mul(limit.ticks),
        },
        None => Reach::Late,
    }
}

/// How far a state is ahead of `now` in ticks, also if `now` is out of reach.
pub(crate) fn ahead(limit: &TickLimit, origin: u64, tat: u64, now: Timestamp) -> u64 {
    let clock = match reach(limit, origin, now) {
        Reach::Clock(clock) => i128::from(clock),
        _ => (i128::from(now.as_unix_nanos()) - i128::from(origin)) * i128::from(limit.ticks),
    };
    (i128::from(tat) - clock).clamp(0, i128::from(SEALED)) as u64
}

/// The decision on a call of a bucket or a queue, without writing, also if `now` is out of reach.
pub(crate) fn peek(
    limit: &TickLimit,
    origin: u64,
    tat: u64,
    now: Timestamp,
    cost: u64,
    max_wait: u64,
) -> Decision {
    let ahead = ahead(limit, origin, tat, now);
    let step = match (
        reach(limit, origin, now),
        step(limit, ahead, 0, cost, max_wait),
    ) {
        // So early that the distance does not fit a word.
        (Reach::Early { wait }, _) if wait.max(ahead) == u64::MAX => Step::Never,
        (Reach::Early { wait: until_origin }, Step::Admit { wait, .. } | Step::Deny { wait }) => {
            Step::Deny {
                wait: wait.max(until_origin),
            }
        }
        (_, step) => step,
    };
    decision(limit, step, ahead)
}

/// The longest wait of a check: zero for tokens; unlimited for a pacing queue, whose decision
/// carries the start time.
#[inline]
pub(crate) fn max_wait_of_check(limit: &TickLimit) -> u64 {
    if limit.kind == Kind::Pacing {
        u64::MAX
    } else {
        0
    }
}

/// One call on the word of a bucket or a queue.
#[inline]
pub(crate) fn step(limit: &TickLimit, tat: u64, clock: u64, cost: u64, max_wait: u64) -> Step {
    match limit.kind {
        Kind::Pacing => pacing::step(limit, tat, clock, cost, max_wait),
        _ => token_bucket::step(limit, tat, clock, cost, max_wait),
    }
}

/// The decision for a step that left the state `ahead` ticks ahead of the clock.
#[inline(always)]
pub(crate) fn decision(limit: &TickLimit, step: Step, ahead: u64) -> Decision {
    let (outcome, wait) = match step {
        Step::Admit { wait, .. } => (Outcome::Allowed, wait),
        Step::Deny { wait } => (Outcome::Denied, wait),
        Step::Never => (Outcome::Never, 0),
    };
    Decision::new(limit, outcome, ahead, wait)
}

pub(crate) fn origin_for(now: Timestamp) -> u64 {
    now.as_unix_nanos().saturating_sub(BACKLOG)
}
