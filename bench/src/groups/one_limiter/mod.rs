//! One limiter: every verb, on one thread and on two, on the same clock for all.

mod column;
mod goals;
mod timings;

use super::Group;
use crate::go;
use crate::harness::{self, Contestant};
use crate::report::{Findings, Row, object, table};
use column::Column;
use ratekeeper::{Clock, clock::CoarseClock, clock::FastClock, clock::SystemClock};
use serde_json::json;
use std::hint::black_box;
use timings::Timings;

pub(super) const GROUP: Group = Group {
    name: "one-limiter",
    about: "ns per decision and thread; in brackets ours / theirs; % is the slower thread's share of the decisions",
    run,
};

const SYSTEM: &str = "SystemClock";
const FAST: &str = "FastClock";
const COARSE: &str = "CoarseClock";

const OWN_MONOTONIC: &str = "governor on its own MonotonicClock";
const OWN_QUANTA: &str = "governor on its own QuantaClock";
const LEAKY: &str = "leaky-bucket on tokio's clock";
const GO: &str = "Go x/time/rate on Go's clock";

/// Not a peer but the floor: the clock and one addition to a shared word, the least any limiter
/// needs.
const BARE_WORD: &str = "(a bare fetch_add)";

/// With fewer rounds than this the lower quartile depends on one or two of them.
const ENOUGH_ROUNDS: u64 = 20;

/// A contestant's name on one of our clocks.
fn on(competitor: &str, clock: &str) -> String {
    format!("{competitor} on {clock}")
}

fn ours(clock: &str) -> String {
    on("ratekeeper", clock)
}

/// A table per clock: its title, the clock, and which peers read the same source of time in their
/// own way.
const TABLES: [(&str, &str, &[&str]); 3] = [
    (
        "the operating system's monotonic clock",
        SYSTEM,
        &[OWN_MONOTONIC, LEAKY, GO],
    ),
    ("the time stamp counter", FAST, &[OWN_QUANTA]),
    ("the kernel's last tick", COARSE, &[]),
];

const NOTES: &str = "\
– no such verb: governor and leaky-bucket wait in async code only, the Mutex bucket and Go on the thread only, ratelimit
not at all; of the peers only Go and the Mutex bucket reserve. leaky-bucket and Go take no clock from outside and read
the operating system's themselves. The bare fetch_add limits nothing: it reads the clock and adds one to a shared word,
the floor for anything exact. Async waits are polled once, by hand, and are ready. The Go rows come from a process
of their own.";

fn run(group: &'static str) -> Findings {
    let mut found = Findings::default();
    clock_alone(group, &mut found);

    let program = go::Program::build();
    let mut measured = Timings::new(group);
    // Once before and once after the others, since it cannot take turns with them.
    let before = program
        .as_ref()
        .map_err(Clone::clone)
        .and_then(go::Program::run);
    for column in Column::ALL {
        measured.measure(column);
    }
    let after = program.and_then(|program| program.run());
    match (before, after) {
        (Ok(before), Ok(after)) => measured.add_go(&before, &after),
        (Err(error), _) | (_, Err(error)) => println!("The Go rows are skipped: {error}\n"),
    }

    for (title, clock, others) in TABLES {
        println!("### On {title}\n\n{}\n", measured.table(clock, others));
    }
    println!("{NOTES}\n");
    if let Some(rounds) = measured
        .fewest_rounds()
        .filter(|rounds| *rounds < ENOUGH_ROUNDS)
    {
        println!(
            "The machine was busy: some values of two threads are from only {rounds} undisturbed rounds. Run it again.\n"
        );
    }
    found.goals = goals::of(&measured);
    found.rows.extend(measured.into_rows());
    found
}

/// Only reading the time.
fn clock_alone(group: &'static str, found: &mut Findings) {
    fn reading<T>(now: impl Fn() -> T) -> bool {
        black_box(now());
        true
    }
    let counter = quanta::Clock::new();
    let clocks = [
        Contestant::new("std::time::Instant", || reading(std::time::Instant::now)),
        Contestant::new(SYSTEM, || reading(|| SystemClock.now())),
        Contestant::new("quanta", move || reading(|| counter.now())),
        Contestant::new(FAST, || reading(|| FastClock.now())),
        Contestant::new(COARSE, || reading(|| CoarseClock.now())),
    ];
    let nanos = harness::one_thread(&clocks);
    let header: Vec<&str> = [""]
        .into_iter()
        .chain(clocks.iter().map(|clock| clock.name.as_str()))
        .collect();
    let line = ["ns".to_owned()]
        .into_iter()
        .chain(nanos.iter().map(|nanos| format!("{nanos:.1}")))
        .collect();
    println!(
        "### Reading the clock alone\n\n{}\n",
        table(&header, [line].into_iter())
    );
    found
        .rows
        .extend(clocks.iter().zip(nanos).map(|(clock, value)| Row {
            group,
            row: "clock alone, 1 thread".into(),
            competitor: clock.name.clone(),
            value,
            unit: "ns",
            ratio_to: None,
            params: object(json!({ "threads": 1, "statistic": "best" })),
        }));
}
