//! Adaptive limits and load shedding, from the status of the server.

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

/// An adaptive limit.
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
    denied: QueueDenials,
    latency_ms: Option<f64>,
    baseline_ms: Option<f64>,
}

/// Requests denied by the queue of an adaptive limit.
#[derive(Deserialize, Default)]
#[serde(default)]
struct QueueDenials {
    queue_full: u64,
    waited_too_long: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Shed {
    pressure: f64,
    lowest_served: Option<String>,
    classes: Vec<ClassLine>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ClassLine {
    class: String,
    allowed: u64,
    shed: u64,
}

impl Overload {
    /// Parses the status. Returns `None` if it is absent, empty or not understood.
    pub(super) fn of(value: Option<&Value>) -> Option<Self> {
        Self::deserialize(value?)
            .ok()
            .filter(|overload| !overload.limits.is_empty() || overload.shed.is_some())
    }

    /// A line for each limit, the shedding and the expired deadlines.
    pub(super) fn lines(&self) -> Vec<String> {
        let late = (self.late > 0).then(|| format!("{} past their deadline", count(self.late)));
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
        let policy = escape(&self.policy);
        let algorithm = escape(&self.algorithm);
        let times = match (self.latency_ms, self.baseline_ms) {
            (Some(now), Some(baseline)) => {
                format!(", {now:.1} ms (baseline {baseline:.1} ms)")
            }
            (Some(now), None) => format!(", {now:.1} ms"),
            _ => String::new(),
        };
        let denied = match (denied.waited_too_long, denied.queue_full) {
            (0, 0) => String::new(),
            (timed_out, full) => format!(
                "; timed out {}, queue full {}",
                count(timed_out),
                count(full)
            ),
        };
        format!(
            "{policy}: limit {limit:.0} ({min:.0} to {max:.0}, {algorithm}), {in_flight} in \
             flight, {queued} queued{times}{denied}"
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
                    "{} {} of {} shed",
                    escape(&class.class),
                    count(class.shed),
                    count(class.allowed + class.shed)
                )
            })
            .collect();
        let lowest = self
            .lowest_served
            .as_deref()
            .map_or_else(|| "none".to_owned(), escape);
        format!(
            "overload {:.0}%, lowest class served: {lowest}; {}",
            100.0 * self.pressure,
            classes.join(", ")
        )
    }
}
