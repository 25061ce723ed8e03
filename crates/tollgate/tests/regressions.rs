//! What the oracles found once, each as small as it gets.

use std::time::Duration;
use tollgate::{
    Algorithm, Ask, Charge, Clock, Keyed, KeyedConcurrency, Limit, Limiter, ManualClock, MemoryStore, Outcome,
};

const SECOND: Duration = Duration::from_secs(1);

fn keyed(limit: Limit) -> (Keyed<u64, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (Keyed::builder(limit).max_keys(1_000).clock(clock.clone()).build(), clock)
}

/// A plan that is first used when the table is older than nothing: the key keeps its level all the same.
#[test]
fn a_key_keeps_its_level_when_its_plan_is_younger_than_the_table() {
    let own = Limit::per_second(1).burst(4);
    for plan in [own, Limit::per_second(1).burst(3), Limit::per_second(2).burst(4)] {
        let (keyed, clock) = keyed(own);
        clock.advance(10 * SECOND);
        assert!(keyed.under(plan).unwrap().check_n(&1, 3).is_allowed(), "{plan}");
        let left = keyed.key(&1).peek().remaining();
        assert!(left <= 1, "{left} of 4 after 3 under {plan}");
        assert_eq!(left, plan.capacity() - 3, "after 3 under {plan}");
    }
}

/// The same the other way round: no debt comes from nowhere.
#[test]
fn a_key_has_no_debt_from_going_to_a_younger_plan_and_back() {
    let own = Limit::per_second(1).burst(4);
    let (keyed, clock) = keyed(own);
    clock.advance(10 * SECOND);
    assert!(keyed.check_n(&1, 2).is_allowed());
    assert_eq!(keyed.under(Limit::per_second(1).burst(5)).unwrap().key(&1).peek().remaining(), 2);
    assert!(keyed.under(Limit::per_second(1).burst(5)).unwrap().check(&1).is_allowed());
    assert_eq!(keyed.key(&1).peek().remaining(), 1);
}

/// At an instant before the key was full again it is not full because its plan changes.
#[test]
fn a_stale_instant_is_not_looser_under_another_plan() {
    let (keyed, clock) = keyed(Limit::of(1, 8 * SECOND).burst(4));
    let start = clock.now();
    clock.set(start + 39 * SECOND);
    let small = Limit::of(1, 8 * SECOND).burst(1);
    assert!(keyed.under(small).unwrap().check(&2).is_allowed());
    clock.set(start + 52 * SECOND);
    // One at 39, of one every 8: at 32 there is nothing.
    assert!(keyed.key(&2).at(start + 32 * SECOND).check_n(2).is_denied());
}

/// To go through a small plan, and be full there, fills no bucket of a large one.
#[test]
fn a_key_that_goes_through_a_small_plan_is_not_filled_by_it() {
    let (keyed, _) = keyed(Limit::per_hour(4));
    let small = Limit::per_hour(1);
    assert!(keyed.check_n(&3, 3).is_allowed());
    assert_eq!(keyed.under(small).unwrap().check_n(&3, 0).remaining(), 1);
    assert!(keyed.key(&3).peek().remaining() <= 1, "3 of 4 are spent");
    assert!(keyed.under(small).unwrap().check_n(&3, 2).is_never());
    assert!(keyed.check_n(&3, 2).is_denied(), "3 of 4 are spent");
}

/// A key of a small plan that was forgotten while fresh changes nothing for new keys of a large one.
#[test]
fn a_fresh_key_of_a_small_plan_that_was_forgotten_takes_nothing_from_a_large_plan() {
    let clock = ManualClock::new();
    let keyed = Keyed::<u64>::builder(Limit::per_minute(600)).max_keys(100).clock(clock.clone()).build();
    let free = Limit::per_minute(5);
    for user in 0..10_000 {
        assert!(keyed.under(free).unwrap().check(&user).is_allowed());
        clock.advance(15 * SECOND);
    }
    let figures = keyed.figures();
    assert!(figures.evicted_fresh > 0 && figures.evicted_live == 0, "{figures:?}");
    for user in 20_000..20_100 {
        assert_eq!(keyed.key(&user).peek().remaining(), 600, "a new user of the large plan");
    }
}

/// A log that has no bytes left, beside another limit: a call ends, whatever it is told.
#[test]
fn a_call_ends_when_a_log_has_no_bytes_left() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().max_keys(1).clock(clock.clone()).build();
    let log = store.limit("log", Limit::per_minute(50).algorithm(Algorithm::SlidingLog)).unwrap();
    let bucket = store.limit("bucket", Limit::per_minute(1_000)).unwrap();
    for user in 0..200_u32 {
        let key = user.to_be_bytes();
        let verdict = store.decide_now(&[Ask::new(&log, &key).cost(7), Ask::new(&bucket, "all")], clock.now());
        assert_eq!(verdict.statuses().len(), 2);
    }
}

/// Permits that find no room in a table full of permits, beside another limit: a call ends, and is denied.
#[test]
fn a_call_ends_when_there_is_no_room_for_a_permit() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().max_keys(1).clock(clock.clone()).build();
    let (slots, bucket) =
        (store.concurrency("slots", 3).unwrap(), store.limit("all", Limit::per_minute(1_000)).unwrap());
    let mut held = Vec::new();
    for user in 0..50_u32 {
        let key = user.to_be_bytes();
        held.push(store.decide_now(&[Ask::new(&slots, &key), Ask::new(&bucket, "all")], clock.now()));
    }
    assert!(held.iter().any(|verdict| !verdict.is_allowed()), "a table of one key or so has no room for 50");
    drop(held);
    assert_eq!(store.live(&slots), 0);
}

/// A key that is reset is fresh, whatever counts it by.
#[test]
fn a_key_that_is_reset_is_fresh() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::per_minute(5).algorithm(algorithm);
        for passed in [0, 7, 30, 59] {
            let (keyed, clock) = keyed(limit);
            assert!(keyed.check_n(&1, 5).is_allowed());
            clock.advance(passed * SECOND);
            keyed.key(&1).reset();
            assert_eq!(keyed.key(&1).peek().remaining(), limit.capacity(), "{algorithm}, {passed} s later");
        }
    }
}

/// A charge from before a reset of its key gives nothing back.
#[test]
fn a_charge_from_before_a_reset_gives_nothing_back() {
    for algorithm in Algorithm::ALL {
        let (keyed, _) = keyed(Limit::per_minute(5).algorithm(algorithm));
        let charge: Charge<ManualClock> = keyed.key(&1).take(5).unwrap();
        keyed.key(&1).reset();
        assert!(keyed.check_n(&1, 5).is_allowed());
        let left = keyed.key(&1).peek().remaining();
        charge.settle(0);
        assert_eq!(keyed.key(&1).peek().remaining(), left, "{algorithm}");
    }
}

/// A cap in bytes is a cap on all that the table uses.
#[test]
fn a_cap_in_bytes_is_not_exceeded() {
    for bytes in [4_096, 65_536, 1 << 20] {
        let keyed = Keyed::<u64>::builder(Limit::per_minute(5)).max_bytes(bytes).build();
        let figures = keyed.figures();
        assert!(figures.bytes <= bytes as u64, "{bytes}: {figures:?}");
    }
}

/// What is in flight is in flight, also above a limit that was lowered.
#[test]
fn permits_that_are_out_are_told_after_the_limit_was_lowered() {
    let gates = KeyedConcurrency::<u64>::new(3);
    let held = gates.try_acquire_n(&0, 3).unwrap();
    for limit in [2, 0] {
        gates.set_limit(limit);
        assert_eq!(gates.in_flight(&0), 3, "limit {limit}");
        let busy = gates.try_acquire(&0).unwrap_err();
        assert_eq!(busy.in_flight(), 3, "limit {limit}");
    }
    drop(held);
    assert_eq!(gates.in_flight(&0), 0);
}

/// Rule 6: to keep what is there mints nothing. A log that shrinks and grows again has forgotten what still counts.
#[test]
fn a_log_that_shrinks_and_grows_again_has_not_forgotten() {
    let log = |count: u64| Limit::per_minute(count).algorithm(Algorithm::SlidingLog);
    let limiter = Limiter::with_clock(log(5), ManualClock::new());
    assert!(limiter.check_n(5).is_allowed());
    limiter.set_limit(log(1));
    limiter.set_limit(log(5));
    assert!(limiter.check_n(4).is_denied(), "9 in a minute, of at most 5");
    let (keyed, _) = keyed(log(5));
    assert!(keyed.check_n(&1, 5).is_allowed());
    keyed.set_limit(log(1));
    keyed.set_limit(log(5));
    assert!(keyed.check_n(&1, 4).is_denied(), "9 in a minute, of at most 5");
}

/// A window that shrinks by far, to counters of fewer bits than its count has, is full.
#[test]
fn a_window_that_shrinks_by_far_is_full() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingWindowStrict] {
        let limit = |count: u64| Limit::per_second(count).algorithm(algorithm);
        let limiter = Limiter::with_clock(limit(100_000), ManualClock::new());
        assert!(limiter.check_n(65_536).is_allowed());
        limiter.set_limit(limit(10));
        assert_eq!(limiter.peek().remaining(), 0, "{algorithm}");
        assert!(limiter.peek().reset_after() <= 2 * SECOND, "{algorithm}");
        let (keyed, _) = keyed(limit(100_000));
        assert!(keyed.check_n(&1, 65_536).is_allowed());
        keyed.set_limit(limit(10));
        assert_eq!(keyed.key(&1).peek().remaining(), 0, "{algorithm}");
        assert!(keyed.key(&1).peek().reset_after() <= 2 * SECOND, "{algorithm}");
    }
}

/// A limiter that once was a window can reserve once it is a bucket.
#[test]
fn a_limiter_can_reserve_after_it_was_a_window() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog] {
        let limiter = Limiter::with_clock(Limit::per_minute(5).algorithm(algorithm), ManualClock::new());
        assert!(limiter.check().is_allowed());
        // One more than fits: a check of what is free does not come this way.
        limiter.set_limit(Limit::per_minute(1));
        assert_eq!(limiter.peek().outcome(), Outcome::Denied);
        let slot = limiter.reserve(1).expect("a bucket has slots");
        assert_eq!(slot.delay(), 60 * SECOND, "{algorithm}");
    }
}
