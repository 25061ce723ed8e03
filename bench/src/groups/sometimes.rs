//! `Sometimes` when it skips, beside Go's own where Go is installed.

use super::Group;
use crate::go;
use crate::harness::{self, Contestant};
use crate::report::{Bound, Findings, Goal, Ratio, Row, object, table};
use ratekeeper::Sometimes;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

pub(super) const GROUP: Group = Group {
    name: "sometimes",
    about: "ns of a call that is skipped, one thread; in brackets ours / Go's",
    run,
};

const OURS: &str = "ratekeeper";
const GO: &str = "Go's Sometimes";

/// The setting that the Go program has too.
const EVERY: &str = "every 1000000000";

fn run(group: &'static str) -> Findings {
    let from_go = go::Program::build().and_then(|program| program.run());
    let go = from_go
        .as_ref()
        .ok()
        .and_then(|figures| figures.get("sometimes").copied());
    let settings = [
        ("first 10", Sometimes::new().first(10)),
        (EVERY, Sometimes::new().every(1_000_000_000)),
        (
            "every hour",
            Sometimes::new().interval(Duration::from_secs(3_600)),
        ),
    ];
    let contestants = settings.map(|(name, sometimes)| {
        let sometimes = Arc::new(sometimes);
        // Past the first runs.
        for _ in 0..=10 {
            let _ = sometimes.run(|| ());
        }
        Contestant::new(name, move || sometimes.run(|| ()).is_none())
    });
    let nanos = harness::one_thread(&contestants);

    let mut found = Findings::default();
    let mut lines = Vec::new();
    for (contestant, ours) in contestants.iter().zip(nanos) {
        let theirs = go.filter(|_| contestant.name == EVERY);
        let ratio = theirs.map(|theirs| ours / theirs);
        let beside = ratio.map_or(String::new(), |ratio| format!(" ({ratio:.2})"));
        lines.push(vec![contestant.name.clone(), format!("{ours:.1}{beside}")]);
        let row = |competitor: &str, value, ratio_to| Row {
            group,
            row: format!("{}, skips, 1 thread", contestant.name),
            competitor: competitor.into(),
            value,
            unit: "ns",
            ratio_to,
            params: object(json!({ "threads": 1 })),
        };
        let to_go = ratio.map(|ratio| Ratio {
            competitor: GO.into(),
            ratio,
        });
        found.rows.push(row(OURS, ours, to_go));
        found
            .rows
            .extend(theirs.map(|theirs| row(GO, theirs, None)));
        if contestant.name == EVERY {
            found.goals.push(Goal {
                text: format!("Sometimes that skips ({EVERY}), 1 thread: ratekeeper / Go's own"),
                bound: Bound::AtMost(1.0),
                measured: ratio,
                because: "the Go row was skipped",
            });
        }
    }
    println!("{}\n", table(&["", OURS], lines.into_iter()));
    if let Err(error) = from_go {
        println!("The Go row is skipped: {error}\n");
    }
    found
}
