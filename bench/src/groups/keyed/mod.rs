//! Keyed limiters: the time of a decision, the memory of a key, the slowest call.

mod child;
mod child_report;
mod goals;
mod subject;
mod timings;

use super::Group;
use crate::harness::Pace;
use crate::keys::{Key, Order};
use crate::peers::keyed::{ALWAYS_ALLOWED, ALWAYS_DENIED, KeyedLimit};
use crate::report::Findings;
use child_report::ChildResult;
use ratekeeper::{Clock, clock::FastClock, clock::SystemClock};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::time::Duration;
use subject::Competitor;
use timings::{Case, Setting, Timings, many};

pub(crate) use child::{CHILD, run as child};

pub(super) const GROUP: Group = Group {
    name: "keyed",
    about: "a limiter for each of many keys: ns per decision and thread; in brackets ours / theirs",
    run,
};

const FAST: &str = "FastClock";
const SYSTEM: &str = "SystemClock";
const ON_FAST: (&str, FastClock) = (FAST, FastClock);
const ON_SYSTEM: (&str, SystemClock) = (SYSTEM, SystemClock);

const SMALL: u64 = 1_000;
const LARGE: u64 = 1_000_000;
const HUGE: u64 = 10_000_000;

/// How many new keys the slowest call is searched among, and how often: a slow call that recurs is
/// the limiter's, any other is the machine's.
const NEW_KEYS: u64 = 1_000_000;
const TRIES: usize = 3;

const SHORT: Pace = Pace {
    timeout: Duration::from_secs(5),
    ..Pace::SHORT
};
/// Runs that call a good part of the keys, long after the caches are full of them.
const LONG: Pace = Pace {
    runs: 9,
    run: Duration::from_millis(50),
    rounds: 13,
    round: Duration::from_millis(25),
    timeout: Duration::from_secs(4),
};

const ALL_ROWS: &[(Order, u32)] = &[
    (Order::Uniform, 1),
    (Order::Uniform, 2),
    (Order::Zipf, 1),
    (Order::Zipf, 2),
];
const SOME_ROWS: &[(Order, u32)] = &[(Order::Uniform, 1), (Order::Uniform, 2), (Order::Zipf, 1)];
const ONE_THREAD: &[(Order, u32)] = &[(Order::Uniform, 1), (Order::Zipf, 1)];
const ONE_ROW: &[(Order, u32)] = &[(Order::Uniform, 1)];

/// Without the maps that ratekeeper could have been built on.
const LIMITERS: &[Competitor] = &[
    Competitor::Ratekeeper,
    Competitor::Governor,
    Competitor::Throttlecrab,
];
const OURS_AND_GOVERNOR: &[Competitor] = &[Competitor::Ratekeeper, Competitor::Governor];

/// With fewer rounds than this the lower quartile depends on one or two of them.
const ENOUGH_ROUNDS: u64 = 8;

const NOTES: &str = "\
The keys are prepared outside the measured time, a few thousand at a time, and every key is inserted before. throttlecrab
takes text keys only, and one caller at a time: threads share it behind a lock. Those in brackets are not limiters one can
use: a maintained concurrent map from a key's hash to its arrival time, with the same step and no eviction.";

fn run(group: &'static str) -> Findings {
    let measured = times();
    for keys in [SMALL, LARGE, HUGE] {
        println!(
            "### {} keys, on {FAST}\n\n{}\n",
            many(keys),
            measured.table(keys, FAST)
        );
    }
    for keys in [SMALL, LARGE] {
        println!(
            "### {} keys, on {SYSTEM}\n\n{}\n",
            many(keys),
            measured.table(keys, SYSTEM)
        );
    }
    println!("{NOTES}\n");
    let rounds = measured.fewest_rounds();
    if rounds < ENOUGH_ROUNDS {
        println!(
            "The machine was busy: some values of two threads are from only {rounds} undisturbed rounds. Run it again.\n"
        );
    }
    let (bytes, slowest) = (child_report::bytes(), child_report::slowest());
    println!(
        "### Resident memory\n\n{}\n",
        child_report::memory_table(&bytes)
    );
    println!(
        "### The slowest of {} calls with new keys, by the thread's processor time\n",
        many(NEW_KEYS)
    );
    println!("{}\n", child_report::slowest_table(&slowest));
    let mut rows = measured.rows(group);
    rows.extend(child_report::rows(
        group,
        &bytes,
        "resident memory",
        "bytes a key",
        |row| 1.0 / row.keys as f64,
    ));
    rows.extend(child_report::rows(
        group,
        &slowest,
        "slowest call, new keys",
        "ns",
        |_| 1.0,
    ));
    Findings {
        rows,
        goals: goals::of(&measured, &bytes),
        plots: vec![(group, plot(&measured, &bytes))],
    }
}

fn times() -> Timings {
    let mut all = Timings::default();
    for numbers in [ALWAYS_ALLOWED, ALWAYS_DENIED] {
        all.measure::<u64, _>(&setting(
            SMALL,
            numbers,
            ON_FAST,
            &Competitor::ALL,
            ALL_ROWS,
        ));
        all.measure::<IpAddr, _>(&setting(SMALL, numbers, ON_FAST, LIMITERS, ALL_ROWS));
        all.measure::<String, _>(&setting(
            SMALL,
            numbers,
            ON_FAST,
            &Competitor::ALL,
            ALL_ROWS,
        ));
    }
    for (numbers, competitor) in [
        (ALWAYS_ALLOWED, &Competitor::ALL[..]),
        (ALWAYS_DENIED, LIMITERS),
    ] {
        all.measure::<u64, _>(&setting(LARGE, numbers, ON_FAST, competitor, SOME_ROWS));
        all.measure::<IpAddr, _>(&setting(LARGE, numbers, ON_FAST, LIMITERS, ONE_THREAD));
        all.measure::<String, _>(&setting(LARGE, numbers, ON_FAST, competitor, ALL_ROWS));
    }
    all.measure::<u64, _>(&setting(
        HUGE,
        ALWAYS_ALLOWED,
        ON_FAST,
        OURS_AND_GOVERNOR,
        SOME_ROWS,
    ));
    all.measure::<String, _>(&setting(
        HUGE,
        ALWAYS_ALLOWED,
        ON_FAST,
        OURS_AND_GOVERNOR,
        SOME_ROWS,
    ));
    all.measure::<u64, _>(&setting(
        SMALL,
        ALWAYS_ALLOWED,
        ON_SYSTEM,
        LIMITERS,
        ONE_ROW,
    ));
    all.measure::<String, _>(&setting(
        LARGE,
        ALWAYS_ALLOWED,
        ON_SYSTEM,
        LIMITERS,
        ONE_ROW,
    ));
    all
}

fn setting<'a, C: Clock>(
    keys: u64,
    numbers: KeyedLimit,
    clock: (&'static str, C),
    competitor: &'a [Competitor],
    rows: &'a [(Order, u32)],
) -> Setting<'a, C> {
    Setting {
        keys,
        numbers,
        clock,
        competitor,
        pace: if keys <= SMALL { SHORT } else { LONG },
        rows,
    }
}

/// The data of docs/img/keyed.svg: one thread, uniform, allowed.
fn plot(measured: &Timings, bytes: &[ChildResult]) -> Value {
    let bar = |keys: u64, kind, competitor: Competitor, figure: f64| {
        let rounded = (figure * 10.0).round() / 10.0;
        json!({ "keys": keys, "kind": kind, "who": competitor.name(), "value": rounded })
    };
    let mut nanos = Vec::new();
    for kind in [u64::NAME, String::NAME] {
        for keys in [SMALL, LARGE, HUGE] {
            let case = Case {
                keys,
                kind,
                clock: FAST,
                order: Order::Uniform,
                allowed: true,
                threads: 1,
            };
            let figures = Competitor::ALL.into_iter().filter_map(|competitor| {
                Some(bar(
                    keys,
                    kind,
                    competitor,
                    measured.nanos(case, competitor)?,
                ))
            });
            nanos.extend(figures);
        }
    }
    let bytes = bytes.iter().filter_map(|row| {
        Some(bar(
            row.keys,
            row.kind,
            row.competitor,
            row.figure? / row.keys as f64,
        ))
    });
    let quiet = measured.fewest_rounds() >= ENOUGH_ROUNDS;
    json!({ "machine": machine(), "quiet": quiet, "nanos": nanos, "bytes": bytes.collect::<Vec<_>>() })
}

fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| Some(line.strip_prefix("model name")?.split_once(": ")?.1));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "{}, {cores} cores, {}",
        model.unwrap_or(std::env::consts::ARCH),
        std::env::consts::OS
    )
}
