//! The timings of the group, by column and contestant; their tables and rows.

use super::column::Column;
use super::{BARE_WORD, COARSE, FAST, GO, LEAKY, OWN_MONOTONIC, OWN_QUANTA, SYSTEM, on, ours};
use crate::harness::{self, TwoThreadResult};
use crate::report::{Ratio, Row, object, table};
use comfy_table::Table;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

pub(super) struct Timings {
    group: &'static str,
    cells: Vec<Cell>,
}

struct Cell {
    column: Column,
    competitor: String,
    nanos: f64,
    /// More values of two threads.
    two: Option<TwoThreads>,
}

struct TwoThreads {
    /// The slower thread's share of all decisions: the median of the rounds.
    share: f64,
    /// For the JSON only.
    more: Map<String, Value>,
}

impl Timings {
    pub(super) fn new(group: &'static str) -> Self {
        Self {
            group,
            cells: Vec::new(),
        }
    }

    pub(super) fn measure(&mut self, column: Column) {
        let contestants = column.contestants();
        let competitors = contestants.iter().map(|contestant| contestant.name.clone());
        if column.threads() == 1 {
            let nanos = harness::one_thread(&contestants);
            let cell = |(competitor, nanos)| Cell {
                column,
                competitor,
                nanos,
                two: None,
            };
            self.cells.extend(competitors.zip(nanos).map(cell));
        } else {
            let contended = harness::two_threads(&contestants);
            self.cells
                .extend(competitors.zip(contended).map(|(competitor, figures)| {
                let TwoThreadResult {
                    best,
                    quartile,
                    median,
                    share,
                    least_share,
                    undisturbed,
                } = figures;
                let nanos = if column.contends() { quartile } else { best };
                let more =
                    json!({ "rounds": undisturbed, "median": median, "least_share": least_share });
                Cell {
                    column,
                    competitor,
                    nanos,
                    two: Some(TwoThreads {
                        share,
                        more: object(more),
                    }),
                }
            }));
        }
    }

    /// The better of two runs of the Go program.
    pub(super) fn add_go(&mut self, before: &HashMap<String, f64>, after: &HashMap<String, f64>) {
        for column in Column::ALL {
            let Some(name) = column.go() else { continue };
            let runs = [before, after].into_iter().filter_map(|run| {
                let share = run.get(&format!("{name}_share")).copied();
                Some((
                    *run.get(name)?,
                    share.map(|share| TwoThreads {
                        share,
                        more: Map::new(),
                    }),
                ))
            });
            let Some((nanos, two)) = runs.min_by(|a, b| a.0.total_cmp(&b.0)) else {
                continue;
            };
            self.cells.push(Cell {
                column,
                competitor: GO.into(),
                nanos,
                two,
            });
        }
    }

    /// Returns the fewest undisturbed rounds behind a value of two threads.
    pub(super) fn fewest_rounds(&self) -> Option<u64> {
        self.cells
            .iter()
            .filter_map(|cell| cell.two.as_ref()?.more.get("rounds")?.as_u64())
            .min()
    }

    fn cell(&self, column: Column, competitor: &str) -> Option<&Cell> {
        self.cells
            .iter()
            .find(|cell| cell.column == column && cell.competitor == competitor)
    }

    /// Returns one time divided by another; `None` if either was not measured.
    pub(super) fn ratio(&self, column: Column, competitor: &str, to: &str) -> Option<f64> {
        Some(self.cell(column, competitor)?.nanos / self.cell(column, to)?.nanos)
    }

    pub(super) fn share(&self, column: Column, competitor: &str) -> Option<f64> {
        Some(self.cell(column, competitor)?.two.as_ref()?.share)
    }

    /// All contestants on one clock: ours first, then those that read it too, then those that read
    /// the same source of time in their own way.
    pub(super) fn table(&self, clock: &str, others: &[&str]) -> Table {
        let us = ours(clock);
        let peers =
            ["governor", "ratelimit", "Mutex bucket", BARE_WORD].map(|peer| on(peer, clock));
        let everyone = [us.clone()]
            .into_iter()
            .chain(peers)
            .chain(others.iter().map(|competitor| (*competitor).to_owned()));
        let present = everyone
            .filter(|competitor| self.cells.iter().any(|cell| cell.competitor == *competitor));
        let header: Vec<&str> = [""]
            .into_iter()
            .chain(Column::ALL.map(Column::short))
            .collect();
        let lines = present.map(|competitor| {
            let figures = Column::ALL.map(|column| self.text(column, &competitor, &us));
            [competitor].into_iter().chain(figures).collect()
        });
        table(&header, lines)
    }

    fn text(&self, column: Column, competitor: &str, us: &str) -> String {
        let Some(cell) = self.cell(column, competitor) else {
            return "–".into();
        };
        let ratio = if competitor == us {
            None
        } else {
            self.ratio(column, us, competitor)
        };
        let ratio = ratio
            .map(|ratio| format!(" ({ratio:.2})"))
            .unwrap_or_default();
        let share = cell
            .two
            .as_ref()
            .map(|two| format!(" {:.0} %", two.share * 100.0))
            .unwrap_or_default();
        format!("{:.1}{ratio}{share}", cell.nanos)
    }

    pub(super) fn into_rows(self) -> Vec<Row> {
        self.cells.iter().flat_map(|cell| self.rows(cell)).collect()
    }

    /// The time, and the share where there is one.
    fn rows(&self, cell: &Cell) -> Vec<Row> {
        let Cell {
            column,
            competitor,
            nanos,
            two,
        } = cell;
        let statistic = if column.contends() {
            "lower quartile"
        } else {
            "best"
        };
        let mut params = object(
            json!({ "limit": column.limit(), "threads": column.threads(), "statistic": statistic }),
        );
        params.extend(two.iter().flat_map(|two| two.more.clone()));
        let row = |suffix: &str, value, unit, ratio_to| Row {
            group: self.group,
            row: format!("{}{suffix}", column.name()),
            competitor: competitor.clone(),
            value,
            unit,
            ratio_to,
            params: params.clone(),
        };
        let ratio_to = compared_with(competitor).and_then(|to| {
            let ratio = self.ratio(*column, competitor, &to)?;
            Some(Ratio {
                competitor: to,
                ratio,
            })
        });
        let time = row("", *nanos, "ns", ratio_to);
        let share = two
            .as_ref()
            .map(|two| row(", slower thread's share", two.share, "share", None));
        [time].into_iter().chain(share).collect()
    }
}

/// The contestant that a row's `ratio_to` names: governor on the same clock for ours, ours on the
/// same clock for the others.
fn compared_with(competitor: &str) -> Option<String> {
    for clock in [SYSTEM, FAST, COARSE] {
        if competitor == ours(clock) {
            return Some(on("governor", clock));
        }
        if competitor.ends_with(&format!(" on {clock}")) {
            return Some(ours(clock));
        }
    }
    match competitor {
        OWN_MONOTONIC | LEAKY | GO => Some(ours(SYSTEM)),
        OWN_QUANTA => Some(ours(FAST)),
        _ => None,
    }
}
