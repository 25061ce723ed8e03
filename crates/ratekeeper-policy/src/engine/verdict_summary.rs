//! Verdict summary for logs: the policy, plan and key that a verdict is accounted to.

use super::query::{QueryItem, Role};
use super::{Engine, PolicyVerdict, key};
use crate::policy::Limits;
use ratekeeper::Store;

/// The policy that denied a request, or else the one with the least left, with its plan and key.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct VerdictSummary {
    /// The name of the policy.
    pub policy: String,
    /// The plan whose limits applied; `None` if the policy has limits of its own.
    pub plan: Option<String>,
    /// The key by its fingerprints, such as `ip=#f8c0a1b2c3d4e5f6`; `None` if all requests share
    /// one bucket.
    pub key: Option<String>,
}

impl<S: Store> Engine<S> {
    /// The summary of a verdict of this engine. `None` if no policy with a limit applied, or if the
    /// reason is not that of a policy.
    pub fn summary(&self, verdict: &PolicyVerdict) -> Option<VerdictSummary> {
        let (rule, item) = verdict.summary_source()?;
        let by_plan = matches!(rule.policy.limits, Limits::Plan { .. });
        let plan = |item: &QueryItem| match item.role {
            Role::Limit { set, .. } => verdict.rules().source.plans.get(set as usize),
            Role::Ban => None,
        };
        let plan = item
            .filter(|_| by_plan)
            .and_then(plan)
            .map(|plan| plan.name.clone());
        let by = &rule.policy.key;
        let key = item.filter(|_| !by.is_empty()).map(|item| {
            key::fingerprint(
                by,
                verdict.state.query.key(item),
                &self.inner.overrides.secret(),
            )
        });
        Some(VerdictSummary {
            policy: rule.policy.name.clone(),
            plan,
            key,
        })
    }
}
