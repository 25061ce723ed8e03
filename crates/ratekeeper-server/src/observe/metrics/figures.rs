//! What the service has counted, as a page for Prometheus. Labels come from the configuration only.

use super::process;
use super::text::{Kind, Page};
use crate::app::App;
use crate::gateway;
use crate::run::log;
use crate::store::AnyStore;
use ratekeeper::Clock;
use ratekeeper_policy::engine::OverloadStats;
use ratekeeper_tower::breaker::State;
use std::sync::atomic::Ordering::Relaxed;

pub(crate) async fn page<C: Clock>(app: &App<C>) -> String {
    let mut page = Page::new();
    let (allowed, denied) = app.totals();
    let mut count = |name, help, value: u64| {
        page.family(name, help, Kind::Counter).sample(&[], value);
    };
    count(
        "ratelimit_requests_total",
        "Requests decided on: by policies, by /v1/throttle, by CL.THROTTLE and for Envoy.",
        allowed + denied,
    );
    count(
        "ratelimit_requests_allowed",
        "Requests that passed.",
        allowed,
    );
    count(
        "ratelimit_requests_blocked",
        "Requests that were turned away.",
        denied,
    );
    count(
        "ratekeeper_top_missed_total",
        "Requests left out of the lists of heaviest keys.",
        app.engine.top_missed(),
    );
    count(
        "ratekeeper_throttle_limits_evicted_total",
        "Limits of /v1/throttle that were evicted before their buckets had refilled; each key of theirs may get one more burst.",
        app.buckets.evicted(),
    );

    let policies = app.engine.policy_stats().await;
    let help = "Share used of a policy with one bucket for all, else the cost admitted in its last window.";
    let mut usage = page.family("ratelimit_current_usage", help, Kind::Gauge);
    for policy in &policies {
        usage.sample(&[("policy", &policy.policy)], policy.usage.number());
    }
    let times = app.engine.decision_times();
    let store = &[("store", app.engine.store().name())][..];
    for (name, help, labels) in [
        (
            "ratelimit_avg_response_time",
            "Seconds to decide on a request by the policies.",
            &[][..],
        ),
        (
            "ratekeeper_decision_duration_seconds",
            "Seconds to decide on a request by the policies.",
            store,
        ),
    ] {
        page.family(name, help, Kind::Histogram).histogram(
            labels,
            &times.buckets,
            times.count,
            times.sum_seconds,
        );
    }

    let help = "What became of the requests a policy applied to. Those another one turned away are in none, but for shadow_denied.";
    let mut decisions = page.family("ratekeeper_decisions_total", help, Kind::Counter);
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
    for rule in app.envoy.stats() {
        let outcomes = [
            ("allowed", rule.allowed),
            ("denied", rule.denied),
            ("shadow_denied", rule.shadow_denied),
        ];
        for (outcome, many) in outcomes {
            decisions.sample(
                &[
                    ("policy", &format!("envoy {}", rule.path)),
                    ("outcome", outcome),
                ],
                many,
            );
        }
    }
    let mut bans = page.family(
        "ratekeeper_bans_total",
        "Keys that were banned by the penalty of a policy.",
        Kind::Counter,
    );
    for policy in &policies {
        bans.sample(&[("policy", &policy.policy)], policy.bans);
    }
    let help = "Keys that have used something which has not come back yet.";
    let mut keys = page.family("ratekeeper_keys", help, Kind::Gauge);
    for policy in &policies {
        if let Some(census) = policy.keys {
            keys.sample(&[("policy", &policy.policy)], census.live);
        }
    }
    let help = "Keys that were forgotten: fresh ones, and live ones that the floor of their limit remembers.";
    let mut evicted = page.family("ratekeeper_keys_evicted_total", help, Kind::Counter);
    for policy in &policies {
        for (reason, many) in policy.keys.iter().flat_map(|census| {
            [
                ("fresh", census.evicted_fresh),
                ("displaced", census.evicted_live),
            ]
        }) {
            evicted.sample(&[("policy", &policy.policy), ("reason", reason)], many);
        }
    }
    page.family(
        "ratekeeper_overrides",
        "Overrides and bans by an operator that are in force.",
        Kind::Gauge,
    )
    .sample(&[], app.engine.overrides().len() as u64);
    page.family(
        "ratekeeper_waiting",
        "Requests that wait for their turn, where a policy delays.",
        Kind::Gauge,
    )
    .sample(&[], app.waits.waiting() as u64);
    let waited = app.waits.delays();
    page.family(
        "ratekeeper_wait_seconds",
        "Seconds that requests waited for their turn.",
        Kind::Histogram,
    )
    .histogram(&[], &waited.buckets, waited.count, waited.sum_seconds);
    let help = "Preflight requests of CORS that a limit of their own decided on, in the gateway and at /auth.";
    page.family("ratekeeper_preflights_total", help, Kind::Counter)
        .sample(&[("outcome", "allowed")], app.preflights.allowed())
        .sample(&[("outcome", "denied")], app.preflights.denied());
    let help = "What operators did or tried and is not in the log or the audit log.";
    page.family("ratekeeper_audit_lost_total", help, Kind::Counter)
        .sample(&[], app.audit.lost());
    let help =
        "Requests with a forwarding header from a peer that is not trusted, which was ignored.";
    page.family("ratekeeper_untrusted_forwarding_total", help, Kind::Counter)
        .sample(&[], app.seen.untrusted());
    if let Some(pressure) = app.engine.overload_stats() {
        pressure_figures(&mut page, &pressure);
    }
    store_figures(&mut page, app.engine.store());
    if let Some(gateway) = app.gateway.get() {
        gateway_figures(&mut page, gateway);
    }

    let reloads = &app.reloads;
    page.family(
        "ratekeeper_config_reloads_total",
        "Reloads of the configuration.",
        Kind::Counter,
    )
    .sample(&[("result", "ok")], reloads.taken.load(Relaxed))
    .sample(&[("result", "refused")], reloads.refused.load(Relaxed));
    let help =
        "1 if the configuration as it is in the file is not the one in force, because it is wrong.";
    page.family("ratekeeper_config_stale", help, Kind::Gauge)
        .sample(&[], u64::from(reloads.stale.load(Relaxed)));
    if let Some(tracer) = app.traces.get() {
        let (sent, lost) = tracer.counts();
        page.family(
            "ratekeeper_traces_sent_total",
            "Spans that the collector took.",
            Kind::Counter,
        )
        .sample(&[], sent);
        let help = "Spans that were dropped: the collector did not take them, or not as fast as they came.";
        page.family("ratekeeper_traces_lost_total", help, Kind::Counter)
            .sample(&[], lost);
    }
    let help = "Lines of the log that were left out, because they were like those before.";
    page.family("ratekeeper_log_suppressed_total", help, Kind::Counter)
        .sample(&[], log::suppressed());
    page.family(
        "ratekeeper_build_info",
        "The version that runs.",
        Kind::Gauge,
    )
    .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    process::figures(&mut page, app.started);
    page.into_text()
}

fn pressure_figures(page: &mut Page, pressure: &OverloadStats) {
    let OverloadStats {
        limits, shed, late, ..
    } = pressure;
    let mut limit = page.family(
        "ratekeeper_adaptive_limit",
        "How many requests of a policy may be in flight.",
        Kind::Gauge,
    );
    for one in limits {
        limit.sample(&[("policy", &one.policy)], one.snapshot.limit);
    }
    let mut in_flight = page.family(
        "ratekeeper_adaptive_in_flight",
        "How many are.",
        Kind::Gauge,
    );
    for one in limits {
        in_flight.sample(&[("policy", &one.policy)], one.snapshot.in_flight);
    }
    let mut queued = page.family(
        "ratekeeper_adaptive_queued",
        "How many wait in line for a place.",
        Kind::Gauge,
    );
    for one in limits {
        queued.sample(&[("policy", &one.policy)], one.queued);
    }
    let help = "Requests that an adaptive limit turned away, by why.";
    let mut refused = page.family("ratekeeper_adaptive_refused_total", help, Kind::Counter);
    for one in limits {
        for (reason, many) in [
            ("at_capacity", one.denied.at_capacity),
            ("queue_full", one.denied.queue_full),
            ("waited_too_long", one.denied.waited_too_long),
        ] {
            refused.sample(&[("policy", &one.policy), ("reason", reason)], many);
        }
    }
    let help = "Requests whose deadline had passed before anything was done for them.";
    page.family("ratekeeper_late_total", help, Kind::Counter)
        .sample(&[], *late);
    let Some(shed) = shed else { return };
    let help = "Requests that were turned away because others were more important.";
    let mut by_class = page.family("ratekeeper_shed_total", help, Kind::Counter);
    for one in &shed.classes {
        by_class.sample(&[("class", one.class.name())], one.shed);
    }
    let help = "How much there is of what is well: above 1 it is too much.";
    page.family("ratekeeper_shed_pressure", help, Kind::Gauge)
        .sample(&[], shed.pressure);
}

fn gateway_figures(page: &mut Page, gateway: &gateway::GatewayState) {
    let peers = || {
        gateway
            .upstreams
            .peers
            .iter()
            .map(|peer| (peer.upstream.to_string(), peer))
    };
    let mut up = page.family(
        "ratekeeper_upstream_up",
        "1 unless its health checks fail.",
        Kind::Gauge,
    );
    for (name, peer) in peers() {
        up.sample(&[("upstream", &name)], u64::from(peer.is_healthy()));
    }
    let help = "1 for the state that a circuit breaker is in, 0 for the others. It bears the name of its upstream.";
    let mut breaker = page.family("ratekeeper_breaker_state", help, Kind::Gauge);
    for (name, peer) in peers() {
        let Some(now) = peer.breaker() else { continue };
        for state in State::ALL {
            breaker.sample(
                &[("name", &name), ("state", state.as_str())],
                u64::from(state == now),
            );
        }
    }
    let mut active = page.family(
        "ratekeeper_upstream_requests_active",
        "Requests under way.",
        Kind::Gauge,
    );
    for (name, peer) in peers() {
        active.sample(&[("upstream", &name)], peer.active() as u64);
    }
    let help = "Requests sent on: answered, or failed, with 502, 503 and 504 among the latter.";
    let mut requests = page.family("ratekeeper_upstream_requests_total", help, Kind::Counter);
    for (name, peer) in peers() {
        requests.sample(
            &[("upstream", &name), ("outcome", "answered")],
            peer.answered.load(Relaxed),
        );
        requests.sample(
            &[("upstream", &name), ("outcome", "failed")],
            peer.failed.load(Relaxed),
        );
    }
    let help = "Connections that were closed at once, because their address had max_connections_per_address open.";
    page.family("ratekeeper_connections_refused_total", help, Kind::Counter)
        .sample(&[], gateway.refused_connections());
    let help =
        "Lines of the access log that were lost: they came too fast, or could not be written.";
    page.family("ratekeeper_access_log_lost_total", help, Kind::Counter)
        .sample(&[], gateway.lost_lines());
}

fn store_figures<C: Clock>(page: &mut Page, store: &AnyStore<C>) {
    let status = match store {
        AnyStore::Memory(_) => None,
        AnyStore::Redis(redis) => Some(redis.status()),
    };
    let away = status.as_ref().is_some_and(|status| status.error.is_some());
    let help = "1 while the store does not answer.";
    page.family("ratekeeper_store_fallback_active", help, Kind::Gauge)
        .sample(&[], u64::from(away));
    let Some(status) = status else { return };
    let mut errors = page.family(
        "ratekeeper_store_errors_total",
        "Decisions the store did not make, by why.",
        Kind::Counter,
    );
    for (kind, many) in status.counts.errors {
        errors.sample(&[("kind", kind)], many);
    }
    let (counts, leases) = (&status.counts, &status.counts.leases);
    for (name, help, many) in [
        (
            "ratekeeper_store_decisions_total",
            "Requests that the store decided.",
            counts.decisions,
        ),
        (
            "ratekeeper_store_calls_total",
            "Calls of the store that were answered.",
            counts.round_trips,
        ),
        (
            "ratekeeper_store_fallbacks_total",
            "Requests that were decided without the store.",
            counts.fallbacks,
        ),
        (
            "ratekeeper_store_lease_calls_total",
            "Times the store was asked for a lease, and answered.",
            leases.calls,
        ),
        (
            "ratekeeper_store_lease_decisions_total",
            "Requests that were decided by a lease.",
            leases.decisions,
        ),
        (
            "ratekeeper_store_lease_granted_total",
            "Units that the store leased to this node.",
            leases.granted,
        ),
        (
            "ratekeeper_store_lease_spent_total",
            "Units that were spent of them.",
            leases.spent,
        ),
        (
            "ratekeeper_store_lease_expired_total",
            "Units of them that ended before they were spent.",
            leases.expired,
        ),
        (
            "ratekeeper_store_not_returned_total",
            "Units that could not be given back: their limit had changed, or their key been displaced.",
            counts.not_returned,
        ),
        (
            "ratekeeper_store_debited_total",
            "Units spent without the store and charged when it was back.",
            counts.debited,
        ),
    ] {
        page.family(name, help, Kind::Counter).sample(&[], many);
    }
    page.family(
        "ratekeeper_store_nodes",
        "Nodes that share the store, as far as is known.",
        Kind::Gauge,
    )
    .sample(&[], status.nodes);
    let help = "Nodes of the same prefix that have other limits than this one.";
    let others = status.other_limits.map_or(0, |others| others.nodes);
    page.family(
        "ratekeeper_store_nodes_with_other_limits",
        help,
        Kind::Gauge,
    )
    .sample(&[], others);
}
