//! The measured tables of docs/overload.md.

use super::{
    AIMD, FLOOD, INCIDENT, SETTLED, STEPS, USUAL, Way, flood, in_bursts, incident, peak, steady,
    steps, uneven,
};
use crate::tables::Table;
use ratekeeper::adaptive::Class;
use ratekeeper_sim::{MILLI, MINUTE, RunOutcome, SECOND, Scenario};

pub(crate) fn all() -> Vec<Table> {
    vec![gates(), followed(), classes(), queues()]
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// So many runs by another chance each.
const RUNS: u64 = 5;

fn mean(way: Way, scenario: fn(u64) -> Scenario, of: impl Fn(&RunOutcome) -> f64) -> f64 {
    (1..=RUNS)
        .map(|seed| of(&way.run(&scenario(seed))))
        .sum::<f64>()
        / RUNS as f64
}

fn gates() -> Table {
    let ways = [Way::NoLimit, Way::Fixed(20), Way::Fixed(40), AIMD, USUAL];
    let slow = incident();
    let row = |way: Way| {
        let at = |load: f64| percent(steady(load, way).goodput(SETTLED) / peak());
        let p99 = match steady(5.0, way).p99(SETTLED) / MILLI {
            1_000.. => "over 1 s".to_string(),
            millis => format!("{millis} ms"),
        };
        let uneven = percent(mean(way, uneven, |run| run.goodput(20 * SECOND..MINUTE)) / peak());
        let run = way.run(&slow);
        let within =
            run.goodput(INCIDENT.start + MINUTE..INCIDENT.end) / slow.backend.peak(INCIDENT.start);
        let after = run.served(0, INCIDENT.end + 10 * SECOND..INCIDENT.end + MINUTE);
        vec![
            way.name(),
            at(0.8),
            at(1.2),
            at(5.0),
            p99,
            uneven,
            percent(within),
            percent(after),
        ]
    };
    Table::new(
        "overload",
        "Answered in time, as a share of what the service can do at best",
        &[
            "",
            "load 0.8×",
            "1.2×",
            "5×",
            "p99 at 5×",
            "5×, uneven work",
            "in an incident",
            "after it, share of offered",
        ],
        ways.map(row).into(),
    )
}

/// After how long a run has what it should have, over a second.
fn reached(run: &RunOutcome, step: u64, goal: f64) -> String {
    let there = |after: &u64| run.goodput(step + after..step + after + SECOND) >= goal;
    match (0..30 * SECOND).step_by(100 * MILLI as usize).find(there) {
        Some(after) => format!("{:.1} s", after as f64 / SECOND as f64),
        None => "not in 30 s".into(),
    }
}

fn followed() -> Table {
    let scenario = steps();
    let row = |way: Way| {
        let run = way.run(&scenario);
        let goal = |step: u64| 0.85 * scenario.backend.peak(step);
        let mut cells = vec![way.name()];
        cells.extend(STEPS.map(|step| reached(&run, step, goal(step))));
        let settled =
            [0, STEPS[0], STEPS[1]].map(|from| run.band(from + 20 * SECOND..from + 30 * SECOND));
        cells.extend(settled.map(|(least, most)| format!("{least} to {most}")));
        cells
    };
    Table::new(
        "steps",
        "After a step in capacity: when 85 % of what is possible is answered in time, and the limits",
        &[
            "",
            "reached after 10 → 30",
            "after 30 → 5",
            "limit at 10 workers",
            "at 30",
            "at 5",
        ],
        [Way::Fixed(20), AIMD, USUAL].map(row).into(),
    )
}

fn classes() -> Table {
    let row = |(way, name): (Way, &str)| {
        let runs: Vec<_> = (1..=RUNS)
            .map(|seed| way.run(&flood().seed(seed)))
            .collect();
        let mean = |of: &dyn Fn(&RunOutcome) -> f64| runs.iter().map(of).sum::<f64>() / RUNS as f64;
        let mut cells = vec![name.to_string()];
        let served = |stream| format!("{:.1} %", 100.0 * mean(&|run| run.served(stream, FLOOD)));
        cells.extend((0..Class::ALL.len()).map(served));
        cells.push(percent(mean(&|run| run.goodput(FLOOD)) / peak()));
        cells
    };
    let mut head = vec![""];
    head.extend(Class::ALL.iter().map(|class| class.name()));
    head.push("total, share of peak");
    Table::new(
        "classes",
        "Answered in time under the flood, as a share of what is offered",
        &head,
        [
            (Way::NoLimit, "no limit"),
            (USUAL, "gradient2, without classes"),
            (Way::ClassedLimit, "gradient2, with classes"),
            (Way::Shed, "a shedder alone, by latency"),
        ]
        .map(row)
        .into(),
    )
}

fn queues() -> Table {
    let row = |way: Way| {
        let served = mean(way, in_bursts, |run| run.served(0, 20 * SECOND..MINUTE));
        let slow = mean(way, in_bursts, |run| run.p99(20 * SECOND..MINUTE) as f64);
        let overload = steady(5.0, way);
        let millis = |nanos: f64| format!("{:.0} ms", (nanos / MILLI as f64).floor());
        let (of_peak, p99) = (
            overload.goodput(SETTLED) / peak(),
            overload.p99(SETTLED) as f64,
        );
        vec![
            way.name(),
            percent(served),
            millis(slow),
            percent(of_peak),
            millis(p99),
        ]
    };
    Table::new(
        "queue",
        "Bursts with and without a queue",
        &[
            "",
            "in bursts: answered in time, share of offered",
            "p99",
            "5× the peak: answered, share of peak",
            "p99",
        ],
        [USUAL, Way::QueuedLimit].map(row).into(),
    )
}
