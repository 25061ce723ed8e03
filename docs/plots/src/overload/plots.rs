//! The plots of docs/overload.md.

use super::draw::{line, names};
use super::{
    AIMD, FLOOD, INCIDENT, SETTLED, STEPS, USUAL, Way, flood, incident, peak, steady, steps,
};
use crate::plots::legend;
use crate::svg::{Anchor, Frame, INK, MUTED, OFFERED, Svg};
use ratekeeper::adaptive::Class;
use ratekeeper_sim::{MILLI, RunOutcome, SECOND};

pub(crate) fn all() -> Vec<(String, String)> {
    [
        ("overload", loads()),
        ("overload_steps", capacity()),
        ("overload_incident", slow()),
        ("overload_classes", classes()),
    ]
    .map(|(name, svg)| (format!("{name}.svg"), svg))
    .into()
}

const WIDTH: f64 = 880.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 84.0;

fn frame(y: f64, height: f64, to: u64, top: u64) -> Frame {
    Frame {
        x: LEFT,
        y,
        width: WIDTH - LEFT - RIGHT,
        height,
        from: 0,
        to,
        top,
    }
}

fn labels(values: impl IntoIterator<Item = u64>, unit: &str) -> Vec<(u64, String)> {
    values
        .into_iter()
        .map(|value| (value, format!("{value}{unit}")))
        .collect()
}

fn times(to: u64, step: u64) -> Vec<(u64, String)> {
    (0..=to / SECOND)
        .step_by(step as usize)
        .map(|s| (s * SECOND, format!("{s} s")))
        .collect()
}

/// Loads are counted in hundredths of the peak.
const LOADS: [u64; 13] = [25, 50, 75, 90, 100, 110, 125, 150, 200, 250, 300, 400, 500];

fn loads() -> String {
    let ways = [Way::NoLimit, Way::Fixed(40), AIMD, USUAL, Way::ClassedLimit];
    let mut svg = Svg::new(WIDTH, 520.0);
    svg.title(
        20.0,
        32.0,
        18,
        "Goodput and latency of a service as the offered load grows",
    );
    svg.note(
        20.0,
        54.0,
        Anchor::Start,
        "10 workers, 40 ms a call: 250 a second at best; clients leave after a second",
    );
    names(&mut svg, 80.0, &ways);
    let (above, below) = (
        frame(116.0, 170.0, 500, 300),
        frame(322.0, 150.0, 500, 1_100),
    );
    let at: Vec<_> = (0..=5)
        .map(|n| (n * 100, if n == 0 { "0".into() } else { format!("{n}×") }))
        .collect();
    svg.note(20.0, 108.0, Anchor::Start, "answered in time, a second");
    above.axes(&mut svg, &at, false, &labels([0, 100, 200, 300], ""));
    above.mark(&mut svg, peak() as u64, MUTED, "peak");
    let values: Vec<_> = [0, 250, 500, 750]
        .map(|n| (n, format!("{n} ms")))
        .into_iter()
        .chain([(1_000, "1 s".into())])
        .collect();
    svg.note(
        20.0,
        314.0,
        Anchor::Start,
        "p99 latency of the calls that were allowed",
    );
    below.axes(&mut svg, &at, true, &values);
    below.mark(&mut svg, 1_000, MUTED, "client left");
    svg.note(
        above.right(),
        506.0,
        Anchor::End,
        "offered load, in multiples of the peak",
    );
    for way in ways {
        let runs: Vec<_> = LOADS
            .iter()
            .map(|load| (*load, steady(*load as f64 / 100.0, way)))
            .collect();
        line(
            &mut svg,
            above,
            runs.iter()
                .map(|(load, run)| (*load, run.goodput(SETTLED) as u64)),
            way.color(),
        );
        line(
            &mut svg,
            below,
            runs.iter()
                .map(|(load, run)| (*load, run.p99(SETTLED) / MILLI)),
            way.color(),
        );
    }
    svg.finish(
        "Goodput and p99 over offered load: without a limit, with a fixed one, with each adaptive one, with classes",
    )
}

/// What was answered in time, a second, of the calls that came in each slice of time.
fn answered(run: &RunOutcome, slice: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..to / slice).map(move |n| {
        (
            n * slice + slice / 2,
            run.goodput(n * slice..(n + 1) * slice) as u64,
        )
    })
}

/// The limit over time above, what is answered in time below.
fn through_time(
    svg: &mut Svg,
    scenario: &ratekeeper_sim::Scenario,
    above: Frame,
    below: Frame,
    slice: u64,
    ways: &[Way],
) {
    let to = scenario.length;
    // The peak as it is at each time, as a grey area.
    let peaks: Vec<_> = (0..=to / SECOND)
        .map(|s| (s * SECOND, scenario.backend.peak(s * SECOND) as u64))
        .collect();
    svg.path(
        &below.area(&peaks, 0),
        &format!(r#"fill="{OFFERED}" fill-opacity="0.45""#),
    );
    for way in ways {
        let run = way.run(scenario);
        if *way != Way::NoLimit {
            let limits = run
                .limit_samples
                .iter()
                .filter(|look| !look.probing)
                .map(|look| (look.at, look.limit));
            line(svg, above, limits, way.color());
        }
        line(svg, below, answered(&run, slice, to), way.color());
    }
}

fn capacity() -> String {
    let (scenario, ways) = (steps(), [Way::Fixed(20), AIMD, USUAL]);
    let mut svg = Svg::new(WIDTH, 500.0);
    svg.title(
        20.0,
        32.0,
        18,
        "Limits that follow a service from 10 workers to 30, and to 5",
    );
    svg.note(
        20.0,
        54.0,
        Anchor::Start,
        "1,000 calls a second are offered all the time",
    );
    names(&mut svg, 80.0, &ways);
    let (above, below) = (
        frame(116.0, 150.0, scenario.length, 180),
        frame(302.0, 160.0, scenario.length, 800),
    );
    let at = times(scenario.length, 10);
    svg.note(20.0, 108.0, Anchor::Start, "the limit (grey: workers)");
    above.axes(&mut svg, &at, false, &labels([0, 50, 100, 150], ""));
    let workers = [(0, 10), (STEPS[0], 30), (STEPS[1], 5)];
    svg.path(
        &above.area(&workers, 0),
        &format!(r#"fill="{OFFERED}" fill-opacity="0.45""#),
    );
    svg.note(
        20.0,
        294.0,
        Anchor::Start,
        "answered in time, a second (grey: the most the service can do)",
    );
    below.axes(&mut svg, &at, true, &labels([0, 200, 400, 600, 800], ""));
    through_time(&mut svg, &scenario, above, below, 2 * SECOND, &ways);
    svg.finish("Limit and goodput through steps in the capacity of a service")
}

fn slow() -> String {
    let (scenario, ways) = (incident(), [Way::NoLimit, Way::Fixed(40), AIMD, USUAL]);
    let mut svg = Svg::new(WIDTH, 540.0);
    svg.title(
        20.0,
        32.0,
        18,
        "An incident: for five minutes every call takes eight times as long",
    );
    svg.note(
        20.0,
        54.0,
        Anchor::Start,
        "200 calls a second are offered all the time, by clients that leave after a second",
    );
    names(&mut svg, 80.0, &ways);
    let (above, below) = (
        frame(116.0, 120.0, scenario.length, 80),
        frame(272.0, 230.0, scenario.length, 230),
    );
    let at = times(scenario.length, 60);
    svg.note(20.0, 108.0, Anchor::Start, "the limit");
    above.axes(&mut svg, &at, false, &labels([0, 20, 40, 60, 80], ""));
    svg.note(
        20.0,
        264.0,
        Anchor::Start,
        "answered in time, a second (grey: the most the service can do)",
    );
    below.axes(&mut svg, &at, true, &labels([0, 50, 100, 150, 200], ""));
    through_time(&mut svg, &scenario, above, below, 5 * SECOND, &ways);
    // Over the lines: from when to when.
    for (frame, name) in [(above, "slow"), (below, "")] {
        for at in [INCIDENT.start, INCIDENT.end] {
            let x = frame.at(at);
            svg.line(
                [x, frame.y],
                [x, frame.bottom()],
                &format!(r#"stroke="{MUTED}" stroke-dasharray="4 3""#),
            );
        }
        let middle = (frame.at(INCIDENT.start) + frame.at(INCIDENT.end)) / 2.0;
        svg.note(middle, frame.y + 14.0, Anchor::Middle, name);
    }
    svg.finish("Limit and goodput through an incident")
}

/// From the most important to the least.
const CLASSES: [&str; 4] = ["#8250df", "#2f6fdb", "#1a7f4b", "#b35900"];

fn classes() -> String {
    const SLICE: u64 = 2 * SECOND;
    let scenario = flood();
    let mut svg = Svg::new(WIDTH, 470.0);
    svg.title(
        20.0,
        32.0,
        18,
        "Calls answered while sheddable calls arrive at ten times the peak",
    );
    let note = "critical_plus and critical are 15 % of the peak each, sheddable_plus is 50 %, sheddable 10 % and then 1000 %";
    svg.note(20.0, 54.0, Anchor::Start, note);
    let mut x = 20.0;
    for (class, color) in Class::ALL.iter().zip(CLASSES) {
        legend(&mut svg, x, 80.0, &[(color, 0.0, class.name())]);
        x += 44.0 + 7.0 * class.name().len() as f64;
    }
    for (i, (way, name)) in [
        (USUAL, "gradient2, without classes"),
        (Way::ClassedLimit, "gradient2, with classes"),
    ]
    .iter()
    .enumerate()
    {
        let frame = frame(120.0 + 172.0 * i as f64, 130.0, scenario.length, 100);
        svg.text(
            20.0,
            frame.y - 10.0,
            13,
            Anchor::Start,
            &format!(r#"fill="{INK}" font-weight="600""#),
            name,
        );
        svg.note(
            frame.right(),
            frame.y - 10.0,
            Anchor::End,
            "answered in time, of what is offered",
        );
        frame.axes(
            &mut svg,
            &times(scenario.length, 10),
            i == 1,
            &labels([0, 50, 100], " %"),
        );
        svg.path(
            &frame.area(&[(FLOOD.start, 100), (FLOOD.end, 0)], 0),
            &format!(r#"fill="{OFFERED}" fill-opacity="0.3""#),
        );
        svg.note(
            frame.at(FLOOD.start) + 8.0,
            frame.y + 72.0,
            Anchor::Start,
            "ten times the peak",
        );
        let run = way.run(&scenario);
        // The most important is drawn last, on top.
        for (stream, color) in CLASSES.iter().enumerate().rev() {
            let share = |n: u64| (run.served(stream, n * SLICE..(n + 1) * SLICE) * 100.0) as u64;
            line(
                &mut svg,
                frame,
                (0..scenario.length / SLICE).map(|n| (n * SLICE + SLICE / 2, share(n))),
                color,
            );
        }
    }
    svg.finish("Calls answered in time by class under a flood, without and with classes")
}
