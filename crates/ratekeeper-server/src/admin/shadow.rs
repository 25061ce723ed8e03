//! `GET /admin/shadow`: what policies that only watch would have turned away.

use super::top::Key;
use super::{Admin, told};
use axum::extract::State;
use axum::response::Response;
use ratekeeper::Clock;
use ratekeeper_policy::{Action, policy::Rollout};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Keys a policy that are shown.
const SHOWN: usize = 10;

/// From how many of all policies they are chosen.
const LOOKED_AT: usize = 1_000;

/// What one policy would have turned away.
#[derive(Serialize, Deserialize)]
pub(crate) struct ShadowReport {
    pub(crate) policy: String,
    /// `shadow`, or `enforce` where it is enforced for a part of the keys.
    pub(crate) mode: String,
    pub(crate) enforced_percent: f64,
    /// Requests that it applied to and that were decided.
    pub(crate) requests: u64,
    pub(crate) would_deny: u64,
    /// That among all of these, from 0 to 1.
    pub(crate) share: f64,
    /// The keys that would have been turned away most often.
    pub(crate) top: Vec<Key>,
}

pub(super) async fn shadow<C: Clock>(State(admin): State<Arc<Admin<C>>>) -> Response {
    let engine = &admin.app().engine;
    let keys = engine.most_shadow_denied(LOOKED_AT);
    let figures = engine.policy_stats().await;
    let watches = figures.iter().filter(|policy| {
        policy.action == Action::Shadow
            || policy.rollout != Rollout::ALL
            || policy.counts.shadow_denied > 0
    });
    let watching = watches.map(|policy| {
        let counts = &policy.counts;
        let requests = counts.allowed + counts.denied + counts.delayed + counts.shadow_denied;
        let own = keys
            .iter()
            .filter(|key| key.policy == policy.policy)
            .take(SHOWN)
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
            top: own.map(Key::from).collect(),
        }
    });
    told(&watching.collect::<Vec<_>>())
}
