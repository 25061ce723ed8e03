//! Tests of the bounds of the sketch against exact counts, also with threads.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

/// The key in tests that need any one.
const NO_KEY: &[u8] = &[];

fn none() -> Box<str> {
    unreachable!("no key here is long")
}

fn heavy(fingerprint: u64, policy: u32, count: u64, error: u64) -> HeavyHitter {
    HeavyHitter {
        fingerprint,
        policy,
        count,
        error,
        key: StoredKey::default(),
    }
}

#[test]
fn a_hit_touches_one_cache_line() {
    assert_eq!(size_of::<Slots>(), 64);
    assert_eq!((size_of::<Set>(), align_of::<Set>()), (512, 64));
}

#[test]
fn few_keys_are_counted_exactly_and_the_heaviest_come_first() {
    let sketch = Sketch::new(4);
    for (fingerprint, weight) in [(7, 2), (8, 5), (9, 2), (7, 1), (9, 1), (10, 1)] {
        sketch.add(fingerprint, 1, weight, NO_KEY, none);
    }
    assert_eq!(
        sketch.top(3),
        [heavy(8, 1, 5, 0), heavy(7, 1, 3, 0), heavy(9, 1, 3, 0)]
    );
    assert_eq!(sketch.top(9).len(), 4);
    assert_eq!(sketch.top(0), []);
    assert_eq!(sketch.missed(), 0);
}

#[test]
fn a_new_key_takes_the_lowest_slot_and_inherits_its_count() {
    let sketch = Sketch::new(1);
    for (fingerprint, weight) in [(1, 10), (2, 20), (3, 30), (4, 40)] {
        sketch.add(fingerprint, 1, weight, NO_KEY, none);
    }
    sketch.add(5, 2, 3, NO_KEY, none);
    assert_eq!(
        sketch.top(9),
        [
            heavy(4, 1, 40, 0),
            heavy(3, 1, 30, 0),
            heavy(2, 1, 20, 0),
            heavy(5, 2, 13, 10)
        ]
    );
}

fn bytes(key: &[u8]) -> StoredKey {
    StoredKey::Bytes(KeyBytes::new(key))
}

#[test]
fn a_key_is_stored_with_its_slot_and_a_long_one_as_text() {
    let sketch = Sketch::new(4);
    let longest = [b'x'; MAX_KEY_BYTES];
    let too_long = [b'x'; MAX_KEY_BYTES + 1];
    let mut made = 0;
    for _ in 0..3 {
        sketch.add(1, 1, 5, &longest, none);
        sketch.add(2, 2, 4, &too_long, || {
            made += 1;
            "user:1".into()
        });
    }
    assert_eq!(made, 1);
    assert_eq!(
        sketch
            .top(2)
            .into_iter()
            .map(|heavy| heavy.key)
            .collect::<Vec<_>>(),
        [bytes(&longest), StoredKey::Long("user:1".into())]
    );
    let found = |key: &[u8]| sketch.find(|policy, known| (known == key).then_some(policy));
    assert_eq!(
        (found(&longest), found(&too_long), found(b"ann")),
        (Some(1), None, None)
    );
    for insert in 3..7 {
        sketch.add(insert, 1, 99, b"ann", none);
    }
    assert!(
        sketch.top(9).iter().all(|heavy| heavy.key == bytes(b"ann")),
        "a key goes with its slot"
    );
    assert_eq!((found(&longest), found(b"ann")), (None, Some(1)));
    sketch.clear();
    assert_eq!(found(b"ann"), None);
    assert!(!format!("{sketch:?}").contains("ann"));
}

#[test]
fn a_panic_while_naming_changes_nothing() {
    let sketch = Sketch::new(4);
    sketch.add(1, 1, 1, NO_KEY, none);
    let add = || sketch.add(2, 1, 1, &[0; MAX_KEY_BYTES + 1], || panic!("on purpose"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(add)).is_err());
    assert_eq!(sketch.top(9), [heavy(1, 1, 1, 0)]);
    sketch.add(2, 1, 1, NO_KEY, none);
    assert_eq!(sketch.top(9).len(), 2);
    assert_eq!(sketch.missed(), 0);
}

#[test]
fn a_locked_set_drops_new_keys_and_counts_them() {
    let sketch = Sketch::new(4);
    sketch.add(1, 1, 1, NO_KEY, none);
    let guard = sketch.sets[0].lock_owners();
    sketch.add(1, 1, 1, NO_KEY, none);
    sketch.add(2, 1, 5, NO_KEY, none);
    drop(guard);
    assert_eq!(
        (sketch.top(9), sketch.missed()),
        (vec![heavy(1, 1, 2, 0)], 5)
    );
    sketch.clear();
    assert_eq!((sketch.top(9), sketch.missed()), (vec![], 0));
}

#[test]
fn a_key_inserted_concurrently_gets_one_slot() {
    let sketch = Sketch::new(4);
    sketch.add(1, 1, 1, NO_KEY, none);
    // As by a thread that had looked up the key before.
    sketch.sets[0].insert(1, 1, 2, &[0; MAX_KEY_BYTES + 1], || {
        panic!("the key has a slot")
    });
    assert_eq!(sketch.top(9), [heavy(1, 1, 3, 0)]);
}

#[test]
fn a_policy_is_removed_and_the_bounds_stay_valid() {
    let sketch = Sketch::new(4);
    for (fingerprint, policy, weight) in [(1, 1, 10), (2, 1, 50), (3, 2, 30), (4, 2, 40), (5, 2, 1)]
    {
        sketch.add(fingerprint, policy, weight, NO_KEY, none);
    }
    // Key 5 has the slot of key 1, so key 1 has a true weight of 10 that is not listed.
    sketch.forget(2);
    assert_eq!(sketch.top(9), [heavy(2, 1, 50, 0)]);
    sketch.add(1, 1, 1, NO_KEY, none);
    assert_eq!(sketch.top(9), [heavy(2, 1, 50, 0), heavy(1, 1, 12, 11)]);
    sketch.forget(3);
    assert_eq!(sketch.top(9).len(), 2);
}

#[test]
fn no_slots_count_nothing_and_zero_is_a_valid_key() {
    let sketch = Sketch::new(0);
    sketch.add(1, 1, 1, NO_KEY, none);
    assert_eq!((sketch.top(9), sketch.missed()), (vec![], 0));
    let sketch = Sketch::new(5);
    assert_eq!(sketch.sets.len(), 2);
    sketch.add(0, 1, 1, NO_KEY, none);
    assert_eq!(sketch.top(9), [heavy(1, 1, 1, 0)]);
}

#[test]
fn a_count_stops_before_it_wraps() {
    let sketch = Sketch::new(4);
    for _ in 0..2 * (MAX_COUNT / MAX_WEIGHT) {
        sketch.add(1, 1, u64::MAX, NO_KEY, none);
    }
    assert_eq!(sketch.top(1), [heavy(1, 1, MAX_COUNT, 0)]);
}

#[derive(Clone, Debug)]
enum Step {
    Add { key: u64, weight: u64 },
    Forget { policy: u32 },
}

fn policy_of(key: u64) -> u32 {
    (key % 3) as u32
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Low keys come often, as heavy hitters do.
    let key = prop_oneof![2 => 1u64..6, 1 => 1u64..60];
    let add = (key, 0u64..20).prop_map(|(key, weight)| Step::Add { key, weight });
    prop::collection::vec(
        prop_oneof![60 => add, 1 => (0u32..3).prop_map(|policy| Step::Forget { policy })],
        0..400,
    )
}

proptest! {
    /// The bounds in the module documentation, after every step of one thread.
    #[test]
    fn every_bound_holds_set_by_set(slots in 1usize..13, steps in steps()) {
        let sketch = Sketch::new(slots);
        let mut exact = HashMap::<u64, u64>::new();
        let mut added = vec![0; sketch.sets.len()];
        let mut forgotten = false;
        for step in steps {
            match step {
                Step::Add { key, weight } => {
                    sketch.add(key, policy_of(key), weight, NO_KEY, none);
                    *exact.entry(key).or_default() += weight;
                    added[sketch.set_of(key)] += weight;
                }
                Step::Forget { policy } => {
                    sketch.forget(policy);
                    exact.retain(|key, _| policy_of(*key) != policy);
                    forgotten = true;
                }
            }
            let shown: HashMap<_, _> = sketch.top(usize::MAX).into_iter().map(|key| (key.fingerprint, key)).collect();
            for (number, set) in sketch.sets.iter().enumerate() {
                let counts = set.slots.0.each_ref().map(|slot| slot.count.load(Relaxed));
                let sum = counts.iter().sum::<u64>();
                let least = counts[0].min(counts[1]).min(counts[2]).min(counts[3]);
                prop_assert!(sum == added[number] || forgotten && sum < added[number]);
                for (key, weight) in exact.iter().filter(|(key, _)| sketch.set_of(**key) == number) {
                    match shown.get(key) {
                        Some(shown) => {
                            prop_assert_eq!(shown.policy, policy_of(*key));
                            prop_assert!(shown.count - shown.error <= *weight && *weight <= shown.count);
                            prop_assert!(shown.error * SLOTS as u64 <= added[number]);
                        }
                        None => prop_assert!(*weight <= least && *weight * SLOTS as u64 <= added[number]),
                    }
                }
            }
            prop_assert!(shown.keys().all(|key| exact.contains_key(key)));
            prop_assert_eq!(sketch.missed(), 0);
        }
    }

    #[test]
    fn the_top_is_the_start_of_the_whole_order(keys in prop::collection::vec(1u64..40, 0..200), n in 0usize..20) {
        let sketch = Sketch::new(16);
        keys.iter().for_each(|key| sketch.add(*key, 0, 1, NO_KEY, none));
        let all = sketch.top(usize::MAX);
        prop_assert!(all.is_sorted_by_key(|heavy| (std::cmp::Reverse(heavy.count), heavy.fingerprint)));
        prop_assert_eq!(&all[..n.min(all.len())], sketch.top(n));
    }
}

/// A stream of keys in which low ones are frequent, the same for a seed.
fn stream(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let random = state >> 33;
        if random.is_multiple_of(4) {
            1 + random / 4 % 400
        } else {
            1 + random / 4 % 8
        }
    })
}

#[test]
fn additions_of_two_threads_are_counted_or_missed() {
    const EACH: usize = 200_000;
    let sketch = Sketch::new(12);
    std::thread::scope(|scope| {
        for seed in [1, 2] {
            let sketch = &sketch;
            scope.spawn(move || {
                for key in stream(seed).take(EACH) {
                    sketch.add(key, 0, key, format!("{key}").as_bytes(), none);
                }
            });
        }
        // A concurrent reader sees keys with their own bytes, each once.
        for _ in 0..200 {
            let top = sketch.top(12);
            assert!(
                top.iter()
                    .all(|heavy| heavy.key == bytes(heavy.fingerprint.to_string().as_bytes()))
            );
            let mut keys: Vec<_> = top.iter().map(|heavy| heavy.fingerprint).collect();
            keys.sort_unstable();
            assert!(keys.is_sorted_by(|a, b| a < b));
        }
    });
    let added: u64 = [1, 2]
        .into_iter()
        .flat_map(|seed| stream(seed).take(EACH))
        .sum();
    let counted: u64 = sketch.top(12).iter().map(|heavy| heavy.count).sum();
    assert_eq!(counted + sketch.missed(), added);
}

#[test]
fn keys_that_fit_are_exact_with_threads() {
    const EACH: u64 = 50_000;
    let sketch = Sketch::new(4);
    // Once all have a slot, no key is new, so no slot is replaced and nothing is missed.
    (1..=4).for_each(|key| sketch.add(key, 0, 1, NO_KEY, none));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..EACH).for_each(|n| sketch.add(1 + n % 4, 0, 1, NO_KEY, none)));
        }
    });
    assert_eq!(
        sketch.top(4),
        [1, 2, 3, 4].map(|key| heavy(key, 0, EACH + 1, 0))
    );
    assert_eq!(sketch.missed(), 0);
}
