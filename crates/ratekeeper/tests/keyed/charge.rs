//! Charge tokens, which do not hold their table, settle as charges do, and their decisions equal
//! those of a peek.

use proptest::prelude::*;
use ratekeeper::{Algorithm, Keyed, Limit, ManualClock};
use std::time::Duration;

const ALGORITHMS: [Algorithm; 8] = [
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::FixedWindow,
    Algorithm::FixedWindowFirstHit,
    Algorithm::SlidingWindow,
    Algorithm::SlidingWindowStrict,
    Algorithm::SlidingLog,
    Algorithm::Pacing,
];

#[derive(Clone, Debug)]
enum Op {
    Charge { key: u8, cost: u64 },
    Settle { which: usize, actual: u64 },
    Pass { millis: u64 },
    Change { count: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..3_u8, 0..5_u64).prop_map(|(key, cost)| Op::Charge { key, cost }),
        3 => (any::<usize>(), 0..8_u64).prop_map(|(which, actual)| Op::Settle { which, actual }),
        2 => (0..2_000_u64).prop_map(|millis| Op::Pass { millis }),
        1 => (1..10_u64).prop_map(|count| Op::Change { count }),
    ]
}

proptest! {
    #[test]
    fn a_token_and_a_charge_settle_alike(
        algorithm in prop::sample::select(&ALGORITHMS[..]),
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let clock = ManualClock::new();
        let limit = |count| Limit::per_second(count).algorithm(algorithm);
        let holding = Keyed::<u8, _>::with_clock(limit(5), clock.clone());
        let free = Keyed::<u8, _>::with_clock(limit(5), clock.clone());
        let mut charges = Vec::new();
        for op in ops {
            match op {
                Op::Charge { key, cost } => match (holding.key(&key).take(cost), free.key(&key).take_token(cost)) {
                    (Ok(charge), (answer, taken)) => {
                        prop_assert!(answer.is_allowed());
                        prop_assert_eq!(charge.cost(), taken.cost());
                        let observed = free.key(&key).peek_n(0);
                        prop_assert_eq!(
                            (answer.capacity(), answer.remaining(), answer.reset_after()),
                            (observed.capacity(), observed.remaining(), observed.reset_after())
                        );
                        charges.push((charge, taken));
                    }
                    (Err(denied), (answer, nothing)) => {
                        prop_assert_eq!(denied.decision(), answer);
                        // It took nothing, so nothing is refunded and nothing is added.
                        free.settle(nothing, u64::from(key));
                    }
                },
                Op::Settle { which, actual } if !charges.is_empty() => {
                    let (charge, taken) = charges.swap_remove(which % charges.len());
                    charge.settle(actual);
                    free.settle(taken, actual);
                }
                Op::Settle { .. } => {}
                Op::Pass { millis } => clock.advance(Duration::from_millis(millis)),
                Op::Change { count } => {
                    holding.set_limit(limit(count));
                    free.set_limit(limit(count));
                }
            }
            for key in 0..3 {
                prop_assert_eq!(holding.key(&key).peek(), free.key(&key).peek());
            }
            prop_assert_eq!(holding.adjustments(), free.adjustments());
        }
    }
}

#[test]
fn a_token_of_another_table_is_ignored() {
    let tables =
        [(); 2].map(|()| Keyed::<str, _>::with_clock(Limit::per_hour(10), ManualClock::new()));
    let [(_, mine), (_, other)] = tables.each_ref().map(|table| table.key("a").take_token(4));
    tables[0].settle(other, 0);
    assert_eq!(
        tables
            .each_ref()
            .map(|table| table.key("a").peek().remaining()),
        [6, 6]
    );
    tables[0].settle(mine, 0);
    assert_eq!(
        tables
            .each_ref()
            .map(|table| table.key("a").peek().remaining()),
        [10, 6]
    );
}

#[test]
fn without_a_limit_there_is_nothing_to_settle() {
    let keyed = Keyed::<str, _>::with_clock(Limit::unlimited(), ManualClock::new());
    let (decision, taken) = keyed.key("a").take_token(4);
    assert!(decision.is_unlimited());
    keyed.set_limit(Limit::per_hour(10));
    keyed.settle(taken, 0);
    assert_eq!(keyed.adjustments().not_returned, 0);
}

/// A table of two keys has one cache line.
#[test]
fn a_refund_to_a_key_does_not_affect_its_neighbours() {
    for algorithm in ALGORITHMS {
        let clock = ManualClock::new();
        let limit = Limit::per_hour(10).algorithm(algorithm);
        let keyed = Keyed::<str, _>::builder(limit)
            .max_keys(2)
            .clock(clock.clone())
            .build();
        let alone = Keyed::<str, _>::with_clock(limit, clock.clone());
        let mut charges = [&keyed, &alone].map(|keyed| {
            [5, 4]
                .map(|cost| keyed.key("a").take_token(cost).1)
                .into_iter()
        });
        let around = keyed.key("b");
        drop(keyed.key("b").take_token(1));
        let (_, settled) = keyed.key("b").take_token(2);
        keyed.settle(settled, 0);
        if let (Ok(first), Ok(_second)) = (around.reserve(9), around.reserve(1)) {
            first.cancel();
        }
        around.grant(1);
        around.reset();
        clock.advance(Duration::from_secs(360));
        for (keyed, charges) in [&keyed, &alone].into_iter().zip(&mut charges) {
            charges.for_each(|taken| keyed.settle(taken, 1));
        }
        assert_eq!(
            keyed.key("a").peek(),
            alone.key("a").peek(),
            "{algorithm:?}"
        );
        assert_eq!(keyed.adjustments().not_returned, 0, "{algorithm:?}");
    }
}
