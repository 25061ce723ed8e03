//! `GET /admin/status`: the state of the server. The numbers have the same source as `/metrics`.

use super::{Admin, no_store_json, overload};
use crate::api::readiness;
use crate::app::App;
use crate::gateway::Peer;
use crate::store::AnyStore;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use ratekeeper::{Clock, Store, Timestamp};
use ratekeeper_policy::{Action, engine::PolicyStats, engine::Utilization};
use ratekeeper_tower::breaker;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The state of the server.
#[derive(Serialize, Deserialize)]
pub(crate) struct ServerStatus {
    pub(crate) version: String,
    pub(crate) now_ms: u64,
    pub(crate) uptime_ms: u64,
    /// `decisions` or `gateway`.
    pub(crate) serving: String,
    pub(crate) ready: bool,
    pub(crate) totals: Totals,
    pub(crate) store: StoreStatus,
    pub(crate) policies: Vec<PolicyStatus>,
    pub(crate) envoy: Vec<RuleStatus>,
    pub(crate) breakers: Vec<Breaker>,
    /// Upstreams of a gateway.
    #[serde(default)]
    pub(crate) upstreams: Vec<UpstreamStatus>,
    /// Delayed requests that are waiting.
    pub(crate) waiting: u64,
    /// Overrides and bans by operators in force.
    pub(crate) overrides: u64,
    /// Adaptive limits and load shedding, if configured.
    pub(crate) overload: Option<serde_json::Value>,
    pub(crate) reloads: Reloads,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Totals {
    pub(crate) requests: u64,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct StoreStatus {
    /// `memory` or `redis`.
    pub(crate) kind: String,
    /// Why it is unavailable, in a sentence.
    pub(crate) error: Option<String>,
    pub(crate) fallback_active: bool,
    /// A sentence if limits of other nodes differ.
    #[serde(default)]
    pub(crate) other_limits: Option<String>,
    /// Decisions it did not make, by kind of error.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Live keys; `None` if the store cannot count them.
    pub(crate) keys: Option<u64>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct PolicyStatus {
    pub(crate) policy: String,
    /// `enforce` or `shadow`.
    pub(crate) mode: String,
    /// The share of keys that it is enforced for; others are in shadow mode.
    pub(crate) enforced_percent: f64,
    pub(crate) by: Vec<String>,
    pub(crate) limits: Vec<String>,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) shadow_denied: u64,
    pub(crate) delayed: u64,
    pub(crate) errors: u64,
    pub(crate) bans: u64,
    /// Requests since the policy is in force, if it applied to none of them.
    #[serde(default)]
    pub(crate) unmatched: Option<u64>,
    pub(crate) keys: Option<u64>,
    pub(crate) usage: f64,
    /// `share` of one bucket for all, from 0 to 1, or the `cost` allowed in the last window.
    pub(crate) usage_is: String,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct RuleStatus {
    pub(crate) rule: String,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) shadow_denied: u64,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Breaker {
    pub(crate) name: String,
    pub(crate) state: String,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct UpstreamStatus {
    pub(crate) upstream: String,
    /// Whether it gets requests: health checks pass and the circuit breaker is closed.
    pub(crate) healthy: bool,
    /// Why it is not healthy.
    pub(crate) reason: Option<String>,
}

impl UpstreamStatus {
    fn of(peer: &Peer) -> Self {
        let reason = match (peer.is_healthy(), peer.breaker()) {
            (false, _) => Some("health check fails"),
            (true, Some(breaker::State::Open)) => Some("circuit breaker open"),
            (true, Some(breaker::State::HalfOpen)) => Some("circuit breaker half open"),
            (true, _) => None,
        };
        Self {
            upstream: peer.upstream.to_string(),
            healthy: reason.is_none(),
            reason: reason.map(ToOwned::to_owned),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Reloads {
    pub(crate) succeeded: u64,
    pub(crate) rejected: u64,
    pub(crate) stale: bool,
}

impl ServerStatus {
    /// The current state.
    pub(crate) async fn of<C: Clock>(app: &App<C>, started: Timestamp) -> Self {
        let now = app.engine.store().now();
        let (allowed, denied) = app.totals();
        let policies = app.engine.stats().policies().await;
        let keys = policies
            .iter()
            .map(|policy| policy.keys.map(|keys| keys.live))
            .sum();
        let envoy = app.envoy.stats().into_iter().map(|rule| RuleStatus {
            rule: rule.path,
            allowed: rule.allowed,
            denied: rule.denied,
            shadow_denied: rule.shadow_denied,
        });
        let peers = || {
            app.gateway
                .get()
                .into_iter()
                .flat_map(|gateway| gateway.peers())
        };
        let breaker = |name, state: breaker::State| Breaker {
            name,
            state: state.as_str().to_owned(),
        };
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            now_ms: now.as_unix_nanos() / 1_000_000,
            uptime_ms: ratekeeper_tower::response::whole_millis(now.saturating_since(started)),
            serving: if app.gateway.get().is_some() {
                "gateway"
            } else {
                "decisions"
            }
            .to_owned(),
            ready: readiness(app).0 == StatusCode::OK,
            totals: Totals {
                requests: allowed + denied,
                allowed,
                denied,
            },
            store: StoreStatus::of(app.engine.store(), keys),
            policies: policies.iter().map(PolicyStatus::of).collect(),
            envoy: envoy.collect(),
            breakers: peers()
                .filter_map(|peer| Some(breaker(peer.upstream.to_string(), peer.breaker()?)))
                .collect(),
            upstreams: peers().map(|peer| UpstreamStatus::of(&peer)).collect(),
            waiting: app.waits.waiting() as u64,
            overrides: app.engine.operator().overrides().len() as u64,
            overload: app
                .engine
                .stats()
                .overload()
                .as_ref()
                .map(overload::to_json),
            reloads: Reloads {
                succeeded: app.reloads.succeeded.load(Relaxed),
                rejected: app.reloads.rejected.load(Relaxed),
                stale: app.reloads.stale.load(Relaxed),
            },
        }
    }
}

impl StoreStatus {
    fn of<C: Clock>(store: &AnyStore<C>, keys: Option<u64>) -> Self {
        let status = match store {
            AnyStore::Memory(_) => None,
            AnyStore::Redis(redis) => Some(redis.status()),
        };
        let error = status.as_ref().and_then(|status| status.error.as_ref());
        let other_limits = status
            .as_ref()
            .and_then(|status| status.other_limits)
            .filter(|others| others.is_reported);
        let errors = status.iter().flat_map(|status| status.counts.errors);
        Self {
            kind: store.name().to_owned(),
            error: error.map(|(_, error)| error.to_string()),
            fallback_active: error.is_some(),
            other_limits: other_limits.map(|others| others.to_string()),
            errors: errors
                .map(|(kind, count)| (kind.to_owned(), count))
                .collect(),
            keys,
        }
    }
}

impl PolicyStatus {
    fn of(stats: &PolicyStats) -> Self {
        let counts = &stats.counts;
        Self {
            policy: stats.policy.clone(),
            mode: if stats.action == Action::Shadow {
                "shadow"
            } else {
                "enforce"
            }
            .to_owned(),
            enforced_percent: if stats.action == Action::Shadow {
                0.0
            } else {
                stats.rollout.as_percent()
            },
            by: stats.by.iter().map(ToString::to_string).collect(),
            limits: stats.limits.iter().map(ToString::to_string).collect(),
            allowed: counts.allowed,
            denied: counts.denied,
            shadow_denied: counts.shadow_denied,
            delayed: counts.delayed,
            errors: counts.errors,
            bans: stats.bans,
            unmatched: stats.unmatched,
            keys: stats.keys.map(|keys| keys.live),
            usage: stats.usage.number(),
            usage_is: match stats.usage {
                Utilization::Share(_) => "share",
                Utilization::Allowed(_) => "cost",
            }
            .to_owned(),
        }
    }
}

pub(super) async fn status<C: Clock>(State(admin): State<Arc<Admin<C>>>) -> Response {
    no_store_json(&ServerStatus::of(admin.app(), admin.started).await)
}
