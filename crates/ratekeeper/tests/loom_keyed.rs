//! Loom models of the key table: inserts, slot reuse, evictions and live changes racing with
//! decisions, on a table of one cache line, so that all keys share it.
//!
//! `make test` runs it with `RUSTFLAGS="--cfg ratekeeper_loom"`; without that the file is empty.
#![cfg(ratekeeper_loom)]

use loom::thread;
use ratekeeper::{
    Algorithm, Ask, Clock, Keyed, Limit, ManualClock, MemoryStore, Verdict, store::LimitHandle,
};
use std::time::Duration;

type Keys = Keyed<u64, ManualClock>;

/// A table for two keys has one cache line of four slots.
fn keyed(limit: Limit, clock: &ManualClock) -> Keys {
    Keyed::<u64>::builder(limit)
        .max_keys(2)
        .clock(clock.clone())
        .build()
}

fn allowed(keyed: &Keys, key: u64, attempts: usize) -> usize {
    (0..attempts)
        .filter(|_| keyed.check(&key).is_allowed())
        .count()
}

/// Every interleaving with up to three preemptions: enough to come between any two steps of the
/// other thread.
fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 100_000;
    builder.check(test);
}

#[test]
fn a_key_inserted_by_two_threads_is_one_key() {
    model(|| {
        let keyed = keyed(Limit::per_hour(1).burst(2), &ManualClock::new());
        let other = keyed.clone();
        let thread = thread::spawn(move || allowed(&other, 1, 2));
        let here = allowed(&keyed, 1, 2);
        assert_eq!(here + thread.join().unwrap(), 2);
    });
}

#[test]
fn two_new_keys_take_two_slots() {
    model(|| {
        let keyed = keyed(Limit::per_hour(1), &ManualClock::new());
        let other = keyed.clone();
        let thread = thread::spawn(move || allowed(&other, 2, 1));
        assert_eq!(allowed(&keyed, 1, 1) + thread.join().unwrap(), 2);
        assert_eq!(allowed(&keyed, 1, 1) + allowed(&keyed, 2, 1), 0);
        assert_eq!(keyed.stats().keys, 2);
    });
}

#[test]
fn an_evicted_key_gets_no_new_allowance() {
    model(|| {
        let keyed = keyed(Limit::per_hour(1).burst(2), &ManualClock::new());
        for key in 1..=4 {
            assert_eq!(allowed(&keyed, key, 1), 1);
        }
        let other = keyed.clone();
        // The new key evicts one of the four; whichever it is, none is allowed more than once
        // again.
        let thread = thread::spawn(move || allowed(&other, 5, 1));
        let first = allowed(&keyed, 1, 2);
        thread.join().unwrap();
        assert!(first <= 1, "{first}");
        for key in 2..=4 {
            assert!(allowed(&keyed, key, 2) <= 1);
        }
        assert!(first + allowed(&keyed, 1, 2) <= 1);
    });
}

#[test]
fn an_evicted_fresh_key_is_still_fresh() {
    model(|| {
        let clock = ManualClock::new();
        let keyed = keyed(Limit::per_second(1), &clock);
        for key in 1..=4 {
            assert_eq!(allowed(&keyed, key, 1), 1);
        }
        clock.advance(Duration::from_secs(1));
        let other = keyed.clone();
        let thread = thread::spawn(move || allowed(&other, 5, 1));
        // Exactly one again, whether the key is found, its slot is reused meanwhile, or it is
        // inserted anew.
        assert_eq!(allowed(&keyed, 1, 2), 1);
        assert_eq!(thread.join().unwrap(), 1);
        assert_eq!(allowed(&keyed, 1, 1), 0);
    });
}

#[test]
fn an_instant_before_a_key_was_fresh_finds_what_it_had_used() {
    model(|| {
        let clock = ManualClock::new();
        let (keyed, before) = (keyed(Limit::per_second(1), &clock), clock.now());
        for key in 1..=4 {
            assert_eq!(allowed(&keyed, key, 1), 1);
        }
        clock.advance(Duration::from_secs(1));
        let other = keyed.clone();
        let thread = thread::spawn(move || allowed(&other, 5, 1));
        for key in 1..=4 {
            assert!(keyed.key(&key).at(before).check().is_denied());
        }
        thread.join().unwrap();
    });
}

#[test]
fn a_settle_racing_a_check_refunds_only_what_was_not_needed() {
    model(|| {
        let keyed = keyed(Limit::per_hour(1).burst(2), &ManualClock::new());
        let (_, taken) = keyed.key(&1).take_token(2);
        let other = keyed.clone();
        let thread = thread::spawn(move || allowed(&other, 1, 2));
        keyed.settle(taken, 1);
        assert_eq!(thread.join().unwrap() + allowed(&keyed, 1, 2), 1);
    });
}

#[test]
fn a_settle_racing_a_reset_refunds_nothing_on_top_of_it() {
    model(|| {
        let keyed = keyed(Limit::per_hour(1).burst(2), &ManualClock::new());
        let (_, taken) = keyed.key(&1).take_token(2);
        let other = keyed.clone();
        let thread = thread::spawn(move || {
            other.key(&1).reset();
            allowed(&other, 1, 1)
        });
        keyed.settle(taken, 0);
        assert_eq!(thread.join().unwrap() + allowed(&keyed, 1, 3), 2);
    });
}

#[test]
fn a_settle_racing_an_eviction_creates_no_tokens() {
    model(|| {
        let keyed = keyed(Limit::per_hour(1).burst(2), &ManualClock::new());
        let (_, taken) = keyed.key(&1).take_token(1);
        for key in 2..=4 {
            assert_eq!(allowed(&keyed, key, 2), 2);
        }
        let other = keyed.clone();
        // Key 1 is nearest to fresh.
        let thread = thread::spawn(move || allowed(&other, 5, 1));
        keyed.settle(taken, 0);
        assert!(allowed(&keyed, 1, 3) <= 2);
        thread.join().unwrap();
        assert_eq!(
            allowed(&keyed, 2, 1) + allowed(&keyed, 3, 1) + allowed(&keyed, 4, 1),
            0
        );
    });
}

#[test]
fn a_live_change_creates_no_tokens() {
    model(|| {
        let keyed = keyed(Limit::per_hour(1).burst(2), &ManualClock::new());
        assert_eq!(allowed(&keyed, 1, 1), 1);
        let other = keyed.clone();
        let thread = thread::spawn(move || {
            other.set_limit(Limit::per_hour(2).burst(3));
            allowed(&other, 1, 1)
        });
        let here = allowed(&keyed, 1, 1);
        assert_eq!(here + thread.join().unwrap(), 1);
    });
}

#[test]
fn a_key_evicted_during_a_change_is_found_in_the_floor() {
    model(|| {
        let keyed = keyed(Limit::per_hour(1), &ManualClock::new());
        for key in 1..=4 {
            assert_eq!(allowed(&keyed, key, 1), 1);
        }
        let other = keyed.clone();
        let thread = thread::spawn(move || allowed(&other, 5, 1));
        keyed.set_limit(Limit::per_hour(2).burst(1));
        thread.join().unwrap();
        for key in 1..=4 {
            assert_eq!(allowed(&keyed, key, 1), 0, "{key}");
        }
    });
}

fn is_allowed(store: &MemoryStore<ManualClock>, asks: &[(&LimitHandle, &str)]) -> bool {
    let asks: Vec<Ask<'_>> = asks
        .iter()
        .map(|(limit, key)| Ask::new(limit, key))
        .collect();
    store.decide_now(&asks, store.clock().now()).is_allowed()
}

#[test]
fn no_call_is_denied_by_a_charge_that_is_taken_back() {
    model(|| {
        let store = MemoryStore::builder()
            .max_keys(2)
            .clock(ManualClock::new())
            .build();
        let (user, global) = (
            store.limit("user", Limit::per_hour(1)),
            store.limit("global", Limit::per_hour(1)),
        );
        let (user, global) = (user.unwrap(), global.unwrap());
        assert!(is_allowed(&store, &[(&user, "spent")]));
        let (other, theirs, all) = (store.clone(), user.clone(), global.clone());
        let thread = thread::spawn(move || is_allowed(&other, &[(&theirs, "spent"), (&all, "")]));
        assert!(is_allowed(&store, &[(&user, "new"), (&global, "")]));
        assert!(!thread.join().unwrap());
    });
}

#[test]
fn two_calls_with_the_same_limits_in_another_order_both_finish() {
    model(|| {
        let store = MemoryStore::builder()
            .max_keys(2)
            .clock(ManualClock::new())
            .build();
        let (a, b) = (
            store.limit("a", Limit::per_hour(1)).unwrap(),
            store.limit("b", Limit::per_hour(1)).unwrap(),
        );
        let (other, c, d) = (store.clone(), a.clone(), b.clone());
        let thread = thread::spawn(move || is_allowed(&other, &[(&d, ""), (&c, "")]));
        let here = is_allowed(&store, &[(&a, ""), (&b, "")]);
        // Exactly one of them.
        assert_ne!(here, thread.join().unwrap());
    });
}

#[test]
fn a_packed_window_in_a_table_counts_every_call() {
    model(|| {
        let limit = Limit::per_hour(2).algorithm(Algorithm::FixedWindow);
        let keyed = keyed(limit, &ManualClock::new());
        let other = keyed.clone();
        let thread = thread::spawn(move || allowed(&other, 1, 2));
        assert_eq!(allowed(&keyed, 1, 1) + thread.join().unwrap(), 2);
    });
}

/// Two threads insert the same key, one unit each of two: both are allowed.
#[test]
fn two_first_calls_of_a_key_are_both_allowed() {
    model(|| {
        let clock = ManualClock::new();
        let keyed = Keyed::<u64>::builder(Limit::per_hour(1).burst(2))
            .max_keys(2)
            .clock(clock)
            .build();
        let other = keyed.clone();
        let thread = thread::spawn(move || other.check(&1));
        let here = keyed.check(&1);
        let there = thread.join().unwrap();
        assert!(
            here.is_allowed() && there.is_allowed(),
            "{here:?} {there:?}"
        );
    });
}

fn slots(store: &MemoryStore<ManualClock>, limit: &LimitHandle, cost: u64) -> Verdict {
    store.decide_now(&[Ask::new(limit, "k").cost(cost)], store.clock().now())
}

/// Two permits are taken; the limit changes, one is released, and a third is taken meanwhile: two
/// are in flight.
#[test]
fn a_permit_that_is_taken_during_a_change_is_counted() {
    model(|| {
        let store = MemoryStore::builder()
            .max_keys(2)
            .clock(ManualClock::new())
            .build();
        let limit = store.concurrency("slots", 3).unwrap();
        let (first, second) = (slots(&store, &limit, 1), slots(&store, &limit, 1));
        assert!(first.is_allowed() && second.is_allowed());
        let (other, theirs) = (store.clone(), limit.clone());
        let thread = thread::spawn(move || slots(&other, &theirs, 1));
        store.set_concurrency(&limit, 2);
        drop(slots(&store, &limit, 0));
        drop(first);
        let third = thread.join().unwrap();
        if third.is_allowed() {
            let fourth = slots(&store, &limit, 1);
            assert!(fourth.is_denied(), "two of two are out");
        }
        drop(second);
    });
}
