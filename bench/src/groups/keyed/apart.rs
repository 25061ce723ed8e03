//! What is measured in processes of their own: its tables and rows.

use super::child::{self, What};
use super::measured::many;
use super::subject::Who;
use super::{HUGE, LARGE, NEW_KEYS, TRIES};
use crate::keys::Key;
use crate::peers::keyed::SHUT;
use crate::report::{Ratio, Row, object, table};
use comfy_table::Table;
use serde_json::json;

/// A figure from a process of its own; none if it could not be had.
pub(super) struct Apart {
    pub(super) who: Who,
    pub(super) keys: u64,
    pub(super) kind: &'static str,
    pub(super) figure: Option<f64>,
}

impl Apart {
    /// The least of some tries.
    fn measure<K: Key>(what: What, who: Who, keys: u64, tries: usize) -> Self {
        let figures: Result<Vec<f64>, String> = (0..tries)
            .map(|_| child::measure::<K>(what, who, keys))
            .collect();
        let figure = match figures {
            Ok(figures) => figures.into_iter().min_by(f64::total_cmp),
            Err(why) => {
                println!(
                    "{}, {} {} keys: skipped: {why}\n",
                    who.name(),
                    many(keys),
                    K::NAME
                );
                None
            }
        };
        Self {
            who,
            keys,
            kind: K::NAME,
            figure,
        }
    }
}

pub(super) fn bytes() -> Vec<Apart> {
    let strings = Who::ALL.map(|who| Apart::measure::<String>(What::Bytes, who, LARGE, 1));
    let numbers = Who::ALL.into_iter().filter(|who| who.takes::<u64>());
    let numbers = numbers.map(|who| Apart::measure::<u64>(What::Bytes, who, HUGE, 1));
    strings.into_iter().chain(numbers).collect()
}

pub(super) fn slowest() -> Vec<Apart> {
    Who::ALL
        .map(|who| Apart::measure::<String>(What::Slowest, who, NEW_KEYS, TRIES))
        .into()
}

pub(super) fn memory_table(bytes: &[Apart]) -> Table {
    let lines = bytes.iter().map(|row| {
        let figure = |text: fn(f64, f64) -> String| {
            row.figure
                .map_or("–".into(), |bytes| text(bytes, row.keys as f64))
        };
        vec![
            format!("{} {} keys: {}", many(row.keys), row.kind, row.who.name()),
            figure(|bytes, keys| format!("{:.1}", bytes / keys)),
            figure(|bytes, _| format!("{:.1}", bytes / 1e6)),
        ]
    });
    table(&["", "bytes a key", "MB in all"], lines)
}

pub(super) fn slowest_table(slowest: &[Apart]) -> Table {
    let figure = |row: &Apart| {
        row.figure
            .map_or("–".into(), |nanos| format!("{:.1}", nanos / 1e3))
    };
    table(
        &["", "µs"],
        slowest
            .iter()
            .map(|row| vec![row.who.name().to_owned(), figure(row)]),
    )
}

/// Rows of figures from processes of their own, each times what `scale` says.
pub(super) fn rows(
    group: &'static str,
    figures: &[Apart],
    what: &str,
    unit: &'static str,
    scale: fn(&Apart) -> f64,
) -> Vec<Row> {
    let row = |row: &Apart| {
        let value = row.figure? * scale(row);
        let to = if row.who == Who::Ours {
            Who::Governor
        } else {
            Who::Ours
        };
        let same =
            |other: &&Apart| other.who == to && (other.keys, other.kind) == (row.keys, row.kind);
        let other = figures.iter().find(same).and_then(|other| other.figure);
        Some(Row {
            group,
            row: format!("{what}, {} {} keys", many(row.keys), row.kind),
            who: row.who.name().into(),
            value,
            unit,
            ratio_to: other.map(|other| Ratio {
                who: to.name().into(),
                ratio: value / (other * scale(row)),
            }),
            params: object(json!({ "limit": SHUT.text, "keys": row.keys })),
        })
    };
    figures.iter().filter_map(row).collect()
}
