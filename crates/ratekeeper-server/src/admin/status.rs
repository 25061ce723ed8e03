//! `GET /admin/status`: how things stand, in one piece. Its numbers come from where those of
//! `/metrics` come from.

use super::{Admin, overload, told};
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

/// How things stand.
#[derive(Serialize, Deserialize)]
pub(crate) struct Status {
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
    /// Of a gateway.
    #[serde(default)]
    pub(crate) upstreams: Vec<UpstreamStatus>,
    /// Requests that were told to wait, and do.
    pub(crate) waiting: u64,
    /// Overrides and bans by operators that are in force.
    pub(crate) overrides: u64,
    /// How hard it is pressed, where limits move or load is shed.
    pub(crate) pressure: Option<serde_json::Value>,
    pub(crate) reloads: Reloads,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Totals {
    pub(crate) requests: u64,
    pub(crate) allowed: u64,
    pub(crate) blocked: u64,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct StoreStatus {
    /// `memory` or `redis`.
    pub(crate) kind: String,
    /// What is wrong with it, in a sentence.
    pub(crate) trouble: Option<String>,
    pub(crate) fallback_active: bool,
    /// That other nodes have other limits, in a sentence.
    #[serde(default)]
    pub(crate) other_limits: Option<String>,
    /// Decisions it did not make, by why.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Keys that have used something; none if the store cannot count them.
    pub(crate) keys: Option<u64>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct PolicyStatus {
    pub(crate) policy: String,
    /// `enforce` or `shadow`.
    pub(crate) mode: String,
    /// The share of keys that it is enforced for; the others are watched.
    pub(crate) enforced_percent: f64,
    pub(crate) by: Vec<String>,
    pub(crate) limits: Vec<String>,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) shadow_denied: u64,
    pub(crate) delayed: u64,
    pub(crate) errors: u64,
    pub(crate) bans: u64,
    /// The number of requests since the policy is in force, if it applied to none of them.
    #[serde(default)]
    pub(crate) unmatched: Option<u64>,
    pub(crate) keys: Option<u64>,
    pub(crate) usage: f64,
    /// `share` of one bucket for all, from 0 to 1, or the `cost` admitted in the last window.
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
    /// Whether it gets requests: its health checks, if there are any, and its circuit breaker have
    /// nothing against it.
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
        let (upstream, healthy) = (peer.upstream.to_string(), reason.is_none());
        Self {
            upstream,
            healthy,
            reason: reason.map(ToOwned::to_owned),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Reloads {
    pub(crate) taken: u64,
    pub(crate) refused: u64,
    pub(crate) stale: bool,
}

impl Status {
    /// As it is now.
    pub(crate) async fn of<C: Clock>(app: &App<C>, started: Timestamp) -> Self {
        let now = app.engine.store().now();
        let (allowed, blocked) = app.totals();
        let figures = app.engine.policy_stats().await;
        let keys = figures
            .iter()
            .map(|policy| policy.keys.map(|census| census.live))
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
                .flat_map(|gateway| &gateway.upstreams.peers)
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
                requests: allowed + blocked,
                allowed,
                blocked,
            },
            store: StoreStatus::of(app.engine.store(), keys),
            policies: figures.iter().map(PolicyStatus::of).collect(),
            envoy: envoy.collect(),
            breakers: peers()
                .filter_map(|peer| Some(breaker(peer.upstream.to_string(), peer.breaker()?)))
                .collect(),
            upstreams: peers().map(|peer| UpstreamStatus::of(peer)).collect(),
            waiting: app.waits.waiting() as u64,
            overrides: app.engine.overrides().len() as u64,
            pressure: app.engine.overload_stats().as_ref().map(overload::told),
            reloads: Reloads {
                taken: app.reloads.taken.load(Relaxed),
                refused: app.reloads.refused.load(Relaxed),
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
        let trouble = status.as_ref().and_then(|status| status.error.as_ref());
        let other_limits = status
            .as_ref()
            .and_then(|status| status.other_limits)
            .filter(|others| others.is_reported);
        let errors = status.iter().flat_map(|status| status.counts.errors);
        Self {
            kind: store.name().to_owned(),
            trouble: trouble.map(|(_, trouble)| trouble.to_string()),
            fallback_active: trouble.is_some(),
            other_limits: other_limits.map(|others| others.to_string()),
            errors: errors.map(|(kind, many)| (kind.to_owned(), many)).collect(),
            keys,
        }
    }
}

impl PolicyStatus {
    fn of(figures: &PolicyStats) -> Self {
        let counts = &figures.counts;
        Self {
            policy: figures.policy.clone(),
            mode: if figures.action == Action::Shadow {
                "shadow"
            } else {
                "enforce"
            }
            .to_owned(),
            enforced_percent: if figures.action == Action::Shadow {
                0.0
            } else {
                figures.rollout.as_percent()
            },
            by: figures.by.iter().map(ToString::to_string).collect(),
            limits: figures.limits.iter().map(ToString::to_string).collect(),
            allowed: counts.allowed,
            denied: counts.denied,
            shadow_denied: counts.shadow_denied,
            delayed: counts.delayed,
            errors: counts.errors,
            bans: figures.bans,
            unmatched: figures.unmatched,
            keys: figures.keys.map(|census| census.live),
            usage: figures.usage.number(),
            usage_is: match figures.usage {
                Utilization::Share(_) => "share",
                Utilization::Allowed(_) => "cost",
            }
            .to_owned(),
        }
    }
}

pub(super) async fn status<C: Clock>(State(admin): State<Arc<Admin<C>>>) -> Response {
    told(&Status::of(admin.app(), admin.started).await)
}
