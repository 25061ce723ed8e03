//! Keyed limiters beside governor's: the time of a decision, and the memory of a key.

mod memory;
mod subject;

use super::Group;
use crate::harness::{self, Pace};
use crate::keys::{Key, Order};
use crate::peers::keyed::{ALWAYS_ALLOWED, ALWAYS_DENIED};
use crate::report::{Bound, Findings, Goal, Ratio, Row, machine, object, table};
use ratekeeper::clock::FastClock;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use subject::{Competitor, Subject};

pub(crate) use memory::{CHILD, child};

pub(super) const GROUP: Group = Group {
    name: "keyed",
    about: "a limiter for each of many keys, on FastClock: ns per decision and thread; in brackets ours / theirs",
    run,
};

const SMALL: u64 = 1_000;
const LARGE: u64 = 1_000_000;
const HUGE: u64 = 10_000_000;

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

/// What is measured on a table of keys: the order, and the number of threads.
type Case = (Order, u32);

const EVERY_CASE: &[Case] = &[(Order::Uniform, 1), (Order::Uniform, 2), (Order::Zipf, 1)];
const ONE_CASE: &[Case] = &[(Order::Uniform, 1)];

/// A row: the times of both, in the order of [`Competitor::ALL`].
struct Timing {
    keys: u64,
    kind: &'static str,
    allowed: bool,
    case: Case,
    nanos: [f64; 2],
}

impl Timing {
    fn name(&self) -> String {
        let (order, threads) = self.case;
        format!(
            "{} {} keys, {}, {}, {threads} thread{}",
            many(self.keys),
            self.kind,
            order.name(),
            if self.allowed { "allowed" } else { "denied" },
            if threads == 1 { "" } else { "s" },
        )
    }

    fn ratio(&self) -> f64 {
        self.nanos[0] / self.nanos[1]
    }
}

fn run(group: &'static str) -> Findings {
    let mut timings = Vec::new();
    measure::<u64>(SMALL, true, ONE_CASE, &mut timings);
    measure::<String>(SMALL, true, EVERY_CASE, &mut timings);
    measure::<String>(SMALL, false, ONE_CASE, &mut timings);
    measure::<u64>(LARGE, true, ONE_CASE, &mut timings);
    measure::<String>(LARGE, true, EVERY_CASE, &mut timings);
    if !harness::is_quick() {
        measure::<u64>(HUGE, true, ONE_CASE, &mut timings);
        measure::<String>(HUGE, true, ONE_CASE, &mut timings);
    }
    let bytes = memory::bytes_per_key();
    print(&timings, &bytes);

    let mut found = Findings::default();
    let both = |row: String, values: [f64; 2], unit, params: Value| {
        Competitor::ALL.map(|competitor| {
            let other = competitor.other();
            Row {
                group,
                row: row.clone(),
                competitor: competitor.name().into(),
                value: values[competitor as usize],
                unit,
                ratio_to: Some(Ratio {
                    competitor: other.name().into(),
                    ratio: values[competitor as usize] / values[other as usize],
                }),
                params: object(params.clone()),
            }
        })
    };
    for timing in &timings {
        let params = json!({ "keys": timing.keys, "threads": timing.case.1 });
        found
            .rows
            .extend(both(timing.name(), timing.nanos, "ns", params));
    }
    for (keys, kind, bytes) in &bytes {
        let row = format!("resident memory, {} {kind} keys", many(*keys));
        let params = json!({ "keys": keys, "limit": ALWAYS_DENIED.text });
        found.rows.extend(both(row, *bytes, "bytes a key", params));
    }
    found.goals = goals(&timings, &bytes);
    found.plots = vec![(group, plot(&timings, &bytes))];
    found
}

/// Fills the tables once for all cases, and measures them.
fn measure<K: Key>(keys: u64, allowed: bool, cases: &[Case], timings: &mut Vec<Timing>) {
    let limit = if allowed {
        ALWAYS_ALLOWED
    } else {
        ALWAYS_DENIED
    };
    let subjects = Competitor::ALL.map(|competitor| {
        let subject = Subject::<K>::new(competitor, limit, keys, FastClock);
        subject.fill(!allowed);
        Arc::new(subject)
    });
    let pace = if keys <= SMALL { SHORT } else { LONG };
    for &case in cases {
        let (order, threads) = case;
        let contestants = subjects.each_ref().map(|subject| subject.contestant(order));
        let nanos: Vec<f64> = if threads == 1 {
            harness::one_thread_at(pace, &contestants)
        } else {
            let both = harness::two_threads_at(pace, &contestants);
            both.iter().map(|both| both.quartile).collect()
        };
        timings.push(Timing {
            keys,
            kind: K::NAME,
            allowed,
            case,
            nanos: [nanos[0], nanos[1]],
        });
    }
}

fn print(timings: &[Timing], bytes: &[memory::BytesPerKey]) {
    let beside = |[ours, theirs]: [f64; 2]| {
        [
            format!("{ours:.1}"),
            format!("{theirs:.1} ({:.2})", ours / theirs),
        ]
    };
    let times = timings
        .iter()
        .map(|timing| (format!("{}, ns", timing.name()), timing.nanos));
    let memory = bytes
        .iter()
        .map(|(keys, kind, bytes)| (format!("{} {kind} keys, bytes a key", many(*keys)), *bytes));
    let lines = times
        .chain(memory)
        .map(|(name, values)| [name].into_iter().chain(beside(values)).collect());
    println!("{}\n", table(&["", "ratekeeper", "governor"], lines));
}

fn goals(timings: &[Timing], bytes: &[memory::BytesPerKey]) -> Vec<Goal> {
    let uniform = timings.iter().filter(|timing| timing.case == ONE_CASE[0]);
    let bounds = uniform.filter_map(|timing| {
        let bound = match (timing.keys, timing.kind) {
            (SMALL, _) if timing.allowed => 0.75,
            (LARGE, String::NAME) => 0.3,
            _ => return None,
        };
        let text = format!("{}: ratekeeper / governor", timing.name());
        Some((text, Bound::AtMost(bound), timing.ratio()))
    });
    let memory = bytes.iter().filter(|(keys, ..)| *keys == LARGE);
    let memory = memory.map(|(keys, kind, bytes)| {
        let text = format!("{} {kind} keys: bytes a key", many(*keys));
        (text, Bound::AtMost(33.0), bytes[0])
    });
    bounds
        .chain(memory)
        .map(|(text, bound, measured)| Goal {
            text,
            bound,
            measured: Some(measured),
            because: "",
        })
        .collect()
}

/// The data of docs/img/keyed.svg: one thread, uniform, allowed.
fn plot(timings: &[Timing], bytes: &[memory::BytesPerKey]) -> Value {
    let bars = |keys: u64, kind: &str, values: [f64; 2]| {
        Competitor::ALL.map(|competitor| {
            let rounded = (values[competitor as usize] * 10.0).round() / 10.0;
            json!({ "keys": keys, "kind": kind, "who": competitor.name(), "value": rounded })
        })
    };
    let drawn = timings
        .iter()
        .filter(|timing| timing.allowed && timing.case == ONE_CASE[0]);
    let nanos: Vec<Value> = drawn
        .flat_map(|timing| bars(timing.keys, timing.kind, timing.nanos))
        .collect();
    let bytes: Vec<Value> = bytes
        .iter()
        .flat_map(|(keys, kind, bytes)| bars(*keys, kind, *bytes))
        .collect();
    json!({ "machine": machine(), "quiet": true, "nanos": nanos, "bytes": bytes })
}

fn many(keys: u64) -> String {
    match keys {
        0..1_000 => keys.to_string(),
        1_000..1_000_000 => format!("{},{:03}", keys / 1_000, keys % 1_000),
        _ => format!("{} M", keys / 1_000_000),
    }
}
