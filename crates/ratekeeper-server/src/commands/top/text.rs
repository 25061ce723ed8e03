//! The statistics as plain text, for `--once`: aligned columns, no terminal control sequences.

use super::Snapshot;
use super::numbers::{count, share, time};
use super::overload::Overload;
use super::view::rows;
use crate::admin::{Key, ServerStatus};
use crate::commands::terminal::escape;
use std::fmt::Write;
use std::time::Duration;

pub(super) fn text(snapshot: &Snapshot, url: &str) -> String {
    let Snapshot { status, top } = snapshot;
    let mut text = head(status, url);
    let mut table = Table::new(
        &["POLICY", "MODE", "BY", "LIMITS"],
        &[
            "ALLOWED", "DELAYED", "DENIED", "SHARE", "SHADOW", "KEYS", "USAGE",
        ],
    );
    for row in rows(snapshot) {
        let usage = row.usage.map_or("–".to_owned(), |(usage, is_share)| {
            if is_share {
                share(usage, 1.0)
            } else {
                count(usage as u64)
            }
        });
        let numbers = [
            count(row.counts.allowed as u64 - row.delayed),
            count(row.delayed),
            count(row.counts.denied as u64),
            share(row.counts.denied, row.counts.all()),
            count(row.shadow),
            row.keys.map_or("–".to_owned(), count),
            usage,
        ];
        table.add(
            [row.name, row.mode, row.by, row.limits]
                .into_iter()
                .chain(numbers)
                .collect(),
        );
    }
    table.write(&mut text);
    let mut breakers = Table::new(&["BREAKER", "STATE"], &[]);
    for breaker in &status.breakers {
        breakers.add(vec![escape(&breaker.name), escape(&breaker.state)]);
    }
    breakers.write(&mut text);
    for (title, keys) in [
        ("MOST ACTIVE KEY", &top.most_active),
        ("MOST DENIED KEY", &top.most_denied),
    ] {
        let mut table = Table::new(&[title, "POLICY"], &["COUNT", "AT LEAST"]);
        for Key {
            policy,
            key,
            count: most,
            at_least,
            ..
        } in keys
        {
            table.add(vec![
                escape(key),
                escape(policy),
                count(*most),
                count(*at_least),
            ]);
        }
        table.write(&mut text);
    }
    text
}

fn head(status: &ServerStatus, url: &str) -> String {
    let mut text = String::new();
    let up = time(Duration::from_millis(status.uptime_ms));
    let ready = if status.ready { "ready" } else { "not ready" };
    let version = escape(&status.version);
    let serving = escape(&status.serving);
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "ratekeeper {version} at {url}: {serving}, up {up}, {ready}"
    );
    let totals = &status.totals;
    let denied = share(totals.denied as f64, totals.requests as f64);
    let [requests, allowed, blocked] = [totals.requests, totals.allowed, totals.denied].map(count);
    let waiting = count(status.waiting);
    let overrides = count(status.overrides);
    let _ = writeln!(
        text,
        "requests {requests}, allowed {allowed}, denied {blocked} ({denied}), waiting {waiting}, \
         overrides {overrides}"
    );
    let _ = writeln!(text, "{}", store(status));
    let _ = writeln!(text, "{}", reloads(status));
    for line in Overload::of(status.overload.as_ref())
        .iter()
        .flat_map(Overload::lines)
    {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// A line about the store.
pub(super) fn store(status: &ServerStatus) -> String {
    let store = &status.store;
    let mut line = format!("store {}", escape(&store.kind));
    if let Some(keys) = store.keys {
        line.push_str(&format!(", {} keys", count(keys)));
    }
    let errors = store.errors.iter().filter(|(_, count)| **count > 0);
    let errors: Vec<String> = errors
        .map(|(kind, number)| format!("{} {}", escape(kind), count(*number)))
        .collect();
    if !errors.is_empty() {
        line.push_str(&format!(", errors: {}", errors.join(", ")));
    }
    if store.fallback_active {
        line.push_str(", falling back");
    }
    if let Some(error) = &store.error {
        line.push_str(&format!(": {}", escape(error)));
    }
    if let Some(others) = &store.other_limits {
        line.push_str(&format!("; {}", escape(others)));
    }
    line
}

/// A line about reloads of the configuration.
pub(super) fn reloads(status: &ServerStatus) -> String {
    let reloads = &status.reloads;
    let stale = if reloads.stale {
        "; the current file is invalid and not in force"
    } else {
        ""
    };
    format!(
        "configuration: reloads {}, rejected {}{stale}",
        count(reloads.succeeded),
        count(reloads.rejected)
    )
}

/// A table with columns as wide as their contents: text left-aligned, numbers right-aligned.
struct Table {
    text_columns: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(text: &[&str], numbers: &[&str]) -> Self {
        let head = text
            .iter()
            .chain(numbers)
            .map(|&title| title.to_owned())
            .collect();
        Self {
            text_columns: text.len(),
            rows: vec![head],
        }
    }

    fn add(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// Writes the table, unless it has no rows.
    fn write(&self, text: &mut String) {
        if self.rows.len() < 2 {
            return;
        }
        let width = |column: usize| {
            self.rows
                .iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or_default()
        };
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        text.push('\n');
        for row in &self.rows {
            let cells = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, width))| {
                    if column < self.text_columns {
                        format!("{cell:<width$}")
                    } else {
                        format!("{cell:>width$}")
                    }
                });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
    }
}
