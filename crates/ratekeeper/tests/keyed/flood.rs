//! The flood, small: 50 M keys are `cargo run --release -p ratekeeper-bench --bin flood`.

use super::common::flood::{Flood, slots};
use ratekeeper::Limit;

#[test]
fn a_flood_of_random_keys_admits_no_abuser_more_than_its_bound() {
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
            cap: 1_000,
            per_second: 20_000,
        }
        .run();
        for abuser in &report.abusers {
            assert_eq!(
                abuser.broken,
                None,
                "{limit}, {}: {} admitted",
                abuser.name,
                abuser.admitted.len()
            );
        }
        let figures = report.figures;
        assert!(report.most_keys <= slots(&figures), "{limit}: {figures:?}");
        assert!(
            figures.evicted_fresh + figures.evicted_live
                >= 200_000 - report.denied() - slots(&figures)
        );
        println!(
            "{limit}: {} of 200,000 new keys denied, by tenth {:?}; {figures:?}",
            report.denied(),
            report.denied
        );
    }
}
