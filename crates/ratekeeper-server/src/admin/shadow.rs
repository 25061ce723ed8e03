//! `GET /admin/shadow`: what policies in shadow mode would have denied.

use super::top::Key;
use super::{Admin, no_store_json};
use axum::extract::State;
use axum::response::Response;
use ratekeeper::Clock;
use ratekeeper_policy::{Action, policy::Rollout};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Keys in the report of a policy.
const MAX_KEYS: usize = 10;

/// Keys of all policies that are considered.
const CANDIDATES: usize = 1_000;

/// The report of one policy.
#[derive(Serialize, Deserialize)]
pub(crate) struct ShadowReport {
    pub(crate) policy: String,
    /// `shadow`, or `enforce` if it is enforced for a part of the keys.
    pub(crate) mode: String,
    pub(crate) enforced_percent: f64,
    /// Decided requests that the policy applied to.
    pub(crate) requests: u64,
    pub(crate) would_deny: u64,
    /// `would_deny` divided by `requests`, from 0 to 1.
    pub(crate) share: f64,
    /// The keys that would have been denied most often.
    pub(crate) top: Vec<Key>,
}

pub(super) async fn shadow<C: Clock>(State(admin): State<Arc<Admin<C>>>) -> Response {
    let engine = &admin.app().engine;
    let keys = engine.stats().most_shadow_denied(CANDIDATES);
    let stats = engine.stats().policies().await;
    let shadowing = stats.iter().filter(|policy| {
        policy.action == Action::Shadow
            || policy.rollout != Rollout::ALL
            || policy.counts.shadow_denied > 0
    });
    let reports = shadowing.map(|policy| {
        let counts = &policy.counts;
        let requests = counts.allowed + counts.denied + counts.delayed + counts.shadow_denied;
        let top = keys
            .iter()
            .filter(|key| key.policy == policy.policy)
            .take(MAX_KEYS)
            .cloned();
        ShadowReport {
            policy: policy.policy.clone(),
            mode: if policy.action == Action::Shadow {
                "shadow"
            } else {
                "enforce"
            }
            .to_owned(),
            enforced_percent: if policy.action == Action::Shadow {
                0.0
            } else {
                policy.rollout.as_percent()
            },
            requests,
            would_deny: counts.shadow_denied,
            share: if requests == 0 {
                0.0
            } else {
                counts.shadow_denied as f64 / requests as f64
            },
            top: top.map(Key::from).collect(),
        }
    });
    no_store_json(&reports.collect::<Vec<_>>())
}
