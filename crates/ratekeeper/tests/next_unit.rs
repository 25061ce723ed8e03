//! `next_after`: when one more unit is available, for every algorithm.

mod common;

use common::traces::{cases, instant};
use proptest::prelude::*;
use ratekeeper::{Algorithm, Clock, Limit, Limiter, ManualClock};
use std::time::Duration;

/// Algorithms whose decisions know it to the nanosecond.
const EXACT: [Algorithm; 5] = [
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::Pacing,
    Algorithm::FixedWindow,
    Algorithm::FixedWindowFirstHit,
];

fn limits() -> impl Strategy<Value = Limit> {
    let terms = (
        1_u64..40,
        1_u64..5_000_000_000,
        1_u64..60,
        prop::sample::select(Algorithm::ALL.to_vec()),
    );
    terms.prop_map(|(count, period, room, algorithm)| {
        let limit = Limit::of(count, Duration::from_nanos(period));
        match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                limit.burst(room).algorithm(algorithm)
            }
            Algorithm::Pacing => limit.paced_max_queue(room - 1),
            _ => limit.algorithm(algorithm),
        }
    })
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn the_next_unit_is_there_at_next_after_and_if_exact_not_before(
        limit in limits(),
        trace in prop::collection::vec((0_u64..2_000, 0_u64..8), 1..30),
    ) {
        let clock = ManualClock::new();
        let mut now = clock.now().as_unix_nanos();
        let limiter = Limiter::with_clock(limit, clock);
        let period = limit.rate().unwrap().period().as_nanos() as u64;
        for (thousandths, cost) in trace {
            now += (u128::from(period) * u128::from(thousandths) / 1_000) as u64;
            let decision = limiter.at(instant(now)).check_n(cost);
            let next = decision.next_after().as_nanos() as u64;
            let left = |at| limiter.at(instant(at)).peek_n(0).remaining();
            if decision.remaining() == decision.capacity() {
                prop_assert_eq!(next, 0);
                continue;
            }
            prop_assert!(next > 0 && left(now + next) > decision.remaining(), "{:?}", decision);
            if decision.is_allowed() && EXACT.contains(&limit.algorithm_kind()) {
                prop_assert_eq!(left(now + next - 1), decision.remaining(), "{:?}", decision);
            }
        }
    }
}

#[test]
fn a_bucket_that_never_refills_returns_the_maximum() {
    let limiter = Limiter::with_clock(Limit::per_second(0).burst(3), ManualClock::new());
    assert_eq!(limiter.peek().next_after(), Duration::ZERO);
    assert_eq!(limiter.check().next_after(), Duration::MAX);
    assert_eq!(
        Limiter::new(Limit::unlimited()).check().next_after(),
        Duration::ZERO
    );
}
