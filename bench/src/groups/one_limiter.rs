//! One limiter: a decision on one thread and on two, on the same clock for all.

use super::Group;
use crate::go;
use crate::harness::{self, Contestant};
use crate::peers::clocks::ClockAdapter;
use crate::peers::{ALWAYS_ALLOWED, ALWAYS_DENIED, bare_word, governor, ours};
use crate::report::{Bound, Findings, Goal, Ratio, Row, object, table};
use ::governor::clock::QuantaClock;
use ratekeeper::{Clock, clock::FastClock, clock::SystemClock};
use serde_json::json;
use std::collections::HashMap;

pub(super) const GROUP: Group = Group {
    name: "one-limiter",
    about: "ns per decision and thread; in brackets ratekeeper on the same clock / it",
    run,
};

/// Columns of the table: the name, whether calls are allowed, the number of threads, and the name
/// of the Go program's value.
const COLUMNS: [(&str, bool, u32, &str); 4] = [
    ("check allowed, 1 thread", true, 1, "allow"),
    ("check denied, 1 thread", false, 1, "deny"),
    ("check allowed, 2 threads", true, 2, "allow2"),
    ("check denied, 2 threads", false, 2, "deny2"),
];

const SYSTEM: &str = "SystemClock";
const FAST: &str = "FastClock";
const OWN_QUANTA: &str = "governor on its own QuantaClock";
const GO: &str = "Go x/time/rate on Go's clock";

fn ours_on(clock: &str) -> String {
    format!("ratekeeper on {clock}")
}

fn governor_on(clock: &str) -> String {
    format!("governor on {clock}")
}

/// All on one of our clocks, ours first. The bare fetch_add limits nothing: it is the floor.
fn on_clock<C: Clock>(allowed: bool, clock: C, name: &str) -> Vec<Contestant> {
    let theirs = ClockAdapter::new(clock.clone());
    if allowed {
        let bare = format!("(a bare fetch_add) on {name}");
        vec![
            Contestant::new(ours_on(name), ours::allowed(clock.clone())),
            Contestant::new(governor_on(name), governor::allowed(theirs)),
            Contestant::new(bare, bare_word::add(clock)),
        ]
    } else {
        vec![
            Contestant::new(ours_on(name), ours::denied(clock)),
            Contestant::new(governor_on(name), governor::denied(theirs)),
        ]
    }
}

/// Nanoseconds by column and contestant.
type Nanos = HashMap<(&'static str, String), f64>;

fn run(group: &'static str) -> Findings {
    let mut found = Findings::default();
    let mut measured = Nanos::new();
    let mut contestants: Vec<String> = Vec::new();
    let from_go = go::Program::build().and_then(|program| program.run());
    for (column, allowed, threads, go) in COLUMNS {
        let mut all = on_clock(allowed, SystemClock, SYSTEM);
        all.extend(on_clock(allowed, FastClock, FAST));
        let own = QuantaClock::default();
        all.push(if allowed {
            Contestant::new(OWN_QUANTA, governor::allowed(own))
        } else {
            Contestant::new(OWN_QUANTA, governor::denied(own))
        });
        let nanos: Vec<f64> = if threads == 1 {
            harness::one_thread(&all)
        } else {
            let both = harness::two_threads(&all);
            for (contestant, both) in all.iter().zip(&both).filter(|_| allowed) {
                found.rows.push(Row {
                    group,
                    row: format!("{column}, slower thread's share"),
                    competitor: contestant.name.clone(),
                    value: both.share,
                    unit: "share",
                    ratio_to: None,
                    params: object(json!({
                        "rounds": both.undisturbed,
                        "median": both.median,
                        "least_share": both.least_share,
                    })),
                });
            }
            // A denial writes no memory, so nothing contends and the best counts.
            let counted = both
                .iter()
                .map(|both| if allowed { both.quartile } else { both.best });
            counted.collect()
        };
        let mut names: Vec<String> = all.into_iter().map(|contestant| contestant.name).collect();
        let mut values = nanos;
        if let Ok(Some(value)) = from_go.as_ref().map(|figures| figures.get(go)) {
            names.push(GO.into());
            values.push(*value);
        }
        for (name, value) in names.into_iter().zip(values) {
            if !contestants.contains(&name) {
                contestants.push(name.clone());
            }
            measured.insert((column, name), value);
        }
    }

    let lines = contestants.iter().map(|name| {
        let cell = |(column, ..): &(&'static str, bool, u32, &str)| {
            let Some(nanos) = measured.get(&(*column, name.clone())) else {
                return "–".to_owned();
            };
            match ratio(&measured, column, &ours_beside(name), name) {
                Some(ratio) if *name != ours_beside(name) => format!("{nanos:.1} ({ratio:.2})"),
                _ => format!("{nanos:.1}"),
            }
        };
        [name.clone()]
            .into_iter()
            .chain(COLUMNS.iter().map(cell))
            .collect()
    });
    let header = [
        "",
        "1 thread\nallowed",
        "denied",
        "2 threads\nallowed",
        "denied",
    ];
    println!("{}\n", table(&header, lines));
    if let Err(error) = &from_go {
        println!("The Go row is skipped: {error}\n");
    }
    found.goals = goals(&measured);
    for (column, allowed, threads, _) in COLUMNS {
        for name in &contestants {
            let Some(value) = measured.get(&(column, name.clone())).copied() else {
                continue;
            };
            let to = match SYSTEM {
                _ if *name == ours_on(SYSTEM) => governor_on(SYSTEM),
                _ if *name == ours_on(FAST) => governor_on(FAST),
                _ => ours_beside(name),
            };
            let limit = if allowed {
                ALWAYS_ALLOWED
            } else {
                ALWAYS_DENIED
            };
            found.rows.push(Row {
                group,
                row: column.into(),
                competitor: name.clone(),
                value,
                unit: "ns",
                ratio_to: ratio(&measured, column, name, &to).map(|ratio| Ratio {
                    competitor: to,
                    ratio,
                }),
                params: object(json!({ "limit": limit, "threads": threads })),
            });
        }
    }
    found
}

/// Ours, on the clock that a contestant reads or one like it.
fn ours_beside(name: &str) -> String {
    let reads_counter = name.ends_with(FAST) || name == OWN_QUANTA;
    ours_on(if reads_counter { FAST } else { SYSTEM })
}

/// One time divided by another; `None` if either was not measured.
fn ratio(measured: &Nanos, column: &'static str, of: &str, to: &str) -> Option<f64> {
    let nanos = |name: &str| measured.get(&(column, name.to_owned())).copied();
    Some(nanos(of)? / nanos(to)?)
}

fn goals(measured: &Nanos) -> Vec<Goal> {
    let goal = |column: &'static str, clock: &str, bound| Goal {
        text: format!("{column}: {} / {}", ours_on(clock), governor_on(clock)),
        bound: Bound::AtMost(bound),
        measured: ratio(measured, column, &ours_on(clock), &governor_on(clock)),
        because: "not measured",
    };
    let alone = COLUMNS
        .iter()
        .filter(|(_, allowed, threads, _)| !allowed || *threads == 1);
    let mut goals: Vec<Goal> = alone
        .flat_map(|(column, ..)| [goal(column, SYSTEM, 1.05), goal(column, FAST, 1.05)])
        .collect();
    goals.push(goal("check allowed, 2 threads", FAST, 0.6));
    goals
}
