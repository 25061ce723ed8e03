//! The reference engine.

use super::history::{History, capacity, is_unspecified};
use super::matching::{holds, key, value};
use super::spec::{Behaviour, Caller, Limits, Operation, Rule, Share, Spec};
use ratekeeper::{Outcome, store::AskOutcome};
use ratekeeper_policy::{Count, Missing, PolicyLimit, stats::DecisionStats};
use ratekeeper_testkit::{DecisionInfo, model::Call};
use std::collections::BTreeMap;
use std::time::Duration;

/// Set numbers from here on are replacement limits of overrides.
const REPLACEMENTS: usize = 100;

/// A policy and a key.
type KeyId = (usize, Vec<Vec<Vec<u8>>>);
/// A key, a set of limits, and an index in the set.
type LimitId = (KeyId, usize, usize);

pub(crate) struct Naive {
    pub(crate) spec: Spec,
    start: u64,
    limits: BTreeMap<LimitId, History>,
    /// Denials since the last ban.
    denials: BTreeMap<KeyId, Vec<u64>>,
    bans: BTreeMap<KeyId, Vec<u64>>,
    /// Bans and limits of an operator, with their ends.
    operator_bans: BTreeMap<KeyId, u64>,
    operator_limits: BTreeMap<KeyId, (u64, Vec<PolicyLimit>)>,
    /// Every replacement limit so far, each a set of its own.
    replacements: Vec<PolicyLimit>,
    bans_of: Vec<u64>,
    /// Statistics of each policy, and the totals.
    pub(crate) counts: Vec<DecisionStats>,
    pub(crate) totals: (u64, u64),
}

/// The decision of one limit on a request.
#[derive(Clone, Debug)]
pub(crate) struct JudgedLimit {
    pub(crate) policy: usize,
    pub(crate) decision: DecisionInfo,
    pub(crate) outcome: AskOutcome,
    pub(crate) limit: PolicyLimit,
    pub(crate) cost: u64,
    limit_id: LimitId,
    shadow: bool,
    now: u64,
    call: Call,
    /// The charge in the history.
    charged: Option<usize>,
    resets: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct ExpectedVerdict {
    pub(crate) allowed: bool,
    pub(crate) never: bool,
    pub(crate) reason: &'static str,
    pub(crate) policy: Option<String>,
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) delay: Duration,
    pub(crate) limits: Vec<JudgedLimit>,
    /// The policies that apply, and those of them that ban the key.
    pub(crate) applied: Vec<usize>,
    banned: Vec<usize>,
    /// Shadow policies that would deny the request for a missing attribute.
    only_counted: Vec<usize>,
    /// Whether it was decided without any limit.
    pub(crate) without_limits: bool,
}

impl Naive {
    pub(crate) fn new(spec: &Spec, start: u64) -> Self {
        let (limits, denials, bans, operator_bans, operator_limits, replacements) =
            Default::default();
        let counts = vec![DecisionStats::default(); spec.rules.len()];
        let bans_of = vec![0; spec.rules.len()];
        let spec = spec.clone();
        let totals = (0, 0);
        Self {
            spec,
            start,
            limits,
            denials,
            bans,
            operator_bans,
            operator_limits,
            replacements,
            bans_of,
            counts,
            totals,
        }
    }

    pub(crate) fn decide(
        &mut self,
        caller: &Caller,
        cost: u64,
        now: u64,
        peek: bool,
    ) -> ExpectedVerdict {
        let expected = self.judge_all(caller, cost, now, peek);
        if !peek {
            self.count(&expected);
        }
        expected
    }

    /// A policy counts a request by the worst outcome of its limits; an allowed one counts only if
    /// the request was allowed.
    fn count(&mut self, expected: &ExpectedVerdict) {
        *(if expected.allowed {
            &mut self.totals.0
        } else {
            &mut self.totals.1
        }) += 1;
        // A ban by an operator is under one policy, and no other is asked.
        if let (true, Some(name)) = (expected.without_limits, &expected.policy) {
            let banned = (0..self.spec.rules.len()).find(|policy| Spec::name(*policy) == *name);
            self.counts[banned.expect("a policy of that name")].denied += 1;
        }
        for policy in &expected.only_counted {
            self.counts[*policy].shadow_denied += 1;
        }
        for policy in &expected.applied {
            let mut mine = expected
                .limits
                .iter()
                .filter(|judged| judged.policy == *policy);
            let counts = &mut self.counts[*policy];
            let any =
                |wanted: &[AskOutcome]| mine.clone().any(|judged| wanted.contains(&judged.outcome));
            match () {
                () if expected.banned.contains(policy) => counts.denied += 1,
                () if any(&[AskOutcome::Denied, AskOutcome::Never]) => counts.denied += 1,
                () if any(&[AskOutcome::ShadowDenied]) => counts.shadow_denied += 1,
                () if !expected.allowed => {}
                () if any(&[AskOutcome::Delayed]) => counts.delayed += 1,
                () => counts.allowed += u64::from(mine.next().is_some()),
            }
        }
    }

    /// The number of bans by a policy.
    pub(crate) fn bans_of(&self, policy: usize) -> u64 {
        self.bans_of[policy]
    }

    /// Applies an operation to the key of a request in a policy; false if there is no key.
    pub(crate) fn operate(
        &mut self,
        operation: &Operation,
        policy: usize,
        caller: &Caller,
        now: u64,
    ) -> bool {
        let rule = &self.spec.rules[policy];
        // Leaving an attribute out does not select a shared bucket.
        let missing = match rule.missing {
            missing @ (Missing::Address | Missing::Deny) if caller.ip.is_some() => missing,
            _ => Missing::Skip,
        };
        let Some((key, _)) = key(&rule.key, missing, caller) else {
            return false;
        };
        let key_id: KeyId = (policy, key);
        match operation {
            Operation::Ban(lasts) => _ = self.operator_bans.insert(key_id, now + lasts),
            Operation::Limits(kinds, lasts) => {
                let mut once = Vec::new();
                for kind in kinds {
                    if !once.contains(kind) {
                        once.push(*kind);
                    }
                    if !self.replacements.contains(kind) {
                        self.replacements.push(*kind);
                    }
                }
                self.operator_limits.insert(key_id, (now + lasts, once));
            }
            Operation::Reset => {
                let replacement = self.replacement(&key_id, now).unwrap_or_default();
                for ((of, set, _), history) in
                    self.limits.iter_mut().filter(|((of, ..), _)| *of == key_id)
                {
                    debug_assert_eq!(*of, key_id);
                    if *set < REPLACEMENTS || replacement.iter().any(|(known, ..)| known == set) {
                        history.reset();
                    }
                }
                self.operator_bans.remove(&key_id);
                self.operator_limits.remove(&key_id);
                self.denials.remove(&key_id);
                self.bans.remove(&key_id);
            }
        }
        true
    }

    /// The limits that replace those of the policy for a key.
    fn replacement(&self, key_id: &KeyId, now: u64) -> Option<Vec<(usize, usize, PolicyLimit)>> {
        let (_, kinds) = self
            .operator_limits
            .get(key_id)
            .filter(|(until, _)| *until > now)?;
        let limit_id = |kind: &PolicyLimit| {
            self.replacements
                .iter()
                .position(|known| known == kind)
                .expect("known")
                + REPLACEMENTS
        };
        Some(
            kinds
                .iter()
                .map(|kind| (limit_id(kind), 0, *kind))
                .collect(),
        )
    }

    fn judge_all(&mut self, caller: &Caller, cost: u64, now: u64, peek: bool) -> ExpectedVerdict {
        if let Some(expected) = self.listed(caller, now) {
            return expected;
        }
        let mut judged = Vec::new();
        let mut banned = Vec::new();
        let mut applied = Vec::new();
        let mut said: Option<(usize, u64)> = None;
        let mut missing = None;
        let mut only_counted = Vec::new();
        for (number, rule) in self.spec.rules.iter().enumerate() {
            let key = || key(&rule.key, rule.missing, caller);
            let Some((key, lacks)) = holds(&rule.when, caller, false).then(key).flatten() else {
                continue;
            };
            let Some((set, limits)) = self.set_of(rule, caller) else {
                continue;
            };
            let key_id: KeyId = (number, key);
            applied.push(number);
            let until = self
                .operator_bans
                .get(&key_id)
                .copied()
                .filter(|until| *until > now);
            if until > said.map(|(_, until)| until) {
                said = until.map(|until| (number, until));
            }
            if lacks && rule.missing == Missing::Deny {
                if rule.does == Behaviour::Shadow || !rule.rolled_out {
                    only_counted.push(number);
                } else {
                    _ = missing.get_or_insert(number);
                }
                if rule.last && holds(&rule.when, caller, true) {
                    break;
                }
                continue;
            }
            if let Some((_, _, lasts)) = rule.penalty {
                let until = self
                    .bans
                    .get(&key_id)
                    .into_iter()
                    .flatten()
                    .map(|began| began + lasts)
                    .max();
                banned.extend(
                    until
                        .filter(|until| *until > now)
                        .map(|until| (number, judged.len(), until - now)),
                );
            }
            let own = || {
                limits
                    .iter()
                    .enumerate()
                    .map(|(slot, kind)| (set, slot, *kind))
                    .collect()
            };
            for (set, slot, kind) in self.replacement(&key_id, now).unwrap_or_else(own) {
                judged.push(self.judge(rule, &key_id, (set, slot), kind, caller, cost, now));
            }
            if rule.last && holds(&rule.when, caller, true) {
                break;
            }
        }
        if let Some((policy, until)) = said {
            let policy = Some(Spec::name(policy));
            return ExpectedVerdict {
                policy,
                retry_after: Some(Duration::from_nanos(until - now)),
                ..without_limits(false, "ban")
            };
        }
        if let Some(policy) = missing {
            let policy = Some(Spec::name(policy));
            return ExpectedVerdict {
                policy,
                never: true,
                ..without_limits(false, "missing_attribute")
            };
        }
        let mut expected = verdict(&self.spec, applied, judged, &banned);
        expected.only_counted = only_counted;
        if expected.limits.is_empty() {
            expected.reason = "no_policy";
        }
        if peek {
            return expected;
        }
        if expected.allowed {
            expected
                .limits
                .iter_mut()
                .for_each(|judged| self.charge(judged));
        } else if banned.is_empty() {
            self.apply_penalties(&expected, now);
        }
        expected
    }

    fn listed(&self, caller: &Caller, now: u64) -> Option<ExpectedVerdict> {
        let until = |until: Option<u64>| until.map(|until| self.start + until);
        let in_force = |entry: &super::spec::Entry, every| {
            until(entry.until).is_none_or(|until| now < until) && holds(&entry.when, caller, every)
        };
        if self.spec.allow.iter().any(|entry| in_force(entry, true)) {
            return Some(without_limits(true, "allow_list"));
        }
        let denied: Vec<_> = self
            .spec
            .deny
            .iter()
            .filter(|entry| in_force(entry, false))
            .collect();
        // With two entries the later end counts.
        let ends: Option<Vec<u64>> = denied.iter().map(|entry| until(entry.until)).collect();
        let retry_after = ends
            .and_then(|ends| ends.into_iter().max())
            .map(|end| Duration::from_nanos(end - now));
        let expected = ExpectedVerdict {
            never: retry_after.is_none(),
            retry_after,
            ..without_limits(false, "deny_list")
        };
        (!denied.is_empty()).then_some(expected)
    }

    fn set_of(&self, rule: &Rule, caller: &Caller) -> Option<(usize, Vec<PolicyLimit>)> {
        match &rule.limits {
            Limits::Own(limits) => Some((0, limits.clone())),
            Limits::Plan { default } => {
                let find =
                    |name: &str| self.spec.plans.iter().position(|(known, _)| *known == name);
                let at = value(caller, "plan")
                    .and_then(|plan| find(&plan))
                    .or_else(|| find((*default)?))?;
                Some((at, self.spec.plans[at].1.clone()))
            }
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "all of them are what it is about"
    )]
    fn judge(
        &self,
        rule: &Rule,
        key_id: &KeyId,
        (set, slot): (usize, usize),
        kind: PolicyLimit,
        caller: &Caller,
        cost: u64,
        now: u64,
    ) -> JudgedLimit {
        let units = match rule.cost {
            Ok(units) => units,
            Err(default) => match value(caller, "tokens") {
                Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                    digits.parse().unwrap_or(u64::MAX)
                }
                _ => default,
            },
        };
        let permit = matches!(kind, PolicyLimit::Concurrent(_));
        let cost = if permit {
            1
        } else {
            units.saturating_mul(cost)
        };
        let reserve = rule.class.map_or(0, |(low, mid, default)| {
            let known = |name: &String| name == "low" || name == "mid";
            let class = value(caller, "priority")
                .filter(known)
                .or(default.map(str::to_owned));
            let share = match class.as_deref() {
                Some("low") => low,
                Some("mid") => mid,
                _ => return 0,
            };
            match share {
                Share::Units(units) => units,
                Share::Percent(percent) => (capacity(kind) * percent).div_ceil(100),
            }
        });
        let max_wait = match rule.does {
            Behaviour::Delay(longest) if !permit => longest,
            _ => 0,
        };
        let limit_id = (key_id.clone(), set, slot);
        let call = Call {
            cost,
            reserve,
            max_wait,
        };
        let known = self.limits.get(&limit_id);
        let decision = known.unwrap_or(&History::new(kind)).look(now, call);
        let shadow = rule.does == Behaviour::Shadow || !rule.rolled_out;
        let outcome = match decision.outcome {
            Outcome::Allowed if decision.delay.is_zero() => AskOutcome::Allowed,
            Outcome::Allowed => AskOutcome::Delayed,
            _ if shadow => AskOutcome::ShadowDenied,
            Outcome::Denied => AskOutcome::Denied,
            Outcome::Never => AskOutcome::Never,
        };
        JudgedLimit {
            policy: key_id.0,
            decision,
            outcome,
            limit: kind,
            cost,
            limit_id,
            shadow,
            now,
            call,
            charged: None,
            resets: 0,
        }
    }

    fn charge(&mut self, judged: &mut JudgedLimit) {
        if judged.decision.outcome != Outcome::Allowed {
            return;
        }
        let history = self
            .limits
            .entry(judged.limit_id.clone())
            .or_insert_with(|| History::new(judged.limit));
        judged.charged = history.charge(judged.now, judged.cost);
        judged.resets = history.resets;
        // The numbers of an allowed request are those after it.
        let after = Call {
            cost: 0,
            max_wait: u64::MAX,
            ..judged.call
        };
        let DecisionInfo {
            remaining,
            reset_after,
            ..
        } = history.look(judged.now, after);
        judged.decision = DecisionInfo {
            remaining,
            reset_after,
            ..judged.decision
        };
    }

    /// Counts a denial for every policy with a penalty that denied the request.
    fn apply_penalties(&mut self, expected: &ExpectedVerdict, now: u64) {
        let mut last = None;
        for judged in expected.limits.iter().filter(|judged| judged.denies()) {
            let Some((denials, within, _)) = self.spec.rules[judged.policy].penalty else {
                continue;
            };
            if last.replace(judged.policy) == Some(judged.policy) {
                continue;
            }
            let before = self.denials.entry(judged.limit_id.0.clone()).or_default();
            if before.iter().filter(|at| **at + within > now).count() as u64 + 1 >= denials {
                self.bans
                    .entry(judged.limit_id.0.clone())
                    .or_default()
                    .push(now);
                self.bans_of[judged.policy] += 1;
            } else {
                before.push(now);
            }
        }
    }

    /// Whether the outcome of a request is unspecified.
    pub(crate) fn is_unspecified(&mut self, caller: &Caller, cost: u64, now: u64) -> bool {
        let expected = self.decide(caller, cost, now, true);
        expected
            .limits
            .iter()
            .any(|judged| is_unspecified(judged.limit, &judged.decision, judged.cost))
    }

    /// Whether the completion changes the charge.
    pub(crate) fn settles(&self, expected: &ExpectedVerdict) -> bool {
        expected.limits.iter().any(|judged| {
            let rule = &self.spec.rules[judged.policy];
            rule.count != Count::All || rule.cost.is_err()
        })
    }

    /// Settles a request: permits are released, and what does not count is refunded; at the time of
    /// the decision, or with nothing to correct.
    pub(crate) fn settle(
        &mut self,
        expected: &ExpectedVerdict,
        failed: Option<bool>,
        cost: Option<u64>,
    ) {
        for judged in &expected.limits {
            let Some(charged) = judged.charged else {
                continue;
            };
            let history = self.limits.get_mut(&judged.limit_id).expect("charged");
            let rule = &self.spec.rules[judged.policy];
            let counts = match (rule.count, failed) {
                (Count::All, _) | (_, None) => true,
                (Count::Failures, Some(failed)) => failed,
                (Count::Successes, Some(failed)) => !failed,
            };
            let cost = match cost {
                _ if !counts => 0,
                Some(cost) if rule.cost.is_err() => cost,
                _ => judged.cost,
            };
            history.settle(charged, judged.resets, cost);
        }
    }
}

impl JudgedLimit {
    pub(crate) fn denies(&self) -> bool {
        !self.shadow && self.decision.outcome != Outcome::Allowed
    }

    pub(crate) fn is_permit(&self) -> bool {
        matches!(self.limit, PolicyLimit::Concurrent(_))
    }
}

/// A decision without limits.
fn without_limits(allowed: bool, reason: &'static str) -> ExpectedVerdict {
    ExpectedVerdict {
        allowed,
        never: false,
        reason,
        policy: None,
        status: if allowed { 200 } else { 429 },
        retry_after: None,
        delay: Duration::ZERO,
        limits: Vec::new(),
        applied: Vec::new(),
        banned: Vec::new(),
        only_counted: Vec::new(),
        without_limits: true,
    }
}

/// All or nothing; a ban by a policy comes before its limits.
fn verdict(
    spec: &Spec,
    applied: Vec<usize>,
    limits: Vec<JudgedLimit>,
    banned: &[(usize, usize, u64)],
) -> ExpectedVerdict {
    let mut against: Vec<(usize, bool, Option<Duration>)> = Vec::new();
    for (at, judged) in limits.iter().enumerate() {
        let bans = banned.iter().filter(|(_, before, _)| *before == at);
        let left = |left: &u64| Some(Duration::from_nanos(*left));
        against.extend(bans.map(|(policy, _, nanos)| (*policy, false, left(nanos))));
        if judged.denies() {
            against.push((
                judged.policy,
                judged.decision.outcome == Outcome::Never,
                judged.decision.retry_after,
            ));
        }
    }
    let allowed = against.is_empty();
    let never = against.iter().any(|(_, never, _)| *never);
    let mut worst: Option<(usize, (bool, Option<Duration>))> = None;
    for (policy, never, retry_after) in &against {
        let weight = (*never, retry_after.filter(|_| !never));
        if worst.is_none_or(|(_, worst)| weight > worst) {
            worst = Some((*policy, weight));
        }
    }
    let delay = limits
        .iter()
        .filter(|judged| allowed && !judged.shadow)
        .map(|judged| judged.decision.delay)
        .max();
    let binding = worst.map(|(policy, _)| policy);
    let unavailable =
        banned.is_empty() && binding.is_some_and(|policy| spec.rules[policy].unavailable);
    ExpectedVerdict {
        allowed,
        never,
        reason: if banned.is_empty() { "limits" } else { "ban" },
        policy: binding.map(Spec::name),
        status: if allowed {
            200
        } else if unavailable {
            503
        } else {
            429
        },
        retry_after: if never {
            None
        } else {
            against.iter().filter_map(|(_, _, after)| *after).max()
        },
        delay: delay.unwrap_or_default(),
        limits,
        applied,
        banned: banned.iter().map(|(policy, ..)| *policy).collect(),
        only_counted: Vec::new(),
        without_limits: false,
    }
}
