//! Units in flight per key: never more than N, whatever the load, and dropped at zero.

use super::common::traces::cases;
use proptest::prelude::*;
use ratekeeper::{keyed::KeyPermit, keyed::KeyedConcurrency};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

fn gates(limit: u64, max_keys: usize) -> KeyedConcurrency<u64> {
    KeyedConcurrency::builder(limit).max_keys(max_keys).build()
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Take(u64, u64),
    /// Drops one outstanding permit.
    Drop(usize),
    Limit(u64),
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => (0_u64..60, 0_u64..4).prop_map(|(key, cost)| Op::Take(key, cost)),
        8 => (0_usize..64).prop_map(Op::Drop),
        1 => (0_u64..6).prop_map(Op::Limit),
    ]
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn each_key_holds_its_permits_and_never_more_than_the_limit(
        limit in 1_u64..6, max_keys in prop_oneof![1_usize..20, Just(500)], ops in prop::collection::vec(ops(), 1..200),
    ) {
        let gates = gates(limit, max_keys);
        let mut limit = limit;
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        let mut permits = Vec::new();
        for op in ops {
            match op {
                Op::Take(key, cost) => {
                    let before = held.get(&key).copied().unwrap_or(0);
                    match gates.try_acquire_n(&key, cost) {
                        Ok(permit) => {
                            prop_assert!(before + cost <= limit || cost == 0, "{} beside {} of {}", cost, before, limit);
                            prop_assert_eq!(permit.cost(), cost);
                            permits.push((permit, key, cost));
                            *held.entry(key).or_default() += cost;
                        }
                        Err(busy) => {
                            // In a table of few cache lines all of a key's may be the same one, of
                            // four slots.
                            let full = || max_keys < 500 && gates.stats().live >= 4;
                            prop_assert!(before + cost > limit || full(), "{} beside {} of {}", cost, before, limit);
                            prop_assert_eq!(busy.retry_after(), None);
                            prop_assert_eq!(busy.is_never(), cost > limit);
                        }
                    }
                }
                Op::Drop(which) if !permits.is_empty() => {
                    let (permit, key, cost) = permits.swap_remove(which % permits.len());
                    drop(permit);
                    *held.get_mut(&key).expect("held") -= cost;
                }
                Op::Drop(_) => {}
                Op::Limit(next) => {
                    gates.set_limit(next);
                    limit = next;
                    prop_assert_eq!(gates.limit(), next);
                }
            }
            for (key, held) in &held {
                prop_assert_eq!(gates.in_flight(key), *held, "key {}", key);
            }
        }
        let live = held.values().filter(|held| **held > 0).count() as u64;
        let stats = gates.stats();
        prop_assert_eq!((stats.live, stats.evicted_live), (live, 0), "what is in flight is never evicted");
        drop(permits);
        prop_assert_eq!(gates.stats().live, 0);
        prop_assert!((0..60).all(|key| gates.in_flight(&key) == 0));
    }
}

/// Many threads on a table of few slots: a permit is for its own key, and no key is above its limit
/// at any time.
#[test]
fn many_threads_never_hold_more_than_the_limit_of_a_key() {
    const KEYS: usize = 40;
    let gates = gates(3, 8);
    let inside: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (gates, inside) = (&gates, &inside);
            scope.spawn(move || {
                let mut random = 0x9E37_79B9_7F4A_7C15 ^ thread;
                let mut held = Vec::new();
                for _ in 0..20_000 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let (key, cost) = (random >> 40, 1 + (random >> 35) % 2);
                    let key = key % KEYS as u64;
                    if held.len() > 3 || random >> 63 == 0 {
                        if let Some((permit, key, cost)) = held.pop() {
                            let counter: &AtomicU64 = &inside[key as usize];
                            counter.fetch_sub(cost, Ordering::SeqCst);
                            drop::<KeyPermit>(permit);
                        }
                    } else if let Ok(permit) = gates.try_acquire_n(&key, cost) {
                        let now = inside[key as usize].fetch_add(cost, Ordering::SeqCst) + cost;
                        assert!(now <= 3, "{now} in flight of key {key}");
                        held.push((permit, key, cost));
                    }
                }
                for (_, key, cost) in &held {
                    inside[*key as usize].fetch_sub(*cost, Ordering::SeqCst);
                }
            });
        }
    });
    let stats = gates.stats();
    assert_eq!((stats.live, stats.evicted_live), (0, 0), "{stats:?}");
    assert!((0..KEYS as u64).all(|key| gates.in_flight(&key) == 0));
}
