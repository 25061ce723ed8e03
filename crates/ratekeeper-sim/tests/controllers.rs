//! The promises of each adaptive limit, with several random seeds. The service works on 10 at once,
//! 40 ms each: at most 250 per second, and its best limit is 10 and a few for the queue.

use ratekeeper_sim::{
    Backend, MILLI, MINUTE, PartitionedLimit, RunOutcome, SECOND, Scenario, Schedule, Stream,
    adaptive, controls,
};
use std::ops::Range;

const SEEDS: Range<u64> = 1..4;
const SETTLED: Range<u64> = 20 * SECOND..MINUTE;
/// The default minimum.
const MIN: u64 = 5;

fn peak() -> f64 {
    Backend::usual().peak(0)
}

/// The numbers in which they differ: see the table in docs/overload.md.
struct Promise {
    /// The share of the peak that is answered in time under overload.
    keeps: f64,
    /// The 99th percentile of latency.
    p99: u64,
    /// The range of the limit then.
    band: (u64, u64),
}

fn promise(name: &str) -> Promise {
    match name {
        "aimd" => Promise {
            keeps: 0.8,
            p99: 550 * MILLI,
            band: (50, 100),
        },
        "gradient2" => Promise {
            keeps: 0.93,
            p99: 200 * MILLI,
            band: (13, 30),
        },
        _ => Promise {
            keeps: 0.93,
            p99: 180 * MILLI,
            band: (11, 40),
        },
    }
}

/// Each adaptive limit with each seed.
fn for_each(mut check: impl FnMut(&str, &dyn Fn(&Scenario) -> RunOutcome, u64)) {
    for (name, control) in controls() {
        for seed in SEEDS {
            check(
                name,
                &|scenario: &Scenario| scenario.run(adaptive(control)),
                seed,
            );
        }
    }
}

#[test]
fn under_overload_each_keeps_its_share_of_the_peak_within_its_band() {
    for_each(|name, run, seed| {
        let Promise { keeps, p99, band } = promise(name);
        for load in [1.2, 2.0, 5.0] {
            let outcome = run(&Scenario::new([Stream::of(load * peak())], MINUTE).seed(seed));
            let (kept, slow) = (outcome.goodput(SETTLED) / peak(), outcome.p99(SETTLED));
            let (least, most) = outcome.band(SETTLED);
            assert!(kept >= keeps, "{name}, {load}, {seed}: kept {kept}");
            assert!(
                slow <= p99,
                "{name}, {load}, {seed}: p99 {} ms",
                slow / MILLI
            );
            assert!(
                least >= band.0 && most <= band.1,
                "{name}, {load}, {seed}: {least} to {most}"
            );
        }
    });
}

#[test]
fn below_the_peak_hardly_any_call_is_denied() {
    for_each(|name, run, seed| {
        for (load, least) in [(0.3, 0.9999), (0.5, 0.9999), (0.8, 0.98)] {
            let outcome = run(&Scenario::new([Stream::of(load * peak())], 2 * MINUTE).seed(seed));
            let served = outcome.served(0, 0..2 * MINUTE);
            assert!(served >= least, "{name}, {load}, {seed}: {served}");
        }
    });
}

#[test]
fn after_a_step_in_capacity_each_adapts_within_seconds() {
    // From 10 workers to 30, and from 30 to 5: 250, 750, 125 a second.
    let workers = Schedule::always(10).then(MINUTE, 30).then(2 * MINUTE, 5);
    let backend = Backend {
        workers,
        ..Backend::usual()
    };
    for_each(|name, run, seed| {
        let outcome = run(&Scenario::new([Stream::of(1_000.0)], 3 * MINUTE)
            .on(backend.clone())
            .seed(seed));
        for (step, within) in [(MINUTE, 5 * SECOND), (2 * MINUTE, 10 * SECOND)] {
            let peak = backend.peak(step);
            for second in (step + within..step + MINUTE - SECOND).step_by(5 * SECOND as usize) {
                let kept = outcome.goodput(second..second + 5 * SECOND) / peak;
                let least = if name == "aimd" { 0.75 } else { 0.85 };
                assert!(
                    kept >= least,
                    "{name}, {seed}: {kept} of {peak} at {} s",
                    second / SECOND
                );
            }
        }
    });
}

/// The service with a dependency that is slow for a while.
fn incident(slow: u64, from: u64, to: u64) -> Backend {
    let usual = Backend::usual();
    let work = Schedule::always(usual.work.at(0))
        .then(from, slow)
        .then(to, usual.work.at(0));
    Backend { work, ..usual }
}

#[test]
fn in_hours_of_an_incident_no_limit_drifts_up_and_all_recover() {
    const HOURS: u64 = 120 * MINUTE;
    // Every call takes eight times as long: 31 a second at best, and 200 a second are offered.
    let backend = incident(320 * MILLI, MINUTE, MINUTE + HOURS);
    let scenario = Scenario::new([Stream::of(200.0)], HOURS + 3 * MINUTE).on(backend.clone());
    for (name, control) in controls() {
        let outcome = scenario.run(adaptive(control));
        let (_, before) = outcome.band(MINUTE / 2..MINUTE);
        let settled = 5 * MINUTE..MINUTE + HOURS;
        let (least, most) = outcome.band(settled.clone());
        assert!(
            least >= MIN && most <= before,
            "{name}: {least} to {most}, and {before} before"
        );
        let early = outcome.goodput(5 * MINUTE..30 * MINUTE);
        let late = outcome.goodput(90 * MINUTE..115 * MINUTE);
        assert!(
            (late / early - 1.0).abs() < 0.05,
            "{name}: {early} early and {late} late"
        );
        // AIMD mistakes slow calls for overload, and goes down to its minimum.
        let keeps = if name == "aimd" { 0.5 } else { 0.85 };
        let kept = outcome.goodput(settled) / backend.peak(MINUTE);
        assert!(kept >= keeps, "{name}: {kept}");
        let over = MINUTE + HOURS + 10 * SECOND;
        let served = outcome.served(0, over..over + MINUTE);
        assert!(served >= 0.99, "{name}: {served} after it");
    }
}

#[test]
fn without_timely_answers_the_minimum_is_allowed_and_then_traffic_recovers() {
    let backend = incident(5 * SECOND, MINUTE, 11 * MINUTE);
    for_each(|name, run, seed| {
        let outcome = run(&Scenario::new([Stream::of(200.0)], 13 * MINUTE)
            .on(backend.clone())
            .seed(seed));
        let (least, _) = outcome.band(MINUTE..11 * MINUTE);
        assert_eq!(least, MIN, "{name}, {seed}");
        let admitted = outcome
            .between(2 * MINUTE..11 * MINUTE)
            .filter(|record| record.admitted)
            .count();
        assert!(admitted > 100, "{name}, {seed}: {admitted}");
        let over = 11 * MINUTE + 30 * SECOND;
        let served = outcome.served(0, over..over + MINUTE);
        assert!(served >= 0.99, "{name}, {seed}: {served} after it");
    });
}

#[test]
fn a_partition_keeps_its_guarantee_while_another_floods() {
    for (name, control) in controls() {
        for seed in SEEDS {
            // 60 a second need about 4 at once; the others offer ten times what the service can do.
            let scenario =
                Scenario::new([Stream::of(60.0), Stream::of(10.0 * peak())], MINUTE).seed(seed);
            let outcome = scenario.run(|clock| {
                let gate = ratekeeper::adaptive::AdaptiveConcurrency::builder()
                    .control(control)
                    .partition("live", 0.6)
                    .unwrap();
                PartitionedLimit::new(gate.build_with_clock(clock), &["live", ""])
            });
            let (served, all) = (
                outcome.served(0, SETTLED),
                outcome.goodput(SETTLED) / peak(),
            );
            assert!(served >= 0.97, "{name}, {seed}: {served}");
            assert!(all >= 0.75, "{name}, {seed}: {all} of the peak in all");
        }
    }
}

#[test]
fn with_very_uneven_work_gradient2_keeps_most_of_the_peak() {
    for seed in SEEDS {
        // The average work is unchanged.
        let streams = [
            Stream::of(4.5 * peak()).weighing(0.25),
            Stream::of(0.5 * peak()).weighing(7.75),
        ];
        let scenario = Scenario::new(streams, MINUTE).seed(seed);
        let kept = scenario.run(adaptive(controls()[1].1)).goodput(SETTLED) / peak();
        assert!(kept >= 0.8, "{seed}: {kept}");
    }
}
