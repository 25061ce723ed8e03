//! Insert, reuse, displacement and live changes racing with decisions, by loom: a table of one
//! cache line, so that all keys meet in it.
//!
//! `make test` runs it with `RUSTFLAGS="--cfg ratekeeper_loom"`; without that there is nothing
//! here.
#![cfg(ratekeeper_loom)]

use loom::thread;
use ratekeeper::{
    Algorithm, Ask, Clock, Keyed, Limit, ManualClock, MemoryStore, Verdict, store::LimitHandle,
};
use std::time::Duration;

type Keys = Keyed<u64, ManualClock>;

/// Two keys are a line of four slots.
fn keyed(limit: Limit, clock: &ManualClock) -> Keys {
    Keyed::<u64>::builder(limit)
        .max_keys(2)
        .clock(clock.clone())
        .build()
}

fn passed(keyed: &Keys, key: u64, attempts: usize) -> usize {
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
fn a_key_that_two_threads_bring_is_one_key() {
    model(|| {
        let keyed = keyed(Limit::per_hour(1).burst(2), &ManualClock::new());
        let other = keyed.clone();
        let thread = thread::spawn(move || passed(&other, 1, 2));
        let here = passed(&keyed, 1, 2);
        assert_eq!(here + thread.join().unwrap(), 2);
    });
}

#[test]
fn two_newcomers_take_two_slots() {
    model(|| {
        let keyed = keyed(Limit::per_hour(1), &ManualClock::new());
        let other = keyed.clone();
        let thread = thread::spawn(move || passed(&other, 2, 1));
        assert_eq!(passed(&keyed, 1, 1) + thread.join().unwrap(), 2);
        assert_eq!(passed(&keyed, 1, 1) + passed(&keyed, 2, 1), 0);
        assert_eq!(keyed.stats().keys, 2);
    });
}

#[test]
fn a_key_that_is_displaced_gets_no_new_allowance() {
    model(|| {
        let keyed = keyed(Limit::per_hour(1).burst(2), &ManualClock::new());
        for key in 1..=4 {
            assert_eq!(passed(&keyed, key, 1), 1);
        }
        let other = keyed.clone();
        // One newcomer displaces one of the four; whichever it is, none is admitted more than once
        // again.
        let thread = thread::spawn(move || passed(&other, 5, 1));
        let first = passed(&keyed, 1, 2);
        thread.join().unwrap();
        assert!(first <= 1, "{first}");
        for key in 2..=4 {
            assert!(passed(&keyed, key, 2) <= 1);
        }
        assert!(first + passed(&keyed, 1, 2) <= 1);
    });
}

#[test]
fn a_fresh_key_that_is_forgotten_is_still_fresh() {
    model(|| {
        let clock = ManualClock::new();
        let keyed = keyed(Limit::per_second(1), &clock);
        for key in 1..=4 {
            assert_eq!(passed(&keyed, key, 1), 1);
        }
        clock.advance(Duration::from_secs(1));
        let other = keyed.clone();
        let thread = thread::spawn(move || passed(&other, 5, 1));
        // Exactly one again, whether it is found, reused meanwhile, or brought anew.
        assert_eq!(passed(&keyed, 1, 2), 1);
        assert_eq!(thread.join().unwrap(), 1);
        assert_eq!(passed(&keyed, 1, 1), 0);
    });
}

#[test]
fn an_instant_before_a_key_was_fresh_finds_what_it_had_used() {
    model(|| {
        let clock = ManualClock::new();
        let (keyed, before) = (keyed(Limit::per_second(1), &clock), clock.now());
        for key in 1..=4 {
            assert_eq!(passed(&keyed, key, 1), 1);
        }
        clock.advance(Duration::from_secs(1));
        let other = keyed.clone();
        let thread = thread::spawn(move || passed(&other, 5, 1));
        for key in 1..=4 {
            assert!(keyed.key(&key).at(before).check().is_denied());
        }
        thread.join().unwrap();
    });
}

#[test]
fn settling_beside_a_check_gives_back_only_what_was_not_needed() {
    model(|| {
        let keyed = keyed(Limit::per_hour(1).burst(2), &ManualClock::new());
        let (_, taken) = keyed.key(&1).take_token(2);
        let other = keyed.clone();
        let thread = thread::spawn(move || passed(&other, 1, 2));
        keyed.settle(taken, 1);
        assert_eq!(thread.join().unwrap() + passed(&keyed, 1, 2), 1);
    });
}

#[test]
fn settling_beside_a_reset_gives_nothing_back_on_top_of_it() {
    model(|| {
        let keyed = keyed(Limit::per_hour(1).burst(2), &ManualClock::new());
        let (_, taken) = keyed.key(&1).take_token(2);
        let other = keyed.clone();
        let thread = thread::spawn(move || {
            other.key(&1).reset();
            passed(&other, 1, 1)
        });
        keyed.settle(taken, 0);
        assert_eq!(thread.join().unwrap() + passed(&keyed, 1, 3), 2);
    });
}

#[test]
fn settling_what_a_key_took_that_is_displaced_meanwhile_mints_nothing() {
    model(|| {
        let keyed = keyed(Limit::per_hour(1).burst(2), &ManualClock::new());
        let (_, taken) = keyed.key(&1).take_token(1);
        for key in 2..=4 {
            assert_eq!(passed(&keyed, key, 2), 2);
        }
        let other = keyed.clone();
        // Key 1 is nearest to fresh.
        let thread = thread::spawn(move || passed(&other, 5, 1));
        keyed.settle(taken, 0);
        assert!(passed(&keyed, 1, 3) <= 2);
        thread.join().unwrap();
        assert_eq!(
            passed(&keyed, 2, 1) + passed(&keyed, 3, 1) + passed(&keyed, 4, 1),
            0
        );
    });
}

#[test]
fn a_live_change_mints_nothing() {
    model(|| {
        let keyed = keyed(Limit::per_hour(1).burst(2), &ManualClock::new());
        assert_eq!(passed(&keyed, 1, 1), 1);
        let other = keyed.clone();
        let thread = thread::spawn(move || {
            other.set_limit(Limit::per_hour(2).burst(3));
            passed(&other, 1, 1)
        });
        let here = passed(&keyed, 1, 1);
        assert_eq!(here + thread.join().unwrap(), 1);
    });
}

#[test]
fn a_key_displaced_during_a_change_is_found_in_the_floor() {
    model(|| {
        let keyed = keyed(Limit::per_hour(1), &ManualClock::new());
        for key in 1..=4 {
            assert_eq!(passed(&keyed, key, 1), 1);
        }
        let other = keyed.clone();
        let thread = thread::spawn(move || passed(&other, 5, 1));
        keyed.set_limit(Limit::per_hour(2).burst(1));
        thread.join().unwrap();
        for key in 1..=4 {
            assert_eq!(passed(&keyed, key, 1), 0, "{key}");
        }
    });
}

fn allowed(store: &MemoryStore<ManualClock>, asks: &[(&LimitHandle, &str)]) -> bool {
    let asks: Vec<Ask<'_>> = asks
        .iter()
        .map(|(limit, key)| Ask::new(limit, key))
        .collect();
    store.decide_now(&asks, store.clock().now()).is_allowed()
}

#[test]
fn nobody_is_denied_by_a_charge_that_is_taken_back() {
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
        assert!(allowed(&store, &[(&user, "spent")]));
        let (other, theirs, all) = (store.clone(), user.clone(), global.clone());
        let thread = thread::spawn(move || allowed(&other, &[(&theirs, "spent"), (&all, "")]));
        assert!(allowed(&store, &[(&user, "new"), (&global, "")]));
        assert!(!thread.join().unwrap());
    });
}

#[test]
fn two_that_ask_for_the_same_two_in_another_order_both_end() {
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
        let thread = thread::spawn(move || allowed(&other, &[(&d, ""), (&c, "")]));
        let here = allowed(&store, &[(&a, ""), (&b, "")]);
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
        let thread = thread::spawn(move || passed(&other, 1, 2));
        assert_eq!(passed(&keyed, 1, 1) + thread.join().unwrap(), 2);
    });
}

/// Two threads bring the same key, one unit each of two: both pass.
#[test]
fn two_first_calls_of_a_key_both_pass() {
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

/// Two permits are out; the limit changes, one lands, and a third is taken meanwhile: two are out.
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
