//! TB1: checks a token bucket over all s ≤ t at once.

use super::suffix_tree::SuffixTree;
use super::{Admission, TightestInterval};

/// `count` per `period`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) count: u128,
    pub(crate) period: u128,
}

impl Rate {
    pub(crate) fn new(count: u64, period: u64) -> Self {
        assert!(period > 0, "a period of 0 is no rate");
        Self {
            count: count.into(),
            period: period.into(),
        }
    }
}

/// Checks A[s, t]·period ≤ full + count·(t − s), which for whole A is the bound with its floor.
/// What certainly lies in [s, t] is what was sent at s or later and answered by t. Only an s at
/// which something was sent and a t at which something was answered can be the worst: any other
/// interval can shrink without losing anything.
pub(crate) fn check(trace: &[Admission], rate: Rate, full: u128, tightest: &mut TightestInterval) {
    let mut by_earliest = trace.to_vec();
    by_earliest.sort_unstable_by_key(|admission| admission.earliest);
    let mut by_latest: Vec<usize> = (0..by_earliest.len()).collect();
    by_latest.sort_unstable_by_key(|&position| by_earliest[position].latest);

    // At position i: A[s_i, t]·period + count·s_i. An s joins when t has reached it.
    let mut sums = SuffixTree::new(by_earliest.len());
    let mut joined = 0;
    for position in by_latest {
        let to = by_earliest[position].latest;
        while joined < by_earliest.len() && by_earliest[joined].earliest <= to {
            sums.set_value(
                joined,
                (rate.count * u128::from(by_earliest[joined].earliest)) as i128,
            );
            joined += 1;
        }
        sums.add_weight(
            position,
            (rate.period * u128::from(by_earliest[position].cost)) as i128,
        );
        let (best, begin) = sums.best();
        let from = by_earliest[begin].earliest;
        let admitted = (best as u128 - rate.count * u128::from(from)) / rate.period;
        tightest.compare(
            from,
            to,
            admitted,
            (full + rate.count * u128::from(to - from)) / rate.period,
        );
    }
}
