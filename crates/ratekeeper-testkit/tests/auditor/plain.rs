//! Reference checks: each bound by its definition, over every interval of whole units of time. The
//! result is the smallest slack, negative if the bound is broken; `None` if there is nothing to compare.

use ratekeeper_testkit::auditor::Bound;

/// No window is longer.
pub(crate) const LONGEST_WINDOW: u64 = 25;

/// (time, cost)
pub(crate) type Exact = (u64, u64);

fn admitted(trace: &[Exact], from: u64, to: u64) -> i128 {
    trace
        .iter()
        .filter(|(time, _)| (from..=to).contains(time))
        .map(|(_, cost)| i128::from(*cost))
        .sum()
}

fn every_interval(end: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..=end).flat_map(move |from| (from..=end).map(move |to| (from, to)))
}

/// The first time of the window that ends with t.
fn window_to(t: u64, window: u64) -> u64 {
    (t + 1).saturating_sub(window)
}

pub(crate) fn slack(bound: &Bound, trace: &[Exact], allowance: u64) -> Option<i128> {
    let trace: Vec<Exact> = trace
        .iter()
        .filter(|(_, cost)| *cost > 0)
        .copied()
        .collect();
    if trace.is_empty() {
        return None;
    }
    let trace = &trace[..];
    let last = trace.iter().map(|(time, _)| *time).max().unwrap();
    let end = last + LONGEST_WINDOW;
    let extra = i128::from(allowance);
    match *bound {
        Bound::TokenBucket {
            count,
            period,
            burst,
        } => every_interval(last)
            .map(|(s, t)| {
                let refill = (i128::from(count) * i128::from(t - s)).div_euclid(i128::from(period));
                i128::from(burst) + refill + extra - admitted(trace, s, t)
            })
            .min(),
        Bound::SlidingLog { limit, window } => (0..=end)
            .map(|t| i128::from(limit) + extra - admitted(trace, window_to(t, window), t))
            .min(),
        Bound::FixedWindow { limit, window } => (0..=end)
            .step_by(window as usize)
            .map(|start| i128::from(limit) + extra - admitted(trace, start, start + window - 1))
            .min(),
        Bound::FirstHitWindow { limit, window } => {
            let anywhere = slack(
                &Bound::SlidingLog {
                    limit: 2 * limit,
                    window,
                },
                trace,
                allowance,
            );
            let mut least = anywhere;
            let mut start = 0;
            while start <= end {
                if !trace.iter().any(|(time, _)| *time == start) {
                    start += 1;
                    continue;
                }
                let in_window =
                    i128::from(limit) + extra - admitted(trace, start, start + window - 1);
                least = least.min(Some(in_window));
                start += window;
            }
            least
        }
        Bound::EvictedFirstHitWindow { limit, window } => every_interval(last)
            .map(|(s, t)| {
                let windows = (t - s + 1).div_ceil(window) + 1;
                i128::from(limit * windows) + extra - admitted(trace, s, t)
            })
            .min(),
        Bound::SlidingCounter { limit, window } => {
            let each = slack(&Bound::FixedWindow { limit, window }, trace, allowance);
            let sliding = (0..=end).map(|t| {
                let start = t - t % window;
                let previous = if start == 0 {
                    0
                } else {
                    admitted(trace, start - window, start - 1)
                };
                let carried = previous * i128::from(t % window) / i128::from(window);
                i128::from(limit) + carried + extra - admitted(trace, window_to(t, window), t)
            });
            sliding.chain(each).min()
        }
        Bound::Pacing { count, period } => {
            let mut starts = trace.to_vec();
            starts.sort_unstable();
            let mut least: Option<i128> = None;
            for (last, (to, _)) in starts.iter().enumerate() {
                for (first, (from, _)) in starts.iter().enumerate().take(last) {
                    let before: i128 = starts[first..last]
                        .iter()
                        .map(|(_, cost)| i128::from(*cost))
                        .sum();
                    let room =
                        i128::from(count) * i128::from(to - from + allowance) / i128::from(period);
                    least = Some(least.map_or(room - before, |least| least.min(room - before)));
                }
            }
            least
        }
    }
}
