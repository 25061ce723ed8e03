//! Grants and resets of one key, and statistics of the keys of each limit.

use ratekeeper::{
    Algorithm, Ask, Clock, Keyed, Limit, ManualClock, MemoryStore, Store, Timestamp, Verdict,
    store::LimitHandle, store::LimitKeyStats, store::Source,
};
use ratekeeper_testkit::poll::assert_ready;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn store() -> (MemoryStore<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (MemoryStore::builder().clock(clock.clone()).build(), clock)
}

/// Ten an hour with each algorithm that allows them all at once: all but pacing.
fn tens() -> impl Iterator<Item = Limit> {
    let at_once = Algorithm::ALL
        .into_iter()
        .filter(|algorithm| *algorithm != Algorithm::Pacing);
    at_once.map(|algorithm| Limit::per_hour(10).algorithm(algorithm))
}

fn take(store: &MemoryStore<ManualClock>, limit: &LimitHandle, key: &str, cost: u64) -> bool {
    store
        .decide_now(&[Ask::new(limit, key).cost(cost)], store.clock().now())
        .is_allowed()
}

fn left(store: &MemoryStore<ManualClock>, limit: &LimitHandle, key: &str) -> u64 {
    let verdict = store.decide_now(&[Ask::new(limit, key).cost(0)], store.clock().now());
    verdict
        .results()
        .next()
        .expect("a status")
        .decision()
        .remaining()
}

#[test]
fn a_grant_gives_back_what_was_used_and_is_counted() {
    for limit in tens() {
        let (store, _) = store();
        let (handle, other) = (
            store.limit("a", limit).unwrap(),
            store.limit("b", limit).unwrap(),
        );
        for (limit, key) in [(&handle, "k"), (&handle, "l"), (&other, "k")] {
            assert!(take(&store, limit, key, 6), "{limit:?}");
        }
        store.grant(&handle, b"k", 2);
        assert_eq!(
            (
                left(&store, &handle, "k"),
                store.adjustments(&handle).granted
            ),
            (6, 2),
            "{limit}"
        );
        // No more than was used, and no more is counted.
        store.grant(&handle, b"k", u64::MAX);
        assert_eq!(
            (
                left(&store, &handle, "k"),
                store.adjustments(&handle).granted
            ),
            (10, 6),
            "{limit}"
        );
        store.grant(&handle, b"k", 5);
        store.grant(&handle, b"unknown", 5);
        assert_eq!(
            (
                left(&store, &handle, "k"),
                store.adjustments(&handle).granted
            ),
            (10, 6),
            "{limit}"
        );
        assert!(
            !take(&store, &handle, "k", 11)
                && take(&store, &handle, "k", 10)
                && !take(&store, &handle, "k", 1)
        );
        // No other key is affected.
        assert_eq!(
            (left(&store, &handle, "l"), left(&store, &other, "k")),
            (4, 4),
            "{limit}"
        );
        assert_eq!(store.adjustments(&other).granted, 0);
    }
}

#[test]
fn a_settle_does_not_mistake_a_grant_for_its_own_refund() {
    for (gift, then, back) in [(6, 10, 0), (3, 7, 3)] {
        let (store, clock) = store();
        let handle = store.limit("a", Limit::per_hour(10)).unwrap();
        let before = store.decide_now(&[Ask::new(&handle, "k").cost(6)], clock.now());
        store.grant(&handle, b"k", gift);
        assert!(take(&store, &handle, "k", then));
        assert_eq!(left(&store, &handle, "k"), 0);
        store.settle_now(before, &[0], clock.now());
        assert_eq!(left(&store, &handle, "k"), back, "after a gift of {gift}");
    }
}

#[test]
fn a_reset_makes_a_key_fresh_and_only_it() {
    for limit in tens() {
        let (store, clock) = store();
        let (handle, other) = (
            store.limit("a", limit).unwrap(),
            store.limit("b", limit).unwrap(),
        );
        for (limit, key) in [(&handle, "l"), (&other, "k")] {
            assert!(take(&store, limit, key, 10), "{limit:?}");
        }
        let before = store.decide_now(&[Ask::new(&handle, "k").cost(10)], clock.now());
        assert!(
            before.is_allowed() && !take(&store, &handle, "k", 1),
            "{limit}"
        );
        store.reset(&handle, b"k");
        assert_eq!(left(&store, &handle, "k"), 10, "{limit}");
        assert_eq!(
            (left(&store, &handle, "l"), left(&store, &other, "k")),
            (0, 0),
            "{limit}"
        );
        assert_eq!(
            (
                store.adjustments(&handle).changes,
                store.adjustments(&other).changes
            ),
            (1, 0)
        );
        assert_eq!(
            (store.live_keys(&handle), store.live_keys(&other)),
            (1, 1),
            "{limit}"
        );
        // Earlier charges are not refunded on top.
        assert!(take(&store, &handle, "k", 10), "{limit}");
        store.settle_now(before, &[0], clock.now());
        assert!(!take(&store, &handle, "k", 1), "{limit}");
    }
}

#[test]
fn a_queue_is_shortened_by_a_grant_and_empty_after_a_reset() {
    let (store, clock) = store();
    let queue = store
        .limit(
            "queue",
            Limit::per_second(1)
                .algorithm(Algorithm::Pacing)
                .paced_max_queue(10),
        )
        .unwrap();
    let delay = || {
        let ask = Ask::new(&queue, "k").max_wait(60 * SECOND);
        let verdict = store.decide_now(&[ask], clock.now());
        assert!(verdict.is_allowed());
        verdict.delay()
    };
    let waits: Vec<_> = (0..5).map(|_| delay()).collect();
    assert_eq!(waits, [0, 1, 2, 3, 4].map(|n| n * SECOND));
    store.grant(&queue, b"k", 2);
    assert_eq!(
        (delay(), store.adjustments(&queue).granted),
        (3 * SECOND, 2)
    );
    store.reset(&queue, b"k");
    assert_eq!(delay(), Duration::ZERO);
}

#[test]
fn permits_in_flight_are_not_reset_or_granted() {
    let (store, clock) = store();
    let slots = store.concurrency("slots", 3).unwrap();
    let held = store.decide_now(&[Ask::new(&slots, "k").cost(2)], clock.now());
    store.grant(&slots, b"k", 2);
    store.reset(&slots, b"k");
    assert_eq!(
        (left(&store, &slots, "k"), store.adjustments(&slots)),
        (1, Default::default())
    );
    let last = store.decide_now(&[Ask::new(&slots, "k")], clock.now());
    assert!(last.is_allowed() && !take(&store, &slots, "k", 1));
    // Each is released once.
    drop(held);
    assert_eq!(left(&store, &slots, "k"), 2);
    drop(last);
    assert_eq!((left(&store, &slots, "k"), store.live_keys(&slots)), (3, 0));
}

/// A key of a store behaves as a key of a `Keyed` with one limit: the same operations on both leave
/// the same state.
#[test]
fn grants_resets_and_settles_mix_as_they_do_for_a_keyed_limiter() {
    for limit in tens() {
        let (store, clock) = store();
        let keyed = Keyed::<str>::builder(limit).clock(clock.clone()).build();
        let handle = store.limit("a", limit).unwrap();
        let (mut random, mut open) = (11_u64, Vec::new());
        let mut next = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for step in 0..3_000 {
            let key = ["k", "l", "m"][next(3) as usize];
            match next(12) {
                0 => {
                    let tokens = next(12);
                    store.grant(&handle, key.as_bytes(), tokens);
                    keyed.key(key).grant(tokens);
                }
                1 => {
                    store.reset(&handle, key.as_bytes());
                    keyed.key(key).reset();
                }
                2..4 if !open.is_empty() => {
                    let (verdict, charge) = open.swap_remove(next(open.len() as u64) as usize);
                    let actual = next(8);
                    store.settle_now(verdict, &[actual], clock.now());
                    keyed.key(key).settle(charge, actual);
                }
                4 => clock.advance(next(900) as u32 * SECOND),
                _ => {
                    let cost = 1 + next(4);
                    let verdict =
                        store.decide_now(&[Ask::new(&handle, key).cost(cost)], clock.now());
                    let charge = keyed.key(key).take(cost);
                    assert_eq!(verdict.is_allowed(), charge.is_ok(), "{limit}, step {step}");
                    open.extend(charge.ok().map(|charge| (verdict, charge)));
                }
            }
            for key in ["k", "l", "m"] {
                let there = keyed.key(key).peek_n(0).remaining();
                assert_eq!(
                    left(&store, &handle, key),
                    there,
                    "{limit}, step {step}: {key}"
                );
            }
        }
        assert_eq!(store.adjustments(&handle), keyed.adjustments(), "{limit}");
        assert!(
            keyed.adjustments().granted > 100,
            "{limit}: {:?}",
            keyed.adjustments()
        );
    }
}

/// Registers limits of several kinds, each with some keys that have used something, and as many
/// that are fresh again.
fn populated(store: &MemoryStore<ManualClock>, clock: &ManualClock) -> Vec<LimitHandle> {
    let mut limits: Vec<_> = tens()
        .map(|limit| store.limit("rate", limit).unwrap())
        .collect();
    limits.push(store.limit("unused", Limit::per_hour(10)).unwrap());
    let used = limits.len() - 1;
    for round in ["fresh", "live"] {
        for (at, limit) in limits[..used].iter().enumerate() {
            for key in 0..10 * (at + 1) {
                assert!(take(store, limit, &format!("{round}-{key}"), 1));
            }
        }
        if round == "fresh" {
            clock.advance(7_200 * SECOND);
        }
    }
    limits
}

#[test]
fn key_stats_agree_with_live() {
    let (store, clock) = store();
    let mut limits = populated(&store, &clock);
    let slots = store.concurrency("slots", 3).unwrap();
    let held: Vec<_> = (0..5)
        .map(|key| store.decide_now(&[Ask::new(&slots, &format!("{key}"))], clock.now()))
        .collect();
    limits.push(slots);
    // Entries of the version before a change are still of the limit, and a limit may be asked about
    // twice.
    store.set_limit(&limits[0], Limit::per_hour(20));
    limits.push(limits[3].clone());
    let key_stats = store.key_stats(&limits);
    assert_eq!(
        key_stats.iter().map(|one| one.live).collect::<Vec<_>>(),
        [10, 20, 30, 40, 50, 60, 70, 0, 5, 40]
    );
    for (limit, key_stats) in limits.iter().zip(&key_stats) {
        // Two keys may share a slot's candidates, and one of them be evicted once it is fresh: that
        // depends on the hash.
        assert_eq!(
            (key_stats.live, key_stats.evicted_live),
            (store.live_keys(limit), 0),
            "{limit:?}"
        );
    }
    assert_eq!(
        assert_ready(async { Store::key_stats(&store, &limits) }),
        Some(key_stats)
    );
    assert_eq!(store.key_stats(&[]), []);
    drop(held);
    assert_eq!(store.key_stats(&limits[8..9]), [LimitKeyStats::default()]);
}

#[test]
fn evictions_are_counted_for_the_limit_of_the_evicted_key() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(100)
        .clock(clock.clone())
        .build();
    // A capacity at which the floor denies no key.
    let limits: Vec<_> = ["a", "b", "quiet"]
        .map(|name| store.limit(name, Limit::per_hour(1_000_000)).unwrap())
        .into();
    let flood = |limit| assert!((0..10_000).all(|key| take(&store, limit, &format!("{key}"), 1)));
    flood(&limits[0]);
    let [a, b, quiet] = store.key_stats(&limits)[..] else {
        panic!("three limits")
    };
    assert!(
        a.live > 100 && a.evicted_live > 9_000 && a.evicted_fresh == 0,
        "{a:?}"
    );
    assert_eq!(a.live + a.evicted_live, 10_000);
    assert_eq!((b, quiet), Default::default());
    // All keys of the first are fresh by now, and are evicted for the second's.
    clock.advance(3_600 * SECOND);
    let there = a.live;
    flood(&limits[1]);
    let [a, b, quiet] = store.key_stats(&limits)[..] else {
        panic!("three limits")
    };
    assert_eq!((a.live, quiet), Default::default());
    assert!(
        a.evicted_fresh > there / 2 && a.evicted_fresh <= there,
        "{a:?} of {there}"
    );
    assert_eq!((a.evicted_live, b.evicted_fresh), (10_000 - there, 0));
    assert_eq!(b.live + b.evicted_live, 10_000);
    let stats = store.stats();
    assert_eq!(
        (stats.evicted_fresh, stats.evicted_live),
        (a.evicted_fresh, a.evicted_live + b.evicted_live)
    );
    assert_eq!(stats.live, b.live);
}

#[test]
fn evictions_of_all_limits_are_those_of_the_table() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(20)
        .clock(clock.clone())
        .build();
    // Of logs too, which are evicted for want of bytes as well as of slots.
    let limits: Vec<_> = Algorithm::ALL
        .map(|algorithm| {
            store
                .limit(
                    algorithm.name(),
                    Limit::per_minute(100).algorithm(algorithm),
                )
                .unwrap()
        })
        .into();
    for round in 0..3_000_u32 {
        for limit in &limits {
            let _ = take(
                &store,
                limit,
                &format!("{}", round % 700),
                1 + u64::from(round % 5),
            );
        }
        clock.advance(round % 3 * SECOND);
    }
    let (key_stats, stats) = (store.key_stats(&limits), store.stats());
    let sum = |count: fn(&LimitKeyStats) -> u64| key_stats.iter().map(count).sum::<u64>();
    assert_eq!(sum(|one| one.live), stats.live);
    assert_eq!(sum(|one| one.evicted_fresh), stats.evicted_fresh);
    assert_eq!(sum(|one| one.evicted_live), stats.evicted_live);
    assert!(
        stats.evicted_fresh > 0 && key_stats.iter().all(|one| one.evicted_live > 0),
        "{key_stats:?}"
    );
}

#[test]
fn handles_of_another_store_are_ignored() {
    let ((store, clock), (other, _)) = (self::store(), self::store());
    let limits = populated(&store, &clock);
    let foreign: Vec<_> = tens()
        .map(|limit| other.limit("foreign", limit).unwrap())
        .collect();
    assert!(foreign.iter().all(|limit| take(&other, limit, "live-1", 6)));
    let before = store.key_stats(&limits);
    for limit in &foreign {
        store.grant(limit, b"live-1", 6);
        store.reset(limit, b"live-1");
        assert_eq!(
            (left(&other, limit, "live-1"), store.live_keys(limit)),
            (4, 0)
        );
    }
    assert_eq!(store.key_stats(&foreign), [LimitKeyStats::default(); 7]);
    assert_eq!(store.key_stats(&limits), before);
    // They do not affect the other asks.
    let mixed = store.key_stats(&[foreign[1].clone(), limits[1].clone(), foreign[2].clone()]);
    assert_eq!(
        mixed,
        [
            LimitKeyStats::default(),
            before[1],
            LimitKeyStats::default()
        ]
    );
    let changes = limits
        .iter()
        .chain(&foreign)
        .map(|limit| store.adjustments(limit).changes)
        .sum::<u64>();
    assert_eq!(changes, 0);
}

#[test]
fn a_caller_may_pass_the_instant() {
    let (store, clock) = store();
    let limit = store.limit("a", Limit::per_minute(1)).unwrap();
    let ask = [Ask::new(&limit, "k")];
    let is_allowed = |now: Timestamp| {
        let mut verdict = Verdict::new(Source::Open);
        assert!(store.try_decide(&ask, now, &mut verdict));
        verdict.is_allowed()
    };
    let now = Store::now(&store);
    assert_eq!(now, clock.now());
    assert!(is_allowed(now) && !is_allowed(now));
    let later = now + 60 * SECOND;
    assert!(
        is_allowed(later) && !is_allowed(later),
        "the clock was not asked"
    );
    assert!(
        !assert_ready(store.decide(&ask)).is_allowed(),
        "the clock stands still"
    );
}

/// The verbs of the trait are those of the store.
#[test]
fn the_same_through_the_trait() {
    fn run(store: &impl Store) {
        let rate = store.limit("rate", Limit::per_hour(10)).unwrap();
        let slots = store.concurrency("slots", 1).unwrap();
        let takes =
            |cost| assert_ready(store.decide(&[Ask::new(&rate, "k").cost(cost)])).is_allowed();
        assert!(takes(10) && !takes(1));
        assert_ready(store.grant(&rate, b"k", 2));
        assert!(!takes(3) && takes(2));
        assert_ready(store.reset(&rate, b"k"));
        assert!(takes(10) && !takes(1));
        store.set_limit(&rate, Limit::per_hour(20));
        store.set_concurrency(&slots, 5);
        assert_eq!(
            (rate.limit(), slots.in_flight()),
            (Some(Limit::per_hour(20)), Some(5))
        );
        let live = store
            .key_stats(&[rate, slots])
            .expect("it can count")
            .iter()
            .map(|one| one.live)
            .collect::<Vec<_>>();
        assert_eq!(live, [1, 0]);
    }
    run(&store().0);
}
