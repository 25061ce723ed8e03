//! The reference engine.

use super::history::{Event, History, Kind, Request, Told};
use super::matching::{holds, key, value};
use super::spec::{Does, Limits, Operation, Rule, Share, Spec, Who};
use ratekeeper::{Outcome, store::AskOutcome};
use ratekeeper_policy::{Count, Missing, stats::DecisionStats};
use std::collections::BTreeMap;

/// Sets from here on are limits that stand in for others.
const STAND_INS: usize = 100;

/// A policy and what it counts by.
type Whom = (usize, Vec<Vec<Vec<u8>>>);
/// Which set of limits, which of it, and of whom.
type Place = (Whom, usize, usize);

pub(crate) struct Naive {
    pub(crate) spec: Spec,
    start: u64,
    limits: BTreeMap<Place, History>,
    /// Denials that led to no ban.
    denials: BTreeMap<Whom, Vec<u64>>,
    bans: BTreeMap<Whom, Vec<u64>>,
    /// An operator's bans and limits, and until when.
    said_bans: BTreeMap<Whom, u64>,
    said_limits: BTreeMap<Whom, (u64, Vec<Kind>)>,
    /// Every limit that ever stood in for others, each a set of its own.
    stand_ins: Vec<Kind>,
    bans_of: Vec<u64>,
    /// What each policy made of requests, and all of them together.
    pub(crate) counts: Vec<DecisionStats>,
    pub(crate) totals: (u64, u64),
}

/// What one limit makes of a request.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    pub(crate) policy: usize,
    pub(crate) told: Told,
    pub(crate) outcome: AskOutcome,
    pub(crate) kind: Kind,
    pub(crate) cost: u64,
    place: Place,
    shadow: bool,
    request: Request,
    /// Which event of its history was charged.
    charged: Option<usize>,
    resets: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Says {
    pub(crate) allowed: bool,
    pub(crate) never: bool,
    pub(crate) reason: &'static str,
    pub(crate) policy: Option<String>,
    pub(crate) status: u16,
    pub(crate) retry_after: Option<u64>,
    pub(crate) delay: u64,
    pub(crate) limits: Vec<Judged>,
    /// The policies that apply, and those of them by which the key is banned.
    pub(crate) applied: Vec<usize>,
    banned: Vec<usize>,
    /// Those that would deny the request because it lacks an attribute, but only watch.
    only_counted: Vec<usize>,
    /// Whether it was decided before any limit was looked at.
    pub(crate) without_limits: bool,
}

impl Naive {
    pub(crate) fn new(spec: &Spec, start: u64) -> Self {
        let (limits, denials, bans, said_bans, said_limits, stand_ins) = Default::default();
        let (counts, bans_of) = (
            vec![DecisionStats::default(); spec.rules.len()],
            vec![0; spec.rules.len()],
        );
        let (spec, totals) = (spec.clone(), (0, 0));
        Self {
            spec,
            start,
            limits,
            denials,
            bans,
            said_bans,
            said_limits,
            stand_ins,
            bans_of,
            counts,
            totals,
        }
    }

    pub(crate) fn decide(&mut self, who: &Who, cost: u64, now: u64, peek: bool) -> Says {
        let says = self.judge_all(who, cost, now, peek);
        if !peek {
            self.count(&says);
        }
        says
    }

    /// A policy counts a request by the worst of its limits; one that it would admit counts only if
    /// it passed.
    fn count(&mut self, says: &Says) {
        *(if says.allowed {
            &mut self.totals.0
        } else {
            &mut self.totals.1
        }) += 1;
        // An operator's ban is under a policy, and asks no other.
        if let (true, Some(name)) = (says.without_limits, &says.policy) {
            let banned = (0..self.spec.rules.len()).find(|policy| Spec::name(*policy) == *name);
            self.counts[banned.expect("a policy of that name")].denied += 1;
        }
        for policy in &says.only_counted {
            self.counts[*policy].shadow_denied += 1;
        }
        for policy in &says.applied {
            let mut mine = says.limits.iter().filter(|judged| judged.policy == *policy);
            let counts = &mut self.counts[*policy];
            let any =
                |wanted: &[AskOutcome]| mine.clone().any(|judged| wanted.contains(&judged.outcome));
            match () {
                () if says.banned.contains(policy) => counts.denied += 1,
                () if any(&[AskOutcome::Denied, AskOutcome::Never]) => counts.denied += 1,
                () if any(&[AskOutcome::ShadowDenied]) => counts.shadow_denied += 1,
                () if !says.allowed => {}
                () if any(&[AskOutcome::Delayed]) => counts.delayed += 1,
                () => counts.allowed += u64::from(mine.next().is_some()),
            }
        }
    }

    /// How often a policy has banned somebody.
    pub(crate) fn bans_of(&self, policy: usize) -> u64 {
        self.bans_of[policy]
    }

    /// What an operator says of the key that a request has in a policy; false if it has none.
    pub(crate) fn operate(
        &mut self,
        operation: &Operation,
        policy: usize,
        who: &Who,
        now: u64,
    ) -> bool {
        let rule = &self.spec.rules[policy];
        // An operator who leaves an attribute out means no bucket that several share.
        let missing = match rule.missing {
            missing @ (Missing::Address | Missing::Deny) if who.ip.is_some() => missing,
            _ => Missing::Skip,
        };
        let Some((key, _)) = key(&rule.key, missing, who) else {
            return false;
        };
        let whom: Whom = (policy, key);
        match operation {
            Operation::Ban(lasts) => _ = self.said_bans.insert(whom, now + lasts),
            Operation::Limits(kinds, lasts) => {
                let mut once = Vec::new();
                for kind in kinds {
                    if !once.contains(kind) {
                        once.push(*kind);
                    }
                    if !self.stand_ins.contains(kind) {
                        self.stand_ins.push(*kind);
                    }
                }
                self.said_limits.insert(whom, (now + lasts, once));
            }
            Operation::Free => {
                let instead = self.instead(&whom, now).unwrap_or_default();
                for ((of, set, _), history) in
                    self.limits.iter_mut().filter(|((of, ..), _)| *of == whom)
                {
                    debug_assert_eq!(*of, whom);
                    if *set < STAND_INS || instead.iter().any(|(known, ..)| known == set) {
                        history.events.clear();
                        history.resets += 1;
                    }
                }
                self.said_bans.remove(&whom);
                self.said_limits.remove(&whom);
                self.denials.remove(&whom);
                self.bans.remove(&whom);
            }
        }
        true
    }

    /// The limits that stand in for others.
    fn instead(&self, whom: &Whom, now: u64) -> Option<Vec<(usize, usize, Kind)>> {
        let (_, kinds) = self
            .said_limits
            .get(whom)
            .filter(|(until, _)| *until > now)?;
        let place = |kind: &Kind| {
            self.stand_ins
                .iter()
                .position(|known| known == kind)
                .expect("known")
                + STAND_INS
        };
        Some(kinds.iter().map(|kind| (place(kind), 0, *kind)).collect())
    }

    fn judge_all(&mut self, who: &Who, cost: u64, now: u64, peek: bool) -> Says {
        if let Some(says) = self.listed(who, now) {
            return says;
        }
        let (mut judged, mut banned, mut applied) = (Vec::new(), Vec::new(), Vec::new());
        let mut said: Option<(usize, u64)> = None;
        let (mut missing, mut only_counted) = (None, Vec::new());
        for (number, rule) in self.spec.rules.iter().enumerate() {
            let key = || key(&rule.key, rule.missing, who);
            let Some((key, lacks)) = holds(&rule.when, who, false).then(key).flatten() else {
                continue;
            };
            let Some((set, limits)) = self.set_of(rule, who) else {
                continue;
            };
            let whom: Whom = (number, key);
            applied.push(number);
            let until = self
                .said_bans
                .get(&whom)
                .copied()
                .filter(|until| *until > now);
            if until > said.map(|(_, until)| until) {
                said = until.map(|until| (number, until));
            }
            if lacks && rule.missing == Missing::Deny {
                match rule.does == Does::Shadow || !rule.rolled_out {
                    true => only_counted.push(number),
                    false => _ = missing.get_or_insert(number),
                }
                if rule.last && holds(&rule.when, who, true) {
                    break;
                }
                continue;
            }
            if let Some((_, _, lasts)) = rule.penalty {
                let until = self
                    .bans
                    .get(&whom)
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
            for (set, slot, kind) in self.instead(&whom, now).unwrap_or_else(own) {
                judged.push(self.judge(rule, &whom, (set, slot), kind, who, cost, now));
            }
            if rule.last && holds(&rule.when, who, true) {
                break;
            }
        }
        if let Some((policy, until)) = said {
            let policy = Some(Spec::name(policy));
            return Says {
                policy,
                retry_after: Some(until - now),
                ..without_limits(false, "ban")
            };
        }
        if let Some(policy) = missing {
            let policy = Some(Spec::name(policy));
            return Says {
                policy,
                never: true,
                ..without_limits(false, "missing_attribute")
            };
        }
        let mut says = verdict(&self.spec, applied, judged, &banned);
        says.only_counted = only_counted;
        if says.limits.is_empty() {
            says.reason = "no_policy";
        }
        if peek {
            return says;
        }
        if says.allowed {
            says.limits
                .iter_mut()
                .for_each(|judged| self.charge(judged));
        } else if banned.is_empty() {
            self.punish(&says, now);
        }
        says
    }

    fn listed(&self, who: &Who, now: u64) -> Option<Says> {
        let until = |until: Option<u64>| until.map(|until| self.start + until);
        let in_force = |entry: &super::spec::Entry, every| {
            until(entry.until).is_none_or(|until| now < until) && holds(&entry.when, who, every)
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
        // Who is on it twice is on it until the last of them ends.
        let ends: Option<Vec<u64>> = denied.iter().map(|entry| until(entry.until)).collect();
        let retry_after = ends
            .and_then(|ends| ends.into_iter().max())
            .map(|end| end - now);
        let says = Says {
            never: retry_after.is_none(),
            retry_after,
            ..without_limits(false, "deny_list")
        };
        (!denied.is_empty()).then_some(says)
    }

    fn set_of(&self, rule: &Rule, who: &Who) -> Option<(usize, Vec<Kind>)> {
        match &rule.limits {
            Limits::Own(limits) => Some((0, limits.clone())),
            Limits::Plan { default } => {
                let find =
                    |name: &str| self.spec.plans.iter().position(|(known, _)| *known == name);
                let at = value(who, "plan")
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
        whom: &Whom,
        (set, slot): (usize, usize),
        kind: Kind,
        who: &Who,
        cost: u64,
        now: u64,
    ) -> Judged {
        let units = match rule.cost {
            Ok(units) => units,
            Err(default) => match value(who, "tokens") {
                Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                    digits.parse().unwrap_or(u64::MAX)
                }
                _ => default,
            },
        };
        let permit = matches!(kind, Kind::Permits { .. });
        let cost = if permit {
            1
        } else {
            units.saturating_mul(cost)
        };
        let reserve = rule.class.map_or(0, |(low, mid, default)| {
            let known = |name: &String| name == "low" || name == "mid";
            let class = value(who, "priority")
                .filter(known)
                .or(default.map(str::to_owned));
            let share = match class.as_deref() {
                Some("low") => low,
                Some("mid") => mid,
                _ => return 0,
            };
            match share {
                Share::Units(units) => units,
                Share::Percent(percent) => (kind.capacity() * percent).div_ceil(100),
            }
        });
        let longest_wait = match rule.does {
            Does::Delay(longest) if !permit => longest,
            _ => 0,
        };
        let place = (whom.clone(), set, slot);
        let request = Request {
            now,
            cost,
            reserve,
            longest_wait,
        };
        let told = kind.look(
            self.limits.get(&place).unwrap_or(&History::default()),
            request,
        );
        let shadow = rule.does == Does::Shadow || !rule.rolled_out;
        let outcome = match told.outcome {
            Outcome::Allowed if told.delay == 0 => AskOutcome::Allowed,
            Outcome::Allowed => AskOutcome::Delayed,
            _ if shadow => AskOutcome::ShadowDenied,
            Outcome::Denied => AskOutcome::Denied,
            Outcome::Never => AskOutcome::Never,
        };
        Judged {
            policy: whom.0,
            told,
            outcome,
            kind,
            cost,
            place,
            shadow,
            request,
            charged: None,
            resets: 0,
        }
    }

    fn charge(&mut self, judged: &mut Judged) {
        if judged.told.outcome != Outcome::Allowed {
            return;
        }
        let history = self.limits.entry(judged.place.clone()).or_default();
        if matches!(judged.kind, Kind::Permits { .. }) {
            history.in_flight += 1;
        } else {
            history.events.push(Event {
                at: judged.request.now,
                cost: judged.cost,
            });
        }
        judged.charged = Some(history.events.len().wrapping_sub(1));
        judged.resets = history.resets;
        judged.told = judged.kind.after(history, judged.request, judged.told);
    }

    /// Counts a denial against every policy with a penalty that turned the request away.
    fn punish(&mut self, says: &Says, now: u64) {
        let mut last = None;
        for judged in says.limits.iter().filter(|judged| judged.turns_away()) {
            let Some((denials, within, _)) = self.spec.rules[judged.policy].penalty else {
                continue;
            };
            if last.replace(judged.policy) == Some(judged.policy) {
                continue;
            }
            let before = self.denials.entry(judged.place.0.clone()).or_default();
            if before.iter().filter(|at| **at + within > now).count() as u64 + 1 >= denials {
                self.bans
                    .entry(judged.place.0.clone())
                    .or_default()
                    .push(now);
                self.bans_of[judged.policy] += 1;
            } else {
                before.push(now);
            }
        }
    }

    /// Whether nobody says what becomes of a request.
    pub(crate) fn is_silent_on(&mut self, who: &Who, cost: u64, now: u64) -> bool {
        let says = self.decide(who, cost, now, true);
        says.limits
            .iter()
            .any(|judged| judged.kind.is_silent_on(&judged.told, judged.cost))
    }

    /// Whether how it ends matters to what it is charged.
    pub(crate) fn settles(&self, says: &Says) -> bool {
        says.limits.iter().any(|judged| {
            let rule = &self.spec.rules[judged.policy];
            rule.count != Count::All || rule.cost.is_err()
        })
    }

    /// A request has ended: permits go back, and what does not count comes back. At the instant it
    /// was decided, or with nothing to correct.
    pub(crate) fn settle(&mut self, says: &Says, failed: Option<bool>, cost: Option<u64>) {
        for judged in &says.limits {
            let Some(charged) = judged.charged else {
                continue;
            };
            let history = self.limits.get_mut(&judged.place).expect("charged");
            if matches!(judged.kind, Kind::Permits { .. }) {
                history.in_flight -= 1;
                continue;
            }
            if judged.resets != history.resets {
                continue;
            }
            let rule = &self.spec.rules[judged.policy];
            let counts = match (rule.count, failed) {
                (Count::All, _) | (_, None) => true,
                (Count::Failures, Some(failed)) => failed,
                (Count::Successes, Some(failed)) => !failed,
            };
            history.events[charged].cost = match cost {
                _ if !counts => 0,
                Some(cost) if rule.cost.is_err() => cost,
                _ => judged.cost,
            };
        }
    }
}

impl Judged {
    pub(crate) fn turns_away(&self) -> bool {
        !self.shadow && self.told.outcome != Outcome::Allowed
    }

    pub(crate) fn is_permit(&self) -> bool {
        matches!(self.kind, Kind::Permits { .. })
    }
}

/// What is decided before any limit is looked at.
fn without_limits(allowed: bool, reason: &'static str) -> Says {
    Says {
        allowed,
        never: false,
        reason,
        policy: None,
        status: if allowed { 200 } else { 429 },
        retry_after: None,
        delay: 0,
        limits: Vec::new(),
        applied: Vec::new(),
        banned: Vec::new(),
        only_counted: Vec::new(),
        without_limits: true,
    }
}

/// All or nothing; a ban of a policy stands before its limits.
fn verdict(
    spec: &Spec,
    applied: Vec<usize>,
    limits: Vec<Judged>,
    banned: &[(usize, usize, u64)],
) -> Says {
    let mut against: Vec<(usize, bool, Option<u64>)> = Vec::new();
    for (at, judged) in limits.iter().enumerate() {
        let bans = banned.iter().filter(|(_, before, _)| *before == at);
        against.extend(bans.map(|(policy, _, left)| (*policy, false, Some(*left))));
        if judged.turns_away() {
            against.push((
                judged.policy,
                judged.told.outcome == Outcome::Never,
                judged.told.retry_after,
            ));
        }
    }
    let (allowed, never) = (
        against.is_empty(),
        against.iter().any(|(_, never, _)| *never),
    );
    let mut worst: Option<(usize, (bool, u64))> = None;
    for (policy, never, retry_after) in &against {
        let weight = (*never, if *never { 0 } else { retry_after.unwrap_or(0) });
        if worst.is_none_or(|(_, worst)| weight > worst) {
            worst = Some((*policy, weight));
        }
    }
    let delay = limits
        .iter()
        .filter(|judged| allowed && !judged.shadow)
        .map(|judged| judged.told.delay)
        .max();
    let binding = worst.map(|(policy, _)| policy);
    let unavailable =
        banned.is_empty() && binding.is_some_and(|policy| spec.rules[policy].unavailable);
    Says {
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
        delay: delay.unwrap_or(0),
        limits,
        applied,
        banned: banned.iter().map(|(policy, ..)| *policy).collect(),
        only_counted: Vec::new(),
        without_limits: false,
    }
}
