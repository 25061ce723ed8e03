//! docs/overload.md: a service under too much load, behind each gate, by the simulator of the
//! tests.

mod draw;
mod plots;
mod tables;

pub(crate) use plots::all as plots;
pub(crate) use tables::all as tables;

use crate::svg::{ADMITTED, OVER};
use ratekeeper::adaptive::Class;
use ratekeeper_sim::{
    Backend, MILLI, MINUTE, NoLimit, RunOutcome, SECOND, Scenario, Schedule, Stream, adaptive,
    burst_load, classed, controls, fixed, four_classes, queued, shed,
};
use std::ops::Range;

/// What stands in front of the service.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    NoLimit,
    Fixed(u64),
    /// One of the adaptive limits, by its place among them.
    Adaptive(usize),
    /// Gradient2 with a short queue.
    QueuedLimit,
    /// Gradient2 that knows the class of each call.
    ClassedLimit,
    /// A shedder alone, by latency.
    Shed,
}

const GRADIENT2: usize = 1;
const AIMD: Way = Way::Adaptive(0);
const USUAL: Way = Way::Adaptive(GRADIENT2);

impl Way {
    fn run(self, scenario: &Scenario) -> RunOutcome {
        match self {
            Self::NoLimit => scenario.run(|_| NoLimit),
            Self::Fixed(limit) => scenario.run(fixed(limit)),
            Self::Adaptive(which) => scenario.run(adaptive(controls()[which].1)),
            Self::QueuedLimit => scenario.run(queued(controls()[GRADIENT2].1, 100)),
            Self::ClassedLimit => scenario.run(classed(controls()[GRADIENT2].1, &Class::ALL)),
            Self::Shed => scenario.run(shed(&Class::ALL)),
        }
    }

    fn name(self) -> String {
        match self {
            Self::NoLimit => "no limit".into(),
            Self::Fixed(limit) => format!("fixed, {limit}"),
            Self::Adaptive(which) => controls()[which].0.into(),
            Self::QueuedLimit => "gradient2, `queue = 100`".into(),
            Self::ClassedLimit => "gradient2, classes".into(),
            Self::Shed => "a shedder alone".into(),
        }
    }

    fn color(self) -> &'static str {
        match self {
            Self::NoLimit => OVER,
            Self::Fixed(_) => "#7d8894",
            AIMD => "#b35900",
            USUAL => ADMITTED,
            Self::Adaptive(_) => "#1a7f4b",
            Self::QueuedLimit => "#0969da",
            Self::ClassedLimit => "#8250df",
            Self::Shed => "#bf3989",
        }
    }
}

/// Answers a second at best.
fn peak() -> f64 {
    Backend::usual().peak(0)
}

/// When a run at a steady load has settled.
const SETTLED: Range<u64> = 20 * SECOND..50 * SECOND;

/// So many times the peak, of one kind of call; with classes it is a quarter of each, so that they
/// are compared.
fn steady(load: f64, way: Way) -> RunOutcome {
    let streams = match way {
        Way::ClassedLimit | Way::Shed => vec![Stream::of(load * peak() / 4.0); 4],
        _ => vec![Stream::of(load * peak())],
    };
    way.run(&Scenario::new(streams, SETTLED.end))
}

/// The mean is as ever, but one call in ten is thirty times the work of the others.
fn uneven(seed: u64) -> Scenario {
    let streams = [
        Stream::of(4.5 * peak()).weighing(0.25),
        Stream::of(0.5 * peak()).weighing(7.75),
    ];
    Scenario::new(streams, MINUTE).seed(seed)
}

/// When the service gets three times as many workers, and a sixth of those.
const STEPS: [u64; 2] = [30 * SECOND, 70 * SECOND];

fn steps() -> Scenario {
    let workers = Schedule::always(10).then(STEPS[0], 30).then(STEPS[1], 5);
    Scenario::new([Stream::of(1_000.0)], 110 * SECOND).on(Backend {
        workers,
        ..Backend::usual()
    })
}

/// When a dependency makes every call take eight times as long.
const INCIDENT: Range<u64> = MINUTE..6 * MINUTE;

fn incident() -> Scenario {
    let work = Schedule::always(40 * MILLI)
        .then(INCIDENT.start, 320 * MILLI)
        .then(INCIDENT.end, 40 * MILLI);
    Scenario::new([Stream::of(200.0)], 8 * MINUTE).on(Backend {
        work,
        ..Backend::usual()
    })
}

/// When sheddable calls come at ten times the peak.
const FLOOD: Range<u64> = 20 * SECOND..80 * SECOND;

fn flood() -> Scenario {
    let sheddable = Schedule::always(0.1)
        .then(FLOOD.start, 10.0)
        .then(FLOOD.end, 0.1);
    Scenario::new(four_classes(peak(), 0.3, sheddable), 100 * SECOND)
}

/// Half of the peak on average, in bursts.
fn in_bursts(seed: u64) -> Scenario {
    Scenario::new([Stream::planned(burst_load(peak(), MINUTE))], MINUTE).seed(seed)
}
