//! Everything once, as plain text: columns that line up, and nothing that only a terminal
//! understands.

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
        let usage = row
            .usage
            .map_or("–".to_owned(), |(usage, is_share)| match is_share {
                true => share(usage, 1.0),
                false => count(usage as u64),
            });
        let denied = share(row.counts.denied, row.counts.all());
        let keys = row.keys.map_or("–".to_owned(), count);
        let (allowed, turned_away) = (
            count(row.counts.passed as u64 - row.delayed),
            count(row.counts.denied as u64),
        );
        let numbers = [
            allowed,
            count(row.delayed),
            turned_away,
            denied,
            count(row.shadow),
            keys,
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
        ("HEAVIEST KEY", &top.most_active),
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
    let (version, serving) = (escape(&status.version), escape(&status.serving));
    // Memory takes all that is written.
    let _ = writeln!(
        text,
        "ratekeeper {version} at {url}: {serving}, up {up}, {ready}"
    );
    let totals = &status.totals;
    let denied = share(totals.denied as f64, totals.requests as f64);
    let [requests, allowed, blocked] = [totals.requests, totals.allowed, totals.denied].map(count);
    let (waiting, overrides) = (count(status.waiting), count(status.overrides));
    let _ = writeln!(
        text,
        "requests {requests}, allowed {allowed}, denied {blocked} ({denied}), waiting {waiting}, overrides {overrides}"
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

/// The store in a line.
pub(super) fn store(status: &ServerStatus) -> String {
    let store = &status.store;
    let mut line = format!("store {}", escape(&store.kind));
    if let Some(keys) = store.keys {
        line.push_str(&format!(", {} keys", count(keys)));
    }
    let errors = store.errors.iter().filter(|(_, many)| **many > 0);
    let errors: Vec<String> = errors
        .map(|(kind, many)| format!("{} {}", escape(kind), count(*many)))
        .collect();
    if !errors.is_empty() {
        line.push_str(&format!(", errors: {}", errors.join(", ")));
    }
    if store.fallback_active {
        line.push_str(", deciding without it");
    }
    if let Some(trouble) = &store.error {
        line.push_str(&format!(": {}", escape(trouble)));
    }
    if let Some(others) = &store.other_limits {
        line.push_str(&format!("; {}", escape(others)));
    }
    line
}

/// The configuration in a line.
pub(super) fn reloads(status: &ServerStatus) -> String {
    let reloads = &status.reloads;
    let stale = if reloads.stale {
        "; the file as it is now is wrong and not in force"
    } else {
        ""
    };
    format!(
        "configuration: reloads {}, refused {}{stale}",
        count(reloads.succeeded),
        count(reloads.rejected)
    )
}

/// Columns as wide as what is in them: text to the left, numbers to the right.
struct Table {
    words: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(words: &[&str], numbers: &[&str]) -> Self {
        let head = words
            .iter()
            .chain(numbers)
            .map(|&title| title.to_owned())
            .collect();
        Self {
            words: words.len(),
            rows: vec![head],
        }
    }

    fn add(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// One without rows is left out.
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
                .map(|(column, (cell, width))| match column < self.words {
                    true => format!("{cell:<width$}"),
                    false => format!("{cell:>width$}"),
                });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
    }
}
