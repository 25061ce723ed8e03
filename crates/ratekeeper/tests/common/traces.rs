//! Generators of limits and traces: fine and coarse, common and extreme.

use proptest::prelude::*;
use proptest::strategy::BoxedStrategy;
use proptest::test_runner::FileFailurePersistence;
use ratekeeper::{Algorithm, Clock, Limit, Limiter, ManualClock, Timestamp};
use ratekeeper_testkit::BucketRule;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;
pub(crate) const YEAR: u64 = 365 * DAY;

/// A configuration of `cases` cases, or PROPTEST_CASES; failures are stored beside the test's
/// source.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    let cases = asked.unwrap_or(cases);
    let kept = FileFailurePersistence::WithSource("proptest-regressions");
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(kept)),
        ..ProptestConfig::default()
    }
}

pub(crate) fn limiter(limit: Limit) -> (Limiter<ManualClock>, u64) {
    let clock = ManualClock::new();
    let birth = clock.now().as_unix_nanos();
    (Limiter::with_clock(limit, clock), birth)
}

pub(crate) fn instant(nanos: u64) -> Timestamp {
    Timestamp::from_unix_nanos(nanos)
}

pub(crate) fn nanos(nanos: i128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).expect("a time that 64 bits can tell"))
}

/// `count` every `period` nanoseconds.
pub(crate) fn of_nanos(count: u64, period: u64, burst: u64) -> Limit {
    Limit::of(count, Duration::from_nanos(period)).burst(burst)
}

/// A token takes whole nanoseconds, so that act times are not rounded.
pub(crate) fn whole_interval(interval: u64, burst: u64) -> Limit {
    of_nanos(1, interval, burst)
}

/// Every kind of finite limit.
pub(crate) fn limits() -> BoxedStrategy<Limit> {
    prop_oneof![
        4 => fine(),
        3 => everyday(),
        2 => (1_u64..=58, 0_u64..200).prop_map(|(count, burst)| of_nanos(count, 1, burst)),
        3 => rounded(),
        2 => longest(),
        1 => (0_u64..20).prop_map(|burst| Limit::deny_all().burst(burst)),
    ]
    .boxed()
}

/// A token takes a fraction of a few nanoseconds: every rounding shows.
pub(crate) fn fine() -> BoxedStrategy<Limit> {
    (1_u64..=12, 1_u64..=30, 0_u64..=6)
        .prop_map(|(count, period, burst)| of_nanos(count, period, burst))
        .boxed()
}

/// 1 a day up to 200 a second.
pub(crate) fn everyday() -> BoxedStrategy<Limit> {
    let period = prop::sample::select(vec![
        SECOND,
        60 * SECOND,
        15 * 60 * SECOND,
        3_600 * SECOND,
        DAY,
    ]);
    (1_u64..=200, period, 1_u64..=50)
        .prop_map(|(count, period, burst)| of_nanos(count, period, burst))
        .boxed()
}

/// The count does not reduce to 58: the interval must be rounded.
pub(crate) fn rounded() -> BoxedStrategy<Limit> {
    let period = prop_oneof![
        prop::sample::select(vec![1, 2, 1_000, SECOND, 60 * SECOND, DAY]),
        1..=1_000_000_000_000_u64,
    ];
    let count = prop_oneof![59_u64..=1_000, 59..=10_000_000_000_u64];
    (count, period, 1_u64..=1_000)
        .prop_map(|(count, period, burst)| of_nanos(count, period, burst))
        .prop_filter("exact", |limit| BucketRule::written(limit).per_nano > 58)
        .boxed()
}

/// A few per years, buckets that take decades to fill.
pub(crate) fn longest() -> BoxedStrategy<Limit> {
    let burst = prop_oneof![1_u64..=20, Just(u64::MAX), 1..=1_000_000_000_u64];
    let period = prop_oneof![
        Just(DAY),
        (1_u64..=3_650).prop_map(|days| days * DAY),
        SECOND..=10 * YEAR
    ];
    (1_u64..=100, period, burst)
        .prop_map(|(count, period, burst)| of_nanos(count, period, burst))
        .boxed()
}

/// A cost, relative to the burst where that matters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    Units(u64),
    Eighths(u64),
    Burst,
    AboveBurst,
    Huge,
}

impl Cost {
    pub(crate) fn of(self, burst: u64) -> u64 {
        match self {
            Self::Units(units) => units,
            Self::Eighths(eighths) => (u128::from(burst) * u128::from(eighths) / 8) as u64,
            Self::Burst => burst,
            Self::AboveBurst => burst.saturating_add(1),
            Self::Huge => u64::MAX,
        }
    }
}

pub(crate) fn costs() -> BoxedStrategy<Cost> {
    prop_oneof![
        1 => Just(Cost::Units(0)),
        8 => Just(Cost::Units(1)),
        4 => (2_u64..=5).prop_map(Cost::Units),
        3 => (1_u64..=7).prop_map(Cost::Eighths),
        2 => Just(Cost::Burst),
        1 => Just(Cost::AboveBurst),
        1 => Just(Cost::Huge),
    ]
    .boxed()
}

/// How time passes, relative to the limit where that matters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// The clock stalls.
    Stall,
    Nanos(u64),
    /// Eighths of the time of a token.
    Eighths(u64),
    /// About the time in which the bucket fills.
    Fill(i64),
    /// A long idle spell.
    Seconds(u64),
}

impl Pace {
    pub(crate) fn nanos(self, rule: &BucketRule) -> u64 {
        let long = |nanos: i128| u64::try_from(nanos).unwrap_or(u64::MAX).min(20 * YEAR);
        match self {
            Self::Stall => 0,
            Self::Nanos(nanos) => nanos,
            Self::Eighths(eighths) => {
                long(i128::from(rule.token_nanos()) * i128::from(eighths) / 8)
            }
            Self::Fill(more) => {
                let fill = rule.nanos_for(rule.capacity()).unwrap_or(1_000_000);
                long((fill + i128::from(more)).max(0))
            }
            Self::Seconds(seconds) => seconds * SECOND,
        }
    }
}

pub(crate) fn paces() -> BoxedStrategy<Pace> {
    prop_oneof![
        4 => Just(Pace::Stall),
        4 => (1_u64..=4).prop_map(Pace::Nanos),
        8 => (1_u64..=24).prop_map(Pace::Eighths),
        2 => (-2_i64..=2).prop_map(Pace::Fill),
        1 => (1_u64..=400_000_000).prop_map(Pace::Seconds),
    ]
    .boxed()
}

/// Forward or backwards: a source of stale instants.
pub(crate) fn moves() -> BoxedStrategy<(bool, Pace)> {
    (prop::bool::weighted(0.35), paces()).boxed()
}

pub(crate) fn moved(now: u64, (back, pace): (bool, Pace), rule: &BucketRule) -> u64 {
    let by = pace.nanos(rule);
    if back {
        now.saturating_sub(by)
    } else {
        now.saturating_add(by)
    }
}

/// A limit of any algorithm that the model knows exactly, small enough that a few calls use it up.
pub(crate) fn any_limits() -> BoxedStrategy<Limit> {
    let algorithm = prop::sample::select(Algorithm::ALL.to_vec());
    let window = prop_oneof![
        1_u64..50,
        Just(1_000),
        Just(1_000_000_007),
        Just(60 * SECOND),
        Just(3_600 * SECOND)
    ];
    let bucket = prop_oneof![2 => fine(), 1 => everyday(), 1 => rounded()];
    (algorithm, bucket, 0_u64..=8, window)
        .prop_map(|(algorithm, bucket, count, window)| match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                bucket.burst(count).algorithm(algorithm)
            }
            Algorithm::Pacing => {
                Limit::of(count.max(1), Duration::from_nanos(window)).paced_max_queue(count)
            }
            _ => Limit::of(count, Duration::from_nanos(window)).algorithm(algorithm),
        })
        .boxed()
}

/// Another limit to which `limit` can change and keep its level; none if that is not specified
/// (queues).
pub(crate) fn same_kind(limit: &Limit, (count, other): (u64, u64)) -> Option<Limit> {
    let rate = limit.rate()?;
    match limit.algorithm_kind() {
        Algorithm::Pacing => None,
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            let period = rate.period() * u32::try_from(other).expect("small");
            Some(
                Limit::of(count, period)
                    .burst(other)
                    .algorithm(limit.algorithm_kind()),
            )
        }
        // If a counter has only a few bits, clipping by a change is another test's matter.
        _ if rate.period() < Duration::from_micros(1) => None,
        _ => Some(Limit::of(count, rate.period()).algorithm(limit.algorithm_kind())),
    }
}

/// How far a call is from the one before it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// So many 64ths of a unit of the limit: its window, or the time in which a bucket fills.
    On(u64),
    /// The same backwards, and only for this call.
    Stale(u64),
}

pub(crate) fn steps() -> BoxedStrategy<Step> {
    prop_oneof![
        5 => Just(Step::On(0)),
        8 => (1_u64..20).prop_map(Step::On),
        2 => (20_u64..200).prop_map(Step::On),
        3 => (1_u64..100).prop_map(Step::Stale),
    ]
    .boxed()
}

/// Moves the time and returns that of the call.
pub(crate) fn moved_by(now: &mut u64, step: Step, limit: &Limit) -> u64 {
    // A trace stays within a year or so: years later a stale instant is only stricter.
    let unit = limit
        .fills_in()
        .map_or(1_000, |unit| unit.as_nanos() as u64)
        .clamp(1, DAY)
        .div_ceil(64);
    match step {
        Step::On(by) => {
            *now += by * unit;
            *now
        }
        Step::Stale(by) => *now - by * unit,
    }
}
