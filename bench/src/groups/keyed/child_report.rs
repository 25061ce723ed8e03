//! Tables and rows of what is measured in child processes.

use super::child::{self, Measurement};
use super::subject::Competitor;
use super::timings::many;
use super::{HUGE, LARGE, NEW_KEYS, TRIES};
use crate::keys::Key;
use crate::peers::keyed::ALWAYS_DENIED;
use crate::report::{Ratio, Row, object, table};
use comfy_table::Table;
use serde_json::json;

/// A value from a child process; `None` if it could not be measured.
pub(super) struct ChildResult {
    pub(super) competitor: Competitor,
    pub(super) keys: u64,
    pub(super) kind: &'static str,
    pub(super) figure: Option<f64>,
}

impl ChildResult {
    /// The least of several runs.
    fn measure<K: Key>(what: Measurement, competitor: Competitor, keys: u64, tries: usize) -> Self {
        let figures: Result<Vec<f64>, String> = (0..tries)
            .map(|_| child::measure::<K>(what, competitor, keys))
            .collect();
        let figure = match figures {
            Ok(figures) => figures.into_iter().min_by(f64::total_cmp),
            Err(error) => {
                println!(
                    "{}, {} {} keys: skipped: {error}\n",
                    competitor.name(),
                    many(keys),
                    K::NAME
                );
                None
            }
        };
        Self {
            competitor,
            keys,
            kind: K::NAME,
            figure,
        }
    }
}

pub(super) fn bytes() -> Vec<ChildResult> {
    let strings = Competitor::ALL
        .map(|competitor| ChildResult::measure::<String>(Measurement::Bytes, competitor, LARGE, 1));
    let numbers = Competitor::ALL
        .into_iter()
        .filter(|competitor| competitor.takes::<u64>());
    let numbers = numbers
        .map(|competitor| ChildResult::measure::<u64>(Measurement::Bytes, competitor, HUGE, 1));
    strings.into_iter().chain(numbers).collect()
}

pub(super) fn slowest() -> Vec<ChildResult> {
    Competitor::ALL
        .map(|competitor| {
            ChildResult::measure::<String>(Measurement::Slowest, competitor, NEW_KEYS, TRIES)
        })
        .into()
}

pub(super) fn memory_table(bytes: &[ChildResult]) -> Table {
    let lines = bytes.iter().map(|row| {
        let figure = |text: fn(f64, f64) -> String| {
            row.figure
                .map_or("–".into(), |bytes| text(bytes, row.keys as f64))
        };
        vec![
            format!(
                "{} {} keys: {}",
                many(row.keys),
                row.kind,
                row.competitor.name()
            ),
            figure(|bytes, keys| format!("{:.1}", bytes / keys)),
            figure(|bytes, _| format!("{:.1}", bytes / 1e6)),
        ]
    });
    table(&["", "bytes a key", "MB in all"], lines)
}

pub(super) fn slowest_table(slowest: &[ChildResult]) -> Table {
    let figure = |row: &ChildResult| {
        row.figure
            .map_or("–".into(), |nanos| format!("{:.1}", nanos / 1e3))
    };
    table(
        &["", "µs"],
        slowest
            .iter()
            .map(|row| vec![row.competitor.name().to_owned(), figure(row)]),
    )
}

/// Rows of values from child processes, each multiplied by what `scale` returns.
pub(super) fn rows(
    group: &'static str,
    figures: &[ChildResult],
    what: &str,
    unit: &'static str,
    scale: fn(&ChildResult) -> f64,
) -> Vec<Row> {
    let row = |row: &ChildResult| {
        let value = row.figure? * scale(row);
        let to = if row.competitor == Competitor::Ratekeeper {
            Competitor::Governor
        } else {
            Competitor::Ratekeeper
        };
        let same = |other: &&ChildResult| {
            other.competitor == to && (other.keys, other.kind) == (row.keys, row.kind)
        };
        let other = figures.iter().find(same).and_then(|other| other.figure);
        Some(Row {
            group,
            row: format!("{what}, {} {} keys", many(row.keys), row.kind),
            competitor: row.competitor.name().into(),
            value,
            unit,
            ratio_to: other.map(|other| Ratio {
                competitor: to.name().into(),
                ratio: value / (other * scale(row)),
            }),
            params: object(json!({ "limit": ALWAYS_DENIED.text, "keys": row.keys })),
        })
    };
    figures.iter().filter_map(row).collect()
}
