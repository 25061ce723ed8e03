//! Why a request passes or not: every policy, what it made of the request, and where that leaves
//! it.

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

/// What would become of a request, and why. Asking changes nothing.
#[derive(Debug)]
pub struct Explanation {
    verdict: PolicyVerdict,
    tried: Vec<PolicyTrace>,
}

/// What one policy made of the request.
#[derive(Debug)]
pub struct PolicyTrace {
    /// Its name.
    pub policy: String,
    /// Why it does not apply, or where it stands.
    pub outcome: Result<KeyState, MismatchReason>,
}

/// Where a policy stands with the key of a request.
#[derive(Debug)]
pub struct KeyState {
    /// The key in words, such as `ip=203.0.113.7`; empty if all share one bucket. What opens doors
    /// is shown by its fingerprint.
    pub key: String,
    /// The same by its fingerprints, such as `ip=#f8c0a1b2c3d4e5f6`.
    pub fingerprint: String,
    /// The attribute of the key that the request lacks, and what happens therefore.
    pub missing: Option<(Attribute, Missing)>,
    /// Its limits.
    pub levels: Vec<LimitState>,
    /// What an operator said of the key.
    pub replacement: Option<Arc<Override>>,
    /// How long a penalty still bans the key.
    pub banned_for: Option<Duration>,
    /// Whether it only watches, this key at least.
    pub shadow: bool,
}

/// Where a limit stands with the key of a request.
#[derive(Clone, Copy, Debug)]
pub struct LimitState {
    /// The limit.
    pub limit: PolicyLimit,
    /// What the request would cost.
    pub cost: u64,
    /// Its figures.
    pub decision: Decision,
    /// What would become of the request.
    pub outcome: AskOutcome,
    /// When it would be admitted here: now, later, or none for never and for permits, of which
    /// nobody knows.
    pub allowed_at: Option<Timestamp>,
}

impl Explanation {
    /// What would be decided.
    pub fn verdict(&self) -> &PolicyVerdict {
        &self.verdict
    }

    /// Every policy, in order.
    pub fn tried(&self) -> &[PolicyTrace] {
        &self.tried
    }

    /// When the request would be admitted if nobody else comes; none if never, or if nobody knows.
    pub fn allowed_at(&self) -> Option<Timestamp> {
        match self.verdict.is_allowed() {
            true => Some(self.verdict.state.now + self.verdict.delay()),
            // Without the attribute it is denied for ever, whatever else denies it now.
            false
                if self
                    .verdict
                    .state
                    .query
                    .missing_denials
                    .iter()
                    .any(|denial| denial.is_enforced) =>
            {
                None
            }
            // On leaving the deny list it may meet a ban, and after that the limits.
            false => {
                let limits = self.verdict.state.now
                    + self
                        .verdict
                        .retry_after()?
                        .max(self.verdict.limits_retry_after()?);
                Some(
                    self.verdict
                        .state
                        .query
                        .banned
                        .as_ref()
                        .map_or(limits, |ban| ban.until().max(limits)),
                )
            }
        }
    }
}

impl<S: Store> Engine<S> {
    /// Says of every policy whether it applies to a request, why not, and where its limits stand.
    pub async fn explain(&self, subject: &Subject<'_>, cost: u64) -> Explanation {
        let inner = &*self.inner;
        let now = inner.store.now();
        let (rules, secret) = (inner.rules.load(), inner.overrides.secret());
        let path = rules.path_of(subject);
        let request = RequestContext {
            subject,
            path: path.as_ref(),
            cost,
            now,
        };
        let mut tried = Vec::with_capacity(rules.policies.len());
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
                        let mine = &query.items[range.clone()];
                        let by = &rule.policy.key;
                        let (key, fingerprint) = (
                            key::display(by, bytes, &secret),
                            key::fingerprint(by, bytes, &secret),
                        );
                        let missing =
                            missing.map(|attribute| (attribute.clone(), rule.policy.missing));
                        let replacement = mine.iter().find_map(|item| item.replacement.clone());
                        let only_counted = query
                            .missing_denials
                            .last()
                            .is_some_and(|denial| !denial.is_enforced);
                        let shadow = mine
                            .iter()
                            .any(|item| item.mode == ratekeeper::Mode::Shadow)
                            || mine.is_empty() && missing.is_some() && only_counted;
                        let levels = Vec::new();
                        let standing = KeyState {
                            key,
                            fingerprint,
                            missing,
                            levels,
                            replacement,
                            banned_for: None,
                            shadow,
                        };
                        (range, standing)
                    },
                );
                tried.push((rule.policy.name.clone(), outcome));
            },
        );
        let answer = inner.store.decide_at(&query.asks(&rules, true), now).await;
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
        let stand = |(range, mut standing): (std::ops::Range<usize>, KeyState)| {
            for (item, status) in &statuses[range] {
                let decision = status.decision();
                if item.role == Role::Ban {
                    standing.banned_for = decision.retry_after();
                    continue;
                }
                let allowed_at = match decision.is_denied() {
                    true => decision.retry_after().map(|after| now + after),
                    false => Some(now + decision.delay()),
                };
                let limit = item.slot(verdict.rule(item)).limit;
                standing.levels.push(LimitState {
                    limit,
                    cost: item.cost,
                    decision,
                    outcome: outcome(item, status),
                    allowed_at,
                });
            }
            standing
        };
        let tried = tried
            .into_iter()
            .map(|(policy, outcome)| PolicyTrace {
                policy,
                outcome: outcome.map(stand),
            })
            .collect();
        drop(statuses);
        Explanation { verdict, tried }
    }
}
