//! Overload by class: which share of each class is served.

use ratekeeper::adaptive::Class;
use ratekeeper_sim::{
    Backend, MINUTE, RunOutcome, SECOND, Scenario, Schedule, Stream, classed, controls,
    four_classes, shed,
};
use std::ops::Range;

const SEEDS: Range<u64> = 1..4;
/// The flood starts after half a minute and lasts for a minute and a half.
const FLOOD: Range<u64> = 30 * SECOND..120 * SECOND;

fn peak() -> f64 {
    Backend::usual().peak(0)
}

/// Critical traffic, and sheddable at a tenth of the peak, then at ten times the peak, then at a
/// tenth again.
fn flooded(critical: f64, seed: u64) -> Scenario {
    let sheddable = Schedule::always(0.1)
        .then(FLOOD.start, 10.0)
        .then(FLOOD.end, 0.1);
    Scenario::new(
        four_classes(peak(), critical, sheddable),
        FLOOD.end + MINUTE,
    )
    .seed(seed)
}

/// How often it turned from shedding more to shedding less.
fn reversals(outcome: &RunOutcome) -> usize {
    let (mut reversals, mut rising, mut last) = (0, false, 0.0);
    for sample in &outcome.limit_samples {
        if sample.level < last && rising {
            reversals += 1;
        }
        if sample.level != last {
            rising = sample.level > last;
        }
        last = sample.level;
    }
    reversals
}

#[test]
fn critical_traffic_loses_under_1_percent_while_ten_times_the_peak_of_sheddable_is_offered() {
    for (name, control) in controls() {
        for (seed, critical) in SEEDS.flat_map(|seed| [(seed, 0.3), (seed, 0.5)]) {
            let outcome = flooded(critical, seed).run(classed(control, &Class::ALL));
            // From the first moment on: nothing has to be learned first.
            for stream in [0, 1] {
                let lost = 1.0 - outcome.served(stream, FLOOD);
                assert!(
                    lost < 0.01,
                    "{name}, {seed}: {lost} of {} lost at {critical}",
                    Class::ALL[stream]
                );
            }
            let least = if name == "aimd" { 0.8 } else { 0.93 };
            let kept = outcome.goodput(FLOOD) / peak();
            assert!(kept >= least, "{name}, {seed}: {kept} of the peak in all");
        }
    }
}

#[test]
fn the_lower_a_class_the_more_of_it_is_shed_and_most_of_it_comes_back() {
    for (name, control) in controls() {
        for seed in SEEDS {
            let outcome = flooded(0.3, seed).run(classed(control, &Class::ALL));
            let [highest, critical, plus, lowest] =
                [0, 1, 2, 3].map(|stream| outcome.served(stream, FLOOD));
            assert!(
                critical > plus && plus > lowest,
                "{name}, {seed}: {highest} {critical} {plus} {lowest}"
            );
            // All together are nine tenths of the peak again.
            let after = [0, 1, 2, 3]
                .map(|stream| outcome.served(stream, FLOOD.end + 30 * SECOND..FLOOD.end + MINUTE));
            assert!(
                after[2] > 0.9 && after[3] > 0.5,
                "{name}, {seed}: {after:?}"
            );
        }
    }
}

#[test]
fn close_to_the_peak_the_lowest_class_loses_about_one_in_ten_and_the_others_hardly_any() {
    let control = controls()[1].1;
    let each = Stream::of(0.9 * peak() / 4.0);
    let scenario = |seed| Scenario::new(vec![each.clone(); 4], 80 * SECOND).seed(seed);
    let runs: Vec<_> = SEEDS
        .map(|seed| scenario(seed).run(classed(control, &Class::ALL)))
        .collect();
    for (stream, least) in [(0, 0.99), (1, 0.99), (2, 0.98), (3, 0.87)] {
        let served = runs
            .iter()
            .map(|run| run.served(stream, 20 * SECOND..80 * SECOND))
            .sum::<f64>()
            / runs.len() as f64;
        assert!(served >= least, "{}: {served}", Class::ALL[stream]);
    }
}

#[test]
fn when_critical_traffic_alone_is_an_overload_the_highest_class_is_served() {
    for (name, control) in controls() {
        for seed in SEEDS {
            // 0.6 of the peak of the highest class, and 1.5 of the next.
            let streams = [Stream::of(0.6 * peak()), Stream::of(1.5 * peak())];
            let outcome = Scenario::new(streams, 2 * MINUTE)
                .seed(seed)
                .run(classed(control, &Class::ALL[..2]));
            let when = 10 * SECOND..2 * MINUTE;
            let (served, kept) = (
                outcome.served(0, when.clone()),
                outcome.goodput(when) / peak(),
            );
            assert!(served > 0.96, "{name}, {seed}: {served}");
            assert!(
                kept > if name == "aimd" { 0.8 } else { 0.93 },
                "{name}, {seed}: {kept}"
            );
        }
    }
}

#[test]
fn a_shedder_alone_protects_critical_traffic_after_a_delay_and_does_not_flap() {
    for seed in SEEDS {
        let outcome = flooded(0.3, seed).run(shed(&Class::ALL));
        // It detects the flood by latency, and by then there is a queue, which takes a while to
        // drain.
        let when = FLOOD.start + 30 * SECOND..FLOOD.end;
        for stream in [0, 1] {
            let lost = 1.0 - outcome.served(stream, when.clone());
            assert!(lost < 0.02, "{seed}: {lost} of {} lost", Class::ALL[stream]);
        }
        let minutes = (FLOOD.end + MINUTE).div_ceil(MINUTE) as usize;
        assert!(
            (1..=12 * minutes).contains(&reversals(&outcome)),
            "{seed}: {} times",
            reversals(&outcome)
        );
    }
}
