//! Responses of the admin API as text.

use crate::admin::audit::Entry;
use crate::admin::overrides::Row;
use crate::admin::shadow::ShadowReport;
use crate::admin::status::{PolicyStatus, ServerStatus, UpstreamStatus};
use crate::admin::top::{Key, Top};
use crate::commands::config::plural;
use crate::config::timestamp_text;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use ratekeeper::Timestamp;
use serde_json::Value;
use std::fmt::Write;

/// A table as text; columns in `right` are right-aligned.
fn table(header: &[&str], right: &[usize], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.contains(&at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
        .lines()
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}

pub(super) fn status(status: &ServerStatus) -> String {
    let ServerStatus {
        version,
        serving,
        totals,
        store,
        reloads,
        ..
    } = status;
    let mut text = format!(
        "ratekeeper {version}, serving {serving}, up {}\n",
        time(status.uptime_ms)
    );
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{} requests: {} allowed, {} denied; {} waiting",
        totals.requests, totals.allowed, totals.denied, status.waiting
    );
    let keys = store
        .keys
        .map(|keys| format!(", {keys} keys in use"))
        .unwrap_or_default();
    let _ = match &store.error {
        None => writeln!(text, "store: {}{keys}", store.kind),
        Some(error) => writeln!(text, "store: {} is unavailable: {error}", store.kind),
    };
    if let Some(others) = &store.other_limits {
        let _ = writeln!(text, "limits differ: {others}");
    }
    for UpstreamStatus {
        upstream,
        healthy,
        reason,
    } in &status.upstreams
    {
        let reason = reason
            .as_deref()
            .map(|reason| format!(" ({reason})"))
            .unwrap_or_default();
        let _ = writeln!(
            text,
            "upstream {upstream}: {}{reason}",
            if *healthy { "healthy" } else { "unhealthy" }
        );
    }
    let stale = if reloads.stale {
        "; the current file was rejected, the previous one is in force"
    } else {
        ""
    };
    let _ = writeln!(
        text,
        "reloads: {} succeeded, {} rejected{stale}",
        reloads.succeeded, reloads.rejected
    );
    let _ = writeln!(text, "bans and overrides: {}", status.overrides);
    if !status.ready {
        text.push_str("not ready: do not send new traffic\n");
    }
    text + "\n" + &policies(status)
}

pub(super) fn policies(status: &ServerStatus) -> String {
    let header = [
        "policy",
        "mode",
        "by",
        "limits",
        "allowed",
        "denied",
        "would deny",
        "delayed",
        "errors",
        "usage",
    ];
    let row = |policy: &PolicyStatus| {
        let usage = match policy.usage_is.as_str() {
            "share" => format!("{:.0} %", policy.usage * 100.0),
            _ => policy.usage.to_string(),
        };
        vec![
            policy.policy.clone(),
            policy.mode.clone(),
            if policy.by.is_empty() {
                "all".to_owned()
            } else {
                policy.by.join(", ")
            },
            policy.limits.join(", "),
            policy.allowed.to_string(),
            policy.denied.to_string(),
            policy.shadow_denied.to_string(),
            policy.delayed.to_string(),
            policy.errors.to_string(),
            usage,
        ]
    };
    let mut text = table(
        &header,
        &[4, 5, 6, 7, 8, 9],
        status.policies.iter().map(row),
    );
    for policy in &status.policies {
        if let Some(requests) = policy.unmatched.filter(|requests| *requests > 0) {
            text += &format!(
                "the policy {} applied to none of {requests} requests\n",
                policy.policy
            );
        }
    }
    if !status.envoy.is_empty() {
        let rows = status.envoy.iter().map(|rule| {
            let numbers =
                [rule.allowed, rule.denied, rule.shadow_denied].map(|number| number.to_string());
            std::iter::once(rule.rule.clone()).chain(numbers).collect()
        });
        text += &format!(
            "\n{}",
            table(
                &["Envoy rule", "allowed", "denied", "would deny"],
                &[1, 2, 3],
                rows
            )
        );
    }
    text
}

pub(super) fn top(top: &Top) -> String {
    let list = |title: &str, keys: &[Key]| match keys {
        [] => format!("{title}: none\n"),
        keys => format!("{title}\n{}", self::keys(keys)),
    };
    list("Most active keys", &top.most_active) + "\n" + &list("Most denied keys", &top.most_denied)
}

fn keys(keys: &[Key]) -> String {
    let row = |key: &Key| {
        vec![
            key.policy.clone(),
            key.key.clone(),
            key.count.to_string(),
            key.at_least.to_string(),
        ]
    };
    table(
        &["policy", "key", "at most", "at least"],
        &[2, 3],
        keys.iter().map(row),
    )
}

/// A new ban or override.
pub(super) fn override_line(row: &Row) -> String {
    let effect = match row.kind.as_str() {
        "ban" => "banned".to_owned(),
        _ => format!("limited to {}", row.limits.join(", ")),
    };
    format!(
        "{} under {}: {effect} until {}\n",
        row.key,
        row.policy,
        when(row.until_ms)
    )
}

/// A change of a key.
pub(super) fn change(change: &str, value: &Value) -> String {
    let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    format!("{} under {}: {change}\n", text("key"), text("policy"))
}

pub(super) fn reloaded(value: &Value) -> String {
    let mut text = String::new();
    for warning in value["warnings"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        let _ = writeln!(text, "{warning}");
    }
    let policies = value["policies"].as_u64().unwrap_or_default();
    let policies = usize::try_from(policies).unwrap_or(usize::MAX);
    text + &format!("reloaded, {}\n", plural(policies, "policy", "policies"))
}

pub(super) fn overrides(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no active bans or overrides\n".to_owned();
    }
    let row = |row: &Row| {
        vec![
            row.policy.clone(),
            row.key.clone(),
            if row.limits.is_empty() {
                row.kind.clone()
            } else {
                row.limits.join(", ")
            },
            when(row.until_ms),
            row.reason.clone().unwrap_or_default(),
            row.node.clone().unwrap_or_default(),
        ]
    };
    table(
        &["policy", "key", "effect", "until", "reason", "set by"],
        &[],
        rows.iter().map(row),
    )
}

pub(super) fn shadow(reports: &[ShadowReport]) -> String {
    if reports.is_empty() {
        return "no policies in shadow mode\n".to_owned();
    }
    let row = |report: &ShadowReport| {
        vec![
            report.policy.clone(),
            report.mode.clone(),
            format!("{} %", report.enforced_percent),
            report.requests.to_string(),
            report.would_deny.to_string(),
            format!("{:.2} %", report.share * 100.0),
        ]
    };
    let header = [
        "policy",
        "mode",
        "enforced for",
        "requests",
        "would deny",
        "share",
    ];
    let mut text = table(&header, &[2, 3, 4, 5], reports.iter().map(row));
    for report in reports.iter().filter(|report| !report.top.is_empty()) {
        let _ = write!(
            text,
            "\nKeys that {} would deny most\n{}",
            report.policy,
            keys(&report.top)
        );
    }
    text
}

pub(super) fn audit(entries: &[Entry]) -> String {
    if entries.is_empty() {
        return "no changes or attempts since the start\n".to_owned();
    }
    let row = |entry: &Entry| {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        vec![
            when(entry.at_ms),
            entry.who.clone(),
            entry.action.clone(),
            entry.outcome.name().to_owned(),
            text(&entry.policy),
            text(&entry.key),
            text(&entry.detail),
        ]
    };
    table(
        &[
            "when", "who", "action", "outcome", "policy", "key", "detail",
        ],
        &[],
        entries.iter().map(row),
    )
}

/// A time in UTC, to the second.
fn when(ms: u64) -> String {
    timestamp_text(Timestamp::from_unix_nanos(
        (ms / 1_000).saturating_mul(1_000_000_000),
    ))
}

fn time(ms: u64) -> String {
    let seconds = ms / 1_000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}
