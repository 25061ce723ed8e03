//! The timings of the group, by case and contestant; their tables and rows.

use super::ENOUGH_ROUNDS;
use super::subject::{Competitor, Subject};
use crate::harness::{self, Pace};
use crate::keys::{Key, Order};
use crate::peers::keyed::KeyedLimit;
use crate::report::{Ratio, Row, object, table};
use comfy_table::Table;
use ratekeeper::Clock;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// One case that is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) keys: u64,
    pub(super) kind: &'static str,
    pub(super) clock: &'static str,
    pub(super) order: Order,
    pub(super) allowed: bool,
    pub(super) threads: u32,
}

impl Case {
    /// Its name in the JSON.
    pub(super) fn name(&self) -> String {
        format!("{} {}", many(self.keys), self.short())
    }

    /// Its name in a table of one number of keys.
    fn short(&self) -> String {
        let outcome = if self.allowed { "allowed" } else { "denied" };
        let threads = if self.threads == 1 {
            "1 thread"
        } else {
            "2 threads"
        };
        format!(
            "{} keys, {}, {outcome}, {threads}",
            self.kind,
            self.order.name()
        )
    }
}

pub(super) fn many(keys: u64) -> String {
    match keys {
        0..1_000 => keys.to_string(),
        1_000..1_000_000 => format!("{},{:03}", keys / 1_000, keys % 1_000),
        _ => format!("{} M", keys / 1_000_000),
    }
}

struct Cell {
    case: Case,
    competitor: Competitor,
    nanos: f64,
    params: Map<String, Value>,
}

#[derive(Default)]
pub(super) struct Timings {
    cells: Vec<Cell>,
}

/// A table of keys and the rows measured on it.
pub(super) struct Setting<'a, C> {
    pub(super) keys: u64,
    pub(super) numbers: KeyedLimit,
    pub(super) clock: (&'static str, C),
    pub(super) competitor: &'a [Competitor],
    pub(super) pace: Pace,
    /// Orders and threads of the rows.
    pub(super) rows: &'a [(Order, u32)],
}

impl Timings {
    /// Fills the tables once for all rows of a setting.
    pub(super) fn measure<K: Key, C: Clock>(&mut self, setting: &Setting<'_, C>) {
        let Setting {
            keys,
            numbers,
            clock: (clock_name, clock),
            competitor,
            pace,
            rows,
        } = setting;
        let allowed = numbers.burst > 1;
        let subject = |competitor: &Competitor| {
            let subject = Subject::<K>::new(*competitor, *numbers, *keys, clock.clone());
            subject.fill(!allowed);
            Arc::new(subject)
        };
        let subjects: Vec<_> = competitor
            .iter()
            .filter(|competitor| competitor.takes::<K>())
            .map(subject)
            .collect();
        for (order, threads) in *rows {
            let case = Case {
                keys: *keys,
                kind: K::NAME,
                clock: clock_name,
                order: *order,
                allowed,
                threads: *threads,
            };
            let contestants: Vec<_> = subjects
                .iter()
                .map(|subject| subject.contestant(*order))
                .collect();
            let params = json!({ "limit": numbers.text, "keys": keys, "clock": clock_name, "threads": threads });
            let figures: Vec<(f64, Value)> = if *threads == 1 {
                let best = harness::one_thread_at(*pace, &contestants);
                best.into_iter()
                    .map(|nanos| (nanos, json!({ "statistic": "best" })))
                    .collect()
            } else {
                let both = harness::two_threads_at(*pace, &contestants);
                let more = |it: harness::TwoThreadResult| {
                    let (rounds, best, median) = (it.undisturbed, it.best, it.median);
                    let params = json!({ "statistic": "lower quartile", "rounds": rounds, "best": best, "median": median });
                    (it.quartile, params)
                };
                both.into_iter().map(more).collect()
            };
            for (subject, (nanos, more)) in subjects.iter().zip(figures) {
                let mut params = object(params.clone());
                params.extend(object(more));
                params.insert("displaced".into(), subject.displaced().into());
                self.cells.push(Cell {
                    case,
                    competitor: subject.competitor,
                    nanos,
                    params,
                });
            }
        }
    }

    pub(super) fn nanos(&self, case: Case, competitor: Competitor) -> Option<f64> {
        self.cells
            .iter()
            .find(|cell| cell.case == case && cell.competitor == competitor)
            .map(|cell| cell.nanos)
    }

    /// Returns one time divided by another; `None` if either was not measured, or by too few
    /// rounds.
    pub(super) fn ratio(
        &self,
        (case, competitor): (Case, Competitor),
        (other, to): (Case, Competitor),
    ) -> Option<f64> {
        let sound = |case: Case, competitor: Competitor| {
            let cell = self
                .cells
                .iter()
                .find(|cell| cell.case == case && cell.competitor == competitor)?;
            let rounds = cell.params.get("rounds").and_then(Value::as_u64);
            rounds
                .is_none_or(|rounds| rounds >= ENOUGH_ROUNDS)
                .then_some(cell.nanos)
        };
        Some(sound(case, competitor)? / sound(other, to)?)
    }

    /// Returns the time of two threads divided by that of one, best by best: on a million uniform
    /// keys they hardly ever meet.
    pub(super) fn two_over_one(&self, two: Case, one: Case, competitor: Competitor) -> Option<f64> {
        let cell = self
            .cells
            .iter()
            .find(|cell| cell.case == two && cell.competitor == competitor)?;
        Some(cell.params.get("best")?.as_f64()? / self.nanos(one, competitor)?)
    }

    /// Returns the fewest undisturbed rounds behind a value of two threads.
    pub(super) fn fewest_rounds(&self) -> u64 {
        self.cells
            .iter()
            .filter_map(|cell| cell.params.get("rounds")?.as_u64())
            .min()
            .unwrap_or(0)
    }

    /// All rows of a number of keys on a clock.
    pub(super) fn table(&self, keys: u64, clock: &str) -> Table {
        let mut cases: Vec<Case> = Vec::new();
        for cell in self
            .cells
            .iter()
            .filter(|cell| cell.case.keys == keys && cell.case.clock == clock)
        {
            if !cases.contains(&cell.case) {
                cases.push(cell.case);
            }
        }
        let present = |competitor: &Competitor| {
            cases
                .iter()
                .any(|case| self.nanos(*case, *competitor).is_some())
        };
        let competitors: Vec<Competitor> = Competitor::ALL.into_iter().filter(present).collect();
        let header: Vec<&str> = [""]
            .into_iter()
            .chain(competitors.iter().map(|competitor| competitor.name()))
            .collect();
        let lines = cases.iter().map(|case| {
            let figures = competitors
                .iter()
                .map(|competitor| self.text(*case, *competitor));
            [case.short()].into_iter().chain(figures).collect()
        });
        table(&header, lines)
    }

    fn text(&self, case: Case, competitor: Competitor) -> String {
        let Some(nanos) = self.nanos(case, competitor) else {
            return "–".into();
        };
        let ours = self
            .nanos(case, Competitor::Ratekeeper)
            .filter(|_| competitor != Competitor::Ratekeeper);
        format!(
            "{nanos:.1}{}",
            ours.map(|ours| format!(" ({:.2})", ours / nanos))
                .unwrap_or_default()
        )
    }

    pub(super) fn rows(&self, group: &'static str) -> Vec<Row> {
        let on = |competitor: Competitor, clock| format!("{} on {clock}", competitor.name());
        let row = |cell: &Cell| {
            let Cell {
                case,
                competitor,
                nanos,
                params,
            } = cell;
            let to = if *competitor == Competitor::Ratekeeper {
                Competitor::Governor
            } else {
                Competitor::Ratekeeper
            };
            let ratio = self.nanos(*case, to).map(|other| Ratio {
                competitor: on(to, case.clock),
                ratio: nanos / other,
            });
            Row {
                group,
                row: case.name(),
                competitor: on(*competitor, case.clock),
                value: *nanos,
                unit: "ns",
                ratio_to: ratio,
                params: params.clone(),
            }
        };
        self.cells.iter().map(row).collect()
    }
}
