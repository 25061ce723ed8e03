//! The sliding log: the time of every admitted unit, so that no window of any position holds more
//! than N.
//!
//! A ring of the last N times, oldest first. With k = length + cost − N, a call fits if k is at
//! most 0 or the k-th oldest time has left the window. Checking costs a step, admitting a step a
//! unit; the figures cost a binary search.

use super::{DecisionInfo, StepResult, WindowLimit};

/// Where the ring begins and how long it is; the times are the caller's to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ring {
    pub(crate) head: u64,
    pub(crate) length: u64,
    /// Places in it: N, or more if N has shrunk and more are still to be remembered.
    pub(crate) size: u64,
}

impl Ring {
    /// The place of the entry that is `age` steps younger than the oldest.
    pub(crate) fn slot(&self, age: u64) -> u64 {
        // Both are below the size, so the sum needs no division to come round.
        let at = self.head + age;
        if at >= self.size { at - self.size } else { at }
    }

    /// One call. Admitted, the ring it leaves still has its units to be [`push`](Self::push)ed, at
    /// the instant told.
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

    /// Adds a unit at the young end and returns its place. The ring has room: `step` said so.
    pub(crate) fn push(&mut self) -> u64 {
        let slot = self.slot(self.length.min(self.size - 1));
        self.length = (self.length + 1).min(self.size);
        slot
    }
}

/// One call on a log of `length` times, of which `at` knows each by age, oldest first: admitted,
/// how many of the oldest have left the window. And the instant it is judged, and logged, at.
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

/// The first of `0..length` for which `passed` no longer holds, of entries for which it holds
/// first.
fn partition(length: u64, passed: impl Fn(u64) -> bool) -> u64 {
    // Most calls find few entries gone: look at the oldest first.
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
