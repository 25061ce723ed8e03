//! `Sometimes` when it skips, beside a line-by-line port of Go's with a Mutex, and Go's own where
//! Go is installed.

use super::Group;
use crate::go;
use crate::harness::{self, Contestant};
use crate::peers::mutex_sometimes;
use crate::report::{Bound, Findings, Goal, Ratio, Row, object, table};
use ratekeeper::Sometimes;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

pub(super) const GROUP: Group = Group {
    name: "sometimes",
    about: "ns of a call that is skipped, and thread; in brackets ours / theirs",
    run,
};

const HOUR: Duration = Duration::from_secs(3_600);

/// The settings: first, every, interval, and the name of the Go program's value.
const SETTINGS: [(&str, u32, u32, Duration, Option<&str>); 3] = [
    ("first 10", 10, 0, Duration::ZERO, None),
    (
        "every 1000000000",
        0,
        1_000_000_000,
        Duration::ZERO,
        Some("sometimes"),
    ),
    ("every hour", 0, 0, HOUR, None),
];

fn run(group: &'static str) -> Findings {
    let mut found = Findings::default();
    let mut lines = Vec::new();
    let from_go = go::Program::build().and_then(|program| program.run());
    for (name, first, every, interval, figure) in SETTINGS {
        let ours = Arc::new(
            Sometimes::new()
                .first(first)
                .every(every)
                .interval(interval),
        );
        let port = Arc::new(mutex_sometimes::Sometimes::new(
            first.into(),
            every.into(),
            interval,
        ));
        // Past the first runs.
        for _ in 0..=first {
            let _ = (ours.run(|| ()), port.run(|| ()));
        }
        let contestants = [
            Contestant::new("ratekeeper", move || ours.run(|| ()).is_none()),
            Contestant::new("a Mutex port of Go's", move || !port.run(|| ())),
        ];
        let one = harness::one_thread(&contestants);
        let two: Vec<f64> = harness::two_threads(&contestants)
            .iter()
            .map(|both| both.quartile)
            .collect();
        let go = figure.and_then(|figure| from_go.as_ref().ok()?.get(figure).copied());
        let mut line = vec![name.to_owned()];
        for (threads, nanos) in [(1, &one), (2, &two)] {
            line.extend([
                format!("{:.1}", nanos[0]),
                format!("{:.1} ({:.2})", nanos[1], nanos[0] / nanos[1]),
            ]);
            for (at, contestant) in contestants.iter().enumerate() {
                found.rows.push(Row {
                    group,
                    row: format!(
                        "{name}, skips, {threads} thread{}",
                        if threads == 1 { "" } else { "s" }
                    ),
                    competitor: contestant.name.clone(),
                    value: nanos[at],
                    unit: "ns",
                    ratio_to: Some(Ratio {
                        competitor: contestants[1 - at].name.clone(),
                        ratio: nanos[at] / nanos[1 - at],
                    }),
                    params: object(json!({ "threads": threads })),
                });
            }
            found.goals.push(Goal {
                text: format!("Sometimes that skips ({name}), {threads} thread(s): ratekeeper / a Mutex port of Go's"),
                bound: Bound::AtMost(1.0),
                measured: Some(nanos[0] / nanos[1]),
                because: "",
            });
        }
        line.push(go.map_or("–".into(), |go| format!("{go:.1} ({:.2})", one[0] / go)));
        if let Some(value) = go {
            found.rows.push(Row {
                group,
                row: format!("{name}, skips, 1 thread"),
                competitor: "Go's Sometimes".into(),
                value,
                unit: "ns",
                ratio_to: Some(Ratio {
                    competitor: "ratekeeper".into(),
                    ratio: value / one[0],
                }),
                params: object(json!({ "threads": 1 })),
            });
            found.goals.push(Goal {
                text: format!("Sometimes that skips ({name}), 1 thread: ratekeeper / Go's own"),
                bound: Bound::AtMost(1.0),
                measured: Some(one[0] / value),
                because: "",
            });
        }
        lines.push(line);
    }
    let header = [
        "",
        "ratekeeper\n1 thread",
        "Mutex port\n1 thread",
        "ratekeeper\n2 threads",
        "Mutex port\n2 threads",
        "Go\n1 thread",
    ];
    println!("{}\n", table(&header, lines.into_iter()));
    if let Err(error) = from_go {
        println!("The Go row is skipped: {error}\n");
    }
    found
}
