//! The memory that logs actually allocate, against `max_bytes`.

use ratekeeper::{Algorithm, Ask, Clock, Limit, ManualClock, MemoryStore, store::LimitHandle};
use std::time::Duration;

/// A cap that is small for the traffic below.
const MAX_BYTES: usize = 1 << 20;

/// The peak of allocated bytes while `keys` keys of these limits are charged repeatedly, `cost` at
/// a time.
fn allocated_at_most(capacities: &[u64], keys: u64, rounds: u64, cost: u64) -> u64 {
    let measured = allocation_counter::measure(|| {
        let clock = ManualClock::new();
        let store = MemoryStore::builder()
            .max_keys(100_000)
            .max_bytes(MAX_BYTES)
            .clock(clock.clone())
            .build();
        let limits: Vec<LimitHandle> = (capacities.iter().enumerate())
            .map(|(at, capacity)| {
                let limit = Limit::per_hour(*capacity).algorithm(Algorithm::SlidingLog);
                store.limit(&format!("limit {at}"), limit).unwrap()
            })
            .collect();
        for round in 0..rounds {
            for key in 0..keys {
                clock.advance(Duration::from_millis(1));
                let key = (key * 7 + round).to_le_bytes();
                for limit in &limits {
                    let _ = store.decide_now(&[Ask::new(limit, &key[..]).cost(cost)], clock.now());
                }
            }
        }
    });
    measured.bytes_max
}

#[test]
fn logs_take_no_more_of_the_allocator_than_max_bytes() {
    let mut over = String::new();
    for (name, capacities, keys, rounds, cost) in [
        ("many short logs", &[10][..], 40_000, 2, 1),
        ("logs that grow one by one", &[100], 4_000, 40, 1),
        ("logs that grow by half", &[1_000], 1_000, 20, 33),
        ("few long logs", &[10_000], 100, 40, 500),
        ("logs of a quarter of all bytes", &[30_000], 20, 30, 2_000),
        ("logs of all bytes", &[120_000], 20, 30, 10_000),
        (
            "several limits",
            &[100, 120, 140, 160, 180, 200, 220, 240],
            1_000,
            20,
            3,
        ),
        (
            "several limits with long logs",
            &[5_000, 6_000, 7_000, 8_000],
            100,
            20,
            100,
        ),
        ("many limits with long logs", &[4_000; 40], 30, 20, 200),
    ] {
        let bytes = allocated_at_most(capacities, keys, rounds, cost);
        // A call works on one log, and on a second one while that grows; a limit itself takes less
        // than 1 KiB.
        let longest = 8 * capacities.iter().max().unwrap();
        let bound = MAX_BYTES as u64
            + (2 * longest).min(MAX_BYTES as u64 / 4)
            + 1_024 * capacities.len() as u64;
        if bytes > bound {
            over += &format!(
                "{name}: {bytes} bytes, {bound} may be: {:.2} of max_bytes\n",
                bytes as f64 / MAX_BYTES as f64
            );
        }
    }
    assert!(over.is_empty(), "{over}");
}
