//! Key types: any type that can be hashed, borrowed as a map's key is.

use ratekeeper::{Keyed, Limit, ManualClock};
use std::borrow::Borrow;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// 200 keys, used up one after the other: each has the full limit, whatever its type.
fn each_key_has_its_own_bucket<K: Borrow<Q> + ?Sized, Q: Hash + ?Sized>(
    keyed: &Keyed<K, ManualClock>,
    clock: &ManualClock,
    key: impl Fn(u64) -> Box<Q>,
) {
    for round in 0..3 {
        for i in 0..200 {
            let key = key(i);
            let key = &*key;
            assert_eq!(
                keyed.check_n(key, 2).remaining(),
                3,
                "key {i} in round {round}"
            );
            assert!(keyed.key(key).take(3).is_ok(), "key {i} in round {round}");
            let denied = keyed.check(key);
            assert_eq!(
                denied.retry_after(),
                Some(Duration::from_secs(1)),
                "key {i} in round {round}"
            );
        }
        clock.advance(Duration::from_secs(5));
    }
}

fn keyed<K: ?Sized>() -> (Keyed<K, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (
        Keyed::with_clock(Limit::per_second(1).burst(5), clock.clone()),
        clock,
    )
}

#[test]
fn strings_and_slices_of_strings() {
    let (by_str, clock) = keyed::<str>();
    each_key_has_its_own_bucket::<str, str>(&by_str, &clock, |i| format!("user-{i}").into());
    let (by_string, clock) = keyed::<String>();
    each_key_has_its_own_bucket::<String, str>(&by_string, &clock, |i| format!("user-{i}").into());
    assert!(by_string.check_n(&String::from("user-1"), 5).is_allowed());
    assert!(
        by_string.check("user-1").is_denied(),
        "a String and its str are one key"
    );
}

#[test]
fn addresses_and_numbers() {
    let (by_address, clock) = keyed::<IpAddr>();
    each_key_has_its_own_bucket::<IpAddr, IpAddr>(&by_address, &clock, |i| match i % 2 {
        0 => Box::new(Ipv4Addr::from_bits(0x0A00_0000 + i as u32).into()),
        _ => Box::new(Ipv6Addr::from_bits((0x2001_0DB8 << 96) + u128::from(i)).into()),
    });
    let (by_number, clock) = keyed::<u64>();
    each_key_has_its_own_bucket::<u64, u64>(&by_number, &clock, Box::new);
    let (by_pair, clock) = keyed::<(u64, &'static str)>();
    each_key_has_its_own_bucket::<(u64, &'static str), _>(&by_pair, &clock, |i| {
        Box::new((i / 2, ["get", "put"][i as usize % 2]))
    });
}

/// The first example a reader tries.
#[test]
fn the_first_example_of_the_docs() {
    let per_user = Keyed::<str>::new(Limit::per_hour(5));
    assert_eq!(
        (0..9).filter(|_| per_user.check("u1").is_allowed()).count(),
        5
    );
    assert!(per_user.check("u2").is_allowed());
    assert_eq!(per_user.stats().max_keys, 1_000_000);
    let per_user = Keyed::<str>::builder(Limit::per_hour(5))
        .max_keys(10_000)
        .build();
    assert!(per_user.key("u1").reserve(1).is_ok());
    assert!(per_user.key("u1").wait().blocking().is_ok());
    let late = per_user
        .key("u1")
        .wait_n(5)
        .within(Duration::from_millis(1))
        .blocking();
    assert!(late.is_err());
    per_user.close();
    assert!(per_user.is_closed());
    assert_eq!(
        per_user.key("u2").wait().blocking(),
        Err(ratekeeper::limiter::WaitError::Closed)
    );
}
