//! The metric families of the service. Label values come from the configuration only.

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

/// Renders all metrics.
pub(crate) async fn page<C: Clock>(app: &App<C>) -> String {
    let mut page = Page::new();
    let (allowed, denied) = app.totals();
    let mut count = |name, help, value: u64| {
        page.family(name, help, Kind::Counter).sample(&[], value);
    };
    count(
        "ratelimit_requests_total",
        "Requests decided, by any protocol: policies, /v1/throttle, CL.THROTTLE, Envoy.",
        allowed + denied,
    );
    count(
        "ratelimit_requests_allowed",
        "Requests that were allowed.",
        allowed,
    );
    count(
        "ratelimit_requests_blocked",
        "Requests that were denied.",
        denied,
    );
    count(
        "ratekeeper_top_missed_total",
        "Requests left out of the lists of the most active keys.",
        app.engine.stats().top_missed(),
    );
    count(
        "ratekeeper_throttle_limits_evicted_total",
        "Limits of /v1/throttle evicted before their buckets had refilled; each of their keys may \
         get one more burst.",
        app.buckets.evicted(),
    );

    let policies = app.engine.stats().policies().await;
    let help = "Share of the limit in use, for a policy with one bucket for all requests; else the \
                cost allowed in the last window.";
    let mut usage = page.family("ratelimit_current_usage", help, Kind::Gauge);
    for policy in &policies {
        usage.sample(&[("policy", &policy.policy)], policy.usage.number());
    }
    let times = app.engine.stats().decision_times();
    let store = &[("store", app.engine.store().name())][..];
    for (name, help, labels) in [
        (
            "ratelimit_avg_response_time",
            "Seconds that decisions by policies took.",
            &[][..],
        ),
        (
            "ratekeeper_decision_duration_seconds",
            "Seconds that decisions by policies took.",
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

    let help = "Outcomes of requests that a policy applied to. Requests that another policy denied \
                are counted under shadow_denied only.";
    let mut decisions = page.family("ratekeeper_decisions_total", help, Kind::Counter);
    for policy in &policies {
        let counts = &policy.counts;
        for (outcome, count) in [
            ("allowed", counts.allowed),
            ("denied", counts.denied),
            ("shadow_denied", counts.shadow_denied),
            ("delayed", counts.delayed),
            ("error", counts.errors),
        ] {
            decisions.sample(&[("policy", &policy.policy), ("outcome", outcome)], count);
        }
    }
    for rule in app.envoy.stats() {
        let outcomes = [
            ("allowed", rule.allowed),
            ("denied", rule.denied),
            ("shadow_denied", rule.shadow_denied),
        ];
        for (outcome, count) in outcomes {
            decisions.sample(
                &[
                    ("policy", &format!("envoy {}", rule.path)),
                    ("outcome", outcome),
                ],
                count,
            );
        }
    }
    let mut bans = page.family(
        "ratekeeper_bans_total",
        "Keys banned by the penalty of a policy.",
        Kind::Counter,
    );
    for policy in &policies {
        bans.sample(&[("policy", &policy.policy)], policy.bans);
    }
    let help = "Keys with usage that time has not refilled yet.";
    let mut keys = page.family("ratekeeper_keys", help, Kind::Gauge);
    for policy in &policies {
        if let Some(stats) = policy.keys {
            keys.sample(&[("policy", &policy.policy)], stats.live);
        }
    }
    let help = "Evicted keys: `fresh` cost nothing; `displaced` were live.";
    let mut evicted = page.family("ratekeeper_keys_evicted_total", help, Kind::Counter);
    for policy in &policies {
        for (reason, count) in policy.keys.iter().flat_map(|keys| {
            [
                ("fresh", keys.evicted_fresh),
                ("displaced", keys.evicted_live),
            ]
        }) {
            evicted.sample(&[("policy", &policy.policy), ("reason", reason)], count);
        }
    }
    page.family(
        "ratekeeper_overrides",
        "Overrides and bans by an operator in force.",
        Kind::Gauge,
    )
    .sample(&[], app.engine.operator().overrides().len() as u64);
    page.family(
        "ratekeeper_waiting",
        "Requests waiting for their slot.",
        Kind::Gauge,
    )
    .sample(&[], app.waits.waiting() as u64);
    let delays = app.waits.delays();
    page.family(
        "ratekeeper_wait_seconds",
        "How long delayed requests waited, in seconds.",
        Kind::Histogram,
    )
    .histogram(&[], &delays.buckets, delays.count, delays.sum_seconds);
    let help = "CORS preflight requests decided by their own limit, in the gateway and at /auth.";
    page.family("ratekeeper_preflights_total", help, Kind::Counter)
        .sample(&[("outcome", "allowed")], app.preflights.allowed())
        .sample(&[("outcome", "denied")], app.preflights.denied());
    let help = "Operator actions missing from the log and the audit log.";
    page.family("ratekeeper_audit_lost_total", help, Kind::Counter)
        .sample(&[], app.audit.lost());
    let help = "Requests whose forwarding header was ignored because the peer is not trusted.";
    page.family("ratekeeper_untrusted_forwarding_total", help, Kind::Counter)
        .sample(&[], app.base_identity.untrusted());
    if let Some(overload) = app.engine.stats().overload() {
        write_overload(&mut page, &overload);
    }
    write_store(&mut page, app.engine.store());
    if let Some(gateway) = app.gateway.get() {
        write_gateway(&mut page, gateway);
    }

    let reloads = &app.reloads;
    page.family(
        "ratekeeper_config_reloads_total",
        "Configuration reloads, by result.",
        Kind::Counter,
    )
    .sample(&[("result", "ok")], reloads.succeeded.load(Relaxed))
    .sample(&[("result", "rejected")], reloads.rejected.load(Relaxed));
    let help = "1 if the current file is not in force because it has errors.";
    page.family("ratekeeper_config_stale", help, Kind::Gauge)
        .sample(&[], u64::from(reloads.stale.load(Relaxed)));
    if let Some(tracer) = app.traces.get() {
        let (sent, lost) = tracer.counts();
        page.family(
            "ratekeeper_traces_sent_total",
            "Spans accepted by the collector.",
            Kind::Counter,
        )
        .sample(&[], sent);
        let help = "Spans dropped: rejected by the collector, or too slow.";
        page.family("ratekeeper_traces_lost_total", help, Kind::Counter)
            .sample(&[], lost);
    }
    let help = "Log lines suppressed as repetitions.";
    page.family("ratekeeper_log_suppressed_total", help, Kind::Counter)
        .sample(&[], log::suppressed());
    page.family("ratekeeper_build_info", "The running version.", Kind::Gauge)
        .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    process::write(&mut page, app.started);
    page.into_text()
}

fn write_overload(page: &mut Page, stats: &OverloadStats) {
    let OverloadStats {
        limits, shed, late, ..
    } = stats;
    let mut limit = page.family(
        "ratekeeper_adaptive_limit",
        "Adaptive requests that may be in flight.",
        Kind::Gauge,
    );
    for entry in limits {
        limit.sample(&[("policy", &entry.policy)], entry.snapshot.limit);
    }
    let mut in_flight = page.family(
        "ratekeeper_adaptive_in_flight",
        "Adaptive requests in flight.",
        Kind::Gauge,
    );
    for entry in limits {
        in_flight.sample(&[("policy", &entry.policy)], entry.snapshot.in_flight);
    }
    let mut queued = page.family(
        "ratekeeper_adaptive_queued",
        "Adaptive requests waiting in the queue.",
        Kind::Gauge,
    );
    for entry in limits {
        queued.sample(&[("policy", &entry.policy)], entry.queued);
    }
    let help = "Requests denied by an adaptive limit, by reason.";
    let mut denied = page.family("ratekeeper_adaptive_denied_total", help, Kind::Counter);
    for entry in limits {
        for (reason, count) in [
            ("at_capacity", entry.denied.at_capacity),
            ("queue_full", entry.denied.queue_full),
            ("waited_too_long", entry.denied.waited_too_long),
        ] {
            denied.sample(&[("policy", &entry.policy), ("reason", reason)], count);
        }
    }
    let help = "Requests whose deadline had passed before processing.";
    page.family("ratekeeper_late_total", help, Kind::Counter)
        .sample(&[], *late);
    let Some(shed) = shed else { return };
    let help = "Requests shed in favour of more important ones.";
    let mut by_class = page.family("ratekeeper_shed_total", help, Kind::Counter);
    for entry in &shed.classes {
        by_class.sample(&[("class", entry.class.name())], entry.shed);
    }
    let help = "Load relative to what is acceptable; above 1, requests are shed.";
    page.family("ratekeeper_shed_pressure", help, Kind::Gauge)
        .sample(&[], shed.pressure);
}

fn write_gateway(page: &mut Page, gateway: &gateway::GatewayState) {
    let peers = gateway.peers();
    let peers = || peers.iter().map(|peer| (peer.upstream.to_string(), peer));
    let mut up = page.family(
        "ratekeeper_upstream_up",
        "1 unless its health checks fail.",
        Kind::Gauge,
    );
    for (name, peer) in peers() {
        up.sample(&[("upstream", &name)], u64::from(peer.is_healthy()));
    }
    let help = "1 for the state of a circuit breaker, 0 for the other states. The name is that of \
                the upstream.";
    let mut breaker = page.family("ratekeeper_breaker_state", help, Kind::Gauge);
    for (name, peer) in peers() {
        let Some(current) = peer.breaker() else {
            continue;
        };
        for state in State::ALL {
            breaker.sample(
                &[("name", &name), ("state", state.as_str())],
                u64::from(state == current),
            );
        }
    }
    let mut active = page.family(
        "ratekeeper_upstream_requests_active",
        "Requests in flight.",
        Kind::Gauge,
    );
    for (name, peer) in peers() {
        active.sample(&[("upstream", &name)], peer.active() as u64);
    }
    let help = "Requests sent, by outcome; failures include 502, 503 and 504.";
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
    let help =
        "Connections closed at once because their address had max_connections_per_address open.";
    page.family("ratekeeper_connections_refused_total", help, Kind::Counter)
        .sample(&[], gateway.refused_connections());
    let help = "Access log lines dropped: too fast, or not writable.";
    page.family("ratekeeper_access_log_lost_total", help, Kind::Counter)
        .sample(&[], gateway.lost_lines());
}

fn write_store<C: Clock>(page: &mut Page, store: &AnyStore<C>) {
    let status = match store {
        AnyStore::Memory(_) => None,
        AnyStore::Redis(redis) => Some(redis.status()),
    };
    let is_fallback = status.as_ref().is_some_and(|status| status.error.is_some());
    let help = "1 while Redis does not decide, or not in time, so that on_failure decides.";
    page.family("ratekeeper_store_fallback_active", help, Kind::Gauge)
        .sample(&[], u64::from(is_fallback));
    let Some(status) = status else { return };
    let mut errors = page.family(
        "ratekeeper_store_errors_total",
        "Decisions Redis did not make, by error.",
        Kind::Counter,
    );
    for (kind, count) in status.counts.errors {
        errors.sample(&[("kind", kind)], count);
    }
    let counts = &status.counts;
    let leases = &counts.leases;
    for (name, help, count) in [
        (
            "ratekeeper_store_decisions_total",
            "Requests decided by Redis.",
            counts.decisions,
        ),
        (
            "ratekeeper_store_calls_total",
            "Calls that Redis answered.",
            counts.round_trips,
        ),
        (
            "ratekeeper_store_fallbacks_total",
            "Requests decided without Redis.",
            counts.fallbacks,
        ),
        (
            "ratekeeper_store_lease_calls_total",
            "Requests for a lease that Redis answered.",
            leases.calls,
        ),
        (
            "ratekeeper_store_lease_decisions_total",
            "Requests decided from a lease.",
            leases.decisions,
        ),
        (
            "ratekeeper_store_lease_granted_total",
            "Units that Redis leased to this node.",
            leases.granted,
        ),
        (
            "ratekeeper_store_lease_spent_total",
            "Leased units spent.",
            leases.spent,
        ),
        (
            "ratekeeper_store_lease_expired_total",
            "Leased units expired.",
            leases.expired,
        ),
        (
            "ratekeeper_store_not_returned_total",
            "Units a settle could not return.",
            counts.not_returned,
        ),
        (
            "ratekeeper_store_debited_total",
            "Units charged after an outage.",
            counts.debited,
        ),
    ] {
        page.family(name, help, Kind::Counter).sample(&[], count);
    }
    page.family(
        "ratekeeper_store_nodes",
        "Nodes that share this Redis, as far as this node knows.",
        Kind::Gauge,
    )
    .sample(&[], status.nodes);
    let help = "Nodes of the same prefix whose limits differ from this node's.";
    let others = status.other_limits.map_or(0, |others| others.nodes);
    page.family(
        "ratekeeper_store_nodes_with_other_limits",
        help,
        Kind::Gauge,
    )
    .sample(&[], others);
}
