//! Equal keys at equal demand get equal shares. Jain's index is 1 when all get the same, 1/n when
//! one gets everything.

use ratekeeper::{Algorithm, Ask, Clock, Keyed, Limit, ManualClock, MemoryStore};
use std::time::Duration;

const KEYS: usize = 50;

fn jain(shares: &[u64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), share| {
        let share = *share as f64;
        (sum + share, squares + share * share)
    });
    sum * sum / (shares.len() as f64 * squares)
}

/// All keys, in another order every time: demand is equal, and so is who comes first.
struct ShuffledKeys {
    order: Vec<usize>,
    random: u64,
}

impl ShuffledKeys {
    fn new(keys: usize) -> Self {
        Self {
            order: (0..keys).collect(),
            random: 42,
        }
    }

    fn next(&mut self) -> &[usize] {
        for i in (1..self.order.len()).rev() {
            self.random = self
                .random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            self.order.swap(i, (self.random >> 33) as usize % (i + 1));
        }
        &self.order
    }
}

#[test]
fn the_index_itself() {
    assert_eq!(jain(&[7; 9]), 1.0);
    assert_eq!(jain(&[1, 0, 0, 0]), 0.25);
}

/// Every key asks ten times as often as it may.
#[test]
fn keys_of_one_table_get_equal_shares() {
    for algorithm in Algorithm::ALL {
        let clock = ManualClock::new();
        let keyed = Keyed::<u64>::builder(Limit::per_second(10).algorithm(algorithm))
            .clock(clock.clone())
            .build();
        let (mut shares, mut order) = (vec![0; KEYS], ShuffledKeys::new(KEYS));
        for _ in 0..1_000 {
            for &key in order.next() {
                shares[key] += u64::from(keyed.check(&(key as u64)).is_allowed());
            }
            clock.advance(Duration::from_millis(10));
        }
        let index = jain(&shares);
        println!("{algorithm}, per key: Jain's index {index:.6}");
        assert!(index >= 0.99, "{algorithm}: {index}");
        assert!(
            shares.iter().all(|share| *share == shares[0]),
            "{algorithm}: {shares:?}"
        );
    }
}

/// What is allowed when every key asks for a limit of its own and for one shared by all, which
/// covers a fifth of the demand; `greedy` keys ask ten times as often.
fn shares_under_one_above_all(limit: Limit, above: Limit, greedy: usize) -> Vec<u64> {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let (own, above) = (
        store.limit("own", limit).unwrap(),
        store.limit("above", above).unwrap(),
    );
    let keys: Vec<_> = (0..KEYS).map(|key| format!("key-{key}")).collect();
    let (mut shares, mut order) = (vec![0; KEYS], ShuffledKeys::new(KEYS));
    for _ in 0..2_000 {
        for &key in order.next() {
            for _ in 0..if key < greedy { 10 } else { 1 } {
                let asks = [Ask::new(&own, &keys[key]), Ask::new(&above, "all")];
                shares[key] += u64::from(store.decide_now(&asks, clock.now()).is_allowed());
            }
        }
        clock.advance(Duration::from_millis(10));
    }
    shares
}

#[test]
fn keys_under_one_limit_above_all_get_equal_shares() {
    for algorithm in Algorithm::ALL {
        // 50 keys ask 100 times a second each; 1,000 a second pass.
        let above = Limit::per_second(1_000).algorithm(algorithm);
        let shares = shares_under_one_above_all(Limit::per_second(100), above, 0);
        let index = jain(&shares);
        println!("{algorithm}, under one above all: Jain's index {index:.6}");
        assert!(index >= 0.99, "{algorithm}: {index}, {shares:?}");
    }
}

/// Limits per key protect the others from greedy keys: equal demand still gets equal shares.
#[test]
fn greedy_keys_leave_equal_shares_to_the_others() {
    let shares =
        shares_under_one_above_all(Limit::per_second(20).burst(1), Limit::per_second(1_000), 5);
    let (greedy, others) = shares.split_at(5);
    let (index, all) = (jain(others), jain(&shares));
    println!(
        "beside greedy keys: Jain's index {index:.6} of the others, {all:.6} of all; greedy {greedy:?}"
    );
    assert!(index >= 0.99, "{index}: {others:?}");
    // 20 a second for 20 seconds, and the one it began with.
    assert!(greedy.iter().all(|share| *share <= 401), "{greedy:?}");
    assert!(all >= 0.99, "{all}: {shares:?}");
}
