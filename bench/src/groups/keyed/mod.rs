//! A limiter for each of many keys: the time of a decision, the memory of a key, the slowest call.

mod apart;
mod goals;
mod measured;
mod subject;

use super::Group;
use crate::harness::Pace;
use crate::keys::{Key, Order};
use crate::peers::keyed::{Numbers, OPEN, SHUT};
use crate::report::{Findings, Ratio, Row, object, table};
use apart::What;
use measured::{Case, Measured, Setting, many};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::time::Duration;
use subject::Who;
use tollgate::{Clock, FastClock, SystemClock};

pub(crate) use apart::{CHILD, run as apart};

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

/// How many new keys the slowest call is looked for among, and how often: what recurs is the limiter's, the rest is
/// the machine's.
const NEW_KEYS: u64 = 1_000_000;
const TRIES: usize = 3;

const SHORT: Pace = Pace { patience: Duration::from_secs(5), ..Pace::SHORT };
/// Runs that see a good part of the keys, long after the caches are full of them.
const LONG: Pace = Pace {
    runs: 9,
    run: Duration::from_millis(50),
    rounds: 13,
    round: Duration::from_millis(25),
    patience: Duration::from_secs(4),
};

const ALL_ROWS: &[(Order, u32)] = &[(Order::Uniform, 1), (Order::Uniform, 2), (Order::Zipf, 1), (Order::Zipf, 2)];
const SOME_ROWS: &[(Order, u32)] = &[(Order::Uniform, 1), (Order::Uniform, 2), (Order::Zipf, 1)];
const ONE_THREAD: &[(Order, u32)] = &[(Order::Uniform, 1), (Order::Zipf, 1)];
const ONE_ROW: &[(Order, u32)] = &[(Order::Uniform, 1)];

/// Without what ours could have been built on.
const LIMITERS: &[Who] = &[Who::Ours, Who::Governor, Who::Throttlecrab];
const THE_TWO: &[Who] = &[Who::Ours, Who::Governor];

/// With fewer rounds than this a lower quartile is the luck of one or two.
const ENOUGH_ROUNDS: u64 = 8;

const NOTES: &str = "\
The keys are made ready outside the time, a few thousand at a time, and every key is known before. throttlecrab takes text
only, and one caller at a time: threads share it behind a lock. Those in brackets are not limiters one can take: a
maintained concurrent map from a key's hash to its arrival time, with the same step, and nothing is ever forgotten.";

fn run(group: &'static str) -> Findings {
    let measured = times();
    for keys in [SMALL, LARGE, HUGE] {
        println!("### {} keys, on {FAST}\n\n{}\n", many(keys), measured.table(keys, FAST));
    }
    for keys in [SMALL, LARGE] {
        println!("### {} keys, on {SYSTEM}\n\n{}\n", many(keys), measured.table(keys, SYSTEM));
    }
    println!("{NOTES}\n");
    if let Some(rounds) = measured.fewest_rounds().filter(|rounds| *rounds < ENOUGH_ROUNDS) {
        println!(
            "The machine was busy: some figures of two threads rest on {rounds} undisturbed rounds. Run it again.\n"
        );
    }
    let (bytes, slowest) = (bytes(), slowest());
    println!("### Resident memory\n\n{}\n", memory_table(&bytes));
    println!("### The slowest of {} calls with new keys, by the thread's processor time\n", many(NEW_KEYS));
    println!("{}\n", slowest_table(&slowest));
    let mut rows = measured.rows(group);
    rows.extend(apart_rows(group, &bytes, "resident memory", "bytes a key", |row| 1.0 / row.keys as f64));
    rows.extend(apart_rows(group, &slowest, "slowest call, new keys", "ns", |_| 1.0));
    Findings { rows, goals: goals::of(&measured, &bytes), plots: vec![(group, plot(&measured, &bytes))] }
}

fn times() -> Measured {
    let mut all = Measured::default();
    for numbers in [OPEN, SHUT] {
        all.measure::<u64, _>(&setting(SMALL, numbers, ON_FAST, &Who::ALL, ALL_ROWS));
        all.measure::<IpAddr, _>(&setting(SMALL, numbers, ON_FAST, LIMITERS, ALL_ROWS));
        all.measure::<String, _>(&setting(SMALL, numbers, ON_FAST, &Who::ALL, ALL_ROWS));
    }
    for (numbers, who) in [(OPEN, &Who::ALL[..]), (SHUT, LIMITERS)] {
        all.measure::<u64, _>(&setting(LARGE, numbers, ON_FAST, who, SOME_ROWS));
        all.measure::<IpAddr, _>(&setting(LARGE, numbers, ON_FAST, LIMITERS, ONE_THREAD));
        all.measure::<String, _>(&setting(LARGE, numbers, ON_FAST, who, ALL_ROWS));
    }
    all.measure::<u64, _>(&setting(HUGE, OPEN, ON_FAST, THE_TWO, SOME_ROWS));
    all.measure::<String, _>(&setting(HUGE, OPEN, ON_FAST, THE_TWO, SOME_ROWS));
    all.measure::<u64, _>(&setting(SMALL, OPEN, ON_SYSTEM, LIMITERS, ONE_ROW));
    all.measure::<String, _>(&setting(LARGE, OPEN, ON_SYSTEM, LIMITERS, ONE_ROW));
    all
}

fn setting<'a, C: Clock>(
    keys: u64,
    numbers: Numbers,
    clock: (&'static str, C),
    who: &'a [Who],
    rows: &'a [(Order, u32)],
) -> Setting<'a, C> {
    Setting { keys, numbers, clock, who, pace: if keys <= SMALL { SHORT } else { LONG }, rows }
}

/// A figure from a process of its own; none if it could not be had.
struct Apart {
    who: Who,
    keys: u64,
    kind: &'static str,
    figure: Option<f64>,
}

impl Apart {
    /// The least of some tries.
    fn measure<K: Key>(what: What, who: Who, keys: u64, tries: usize) -> Self {
        let figures: Result<Vec<f64>, String> = (0..tries).map(|_| apart::measure::<K>(what, who, keys)).collect();
        let figure = match figures {
            Ok(figures) => figures.into_iter().min_by(f64::total_cmp),
            Err(why) => {
                println!("{}, {} {} keys: skipped: {why}\n", who.name(), many(keys), K::NAME);
                None
            }
        };
        Self { who, keys, kind: K::NAME, figure }
    }
}

fn bytes() -> Vec<Apart> {
    let strings = Who::ALL.map(|who| Apart::measure::<String>(What::Bytes, who, LARGE, 1));
    let numbers = Who::ALL.into_iter().filter(|who| who.takes::<u64>());
    let numbers = numbers.map(|who| Apart::measure::<u64>(What::Bytes, who, HUGE, 1));
    strings.into_iter().chain(numbers).collect()
}

fn slowest() -> Vec<Apart> {
    Who::ALL.map(|who| Apart::measure::<String>(What::Slowest, who, NEW_KEYS, TRIES)).into()
}

fn memory_table(bytes: &[Apart]) -> comfy_table::Table {
    let lines = bytes.iter().map(|row| {
        let figure =
            |text: fn(f64, f64) -> String| row.figure.map_or("–".into(), |bytes| text(bytes, row.keys as f64));
        vec![
            format!("{} {} keys: {}", many(row.keys), row.kind, row.who.name()),
            figure(|bytes, keys| format!("{:.1}", bytes / keys)),
            figure(|bytes, _| format!("{:.1}", bytes / 1e6)),
        ]
    });
    table(&["", "bytes a key", "MB in all"], lines)
}

fn slowest_table(slowest: &[Apart]) -> comfy_table::Table {
    let figure = |row: &Apart| row.figure.map_or("–".into(), |nanos| format!("{:.1}", nanos / 1e3));
    table(&["", "µs"], slowest.iter().map(|row| vec![row.who.name().to_owned(), figure(row)]))
}

/// Rows of figures from processes of their own, each times what `scale` says.
fn apart_rows(
    group: &'static str,
    figures: &[Apart],
    what: &str,
    unit: &'static str,
    scale: fn(&Apart) -> f64,
) -> Vec<Row> {
    let row = |row: &Apart| {
        let value = row.figure? * scale(row);
        let to = if row.who == Who::Ours { Who::Governor } else { Who::Ours };
        let same = |other: &&Apart| other.who == to && (other.keys, other.kind) == (row.keys, row.kind);
        let other = figures.iter().find(same).and_then(|other| other.figure);
        Some(Row {
            group,
            row: format!("{what}, {} {} keys", many(row.keys), row.kind),
            who: row.who.name().into(),
            value,
            unit,
            ratio_to: other.map(|other| Ratio { who: to.name().into(), ratio: value / (other * scale(row)) }),
            params: object(json!({ "limit": SHUT.text, "keys": row.keys })),
        })
    };
    figures.iter().filter_map(row).collect()
}

/// What docs/img/keyed.svg is drawn from: one thread, uniform, allowed.
fn plot(measured: &Measured, bytes: &[Apart]) -> Value {
    let rounded = |figure: f64| (figure * 10.0).round() / 10.0;
    let bar = |keys: u64, kind, who: Who, figure: f64| json!({ "keys": keys, "kind": kind, "who": who.name(), "value": rounded(figure) });
    let mut nanos = Vec::new();
    for kind in [u64::NAME, String::NAME] {
        for keys in [SMALL, LARGE, HUGE] {
            let case = Case { keys, kind, clock: FAST, order: Order::Uniform, allowed: true, threads: 1 };
            let figures = Who::ALL.into_iter().filter_map(|who| Some(bar(keys, kind, who, measured.nanos(case, who)?)));
            nanos.extend(figures);
        }
    }
    let bytes = bytes.iter().filter_map(|row| Some(bar(row.keys, row.kind, row.who, row.figure? / row.keys as f64)));
    json!({ "machine": machine(), "nanos": nanos, "bytes": bytes.collect::<Vec<_>>() })
}

fn machine() -> String {
    let said = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = said.lines().find_map(|line| Some(line.strip_prefix("model name")?.split_once(": ")?.1));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {cores} cores, {}", model.unwrap_or(std::env::consts::ARCH), std::env::consts::OS)
}
