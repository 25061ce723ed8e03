//! Many threads on one store, on a frozen clock.

use ratekeeper::{Algorithm, Ask, Clock, Limit, ManualClock, MemoryStore};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

const THREADS: u64 = 8;

/// A global limit of exactly K; K requests that fit, and 10 K that a second limit denies, from many
/// threads at once.
fn exactly_k(global: Limit, second: Limit, max_keys: usize) {
    let k = global.capacity();
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(max_keys)
        .clock(clock.clone())
        .build();
    let (global, second) = (
        store.limit("global", global).unwrap(),
        store.limit("second", second).unwrap(),
    );
    let now = clock.now();
    // The second limit is used up for the requests to be denied.
    for denied in 0..THREADS {
        while store
            .decide_now(&[Ask::new(&second, &format!("denied-{denied}"))], now)
            .is_allowed()
        {}
    }
    let (allowed, wrong) = (AtomicU64::new(0), AtomicU64::new(0));
    let begin = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, global, second, begin) = (&store, &global, &second, &begin);
            let (allowed, wrong) = (&allowed, &wrong);
            scope.spawn(move || {
                let denied_key = format!("denied-{thread}");
                begin.wait();
                for fits in (thread..k).step_by(THREADS as usize) {
                    for _ in 0..10 {
                        let denied = [Ask::new(global, "all"), Ask::new(second, &denied_key)];
                        let verdict = store.decide_now(&denied, now);
                        wrong.fetch_add(u64::from(verdict.is_allowed()), Ordering::Relaxed);
                        assert!(verdict.binding().is_some());
                    }
                    let key = format!("fits-{fits}");
                    // Either order: the store claims entries in an order of its own.
                    let asks = match fits % 2 {
                        0 => [Ask::new(global, "all"), Ask::new(second, &key)],
                        _ => [Ask::new(second, &key), Ask::new(global, "all")],
                    };
                    allowed.fetch_add(
                        u64::from(store.decide_now(&asks, now).is_allowed()),
                        Ordering::Relaxed,
                    );
                }
            });
        }
    });
    let label = format!("{:?} and {:?}", global.limit(), second.limit());
    assert_eq!(
        wrong.into_inner(),
        0,
        "{label}: allowed though the second limit denies"
    );
    assert_eq!(allowed.into_inner(), k, "{label}: none of the K is denied");
    // No denied request was charged: the global limit is used up by exactly K, and each of those
    // has its second limit charged once.
    let spent = store.decide_now(&[Ask::new(&global, "all")], now);
    assert!(!spent.is_allowed(), "{label}");
    for fits in 0..k {
        let key = format!("fits-{fits}");
        let verdict =
            store.decide_now(&[Ask::new(&second, &key).mode(ratekeeper::Mode::Peek)], now);
        let left = verdict
            .results()
            .next()
            .expect("a status")
            .decision()
            .remaining();
        assert_eq!(
            left,
            second.limit().unwrap().capacity() - 1,
            "{label}: {key}"
        );
    }
}

#[test]
fn exactly_k_are_allowed_and_none_is_denied_by_a_charge_that_is_taken_back() {
    for algorithm in Algorithm::ALL {
        exactly_k(
            Limit::per_hour(400).algorithm(algorithm),
            Limit::per_hour(3),
            10_000,
        );
        exactly_k(
            Limit::per_hour(400),
            Limit::per_hour(3).algorithm(algorithm),
            10_000,
        );
    }
}

/// The same with permits as the second limit: denied requests leave no permit behind.
#[test]
fn exactly_k_are_allowed_beside_permits() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let (global, slots) = (
        store.limit("global", Limit::per_hour(300)).unwrap(),
        store.concurrency("slots", 2).unwrap(),
    );
    let now = clock.now();
    let allowed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, global, slots, allowed) = (&store, &global, &slots, &allowed);
            scope.spawn(move || {
                for i in 0..400_u64 {
                    let key = format!("user-{}", (i + thread) % 4);
                    let verdict =
                        store.decide_now(&[Ask::new(global, "all"), Ask::new(slots, &key)], now);
                    allowed.fetch_add(u64::from(verdict.is_allowed()), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(allowed.into_inner(), 300);
    // Every verdict is dropped, and every permit released.
    for user in 0..4 {
        let key = format!("user-{user}");
        let both = store.decide_now(&[Ask::new(&slots, &key).cost(2)], now);
        assert!(both.is_allowed(), "{key}");
    }
}

/// Many limits in any order from many threads: allowed requests were charged to all of them, denied
/// ones to none.
#[test]
fn an_allowed_request_is_charged_everywhere_and_a_denied_one_nowhere() {
    const LIMITS: usize = 6;
    const KEYS: usize = 5;
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let limits: Vec<_> = (0..LIMITS)
        .map(|i| {
            let algorithm = Algorithm::ALL[i % Algorithm::ALL.len()];
            store
                .limit(
                    &format!("limit-{i}"),
                    Limit::per_hour(200 + 10 * i as u64).algorithm(algorithm),
                )
                .unwrap()
        })
        .collect();
    let now = clock.now();
    let charged: Vec<Vec<AtomicU64>> = (0..LIMITS)
        .map(|_| (0..KEYS).map(|_| AtomicU64::new(0)).collect())
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (store, limits, charged) = (&store, &limits, &charged);
            scope.spawn(move || {
                let mut random = thread + 1;
                for _ in 0..3_000 {
                    let mut picks = Vec::new();
                    for _ in 0..1 + thread {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        let pick = (random >> 33) as usize;
                        picks.push((pick % LIMITS, pick / 16 % KEYS, 1 + pick as u64 / 1_024 % 3));
                    }
                    let keys: Vec<_> = picks
                        .iter()
                        .map(|(_, key, _)| format!("key-{key}"))
                        .collect();
                    let asks: Vec<_> = picks
                        .iter()
                        .zip(&keys)
                        .map(|((limit, _, cost), key)| Ask::new(&limits[*limit], key).cost(*cost))
                        .collect();
                    if store.decide_now(&asks, now).is_allowed() {
                        for (limit, key, cost) in picks {
                            charged[limit][key].fetch_add(cost, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    for (limit, charged) in limits.iter().zip(&charged) {
        for (key, charged) in charged.iter().enumerate() {
            let key = format!("key-{key}");
            let verdict =
                store.decide_now(&[Ask::new(limit, &key).mode(ratekeeper::Mode::Peek)], now);
            let left = verdict
                .results()
                .next()
                .expect("a status")
                .decision()
                .remaining();
            let (charged, capacity) = (
                charged.load(Ordering::Relaxed),
                limit.limit().unwrap().capacity(),
            );
            // A queue takes a whole cost at its last slot (merged, 4 asks of 3 at most): what
            // remains is then 0.
            assert_eq!(
                left,
                capacity.saturating_sub(charged),
                "{} {key}: {charged} charged",
                limit.name()
            );
            let max_keys = if limit.name() == "limit-2" {
                capacity + 4 * 3 - 1
            } else {
                capacity
            };
            assert!(
                charged <= max_keys,
                "{} {key}: {charged} charged",
                limit.name()
            );
        }
    }
}

/// A table of few slots: never too many are allowed, whatever is evicted.
#[test]
fn at_most_k_are_allowed_under_eviction() {
    for algorithm in Algorithm::ALL {
        let clock = ManualClock::new();
        let store = MemoryStore::builder()
            .max_keys(8)
            .clock(clock.clone())
            .build();
        let limit = Limit::per_hour(50).algorithm(algorithm);
        let (global, user) = (
            store.limit("global", limit).unwrap(),
            store.limit("user", limit).unwrap(),
        );
        let now = clock.now();
        let (allowed, by_user) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (store, global, user, allowed, by_user) =
                    (&store, &global, &user, &allowed, &by_user);
                scope.spawn(move || {
                    for i in 0..500_u64 {
                        let key = format!("{thread}-{i}");
                        let both =
                            store.decide_now(&[Ask::new(global, "all"), Ask::new(user, &key)], now);
                        allowed.fetch_add(u64::from(both.is_allowed()), Ordering::Relaxed);
                        let one = store.decide_now(&[Ask::new(user, "one")], now);
                        by_user.fetch_add(u64::from(one.is_allowed()), Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(allowed.into_inner() <= limit.capacity(), "{algorithm}");
        assert!(by_user.into_inner() <= limit.capacity(), "{algorithm}");
    }
}
