//! How hard the service is pressed, as `/admin/status` tells it.

use ratekeeper::{adaptive::Class, adaptive::ShedderStats};
use ratekeeper_policy::{engine::AdaptiveStats, engine::OverloadStats};
use serde_json::{Value, json};
use std::time::Duration;

/// All of a class that is shed but for this share counts as all of it.
const NEARLY_ALL: f64 = 0.999;

pub(super) fn told(pressure: &OverloadStats) -> Value {
    json!({
        "limits": pressure.limits.iter().map(limit).collect::<Vec<_>>(),
        "shed": pressure.shed.as_ref().map(shed),
        "late": pressure.late,
    })
}

fn limit(figures: &AdaptiveStats) -> Value {
    let AdaptiveStats {
        policy,
        control,
        snapshot,
        queued,
        denied,
        ..
    } = figures;
    let millis = |latency: Option<Duration>| latency.map(|latency| latency.as_secs_f64() * 1_000.0);
    json!({
        "policy": policy,
        "algorithm": control,
        "limit": snapshot.limit,
        "min": snapshot.min,
        "max": snapshot.max,
        "in_flight": snapshot.in_flight,
        "queued": queued,
        "refused": {
            "at_capacity": denied.at_capacity,
            "queue_full": denied.queue_full,
            "waited_too_long": denied.waited_too_long,
        },
        "latency_ms": millis(snapshot.short),
        "baseline_ms": millis(snapshot.long),
    })
}

fn shed(shedding: &ShedderStats) -> Value {
    // From the most important down, as far as any are served.
    let lowest = shedding
        .classes
        .iter()
        .rev()
        .find(|class| class.share < NEARLY_ALL);
    let classes = shedding.classes.iter();
    json!({
        "pressure": shedding.pressure,
        "lowest_served": lowest.map_or(Class::CriticalPlus, |class| class.class).name(),
        "classes": classes
            .map(|class| json!({ "class": class.class.name(), "admitted": class.admitted, "shed": class.shed }))
            .collect::<Vec<_>>(),
    })
}
