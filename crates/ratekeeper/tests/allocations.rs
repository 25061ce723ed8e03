//! No decision allocates: for keys of a table, new ones included, and for up to eight asks at once.

use ratekeeper::adaptive::{AdaptiveConcurrency, RequestOutcome};
use ratekeeper::{Algorithm, Ask, Clock, Keyed, Limit, ManualClock, MemoryStore, Mode};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// The bytes that `work` allocates on this thread.
fn allocated(work: impl FnOnce()) -> u64 {
    allocation_counter::measure(work).count_total
}

/// The algorithms whose state is a word or two beside the key's hash; the others keep theirs
/// outside of the table.
const IN_PLACE: [Algorithm; 5] = [
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::Pacing,
    Algorithm::FixedWindow,
    Algorithm::SlidingWindow,
];

#[test]
fn the_counter_counts() {
    assert!(allocated(|| drop(std::hint::black_box(Box::new(7_u64)))) > 0);
    assert_eq!(allocated(|| ()), 0);
}

/// Known keys and new ones, allowed and denied, evicting others.
#[test]
fn a_check_of_a_key_allocates_nothing() {
    for algorithm in IN_PLACE {
        let clock = ManualClock::new();
        let limit = Limit::per_minute(3).algorithm(algorithm);
        let by_str = Keyed::<str>::builder(limit)
            .max_keys(1_000)
            .clock(clock.clone())
            .build();
        let by_address = Keyed::<IpAddr>::builder(limit)
            .max_keys(1_000)
            .clock(clock.clone())
            .build();
        let names: Vec<String> = (0..5_000).map(|i| format!("user-{i}")).collect();
        // A limit's eviction floor is allocated when its first key is evicted.
        for i in 0..5_000_u32 {
            let first = format!("first-{i}");
            let _ = (
                by_str.check(first.as_str()),
                by_address.check(&IpAddr::from(Ipv4Addr::from_bits(!i))),
            );
        }
        let used = allocated(|| {
            for (i, name) in names.iter().enumerate() {
                for _ in 0..5 {
                    let _ = by_str.check(name.as_str());
                }
                let address = match i % 2 {
                    0 => IpAddr::from(Ipv4Addr::from_bits(i as u32)),
                    _ => IpAddr::from(Ipv6Addr::from_bits(i as u128)),
                };
                let _ = by_address.check_n(&address, 2);
                let _ = by_address.key(&address).peek();
                clock.advance(Duration::from_millis(1));
            }
        });
        assert_eq!(used, 0, "{algorithm}");
        let figures = by_str.stats();
        assert!(
            figures.evicted_live + figures.evicted_fresh > 0,
            "{algorithm}: {figures:?}"
        );
    }
}

/// A large state is allocated when its key is inserted, not for every call.
#[test]
fn a_known_key_of_a_log_allocates_nothing() {
    for algorithm in Algorithm::ALL {
        let clock = ManualClock::new();
        let keyed = Keyed::<str>::builder(Limit::per_minute(3).algorithm(algorithm))
            .clock(clock.clone())
            .build();
        for _ in 0..4 {
            let _ = keyed.check("known");
        }
        let used = allocated(|| {
            for _ in 0..1_000 {
                let _ = keyed.check("known");
                let _ = keyed.key("known").peek();
                clock.advance(Duration::from_secs(7));
            }
        });
        assert_eq!(used, 0, "{algorithm}");
    }
}

#[test]
fn up_to_eight_asks_allocate_nothing() {
    let clock = ManualClock::new();
    let store = MemoryStore::builder()
        .max_keys(1_000)
        .clock(clock.clone())
        .build();
    let mut limits: Vec<_> = IN_PLACE
        .iter()
        .chain(&IN_PLACE[..2])
        .enumerate()
        .map(|(i, algorithm)| {
            store
                .limit(
                    &format!("limit-{i}"),
                    Limit::per_minute(50).algorithm(*algorithm),
                )
                .unwrap()
        })
        .collect();
    limits.push(store.concurrency("slots", 20).unwrap());
    let names: Vec<String> = (0..2_000).map(|i| format!("user-{i}")).collect();
    for asked in 1..=8 {
        let mut passed = 0;
        let decide = |name: &str, passed: &mut u32| {
            // From the first limit on, all of them on one line: an array of eight, of which `asked`
            // are used.
            let asks: [Ask<'_>; 8] = std::array::from_fn(|i| {
                let ask = Ask::new(&limits[(i + 8 - asked) % 8], name);
                match i {
                    1 => ask.cost(2),
                    2 => ask.mode(Mode::Shadow),
                    3 => ask.mode(Mode::Peek),
                    _ => ask,
                }
            });
            let verdict = store.decide_now(&asks[..asked], clock.now());
            *passed += u32::from(verdict.is_allowed());
            assert_eq!(verdict.statuses().count(), asked);
            // Denied by an enforced ask, and for no other reason.
            let denies = |(ask, status): (&Ask<'_>, _)| {
                ask.mode == Mode::Enforce
                    && !ratekeeper::store::AskResult::decision(status).is_allowed()
            };
            let denied = asks.iter().zip(verdict.statuses()).any(denies);
            assert_eq!(verdict.is_allowed(), !denied);
            store.settle_now(verdict, &[0; 8][..asked], clock.now());
            clock.advance(Duration::from_millis(100));
        };
        // A limit's eviction floor is allocated when its first key is evicted.
        (0..3_000).for_each(|i| decide(&format!("first-{asked}-{i}"), &mut passed));
        let used = allocated(|| names.iter().for_each(|name| decide(name, &mut passed)));
        assert_eq!(used, 0, "{asked} asks");
        assert!(passed > 0, "{asked} asks");
    }
}

/// Permits given and denied, in a partition or in none, and the steps of the controller.
#[test]
fn an_adaptive_permit_allocates_nothing() {
    let clock = ManualClock::new();
    let gate = AdaptiveConcurrency::builder()
        .partition("live", 0.5)
        .unwrap()
        .build_with_clock(clock.clone());
    let live = gate.partition("live").unwrap();
    let mut refused = 0;
    let used = allocated(|| {
        for _ in 0..1_000 {
            let held: [_; 30] = std::array::from_fn(|i| {
                if i % 2 == 0 {
                    gate.try_acquire()
                } else {
                    gate.try_acquire_in(live)
                }
            });
            clock.advance(Duration::from_millis(60));
            refused += held.iter().filter(|permit| permit.is_err()).count();
            held.into_iter()
                .flatten()
                .for_each(|permit| permit.finish(RequestOutcome::Success));
        }
    });
    assert_eq!(used, 0);
    assert!(refused > 0);
    assert!(gate.limit() > 20);
}
