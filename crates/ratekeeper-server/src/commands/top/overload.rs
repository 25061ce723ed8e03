//! Limits that move and load that is shed, as far as the service tells.

use super::numbers::count;
use crate::commands::terminal::escape;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Overload {
    pub(super) limits: Vec<AdaptiveLimits>,
    pub(super) shed: Option<Shed>,
    late: u64,
}

/// A limit that moves.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct AdaptiveLimits {
    pub(super) policy: String,
    algorithm: String,
    limit: f64,
    min: f64,
    max: f64,
    in_flight: u64,
    queued: u64,
    denied: Denials,
    latency_ms: Option<f64>,
    baseline_ms: Option<f64>,
}

/// Whom it turned away although there is a line to wait in.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Denials {
    queue_full: u64,
    waited_too_long: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Shed {
    pressure: f64,
    lowest_served: Option<String>,
    classes: Vec<Class>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Class {
    class: String,
    allowed: u64,
    shed: u64,
}

impl Overload {
    /// None if there is nothing of it, or nothing that is understood.
    pub(super) fn of(value: Option<&Value>) -> Option<Self> {
        Self::deserialize(value?)
            .ok()
            .filter(|pressure| !pressure.limits.is_empty() || pressure.shed.is_some())
    }

    /// A line for each.
    pub(super) fn lines(&self) -> Vec<String> {
        let late =
            (self.late > 0).then(|| format!("{} came after their deadline", count(self.late)));
        self.limits
            .iter()
            .map(AdaptiveLimits::line)
            .chain(self.shed.iter().map(Shed::line))
            .chain(late)
            .collect()
    }
}

impl AdaptiveLimits {
    fn line(&self) -> String {
        let Self {
            limit,
            min,
            max,
            in_flight,
            queued,
            denied,
            ..
        } = self;
        let (policy, algorithm) = (escape(&self.policy), escape(&self.algorithm));
        let times = match (self.latency_ms, self.baseline_ms) {
            (Some(now), Some(usual)) => format!(", {now:.1} ms (usually {usual:.1} ms)"),
            (Some(now), None) => format!(", {now:.1} ms"),
            _ => String::new(),
        };
        let waited = match (denied.waited_too_long, denied.queue_full) {
            (0, 0) => String::new(),
            (long, full) => format!("; waited too long {}, full {}", count(long), count(full)),
        };
        format!(
            "{policy}: {limit:.0} at once ({min:.0} to {max:.0}, {algorithm}), {in_flight} in flight, {queued} queued{times}{waited}"
        )
    }
}

impl Shed {
    fn line(&self) -> String {
        let classes: Vec<String> = self
            .classes
            .iter()
            .map(|class| {
                format!(
                    "{} {} shed of {}",
                    escape(&class.class),
                    count(class.shed),
                    count(class.allowed + class.shed)
                )
            })
            .collect();
        let lowest = self
            .lowest_served
            .as_deref()
            .map_or_else(|| "nobody".to_owned(), escape);
        format!(
            "pressure {:.0}%, served down to {lowest}: {}",
            100.0 * self.pressure,
            classes.join(", ")
        )
    }
}
