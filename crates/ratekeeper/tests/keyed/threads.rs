//! Many threads on one table.

use super::common::flood::slots;
use ratekeeper::{Algorithm, Clock, Keyed, Limit, ManualClock};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const KEYS: usize = 64;
const THREADS: u64 = 4;

/// Every thread calls every key in an order of its own; returns what each key was allowed.
fn allowed(keyed: &Keyed<u64, ManualClock>, rounds: u64, churn: bool) -> Vec<u64> {
    let allowed: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let allowed = &allowed;
            scope.spawn(move || {
                let mut random = thread + 1;
                for i in 0..rounds * KEYS as u64 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    // Each key is called as often as any other.
                    let key = (i * 29 + thread * 17) % KEYS as u64;
                    if keyed.check(&key).is_allowed() {
                        allowed[key as usize].fetch_add(1, Ordering::Relaxed);
                    }
                    if churn {
                        let _ = keyed.check(&(random | 1 << 63));
                    }
                }
            });
        }
    });
    allowed.into_iter().map(AtomicU64::into_inner).collect()
}

#[test]
fn on_a_frozen_clock_exactly_the_limit_of_each_key_is_allowed() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::per_minute(20).algorithm(algorithm);
        let keyed = Keyed::builder(limit)
            .max_keys(10_000)
            .clock(ManualClock::new())
            .build();
        assert_eq!(
            allowed(&keyed, 10, false),
            vec![limit.capacity(); KEYS],
            "{algorithm}"
        );
        assert_eq!(keyed.stats().evicted_live, 0, "{algorithm}");
    }
}

#[test]
fn on_a_frozen_clock_at_most_the_limit_of_each_key_is_allowed_under_eviction() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::per_minute(20).algorithm(algorithm);
        let keyed = Keyed::<u64>::builder(limit)
            .max_keys(16)
            .clock(ManualClock::new())
            .build();
        let allowed = allowed(&keyed, 30, true);
        assert!(
            allowed.iter().all(|allowed| *allowed <= limit.capacity()),
            "{algorithm}: {allowed:?}"
        );
        assert!(keyed.stats().evicted_live > 0, "{algorithm}");
        assert!(keyed.stats().keys <= slots(&keyed.stats()), "{algorithm}");
    }
}

/// The clock moves, the limit changes to and fro, keys are evicted: at most burst + rate · time for
/// each key.
#[test]
fn live_changes_under_eviction_create_no_tokens() {
    let clock = ManualClock::new();
    let limits = [
        Limit::per_second(10).burst(20),
        Limit::per_second(5).burst(20),
    ];
    let keyed = Keyed::builder(limits[0])
        .max_keys(16)
        .clock(clock.clone())
        .build();
    let start = clock.now();
    let allowed = std::thread::scope(|scope| {
        scope.spawn(|| {
            for change in 0..400 {
                clock.advance(Duration::from_millis(5));
                keyed.set_limit(limits[change % 2]);
            }
        });
        allowed(&keyed, 100, true)
    });
    let bound = 20 + 10 * (clock.now() - start).as_secs() + 10;
    assert!(
        allowed.iter().all(|allowed| *allowed <= bound),
        "{allowed:?}, at bound {bound}"
    );
}

/// Takes and settles from many threads on few slots: no key ends above its limit.
#[test]
fn refunds_from_many_threads_give_no_key_more_than_its_limit() {
    let limit = Limit::per_hour(100);
    let keyed = Keyed::<u64>::builder(limit)
        .max_keys(16)
        .clock(ManualClock::new())
        .build();
    let net: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (keyed, net) = (&keyed, &net);
            scope.spawn(move || {
                let mut random = thread + 1;
                let mut held = Vec::new();
                for _ in 0..20_000_u64 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let pick = random >> 33;
                    let (key, cost) = (pick % KEYS as u64, 1 + pick / 64 % 3);
                    match pick / 256 % 3 {
                        0 => {
                            held.extend(
                                keyed.key(&key).take(cost).ok().map(|charge| (charge, key)),
                            );
                        }
                        1 if keyed.check_n(&key, cost).is_allowed() => {
                            net[key as usize].fetch_add(cost, Ordering::Relaxed);
                        }
                        _ => {
                            if let Some((charge, key)) = held.pop() {
                                let actual = pick / 1_024 % (charge.cost() + 1);
                                net[key as usize].fetch_add(actual, Ordering::Relaxed);
                                charge.settle(actual);
                            }
                        }
                    }
                }
                for (charge, key) in held {
                    net[key as usize].fetch_add(charge.cost(), Ordering::Relaxed);
                }
            });
        }
    });
    for (key, net) in net.iter().enumerate() {
        let net = net.load(Ordering::Relaxed);
        let left = keyed.key(&(key as u64)).peek().remaining();
        assert!(net + left <= 100, "key {key}: {net} spent, {left} left");
    }
}
