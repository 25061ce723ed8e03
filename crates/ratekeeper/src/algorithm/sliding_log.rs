//! The sliding log: it stores the time of every allowed unit, so that no window, wherever it
//! starts, holds more than N.
//!
//! The log is a ring of the last N times, oldest first. With k = length + cost − N, a call fits if
//! k is at most 0 or the k-th oldest time has left the window. A check costs one step, an allowed
//! call one step per unit; the reported numbers cost a binary search.

use super::{DecisionInfo, StepResult, WindowLimit};

/// A ring buffer's head, length and size; the caller stores the times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ring {
    pub(crate) head: u64,
    pub(crate) length: u64,
    /// Slots in the ring: N, or more if N has shrunk and older times are still needed.
    pub(crate) size: u64,
}

impl Ring {
    /// The slot of the entry that is `age` steps younger than the oldest.
    pub(crate) fn slot(&self, age: u64) -> u64 {
        // Both are below the size, so the sum wraps without a division.
        let at = self.head + age;
        if at >= self.size { at - self.size } else { at }
    }

    /// One call. If it is allowed, its units must still be [`push`](Self::push)ed onto the returned
    /// ring, with the returned instant as their time.
    pub(crate) fn step(
        self,
        limit: &WindowLimit,
        time: impl Fn(u64) -> u64,
        now: u64,
        cost: u64,
    ) -> (StepResult<Self>, u64) {
        let (result, now) = judge(limit, self.length, |age| time(self.slot(age)), now, cost);
        let left = |expired| Self {
            head: self.slot(expired),
            length: self.length - expired,
            ..self
        };
        let result = match result {
            StepResult::Admit(expired, info) => StepResult::Admit(left(expired), info),
            StepResult::Deny { info, retry_at } => StepResult::Deny { info, retry_at },
            StepResult::Never(info) => StepResult::Never(info),
        };
        (result, now)
    }

    /// Appends a unit and returns its slot. `step` has made sure that the ring has space.
    pub(crate) fn push(&mut self) -> u64 {
        let slot = self.slot(self.length.min(self.size - 1));
        self.length = (self.length + 1).min(self.size);
        slot
    }
}

/// One call on a log of `length` times, where `at` returns the time of each age, oldest first. If
/// it is allowed, the result holds how many of the oldest have left the window. Also returns the
/// instant at which the call is judged and logged.
pub(crate) fn judge(
    limit: &WindowLimit,
    length: u64,
    at: impl Fn(u64) -> u64,
    now: u64,
    cost: u64,
) -> (StepResult<u64>, u64) {
    let newest = if length > 0 { at(length - 1) } else { 0 };
    let now = now.max(newest);
    // An event exactly W old does not count.
    let gone = |time: u64| time.saturating_add(limit.window) <= now;
    let expired = partition(length, |age| gone(at(age)));
    let live = length - expired;
    let reset_at = |newest: u64| newest.saturating_add(limit.window);
    let info = DecisionInfo {
        remaining: limit.max - live.min(limit.max),
        reset_at: if live == 0 { 0 } else { reset_at(newest) },
    };
    if cost > limit.max {
        return (StepResult::Never(info), now);
    }
    if live + cost > limit.max {
        let retry_at = at(expired + (live + cost - limit.max) - 1).saturating_add(limit.window);
        return (StepResult::Deny { info, retry_at }, now);
    }
    let after = DecisionInfo {
        remaining: info.remaining - cost,
        reset_at: if cost == 0 {
            info.reset_at
        } else {
            reset_at(now)
        },
    };
    (StepResult::Admit(expired, after), now)
}

/// The first index of `0..length` for which `passed` is false; it must be true for all indices
/// before it and false for all after.
fn partition(length: u64, passed: impl Fn(u64) -> bool) -> u64 {
    // Few entries have expired at most calls: test the oldest first.
    if length == 0 || !passed(0) {
        return 0;
    }
    let (mut low, mut high) = (1, length);
    while low < high {
        let middle = low + (high - low) / 2;
        if passed(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}
