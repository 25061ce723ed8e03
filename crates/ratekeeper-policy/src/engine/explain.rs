//! Explanation of a decision: every policy, whether it applies, and the state of its limits.

use super::Engine;
use super::key;
use super::overrides::Override;
use super::query::{AppliedPolicy, Query, RequestContext, Role};
use super::reason::{Reason, reason_of};
use super::verdict::{PolicyVerdict, outcome};
use crate::attribute::Attribute;
use crate::matching::MismatchReason;
use crate::policy::Missing;
use crate::policy_limit::PolicyLimit;
use crate::subject::Subject;
use ratekeeper::{Decision, Store, Timestamp, store::AskOutcome};
use std::sync::Arc;
use std::time::Duration;

/// How a request would be decided, and why. Making one charges nothing.
#[derive(Debug)]
pub struct Explanation {
    verdict: PolicyVerdict,
    traces: Vec<PolicyTrace>,
}

/// How one policy was evaluated for the request.
#[derive(Debug)]
pub struct PolicyTrace {
    /// The name of the policy.
    pub policy: String,
    /// Why it does not apply, or the state of the key if it does.
    pub outcome: Result<KeyState, MismatchReason>,
}

/// The state of a policy for the key of a request.
#[derive(Debug)]
pub struct KeyState {
    /// The key in plain text, such as `ip=203.0.113.7`; empty if all requests share one bucket.
    /// Secrets are shown as fingerprints.
    pub key: String,
    /// The key by its fingerprints, such as `ip=#f8c0a1b2c3d4e5f6`.
    pub fingerprint: String,
    /// The attribute of the key that the request lacks, and how the policy handles that.
    pub missing: Option<(Attribute, Missing)>,
    /// The state of its limits.
    pub limits: Vec<LimitState>,
    /// The override by an operator that replaces its limits.
    pub replacement: Option<Arc<Override>>,
    /// Remaining time of a ban by a penalty.
    pub banned_for: Option<Duration>,
    /// Whether the policy is in shadow mode, for this key at least.
    pub shadow: bool,
}

/// The state of a limit for the key of a request.
#[derive(Clone, Copy, Debug)]
pub struct LimitState {
    /// The limit.
    pub limit: PolicyLimit,
    /// The cost of the request.
    pub cost: u64,
    /// The decision: capacity, remaining, times.
    pub decision: Decision,
    /// The outcome for the request.
    pub outcome: AskOutcome,
    /// When the limit would allow the request: now, later, or `None` for never, and for permits,
    /// whose release is not known ahead.
    pub allowed_at: Option<Timestamp>,
}

impl Explanation {
    /// The verdict that the request would get.
    pub fn verdict(&self) -> &PolicyVerdict {
        &self.verdict
    }

    /// Every policy, in the order of the configuration.
    pub fn traces(&self) -> &[PolicyTrace] {
        &self.traces
    }

    /// When the request would be allowed if no other request comes; `None` if never or unknown.
    pub fn allowed_at(&self) -> Option<Timestamp> {
        let state = &self.verdict.state;
        if self.verdict.is_allowed() {
            return Some(state.now + self.verdict.delay());
        }
        // A missing attribute denies it for ever, whatever else denies it now.
        let denials = &state.query.missing_denials;
        if denials.iter().any(|denial| denial.is_enforced) {
            return None;
        }
        // When the deny list entry expires, bans and limits still hold.
        let wait = self.verdict.retry_after()?;
        let limits = state.now + wait.max(self.verdict.limits_retry_after()?);
        let banned = state.query.banned.as_ref();
        Some(banned.map_or(limits, |ban| ban.until().max(limits)))
    }
}

impl<S: Store> Engine<S> {
    /// Explains how a request would be decided: for every policy whether it applies, why not, and
    /// the state of its limits.
    pub async fn explain(&self, subject: &Subject<'_>) -> Explanation {
        let inner = &*self.inner;
        let now = inner.store.now();
        let rules = inner.rules.load();
        let secret = inner.overrides.secret();
        let path = rules.path_of(subject);
        let request = RequestContext {
            subject,
            path: path.as_ref(),
            cost: subject.units(),
            now,
        };
        let mut traces = Vec::with_capacity(rules.policies.len());
        let mut query = Query::default();
        query.gather_explained(
            &rules,
            &inner.overrides.in_force(),
            &request,
            |rule, applied, query| {
                let outcome = applied.map(
                    |AppliedPolicy {
                         items: range,
                         key: bytes,
                         missing,
                     }| {
                        let items = &query.items[range.clone()];
                        let by = &rule.policy.key;
                        let key = key::display(by, bytes, &secret);
                        let fingerprint = key::fingerprint(by, bytes, &secret);
                        let missing =
                            missing.map(|attribute| (attribute.clone(), rule.policy.missing));
                        let replacement = items.iter().find_map(|item| item.replacement.clone());
                        let only_counted = query
                            .missing_denials
                            .last()
                            .is_some_and(|denial| !denial.is_enforced);
                        let shadow = items
                            .iter()
                            .any(|item| item.mode == ratekeeper::Mode::Shadow)
                            || items.is_empty() && missing.is_some() && only_counted;
                        let limits = Vec::new();
                        let key_state = KeyState {
                            key,
                            fingerprint,
                            missing,
                            limits,
                            replacement,
                            banned_for: None,
                            shadow,
                        };
                        (range, key_state)
                    },
                );
                traces.push((rule.policy.name.clone(), outcome));
            },
        );
        let asks = query.asks(&rules, true);
        let answer = self.peek_at_store(&asks, now).await;
        drop(asks);
        let banned = query.banned.clone();
        let reason = match (
            rules.without_limits(subject, path.as_ref(), now),
            query.denied_without_limits(&rules),
        ) {
            (Some(reason), _) | (None, Some(reason)) => reason,
            (None, None) if !query.limits_something() => Reason::NoPolicy,
            (None, None) => reason_of(&query, &answer),
        };
        query.banned = banned;
        let mut verdict = PolicyVerdict::new(rules, now);
        verdict.state.query = query;
        verdict.set_store_verdict(answer);
        verdict.state.reason = reason;
        let statuses: Vec<_> = verdict.statuses().collect();
        let with_limits = |(range, mut key_state): (std::ops::Range<usize>, KeyState)| {
            for (item, status) in &statuses[range] {
                let decision = status.decision();
                if item.role == Role::Ban {
                    key_state.banned_for = decision.retry_after();
                    continue;
                }
                let allowed_at = if decision.is_denied() {
                    decision.retry_after().map(|after| now + after)
                } else {
                    Some(now + decision.delay())
                };
                let limit = item.slot(verdict.rule(item)).limit;
                key_state.limits.push(LimitState {
                    limit,
                    cost: item.cost,
                    decision,
                    outcome: outcome(item, status),
                    allowed_at,
                });
            }
            key_state
        };
        let traces = traces
            .into_iter()
            .map(|(policy, outcome)| PolicyTrace {
                policy,
                outcome: outcome.map(with_limits),
            })
            .collect();
        drop(statuses);
        Explanation { verdict, traces }
    }
}
