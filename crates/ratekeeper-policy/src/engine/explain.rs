//! Why a request passes or not: every policy, what it made of the request, and where that leaves
//! it.

use super::Engine;
use super::asking::{Applied, Asking, Request, Role};
use super::key;
use super::overrides::Override;
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
    pub instead: Option<Arc<Override>>,
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
    pub admits_at: Option<Timestamp>,
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
            true => Some(self.verdict.parts.now + self.verdict.delay()),
            // Without the attribute it is denied for ever, whatever else denies it now.
            false
                if self
                    .verdict
                    .parts
                    .asking
                    .lacking
                    .iter()
                    .any(|lacking| lacking.is_enforced) =>
            {
                None
            }
            // On leaving the deny list it may meet a ban, and after that the limits.
            false => {
                let limits = self.verdict.parts.now
                    + self
                        .verdict
                        .retry_after()?
                        .max(self.verdict.limits_admit_after()?);
                Some(
                    self.verdict
                        .parts
                        .asking
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
        let request = Request {
            subject,
            path: path.as_ref(),
            cost,
            now,
        };
        let mut tried = Vec::with_capacity(rules.policies.len());
        let mut asking = Asking::default();
        asking.gather_explained(
            &rules,
            &inner.overrides.in_force(),
            &request,
            |ruling, applied, asking| {
                let outcome = applied.map(
                    |Applied {
                         asked: range,
                         key: bytes,
                         lacks,
                     }| {
                        let mine = &asking.asked[range.clone()];
                        let by = &ruling.policy.key;
                        let (key, fingerprint) = (
                            key::shown(by, bytes, &secret),
                            key::fingerprint(by, bytes, &secret),
                        );
                        let missing =
                            lacks.map(|attribute| (attribute.clone(), ruling.policy.missing));
                        let instead = mine.iter().find_map(|asked| asked.instead.clone());
                        let only_counted = asking
                            .lacking
                            .last()
                            .is_some_and(|lacking| !lacking.is_enforced);
                        let shadow = mine
                            .iter()
                            .any(|asked| asked.mode == ratekeeper::Mode::Shadow)
                            || mine.is_empty() && lacks.is_some() && only_counted;
                        let levels = Vec::new();
                        let standing = KeyState {
                            key,
                            fingerprint,
                            missing,
                            levels,
                            instead,
                            banned_for: None,
                            shadow,
                        };
                        (range, standing)
                    },
                );
                tried.push((ruling.policy.name.clone(), outcome));
            },
        );
        let answer = inner.store.decide_at(&asking.asks(&rules, true), now).await;
        let banned = asking.banned.clone();
        let reason = match (
            rules.without_limits(subject, path.as_ref(), now),
            asking.denied_without_limits(&rules),
        ) {
            (Some(reason), _) | (None, Some(reason)) => reason,
            (None, None) if !asking.limits_something() => Reason::NoPolicy,
            (None, None) => reason_of(&asking, &answer),
        };
        asking.banned = banned;
        let mut verdict = PolicyVerdict::new(rules, now);
        verdict.parts.asking = asking;
        verdict.answered(answer);
        verdict.parts.reason = reason;
        let statuses: Vec<_> = verdict.statuses().collect();
        let stand = |(range, mut standing): (std::ops::Range<usize>, KeyState)| {
            for (asked, status) in &statuses[range] {
                let decision = status.decision();
                if asked.role == Role::Ban {
                    standing.banned_for = decision.retry_after();
                    continue;
                }
                let admits_at = match decision.is_denied() {
                    true => decision.retry_after().map(|after| now + after),
                    false => Some(now + decision.delay()),
                };
                let limit = asked.slot(verdict.ruling(asked)).limit;
                standing.levels.push(LimitState {
                    limit,
                    cost: asked.cost,
                    decision,
                    outcome: outcome(asked, status),
                    admits_at,
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
