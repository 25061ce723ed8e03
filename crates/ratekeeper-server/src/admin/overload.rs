//! The overload part of `/admin/status`: adaptive limits and load stats.

use ratekeeper::{adaptive::Class, adaptive::ShedderStats};
use ratekeeper_policy::{engine::AdaptiveStats, engine::OverloadStats};
use serde_json::{Value, json};
use std::time::Duration;

/// A class counts as shed entirely from this share on.
const SHED_ENTIRELY: f64 = 0.999;

pub(super) fn to_json(stats: &OverloadStats) -> Value {
    json!({
        "limits": stats.limits.iter().map(limit).collect::<Vec<_>>(),
        "shed": stats.shed.as_ref().map(shed),
        "late": stats.late,
    })
}

fn limit(stats: &AdaptiveStats) -> Value {
    let AdaptiveStats {
        policy,
        control,
        snapshot,
        queued,
        denied,
        ..
    } = stats;
    let millis = |latency: Option<Duration>| latency.map(|latency| latency.as_secs_f64() * 1_000.0);
    json!({
        "policy": policy,
        "algorithm": control,
        "limit": snapshot.limit,
        "min": snapshot.min,
        "max": snapshot.max,
        "in_flight": snapshot.in_flight,
        "queued": queued,
        "denied": {
            "at_capacity": denied.at_capacity,
            "queue_full": denied.queue_full,
            "waited_too_long": denied.waited_too_long,
        },
        "latency_ms": millis(snapshot.short),
        "baseline_ms": millis(snapshot.long),
    })
}

fn shed(stats: &ShedderStats) -> Value {
    // Classes are ordered from the most important down.
    let lowest = stats
        .classes
        .iter()
        .rev()
        .find(|class| class.share < SHED_ENTIRELY);
    let classes = stats.classes.iter();
    json!({
        "pressure": stats.pressure,
        "lowest_served": lowest.map_or(Class::CriticalPlus, |class| class.class).name(),
        "classes": classes
            .map(|class| {
                json!({
                    "class": class.class.name(),
                    "allowed": class.admitted,
                    "shed": class.shed,
                })
            })
            .collect::<Vec<_>>(),
    })
}
