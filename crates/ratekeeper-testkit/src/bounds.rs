//! The bound of each algorithm (docs/spec/algorithms.md), checked against the calls that a limiter
//! of one process allowed: from a [`Limit`] to a [`Bound`], and from calls to admissions at the
//! times at which they count.

use crate::auditor::{Admission, Bound, Violation};
use crate::bucket_rule::BucketRule;
use crate::model::strict_steps;
use ratekeeper::{Algorithm, Limit};

/// A call that was allowed: the caller's time and the wait it was given, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllowedCall {
    /// The caller's time.
    pub at: u64,
    /// The cost.
    pub cost: u64,
    /// The wait.
    pub delay: u64,
}

impl Bound {
    /// The bound of one key of `limit`, with times in nanoseconds: for a key that may have been
    /// evicted, and for times that may go back.
    ///
    /// # Panics
    ///
    /// If the limit is unlimited.
    pub fn of(limit: &Limit) -> Self {
        let rate = limit.rate().expect("a finite rate");
        let (count, period) = (rate.count(), rate.period().as_nanos() as u64);
        match limit.algorithm_kind() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => BucketRule::decided(limit).bound(),
            Algorithm::Pacing => Self::Pacing { count, period },
            // SC2 holds only for times that do not go back.
            Algorithm::FixedWindow | Algorithm::SlidingWindow => Self::FixedWindow {
                limit: count,
                window: period,
            },
            Algorithm::FixedWindowFirstHit => Self::EvictedFirstHitWindow {
                limit: count,
                window: period,
            },
            Algorithm::SlidingWindowStrict | Algorithm::SlidingLog => Self::SlidingLog {
                limit: count,
                window: period,
            },
            other => panic!("{other}"),
        }
    }
}

/// Finds a violation of the bound of `limit` among the allowed calls of one key, in the order of
/// the calls; their times may be in any order.
pub fn violation(limit: &Limit, calls: &[AllowedCall]) -> Option<String> {
    if limit.is_unlimited() {
        return None;
    }
    if limit.algorithm_kind() == Algorithm::Pacing {
        return queue_violation(limit, calls);
    }
    let found = Bound::of(limit).check(&judged(limit, calls), 0);
    found.err().map(|violation| violation.to_string())
}

/// SC1 and SC2 of a sliding window, for times that do not go back.
pub fn weighted_violation(limit: &Limit, calls: &[AllowedCall]) -> Option<Violation> {
    let rate = limit.rate().expect("a finite rate");
    let bound = Bound::SlidingCounter {
        limit: rate.count(),
        window: rate.period().as_nanos() as u64,
    };
    bound.check(&judged(limit, calls), 0).err()
}

/// The times at which calls count: a window and a log judge no call before what the key's own past
/// stores.
fn judged(limit: &Limit, calls: &[AllowedCall]) -> Vec<Admission> {
    let window = limit.rate().expect("a finite rate").period().as_nanos() as u64;
    let start_of = |length: u64, at: u64| at - at % length;
    // The time of the newest call, or where its window began.
    let mut newest: Option<u64> = None;
    let judge = |call: &AllowedCall| {
        let stored = newest.map_or(0, |newest| match limit.algorithm_kind() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => 0,
            Algorithm::SlidingLog | Algorithm::FixedWindowFirstHit => newest,
            Algorithm::SlidingWindowStrict => start_of(window / strict_steps(window), newest),
            _ => start_of(window, newest),
        });
        let at = call.at.max(stored);
        let first_hit = limit.algorithm_kind() == Algorithm::FixedWindowFirstHit;
        if !first_hit || newest.is_none_or(|start| at - start >= window) {
            newest = Some(at);
        }
        Admission::at(at, call.cost)
    };
    calls.iter().map(judge).collect()
}

/// LQ1, LQ3 and LQ4: the distance of starts is the time of the earlier one, no call waits longer
/// than M, and starts are in the order of the calls. For limits that are exact and have intervals
/// of whole nanoseconds.
fn queue_violation(limit: &Limit, calls: &[AllowedCall]) -> Option<String> {
    let rule = BucketRule::written(limit);
    assert_eq!(
        (rule.per_nano, limit.effective()),
        (1, None),
        "{limit} starts between nanoseconds"
    );
    let longest = (i128::from(limit.capacity()) - 1) * rule.token;
    if let Some(late) = calls.iter().find(|call| i128::from(call.delay) > longest) {
        return Some(format!("LQ3: {late:?} waits longer than {longest}"));
    }
    let paid = calls.iter().filter(|call| call.cost > 0);
    let starts: Vec<_> = paid
        .map(|call| Admission::at(call.at + call.delay, call.cost))
        .collect();
    if let Some(pair) = starts
        .windows(2)
        .find(|two| two[1].earliest < two[0].earliest)
    {
        return Some(format!("LQ4: the later of {pair:?} starts first"));
    }
    let found = Bound::of(limit).check(&starts, 0);
    found.err().map(|violation| violation.to_string())
}
