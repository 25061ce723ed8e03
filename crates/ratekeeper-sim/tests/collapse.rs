//! Goodput without an adaptive limit: the baseline for the others.

use ratekeeper::ManualClock;
use ratekeeper_sim::{
    AdmissionControl, Backend, MINUTE, NoLimit, SECOND, Scenario, Schedule, Stream, adaptive,
    controls, fixed,
};

const SETTLED: std::ops::Range<u64> = 20 * SECOND..MINUTE;

fn at<G: AdmissionControl>(load: f64, gate: impl FnOnce(ManualClock) -> G) -> f64 {
    let peak = Backend::usual().peak(0);
    Scenario::new([Stream::of(load * peak)], MINUTE)
        .run(gate)
        .goodput(SETTLED)
        / peak
}

#[test]
fn without_a_limit_goodput_collapses_above_the_peak() {
    assert!(at(0.8, |_| NoLimit) > 0.79);
    for load in [1.5, 5.0] {
        let goodput = at(load, |_| NoLimit);
        assert!(goodput < 0.01, "{goodput} at {load}");
    }
}

#[test]
fn the_right_fixed_limit_keeps_the_peak_and_a_wrong_one_does_not() {
    for (limit, least, most) in [(20, 0.95, 1.05), (4, 0.35, 0.45), (400, 0.0, 0.05)] {
        let goodput = at(5.0, fixed(limit));
        assert!((least..most).contains(&goodput), "{goodput} with {limit}");
    }
}

#[test]
fn a_fixed_limit_that_was_right_is_wrong_once_a_dependency_is_slow() {
    let slow = Backend {
        work: Schedule::always(320_000_000),
        ..Backend::usual()
    };
    let run = Scenario::new([Stream::of(250.0)], MINUTE).on(slow.clone());
    let (right, wrong) = (
        run.run(fixed(10)).goodput(SETTLED),
        run.run(fixed(40)).goodput(SETTLED),
    );
    assert!(
        right > 0.9 * slow.peak(0) && wrong < 0.1 * slow.peak(0),
        "{right} {wrong}"
    );
}

#[test]
fn a_run_is_the_same_every_time() {
    let run = Scenario::new(
        [Stream::of(300.0).retrying(2), Stream::of(50.0)],
        10 * SECOND,
    );
    let told = || format!("{:?}", run.run(fixed(20)));
    assert_eq!(told(), told());
}

#[test]
fn without_a_limit_retries_keep_a_service_down_long_after_a_spike() {
    // Six tenths of the peak; for ten seconds it is three times the peak.
    let rate = Schedule::always(150.0)
        .then(MINUTE, 750.0)
        .then(MINUTE + 10 * SECOND, 150.0);
    let run = Scenario::new([Stream::planned(rate).retrying(2)], 5 * MINUTE);
    let after = |from: u64| from..from + 30 * SECOND;
    let open = run.run(|_| NoLimit);
    assert!(
        open.goodput(after(4 * MINUTE)) < 15.0,
        "{}",
        open.goodput(after(4 * MINUTE))
    );
    for (name, control) in controls() {
        let limited = run
            .run(adaptive(control))
            .goodput(after(MINUTE + 15 * SECOND));
        assert!(limited > 140.0, "{name}: {limited}");
    }
}
