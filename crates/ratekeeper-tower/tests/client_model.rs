//! Throttle, retry budget and backoff against their formulas.

use proptest::prelude::*;
use ratekeeper::Timestamp;
use ratekeeper_tower::client::{Backoff, RetryBudget, Throttle};
use std::time::Duration;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_unix(Duration::from_secs(1_700_000_000) + Duration::from_millis(millis))
}

proptest! {
    /// The probability is the formula over the requests of the last two minutes, with a tolerance
    /// of one ten-second interval.
    #[test]
    fn the_throttle_follows_its_formula(
        k in 1.0..4.0_f64,
        steps in prop::collection::vec((0_u64..20_000, any::<bool>(), 0.0..1.0_f64), 1..300),
    ) {
        let mut throttle = Throttle::new(k);
        let (mut now, mut log) = (0, Vec::new());
        for (gap, accepted, draw) in steps {
            now += gap;
            let oldest = (1_700_000_000_000 + now) / 10_000 - 11;
            let recent = log.iter().filter(|(when, _)| (1_700_000_000_000 + when) / 10_000 >= oldest);
            let (requests, accepts) = recent.fold((0.0, 0.0), |(requests, accepts), (_, accepted)| {
                (requests + 1.0, accepts + if *accepted { 1.0 } else { 0.0 })
            });
            let expected = f64::max(0.0, (requests - k * accepts) / (requests + 1.0));
            prop_assert!((throttle.probability(at(now)) - expected).abs() < 1e-9);
            let sent = throttle.request(at(now), draw);
            prop_assert_eq!(sent, draw >= expected);
            if sent && accepted {
                throttle.accepted(at(now));
            }
            log.push((now, sent && accepted));
        }
    }

    /// Whatever fails: all attempts together are at most 1.1 times the requests, plus the floor.
    #[test]
    fn retries_are_bounded_by_the_budget(
        floor in 0_u32..20,
        steps in prop::collection::vec((0_u64..500, 0_u32..6), 1..500),
    ) {
        let mut budget = RetryBudget::new(0.1, floor);
        let (mut now, mut requests, mut retries) = (0, 0_u64, 0_u64);
        for (gap, failures) in steps {
            now += gap;
            requests += 1;
            budget.request(at(now));
            for _ in 0..failures {
                retries += u64::from(budget.retry(at(now)));
            }
            let bound = requests as f64 * 0.1 + f64::from(floor) * (now as f64 / 1_000.0 + 1.0);
            prop_assert!(retries as f64 <= bound + 1e-6, "{retries} of {requests} in {now} ms");
        }
    }

    /// A zero `first`, and one so small that 32 doublings do not reach the maximum, are drawn as
    /// often as others.
    #[test]
    fn a_backoff_grows_and_stays_within_its_bounds(
        first in prop_oneof![Just(0_u64), 0_u64..10, 0_u64..10_000_000_000],
        most in prop_oneof![Just(0_u64), 0_u64..100_000_000_000],
        retry in prop_oneof![0_u32..40, any::<u32>()],
        draw in prop_oneof![Just(f64::NAN), any::<f64>(), 0.0..1.0_f64],
    ) {
        let backoff = Backoff::new(Duration::from_nanos(first), Duration::from_nanos(most));
        let delay = backoff.delay(retry, draw).as_nanos() as f64;
        let whole = (2_f64.powi(retry.min(1_000) as i32) * first as f64).min(most as f64);
        prop_assert!(delay >= whole / 2.0 - 1.0 && delay <= whole, "{delay} of {whole} ns");
    }
}

/// A server that accepts a tenth of the requests: about twice as many as it accepts are sent.
#[test]
fn a_server_that_denies_most_requests_is_sent_twice_what_it_accepts() {
    let (mut throttle, mut random) = (Throttle::new(2.0), 1_u64);
    let (mut sent, mut accepted, mut room) = (0_u64, 0_u64, 0);
    for millis in 0..600_000_u64 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let draw = (random >> 11) as f64 / (1_u64 << 53) as f64;
        // It accepts 100 a second and denies the others.
        room = if millis.is_multiple_of(1_000) {
            100
        } else {
            room
        };
        let counts = u64::from(millis >= 300_000);
        if throttle.request(at(millis), draw) {
            sent += counts;
            if room > 0 {
                room -= 1;
                throttle.accepted(at(millis));
                accepted += counts;
            }
        }
    }
    // It accepts as much as before, and is spared eight in ten requests.
    assert!(accepted >= 29_000, "{accepted} of 30,000");
    let times = sent as f64 / accepted as f64;
    assert!((1.8..2.2).contains(&times), "{times}");
}

#[test]
fn a_server_that_recovers_is_used_again_within_two_minutes() {
    let mut throttle = Throttle::new(2.0);
    for millis in 0..60_000 {
        throttle.request(at(millis), 0.5);
    }
    assert!(throttle.probability(at(60_000)) > 0.99);
    assert_eq!(throttle.probability(at(60_000 + 130_000)), 0.0);
}
