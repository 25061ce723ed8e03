//! `GET /admin/doctor`: what looks like a mistake to a server that runs.

use super::{Admin, told};
use crate::app::App;
use crate::commands::doctor::{Finding, Findings};
use crate::store::AnyStore;
use axum::extract::State;
use axum::response::Response;
use ratekeeper::Clock;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Of fewer requests nothing is said.
const FEW: u64 = 100;

pub(super) async fn doctor<C: Clock>(State(admin): State<Arc<Admin<C>>>) -> Response {
    told(&Findings {
        findings: look(admin.app()).await,
    })
}

async fn look<C: Clock>(app: &App<C>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (allowed, denied) = app.engine.totals();
    let (untrusted, requests) = (app.base_identity.untrusted(), allowed + denied);
    if untrusted >= FEW && is_most(untrusted, requests) {
        let says = format!(
            "{untrusted} of {requests} requests came with a forwarding header from a peer that is not trusted, so all of them \
             count as that peer; add the address of your proxy to trusted_proxies under [identity]"
        );
        findings.push(Finding::new("untrusted_proxy", says));
    }
    findings.extend(of_keys(app).await);
    let unknown = app.unknown_attributes.sentences().into_iter();
    findings.extend(unknown.map(|says| Finding::note("unknown_attribute", says)));
    if let AnyStore::Redis(redis) = app.engine.store() {
        findings.extend(of_store(app, &redis.status()));
    }
    if app.reloads.stale.load(Relaxed) {
        let says = "the configuration as it is in the file was refused, and the one from before is in force; see what \
                    `ratekeeper config check` says of it";
        findings.push(Finding::new("config_stale", says));
    }
    let refused = app
        .gateway
        .get()
        .map_or(0, |gateway| gateway.refused_connections());
    if refused > 0 {
        let says = format!(
            "{refused} connections were refused because their address had max_connections_per_address open; if that is your \
             proxy, add it to trusted_proxies under [identity], and if it is a network behind one address, raise the number"
        );
        findings.push(Finding::new("connections_refused", says));
    }
    for peer in app
        .gateway
        .get()
        .into_iter()
        .flat_map(|gateway| &gateway.upstreams.peers)
    {
        if let Some(state) = peer
            .breaker()
            .map(|state| state.as_str())
            .filter(|state| *state != "closed")
        {
            let says = format!(
                "the breaker of the upstream {} is {state}, so requests are answered with 503 or go elsewhere; look why it \
                 fails",
                peer.upstream
            );
            findings.push(Finding::new("breaker", says));
        }
        if !peer.is_healthy() {
            let says = format!(
                "the upstream {} fails its health checks and gets nothing; look why",
                peer.upstream
            );
            findings.push(Finding::new("upstream_down", says));
        }
    }
    findings
}

fn of_store<C: Clock>(app: &App<C>, status: &ratekeeper_redis::RedisStatus) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some((since, trouble)) = &status.error {
        let (seconds, by) = (since.as_secs(), app.engine.policies().default_on_failure());
        let says = format!(
            "decisions are made without Redis for {seconds} s, by {by}: {trouble}; bring Redis back"
        );
        findings.push(Finding::new("store_fallback", says));
    }
    if let Some(others) = status.other_limits.filter(|others| others.is_reported) {
        findings.push(Finding::new("limits_differ", others.to_string()));
    }
    findings
}

async fn of_keys<C: Clock>(app: &App<C>) -> Vec<Finding> {
    let (mut findings, top) = (Vec::new(), app.engine.most_active(16));
    for policy in app.engine.policy_stats().await {
        let (name, requests) = (&policy.policy, policy.counts.allowed + policy.counts.denied);
        let heaviest = top
            .iter()
            .find(|key| key.policy == *name)
            .map_or(0, |key| key.at_least);
        if requests >= FEW && !policy.by.is_empty() && is_most(heaviest, requests) {
            let says = format!(
                "one key of the policy `{name}` has {heaviest} of its {requests} requests; if that is not one caller, they share \
                 a bucket: look whether trusted_proxies and header under [identity] fit your proxy, and `key` what tells \
                 callers apart"
            );
            findings.push(Finding::new("one_bucket", says));
        }
        if let Some(requests) = policy.unmatched.filter(|requests| *requests >= FEW) {
            let says = format!(
                "the policy `{name}` applied to none of {requests} requests; see what `ratekeeper admin explain` says of one that it \
                 should apply to"
            );
            findings.push(Finding::note("policy_unmatched", says));
        }
        let evicted = policy.keys.map_or(0, |census| census.evicted_live);
        if evicted > 0 {
            let says = format!(
                "{evicted} keys of the policy `{name}` were forgotten while they were in use, and are held to the strictest that \
                 was forgotten; raise max_keys under [store]"
            );
            findings.push(Finding::new("keys_evicted", says));
        }
    }
    findings
}

/// Nine in ten.
fn is_most(some: u64, of: u64) -> bool {
    some.saturating_mul(10) >= of.saturating_mul(9) && some > 0
}
