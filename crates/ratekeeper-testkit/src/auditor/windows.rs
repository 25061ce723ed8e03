//! Checks of windows of one length: at any position, aligned, from the first admission, and the two
//! counters.

use super::fenwick_tree::FenwickTree;
use super::{Admission, TightestInterval, with};

/// Checks that at most `limit` were admitted in (t − window, t] for all t.
pub(super) fn sliding(
    trace: &[Admission],
    window: u64,
    limit: u128,
    tightest: &mut TightestInterval,
) {
    each_sliding(trace, window, |from, to, admitted| {
        tightest.compare(from, to, admitted, limit);
    });
}

/// Checks FW2: for all k at most `limit`·(k + 1) + `allowance` in any k windows on end, which is the
/// bound of every length above k − 1 windows.
pub(super) fn any_length(
    trace: &[Admission],
    window: u64,
    limit: u64,
    allowance: u64,
    tightest: &mut TightestInterval,
) {
    let total: u128 = trace.iter().map(|call| u128::from(call.cost)).sum();
    let first = trace.iter().map(|call| call.earliest).min().unwrap_or(0);
    let last = trace.iter().map(|call| call.latest).max().unwrap_or(0);
    for windows in 1.. {
        let length = window.saturating_mul(windows);
        let allowed = with(limit, allowance) + u128::from(limit) * u128::from(windows);
        sliding(trace, length, allowed, tightest);
        // More windows are allowed more, and what they can hold at most is all of the trace.
        let slack = allowed as i128 - total as i128;
        if length > last - first || tightest.slack().is_none_or(|least| least <= slack) {
            break;
        }
    }
}

/// Checks that at most `limit` + prev·e/window were admitted in (t − window, t] for all t. `prev`
/// is the most that the window before can have had. Between admissions the left side only falls,
/// and with a new window it is at most what [`aligned`] has checked.
pub(super) fn weighted(
    trace: &[Admission],
    window: u64,
    limit: u128,
    tightest: &mut TightestInterval,
) {
    let sent = Prefix::new(trace, |admission| admission.earliest);
    let answered = Prefix::new(trace, |admission| admission.latest);
    each_sliding(trace, window, |from, to, admitted| {
        let into = to % window;
        let start = to - into;
        // Sent before this window began and not answered before the last one did.
        let before = start
            .checked_sub(window)
            .map_or(0, |last| answered.below(last));
        let previous = sent.below(start) - before;
        let carried = previous * u128::from(into) / u128::from(window);
        tightest.compare(from, to, admitted, limit + carried);
    });
}

/// Checks that at most `limit` were admitted in each window [k·window, (k + 1)·window).
pub(super) fn aligned(
    trace: &[Admission],
    window: u64,
    limit: u128,
    tightest: &mut TightestInterval,
) {
    let certain = trace
        .iter()
        .filter(|admission| admission.earliest / window == admission.latest / window);
    let mut windows: Vec<(u64, u64)> = certain
        .map(|admission| (admission.earliest / window, admission.cost))
        .collect();
    windows.sort_unstable();
    for of_one in windows.chunk_by(|(one, _), (next, _)| one == next) {
        let start = of_one[0].0 * window;
        let admitted = of_one.iter().map(|(_, cost)| u128::from(*cost)).sum();
        tightest.compare(start, start.saturating_add(window - 1), admitted, limit);
    }
}

/// Checks that at most `limit` were admitted in each window that begins with the first admission
/// after the last one ended.
///
/// The start of a window is known only to lie from `low` to `high`. The first begins with the first
/// admission; the next with the first that is not in it, which is at the earliest one that can be
/// after its end, and at the latest one that must be.
pub(super) fn from_first_hit(
    trace: &[Admission],
    window: u64,
    limit: u128,
    tightest: &mut TightestInterval,
) {
    let can_be = Earliest::new(trace, |admission| (admission.latest, admission.earliest));
    let must_be = Earliest::new(trace, |admission| (admission.earliest, admission.latest));
    // Certainly in a window: sent when the one before had ended, answered before it ends itself.
    let mut windows = Vec::new();
    let (mut over_low, mut over_high) = (0, 0);
    while let Some(high) = must_be.since(over_high) {
        let low = can_be
            .since(over_low)
            .expect("what must come can come")
            .max(over_low);
        let end = low.saturating_add(window);
        windows.push((over_high, low, end));
        let Some(latest_end) = high.checked_add(window) else {
            break;
        };
        (over_low, over_high) = (end, latest_end);
    }

    let mut by_latest = trace.to_vec();
    by_latest.sort_unstable_by_key(|admission| admission.latest);
    let mut starts: Vec<u64> = trace.iter().map(|admission| admission.earliest).collect();
    starts.sort_unstable();
    let position = |time: u64| starts.partition_point(|start| *start < time);
    let mut sums = FenwickTree::new(starts.len());
    let mut answered = by_latest.iter().peekable();
    for (sent_from, low, end) in windows {
        while let Some(admission) = answered.next_if(|admission| admission.latest < end) {
            sums.add(position(admission.earliest), admission.cost);
        }
        let admitted = sums.below(starts.len()) - sums.below(position(sent_from));
        tightest.compare(low, end - 1, admitted, limit);
    }
}

/// Calls `compare` with each (t − window, t] that can be the worst: its first time, t, and what
/// is certainly in it.
fn each_sliding(trace: &[Admission], window: u64, mut compare: impl FnMut(u64, u64, u128)) {
    let mut by_latest = trace.to_vec();
    by_latest.sort_unstable_by_key(|admission| admission.latest);
    let mut starts: Vec<u64> = trace.iter().map(|admission| admission.earliest).collect();
    starts.sort_unstable();
    let position = |time: u64| starts.partition_point(|start| *start < time);
    let mut sums = FenwickTree::new(starts.len());
    for admission in by_latest {
        sums.add(position(admission.earliest), admission.cost);
        let to = admission.latest;
        // A window longer than all time so far begins at 0.
        let from = to.checked_sub(window).map_or(0, |before| before + 1);
        compare(
            from,
            to,
            sums.below(starts.len()) - sums.below(position(from)),
        );
    }
}

/// Prefix sums: the cost of everything before a time.
struct Prefix(Vec<(u64, u128)>);

impl Prefix {
    fn new(trace: &[Admission], time: impl Fn(&Admission) -> u64) -> Self {
        let mut costs: Vec<(u64, u128)> = trace
            .iter()
            .map(|admission| (time(admission), admission.cost.into()))
            .collect();
        costs.sort_unstable();
        let mut sum = 0;
        for (_, cost) in &mut costs {
            sum += *cost;
            *cost = sum;
        }
        Self(costs)
    }

    fn below(&self, time: u64) -> u128 {
        let count = self.0.partition_point(|(at, _)| *at < time);
        count.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}

/// The smallest second time among all entries whose first time is at or after a given one.
struct Earliest(Vec<(u64, u64)>);

impl Earliest {
    fn new(trace: &[Admission], times: impl Fn(&Admission) -> (u64, u64)) -> Self {
        let mut times: Vec<(u64, u64)> = trace.iter().map(times).collect();
        times.sort_unstable();
        let mut least = u64::MAX;
        for (_, second) in times.iter_mut().rev() {
            least = least.min(*second);
            *second = least;
        }
        Self(times)
    }

    fn since(&self, time: u64) -> Option<u64> {
        self.0
            .get(self.0.partition_point(|(first, _)| *first < time))
            .map(|(_, least)| *least)
    }
}
