//! A decision by policies: the cost of their number, beside the store alone on the same three asks.

use super::Group;
use crate::harness::{self, Contestant};
use crate::policies::{SIZES, engine, path, subject, wide};
use crate::report::{Bound, Findings, Goal, Ratio, Row, object, table};
use ratekeeper::{Ask, Clock, MemoryStore, clock::SystemClock};
use serde_json::json;

pub(super) const GROUP: Group = Group {
    name: "policies",
    about: "ns of a decision in memory, 1 thread",
    run,
};

const THREE_APPLY: &str = "three of them apply";
const NONE_APPLIES: &str = "two of them apply: matching and little else";

fn run(group: &'static str) -> Findings {
    let deciding = |path: &dyn Fn(usize) -> String| -> Vec<f64> {
        let contestants = SIZES.map(|size| {
            let (engine, path) = (engine(size), path(size));
            Contestant::new(format!("{size} policies"), move || {
                engine.decide_now(&subject(&path)).is_allowed()
            })
        });
        harness::one_thread(&contestants)
    };
    let three = deciding(&path);
    let few = deciding(&|_| "/nothing/that/has/a/policy".to_owned());
    let alone = harness::one_thread(&[store_alone()])[0];

    let mut found = Findings::default();
    let mut lines = Vec::new();
    for (row, nanos) in [(THREE_APPLY, &three), (NONE_APPLIES, &few)] {
        let mut line = vec![row.to_owned()];
        for (at, size) in SIZES.iter().enumerate() {
            line.push(format!("{:.0}", nanos[at]));
            found.rows.push(Row {
                group,
                row: format!("decide, {row}"),
                competitor: format!("{size} policies"),
                value: nanos[at],
                unit: "ns",
                ratio_to: Some(Ratio {
                    competitor: format!("{} policies", SIZES[0]),
                    ratio: nanos[at] / nanos[0],
                }),
                params: object(json!({ "threads": 1, "statistic": "best" })),
            });
        }
        lines.push(line);
    }
    lines.push(vec![
        "the store alone, the same three asks".to_owned(),
        format!("{alone:.0}"),
        String::new(),
        String::new(),
    ]);
    let header = [
        String::new(),
        "10 policies".to_owned(),
        "100".to_owned(),
        "1,000".to_owned(),
    ];
    println!(
        "{}\n",
        table(&header.each_ref().map(String::as_str), lines.into_iter())
    );

    let matching = |nanos: &[f64]| nanos[2] / nanos[0];
    for (row, ratio) in [
        (THREE_APPLY, matching(&three)),
        (NONE_APPLIES, matching(&few)),
    ] {
        found.goals.push(Goal {
            text: format!("deciding by 1,000 policies / by 10, {row}"),
            bound: Bound::AtMost(2.0),
            measured: Some(ratio),
            because: "",
        });
    }
    found.goals.push(Goal {
        text: "deciding by 1,000 policies / the same three asks to the store alone".into(),
        bound: Bound::AtMost(2.0),
        measured: Some(three[2] / alone),
        because: "",
    });
    found
}

/// The asks that the engine makes of the store, without the engine.
fn store_alone() -> Contestant {
    let store = MemoryStore::builder().max_keys(10_000).build();
    let limits = ["a", "b", "c"].map(|name| store.limit(name, wide()).expect("there is room"));
    Contestant::new("the store alone", move || {
        let [a, b, c] = &limits;
        let asks = [
            Ask::new(a, "203.0.113.7"),
            Ask::new(b, "user-42"),
            Ask::new(c, ""),
        ];
        store.decide_now(&asks, SystemClock.now()).is_allowed()
    })
}
