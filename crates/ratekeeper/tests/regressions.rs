//! Bugs that the oracles found, each as a minimal case.

use ratekeeper::{
    Algorithm, Ask, Charge, Clock, Keyed, Limit, Limiter, ManualClock, MemoryStore, Mode, Outcome,
    Reservation, Timestamp, keyed::KeyedConcurrency, store::AskOutcome, store::LimitHandle,
};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn keyed(limit: Limit) -> (Keyed<u64, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (
        Keyed::builder(limit)
            .max_keys(1_000)
            .clock(clock.clone())
            .build(),
        clock,
    )
}

/// A log that has no bytes left, beside another limit: a call ends, with any decision.
#[test]
fn a_call_ends_when_a_log_has_no_bytes_left() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(1)
        .clock(clock.clone())
        .build();
    let log = store
        .limit(
            "log",
            Limit::per_minute(50).algorithm(Algorithm::SlidingLog),
        )
        .unwrap();
    let bucket = store.limit("bucket", Limit::per_minute(1_000)).unwrap();
    for user in 0..200_u32 {
        let key = user.to_be_bytes();
        let verdict = store.decide_now(
            &[Ask::new(&log, &key).cost(7), Ask::new(&bucket, "all")],
            clock.now(),
        );
        assert_eq!(verdict.statuses().len(), 2);
    }
}

/// Permits that find no slot in a table full of permits, beside another limit: a call ends, and is
/// denied.
#[test]
fn a_call_ends_when_the_table_is_full_of_permits() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(1)
        .clock(clock.clone())
        .build();
    let (slots, bucket) = (
        store.concurrency("slots", 3).unwrap(),
        store.limit("all", Limit::per_minute(1_000)).unwrap(),
    );
    let mut held = Vec::new();
    for user in 0..50_u32 {
        let key = user.to_be_bytes();
        held.push(store.decide_now(
            &[Ask::new(&slots, &key), Ask::new(&bucket, "all")],
            clock.now(),
        ));
    }
    assert!(
        held.iter().any(|verdict| !verdict.is_allowed()),
        "a table of one key or so has no room for 50"
    );
    drop(held);
    assert_eq!(store.live(&slots), 0);
}

/// A key that is reset is fresh, for every algorithm.
#[test]
fn a_key_that_is_reset_is_fresh() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::per_minute(5).algorithm(algorithm);
        for passed in [0, 7, 30, 59] {
            let (keyed, clock) = keyed(limit);
            assert!(keyed.check_n(&1, 5).is_allowed());
            clock.advance(passed * SECOND);
            keyed.key(&1).reset();
            assert_eq!(
                keyed.key(&1).peek().remaining(),
                limit.capacity(),
                "{algorithm}, {passed} s later"
            );
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
        let keyed = Keyed::<u64>::builder(Limit::per_minute(5))
            .max_bytes(bytes)
            .build();
        let figures = keyed.stats();
        assert!(figures.bytes <= bytes as u64, "{bytes}: {figures:?}");
    }
}

/// Permits stay in flight, also above a limit that was lowered.
#[test]
fn permits_in_flight_are_reported_after_the_limit_was_lowered() {
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

/// Rule 6: `Carry::Keep` adds no tokens. A log that shrinks and grows again must not forget what
/// still counts.
#[test]
fn a_log_that_shrinks_and_grows_again_keeps_its_times() {
    let log = |count: u64| Limit::per_minute(count).algorithm(Algorithm::SlidingLog);
    let limiter = Limiter::with_clock(log(5), ManualClock::new());
    assert!(limiter.check_n(5).is_allowed());
    limiter.set_limit(log(1));
    limiter.set_limit(log(5));
    assert!(
        limiter.check_n(4).is_denied(),
        "9 in a minute, of at most 5"
    );
    let (keyed, _) = keyed(log(5));
    assert!(keyed.check_n(&1, 5).is_allowed());
    keyed.set_limit(log(1));
    keyed.set_limit(log(5));
    assert!(
        keyed.check_n(&1, 4).is_denied(),
        "9 in a minute, of at most 5"
    );
}

/// A window that shrinks by far, to counters of fewer bits than its count has, is full.
#[test]
fn a_window_that_shrinks_by_far_is_full() {
    for algorithm in [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingWindowStrict,
    ] {
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
        assert!(
            keyed.key(&1).peek().reset_after() <= 2 * SECOND,
            "{algorithm}"
        );
    }
}

/// A limiter that once was a window can reserve once it is a bucket.
#[test]
fn a_limiter_can_reserve_after_it_was_a_window() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog] {
        let limiter = Limiter::with_clock(
            Limit::per_minute(5).algorithm(algorithm),
            ManualClock::new(),
        );
        assert!(limiter.check().is_allowed());
        // One more than fits: a check of what is free does not take this path.
        limiter.set_limit(Limit::per_minute(1));
        assert_eq!(limiter.peek().outcome(), Outcome::Denied);
        let slot = limiter.reserve(1).expect("a bucket has slots");
        assert_eq!(slot.delay(), 60 * SECOND, "{algorithm}");
    }
}

/// A store of one cache line of slots, all of which have something in flight.
fn full_of_permits(
    clock: &ManualClock,
) -> (
    MemoryStore<ManualClock>,
    ratekeeper::store::LimitHandle,
    Vec<ratekeeper::Verdict>,
) {
    let store = MemoryStore::builder()
        .max_keys(1)
        .clock(clock.clone())
        .build();
    let slots = store.concurrency("slots", 3).unwrap();
    let held: Vec<_> = (0..50_u32)
        .map(|user| store.decide_now(&[Ask::new(&slots, &user.to_be_bytes())], clock.now()))
        .collect();
    assert!(held.last().unwrap().is_denied(), "no room");
    (store, slots, held)
}

/// Decides in a table without a slot for a permit: it ends, the request is allowed, and this is the
/// result of its asks.
fn decided_without_room(asks: fn(&LimitHandle) -> [Ask<'_>; 2], expected: [AskOutcome; 2]) {
    let (done, decided) = std::sync::mpsc::channel();
    // In a thread of its own: an endless search for a slot fails the test and does not hang it.
    std::thread::spawn(move || {
        let clock = ManualClock::new();
        let (store, slots, _held) = full_of_permits(&clock);
        let verdict = store.decide_now(&asks(&slots), clock.now());
        let outcomes = verdict
            .statuses()
            .map(|status| status.outcome())
            .collect::<Vec<_>>();
        done.send((verdict.is_allowed(), outcomes)).unwrap();
    });
    let decided = decided.recv_timeout(60 * SECOND).expect("a decision ends");
    assert_eq!(decided, (true, expected.to_vec()));
}

/// A shadow permit, beside a peek at the same, in a full table.
#[test]
fn a_shadow_and_a_peek_end_when_the_table_is_full_of_permits() {
    decided_without_room(
        |slots| {
            [
                Ask::new(slots, "new").mode(Mode::Shadow),
                Ask::new(slots, "new").mode(Mode::Peek),
            ]
        },
        [AskOutcome::ShadowDenied, AskOutcome::Allowed],
    );
}

/// The same beside an ask that costs nothing.
#[test]
fn a_shadow_and_an_ask_of_cost_0_end_when_the_table_is_full_of_permits() {
    decided_without_room(
        |slots| {
            [
                Ask::new(slots, "new").mode(Mode::Shadow),
                Ask::new(slots, "new").cost(0),
            ]
        },
        [AskOutcome::ShadowDenied, AskOutcome::Allowed],
    );
}

/// A cap in bytes is a cap: for logs too, including evicted ones.
#[test]
fn a_cap_in_bytes_holds_for_evicted_states() {
    let (cap, limit) = (
        100_000,
        Limit::per_hour(1_000_000).algorithm(Algorithm::SlidingLog),
    );
    let keyed = Keyed::<u64>::builder(limit).max_bytes(cap).build();
    let used = allocation_counter::measure(|| {
        let _ = keyed.check_n(&1, 1_000_000);
    });
    assert!(
        used.bytes_current <= cap as i64,
        "{} bytes are kept, {} at most were asked for",
        used.bytes_current,
        cap
    );
    assert!(
        used.bytes_max <= cap as u64,
        "{} bytes for one call",
        used.bytes_max
    );
}

/// Everything a table keeps is within its cap, except for its fixed parts.
#[test]
fn a_cap_in_bytes_holds_for_all_a_table_keeps() {
    let mut over = Vec::new();
    for algorithm in Algorithm::ALL {
        let cap: usize = 4 << 20;
        let mut kept = None;
        let used = allocation_counter::measure(|| {
            let limit = Limit::per_hour(100).algorithm(algorithm);
            let keyed = Keyed::<u64>::builder(limit)
                .max_keys(5_000)
                .max_bytes(cap)
                .build();
            for user in 0..100_000 {
                let _ = keyed.check_n(&user, 1 + user % 7);
            }
            kept = Some(keyed);
        });
        let figures = kept.unwrap().stats();
        println!(
            "{algorithm}: {} bytes of {cap}, figures say {}",
            used.bytes_current, figures.bytes
        );
        over.extend(
            (used.bytes_current > cap as i64 + 65_536).then_some((algorithm, used.bytes_current)),
        );
    }
    assert!(over.is_empty(), "more than 64 KiB above the cap: {over:?}");
}

/// A table too large to be allocated is an error at its creation, in every build.
#[test]
fn a_table_too_large_is_an_error_at_creation() {
    let made = std::panic::catch_unwind(|| {
        Keyed::<u64>::builder(Limit::per_second(1))
            .max_keys(usize::MAX)
            .build()
    });
    assert!(made.is_err());
}

/// Costs whose sum overflows, without a limit.
#[test]
fn uncountable_costs_are_allowed_without_a_limit() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(10)
        .clock(clock.clone())
        .build();
    let none = store.limit("none", Limit::unlimited()).unwrap();
    let user = store.limit("user", Limit::per_second(1)).unwrap();
    let asks = [
        Ask::new(&none, "k").cost(u64::MAX),
        Ask::new(&none, "k"),
        Ask::new(&user, "u"),
    ];
    assert!(store.decide_now(&asks, clock.now()).is_allowed());
}

/// Windows of the largest counts, or at the last instants there are.
#[test]
fn a_window_accepts_every_number() {
    let far = ratekeeper::Timestamp::from_unix_nanos(u64::MAX);
    let mut failed = Vec::new();
    for (count, period) in [
        (u64::MAX, Duration::from_nanos(u64::MAX)),
        (u64::MAX, SECOND),
        (1, Duration::from_nanos(1)),
    ] {
        for algorithm in Algorithm::ALL {
            let run = move || {
                let limit = Limit::of(count, period).algorithm(algorithm);
                let cost = if algorithm == Algorithm::SlidingLog {
                    1
                } else {
                    u64::MAX
                };
                let keyed = Keyed::<u64>::builder(limit)
                    .max_keys(2)
                    .clock(ManualClock::new())
                    .build();
                for key in [keyed.key(&1), keyed.key(&2).at(far)] {
                    for _ in 0..3 {
                        let _ = (key.check_n(1), key.check_n(cost), key.peek(), key.take(1));
                        key.grant(1);
                    }
                    key.reset();
                }
            };
            if std::panic::catch_unwind(run).is_err() {
                failed.push((count, period, algorithm));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

/// `set_limit` says that each change keeps some hundred bytes.
#[test]
fn a_live_change_keeps_some_hundred_bytes() {
    let limit = |count| Limit::per_hour(count).algorithm(Algorithm::SlidingLog);
    let keyed = Keyed::<u64>::builder(limit(1_000))
        .max_keys(1)
        .clock(ManualClock::new())
        .build();
    for user in 0..50 {
        let _ = keyed.check_n(&user, 1_000);
    }
    let used = allocation_counter::measure(|| {
        (1..=100).for_each(|change| keyed.set_limit(limit(1_000 + change)));
    });
    let each = used.bytes_current / 100;
    assert!(each <= 1_000, "{each} bytes for each change");
}

/// A grant moves a queue up: the next call has the slot that another had before, and keeps it when
/// that one cancels.
#[test]
fn a_paced_reservation_from_before_a_grant_takes_no_other_slot() {
    let limit = Limit::per_second(1).paced_max_queue(9);
    let (limiter, keyed) = (
        Limiter::with_clock(limit, ManualClock::new()),
        keyed(limit).0,
    );
    let slots = |reserve: &dyn Fn() -> Reservation<ManualClock>, grant: &dyn Fn()| {
        let before = [reserve(), reserve(), reserve()];
        grant();
        let after = reserve();
        let delays = before.each_ref().map(Reservation::delay);
        assert_eq!(delays.map(|delay| delay.as_secs()), [0, 1, 2]);
        before.into_iter().rev().for_each(Reservation::cancel);
        (after.delay(), reserve().delay())
    };
    let told = (Duration::from_secs(2), Duration::from_secs(3));
    assert_eq!(
        slots(&|| limiter.reserve(1).unwrap(), &|| limiter.grant(1)),
        told
    );
    let key = keyed.key(&1);
    assert_eq!(slots(&|| key.reserve(1).unwrap(), &|| key.grant(1)), told);
}

/// After grants have moved a queue up to the clock there is less to take back than the slot was
/// worth.
#[test]
fn a_paced_reservation_that_grants_have_paid_for_gives_back_nothing() {
    let limit = Limit::per_second(1).paced_max_queue(9);
    let clock = ManualClock::starting_at(Timestamp::from_unix_nanos(0));
    let limiter = Limiter::with_clock(limit, clock.clone());
    let keyed = Keyed::<u64, _>::builder(limit).clock(clock).build();
    let slots = |reserve: &dyn Fn(u64) -> Reservation<ManualClock>, grant: &dyn Fn()| {
        let _first = reserve(1);
        let second = reserve(2);
        grant();
        second.cancel();
        (reserve(1).delay(), reserve(1).delay())
    };
    let told = (Duration::ZERO, SECOND);
    assert_eq!(
        slots(&|cost| limiter.reserve(cost).unwrap(), &|| limiter
            .grant(100)),
        told
    );
    let key = keyed.key(&1);
    assert_eq!(
        slots(&|cost| key.reserve(cost).unwrap(), &|| key.grant(100)),
        told
    );
}

/// Two asks for one key are one charge, and give back no more than that.
#[test]
fn asks_for_the_same_key_each_give_back_their_own_charge() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let limit = store
        .limit("bucket", Limit::per_second(1).burst(10))
        .unwrap();
    let asks = [
        Ask::new(&limit, "key").cost(5),
        Ask::new(&limit, "key").cost(5),
    ];
    let both = store.decide_now(&asks, clock.now());
    clock.advance(5 * SECOND);
    assert!(store.decide_now(&asks[..1], clock.now()).is_allowed());
    // Time has brought half of it back, and that was used: the other half comes back.
    store.settle_now(both, &[0, 0], clock.now());
    let left = store.decide_now(&[Ask::new(&limit, "key").cost(0)], clock.now());
    assert_eq!(left.statuses().next().unwrap().decision().remaining(), 5);
}

/// A charge of another store is not settled by this one.
#[test]
fn a_verdict_of_another_store_settles_nothing() {
    let clock = ManualClock::new();
    let stores = [(); 2].map(|()| MemoryStore::builder().clock(clock.clone()).build());
    for (at, store) in stores.iter().enumerate() {
        let other = &stores[1 - at];
        let limits: Vec<_> = (0..3)
            .map(|_| store.limit("bucket", Limit::per_hour(10)).unwrap())
            .collect();
        let charged = || store.decide_now(&[Ask::new(&limits[2], "key").cost(4)], clock.now());
        other.settle_now(charged(), &[0], clock.now());
        let receipt = other
            .detach_now(charged(), clock.now() + SECOND, clock.now())
            .unwrap();
        other
            .settle_detached_now(&receipt, &[9], clock.now())
            .unwrap();
        let left = store.decide_now(&[Ask::new(&limits[2], "key").cost(0)], clock.now());
        assert_eq!(left.statuses().next().unwrap().decision().remaining(), 2);
    }
}
