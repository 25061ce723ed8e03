//! What the service has counted, as a page for Prometheus. Labels come from the configuration only.

use super::text::{Kind, Page};
use crate::app::App;
use std::sync::atomic::Ordering::Relaxed;
use tollgate::Clock;

/// The one store there is.
const STORE: &str = "memory";

pub(crate) async fn page<C: Clock>(app: &App<C>) -> String {
    let mut page = Page::new();
    let (allowed, denied) = app.engine.totals();
    let (throttle_allowed, throttle_denied) = app.buckets.totals();
    let (allowed, denied) = (allowed + throttle_allowed, denied + throttle_denied);
    let mut count = |name, help, value: u64| {
        page.family(name, help, Kind::Counter).sample(&[], value);
    };
    count("ratelimit_requests_total", "Requests decided on, by policies and by /v1/throttle.", allowed + denied);
    count("ratelimit_requests_allowed", "Requests that passed.", allowed);
    count("ratelimit_requests_blocked", "Requests that were turned away.", denied);
    count("tollgate_top_missed_total", "Requests left out of the lists of heaviest keys.", app.engine.top_missed());

    let policies = app.engine.figures().await;
    let help = "Share used of a policy with one bucket for all, else the cost admitted in its last window.";
    let mut usage = page.family("ratelimit_current_usage", help, Kind::Gauge);
    for policy in &policies {
        usage.sample(&[("policy", &policy.policy)], policy.usage.number());
    }
    let times = app.engine.times();
    for (name, help, labels) in [
        ("ratelimit_avg_response_time", "Seconds to decide on a request by the policies.", &[][..]),
        ("tollgate_decision_duration_seconds", "Seconds to decide on a request by the policies.", &[("store", STORE)]),
    ] {
        page.family(name, help, Kind::Histogram).histogram(labels, &times.buckets, times.count, times.sum_seconds);
    }

    let help = "What became of the requests a policy applied to. Those another one turned away are in none, but for shadow_denied.";
    let mut decisions = page.family("tollgate_decisions_total", help, Kind::Counter);
    for policy in &policies {
        let counts = &policy.counts;
        for (outcome, many) in [
            ("allowed", counts.allowed),
            ("denied", counts.denied),
            ("shadow_denied", counts.shadow_denied),
            ("delayed", counts.delayed),
            ("error", counts.errors),
        ] {
            decisions.sample(&[("policy", &policy.policy), ("outcome", outcome)], many);
        }
    }
    let mut bans =
        page.family("tollgate_bans_total", "Keys that were banned by the penalty of a policy.", Kind::Counter);
    for policy in &policies {
        bans.sample(&[("policy", &policy.policy)], policy.bans);
    }
    let help = "Keys that have used something which has not come back yet.";
    let mut keys = page.family("tollgate_keys", help, Kind::Gauge);
    for policy in &policies {
        if let Some(census) = policy.keys {
            keys.sample(&[("policy", &policy.policy)], census.live);
        }
    }
    let help = "Keys that were forgotten: fresh ones, and live ones that the floor of their limit remembers.";
    let mut evicted = page.family("tollgate_keys_evicted_total", help, Kind::Counter);
    for policy in &policies {
        for (reason, many) in
            policy.keys.iter().flat_map(|census| [("fresh", census.evicted_fresh), ("displaced", census.evicted_live)])
        {
            evicted.sample(&[("policy", &policy.policy), ("reason", reason)], many);
        }
    }
    page.family("tollgate_overrides", "Overrides and bans by an operator that are in force.", Kind::Gauge)
        .sample(&[], app.engine.overrides().len() as u64);
    page.family("tollgate_store_fallback_active", "1 while the store does not answer.", Kind::Gauge).sample(&[], 0);

    let reloads = &app.reloads;
    page.family("tollgate_config_reloads_total", "Reloads of the configuration.", Kind::Counter)
        .sample(&[("result", "ok")], reloads.taken.load(Relaxed))
        .sample(&[("result", "refused")], reloads.refused.load(Relaxed));
    let help = "1 if the configuration as it is in the file is not the one in force, because it is wrong.";
    page.family("tollgate_config_stale", help, Kind::Gauge).sample(&[], u64::from(reloads.stale.load(Relaxed)));
    page.family("tollgate_build_info", "The version that runs.", Kind::Gauge)
        .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.into_text()
}
