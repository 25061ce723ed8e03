//! `GET /admin/doctor`: probable mistakes that a running server can see.

use super::{Admin, no_store_json};
use crate::app::App;
use crate::commands::doctor::{Finding, Findings};
use crate::store::AnyStore;
use axum::extract::State;
use axum::response::Response;
use ratekeeper::Clock;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Findings about traffic need this many requests.
const MIN_REQUESTS: u64 = 100;

pub(super) async fn doctor<C: Clock>(State(admin): State<Arc<Admin<C>>>) -> Response {
    no_store_json(&Findings {
        findings: findings(admin.app()).await,
    })
}

async fn findings<C: Clock>(app: &App<C>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (allowed, denied) = app.engine.stats().totals();
    let untrusted = app.base_identity.untrusted();
    let requests = allowed + denied;
    if untrusted >= MIN_REQUESTS && is_most(untrusted, requests) {
        let text = format!(
            "{untrusted} of {requests} requests had a forwarding header from an untrusted peer, so all of them are counted as \
             that peer; add the address of your proxy to trusted_proxies under [identity]"
        );
        findings.push(Finding::new("untrusted_proxy", text));
    }
    findings.extend(policy_findings(app).await);
    let unknown = app.unknown_attributes.sentences().into_iter();
    findings.extend(unknown.map(|text| Finding::note("unknown_attribute", text)));
    if let AnyStore::Redis(redis) = app.engine.store() {
        findings.extend(store_findings(app, &redis.status()));
    }
    if app.reloads.stale.load(Relaxed) {
        let text = "the current file was rejected; the previous configuration is in force; run `ratekeeper config check` on \
                    the file";
        findings.push(Finding::new("config_stale", text));
    }
    let refused = app
        .gateway
        .get()
        .map_or(0, |gateway| gateway.refused_connections());
    if refused > 0 {
        let text = format!(
            "{refused} connections were refused because their address had max_connections_per_address open; if it is your \
             proxy, add it to trusted_proxies under [identity]; if it is a network behind one address, raise the maximum"
        );
        findings.push(Finding::new("connections_refused", text));
    }
    for peer in app
        .gateway
        .get()
        .into_iter()
        .flat_map(|gateway| gateway.peers())
    {
        if let Some(state) = peer
            .breaker()
            .map(|state| state.as_str())
            .filter(|state| *state != "closed")
        {
            let text = format!(
                "the breaker of the upstream {} is {state}: requests get a 503 or another \
                 upstream; check the upstream",
                peer.upstream
            );
            findings.push(Finding::new("breaker", text));
        }
        if !peer.is_healthy() {
            let text = format!(
                "the upstream {} fails its health checks and gets no requests; check the upstream",
                peer.upstream
            );
            findings.push(Finding::new("upstream_down", text));
        }
    }
    findings
}

fn store_findings<C: Clock>(app: &App<C>, status: &ratekeeper_redis::RedisStatus) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some((since, error)) = &status.error {
        let text = format!(
            "Redis has been unavailable for {} s, on_failure = {} decides: {error}",
            since.as_secs(),
            app.engine.policies().default_on_failure()
        );
        findings.push(Finding::new("store_fallback", text));
    }
    if let Some(others) = status.other_limits.filter(|others| others.is_reported) {
        findings.push(Finding::new("limits_differ", others.to_string()));
    }
    findings
}

async fn policy_findings<C: Clock>(app: &App<C>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let top = app.engine.stats().most_active(16);
    for policy in app.engine.stats().policies().await {
        let name = &policy.policy;
        let requests = policy.counts.allowed + policy.counts.denied;
        let most_active = top
            .iter()
            .find(|key| key.policy == *name)
            .map_or(0, |key| key.at_least);
        if requests >= MIN_REQUESTS && !policy.by.is_empty() && is_most(most_active, requests) {
            let text = format!(
                "one key of the policy `{name}` has {most_active} of its {requests} requests; if they are different callers \
                 sharing a bucket, check trusted_proxies and header under [identity], and `key` of the policy"
            );
            findings.push(Finding::new("one_bucket", text));
        }
        if let Some(requests) = policy
            .unmatched
            .filter(|requests| *requests >= MIN_REQUESTS)
        {
            let text = format!(
                "the policy `{name}` applied to none of {requests} requests; run `ratekeeper admin explain` for a request that \
                 it should apply to"
            );
            findings.push(Finding::note("policy_unmatched", text));
        }
        let evicted = policy.keys.map_or(0, |keys| keys.evicted_live);
        if evicted > 0 {
            let text = format!(
                "{evicted} live keys of `{name}` were evicted; new keys may be limited too \
                 strictly; raise max_keys under [store]"
            );
            findings.push(Finding::new("keys_evicted", text));
        }
    }
    findings
}

/// Whether `part` is at least nine tenths of `all`.
fn is_most(part: u64, all: u64) -> bool {
    part.saturating_mul(10) >= all.saturating_mul(9) && part > 0
}
