//! A short queue in front of an adaptive limit: its gain in bursts, and no cost in overload.

use ratekeeper_sim::{
    Backend, MILLI, SECOND, Scenario, Stream, adaptive, burst_load, controls, queued,
};
use std::ops::Range;

const SEEDS: Range<u64> = 1..3;
const LENGTH: u64 = 40 * SECOND;
const SETTLED: Range<u64> = 10 * SECOND..LENGTH;
const ROOM: usize = 100;

fn peak() -> f64 {
    Backend::usual().peak(0)
}

#[test]
fn in_bursts_fewer_calls_are_denied() {
    for (name, control) in controls().into_iter().filter(|(name, _)| *name != "aimd") {
        for seed in SEEDS {
            let scenario =
                Scenario::new([Stream::planned(burst_load(peak(), LENGTH))], LENGTH).seed(seed);
            let (without, with) = (
                scenario.run(adaptive(control)),
                scenario.run(queued(control, ROOM)),
            );
            let (before, after) = (without.served(0, SETTLED), with.served(0, SETTLED));
            assert!(
                1.0 - after < 0.6 * (1.0 - before),
                "{name}: {before} and {after} by {seed}"
            );
            // No call waits longer than an interval for it.
            assert!(
                with.p99(SETTLED) < without.p99(SETTLED) + 100 * MILLI,
                "{name} by {seed}"
            );
        }
    }
}

#[test]
fn in_overload_a_queue_costs_nothing_and_no_call_waits_long() {
    for (name, control) in controls() {
        let scenario = Scenario::new([Stream::of(5.0 * peak())], LENGTH);
        let (without, with) = (
            scenario.run(adaptive(control)),
            scenario.run(queued(control, ROOM)),
        );
        let (before, after) = (without.goodput(SETTLED), with.goodput(SETTLED));
        assert!(after > 0.97 * before, "{name}: {before} and {after}");
        assert!(
            with.p99(SETTLED) < without.p99(SETTLED) + 100 * MILLI,
            "{name}"
        );
    }
}
