//! A small flood; `cargo run --release --manifest-path bench/Cargo.toml --bin flood` runs one of 50 M keys.

use super::common::flood::{Flood, slots};
use ratekeeper::Limit;

#[test]
fn a_flood_of_random_keys_lets_no_abuser_exceed_its_bound() {
    for limit in [
        "10/s",
        "5/min",
        "5/min sliding_log",
        "100/s sliding_window",
        "10/s fixed_window",
        "10/s queue 20",
    ] {
        let limit: Limit = limit.parse().unwrap();
        let report = Flood {
            limit,
            keys: 200_000,
            max_keys: 1_000,
            per_second: 20_000,
        }
        .run();
        for abuser in &report.abusers {
            assert_eq!(
                abuser.violation,
                None,
                "{limit}, {}: {} allowed",
                abuser.name,
                abuser.allowed.len()
            );
        }
        let stats = report.stats;
        assert!(report.most_keys <= slots(&stats), "{limit}: {stats:?}");
        assert!(
            stats.evicted_fresh + stats.evicted_live >= 200_000 - report.denied() - slots(&stats)
        );
        println!(
            "{limit}: {} of 200,000 new keys denied, by tenth {:?}; {stats:?}",
            report.denied(),
            report.denied
        );
    }
}
