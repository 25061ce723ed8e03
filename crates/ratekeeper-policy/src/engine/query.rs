//! From a request to what the store is asked: which policies apply, by what they count, how much.

use super::key::{self, KeyBuffer, MissingKeyPart};
use super::overrides::{ActiveOverrides, Override};
use super::reason::{Ban, Reason};
use super::rules::{Rule, Rules, Slot};
use crate::attribute::Attribute;
use crate::matching::MismatchReason;
use crate::path::Path;
use crate::policy::{Action, Cost, Limits, Missing, Reserve, ReserveClasses};
use crate::subject::Subject;
use ratekeeper::{Ask, Mode, Timestamp};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// As many asks as a store decides without memory of its own.
pub(crate) const INLINE_ITEMS: usize = 8;

/// One limit that a request is asked about.
pub(crate) struct QueryItem {
    /// The policy, by its place among the rules.
    pub(crate) policy: u32,
    pub(crate) role: Role,
    /// Enforce or shadow; what is only peeked at has one too.
    pub(crate) mode: Mode,
    pub(crate) cost: u64,
    reserve: u64,
    pub(crate) key: Range<u32>,
    /// What stands in for the limits of the policy.
    pub(crate) replacement: Option<Arc<Override>>,
}

/// What an ask is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A limit: which set, and which of it.
    Limit { set: u32, slot: u32 },
    /// Whether the key is banned.
    Ban,
}

/// A policy with `missing = "deny"`, of whose key the request lacks an attribute.
pub(crate) struct MissingDenial {
    /// The policy, by its place among the rules.
    pub(crate) policy: u32,
    /// The attribute, by its place in the key.
    attribute: usize,
    /// Whether the request is denied; otherwise that is only counted.
    pub(crate) is_enforced: bool,
}

/// Everything a request is asked about.
#[derive(Default)]
pub(crate) struct Query {
    pub(crate) items: SmallVec<[QueryItem; INLINE_ITEMS]>,
    pub(crate) keys: KeyBuffer,
    /// An operator's ban.
    pub(crate) banned: Option<Arc<Override>>,
    /// The policies that deny requests which lack an attribute, as this one does.
    pub(crate) missing_denials: SmallVec<[MissingDenial; 1]>,
    /// How long the caller would wait, if it says so.
    pub(crate) max_wait: Option<Duration>,
    /// Whether the caller said what it costs.
    pub(crate) explicit_cost: bool,
    /// Whether the caller acts later: it is counted where every node counts, not by what this one
    /// holds on lease.
    pub(crate) is_reservation: bool,
    /// How important the request is; none if nobody says.
    pub(crate) class: Option<ratekeeper::adaptive::Class>,
    /// Until when anybody waits for the answer, if that is known.
    pub(crate) deadline: Option<Timestamp>,
    /// Whether the caller does not wait in line.
    pub(crate) no_wait: bool,
    /// The policies with an adaptive limit, and whether they enforce it.
    pub(crate) adaptive_policies: SmallVec<[(u32, bool); 2]>,
}

/// Who asks, for how much, and when.
pub(crate) struct RequestContext<'a, 's> {
    pub(crate) subject: &'a Subject<'s>,
    /// Its path, if any condition is about paths.
    pub(crate) path: Option<&'a Path<'s>>,
    pub(crate) cost: u64,
    pub(crate) now: Timestamp,
}

impl RequestContext<'_, '_> {
    /// Whether the conditions of a policy, which hold, do so however services read the path.
    fn holds_in_every_reading(&self, rule: &Rule) -> bool {
        self.path.is_none_or(Path::has_one_reading)
            || rule
                .policy
                .matching
                .holds_in_every_reading(self.subject, self.path)
    }
}

/// A policy that applies to a request.
pub(crate) struct AppliedPolicy<'a> {
    /// What the request is asked about.
    pub(crate) items: Range<usize>,
    pub(crate) key: &'a [u8],
    /// The attribute of the key that the request lacks.
    pub(crate) missing: Option<&'a Attribute>,
}

/// What a policy would need to apply and a request does not have.
pub(super) enum ApplyError<'a> {
    MissingKey(&'a Attribute),
    MissingPlan(&'a Attribute),
}

impl From<ApplyError<'_>> for MismatchReason {
    fn from(error: ApplyError<'_>) -> Self {
        match error {
            ApplyError::MissingKey(attribute) => Self::NoKey(attribute.clone()),
            ApplyError::MissingPlan(attribute) => Self::NoPlan(attribute.clone()),
        }
    }
}

impl Query {
    /// Asks nothing, and keeps no memory beyond its own.
    pub(crate) fn clear(&mut self) {
        (
            self.banned,
            self.max_wait,
            self.explicit_cost,
            self.is_reservation,
        ) = (None, None, false, false);
        (self.class, self.deadline, self.no_wait) = (None, None, false);
        self.items.clear();
        self.keys.clear();
        self.adaptive_policies.clear();
        self.missing_denials.clear();
        if self.items.spilled()
            || self.keys.spilled()
            || self.adaptive_policies.spilled()
            || self.missing_denials.spilled()
        {
            *self = Self::default();
        }
    }

    /// Whether any policy that applies has a limit.
    pub(crate) fn limits_something(&self) -> bool {
        !self.items.is_empty() || !self.adaptive_policies.is_empty()
    }

    /// Every policy that applies, found by the path.
    pub(crate) fn gather(
        &mut self,
        rules: &Rules,
        overrides: &ActiveOverrides,
        request: &RequestContext<'_, '_>,
    ) {
        for number in rules.index.find(request.path) {
            let rule = &rules.policies[number as usize];
            if rule
                .policy
                .matching
                .holds_on_path(request.subject, request.path)
                && self.apply(rules, number, rule, overrides, request).is_ok()
                && rule.policy.stop
                && request.holds_in_every_reading(rule)
            {
                break;
            }
        }
    }

    /// The same by looking at every policy, telling what became of each.
    pub(crate) fn gather_explained(
        &mut self,
        rules: &Rules,
        overrides: &ActiveOverrides,
        request: &RequestContext<'_, '_>,
        mut report: impl FnMut(&Rule, Result<AppliedPolicy<'_>, MismatchReason>, &Self),
    ) {
        let mut last = None::<&Rule>;
        for (number, rule) in (0..).zip(&rules.policies) {
            let (before, start) = (self.items.len(), self.keys.len());
            let applied = match last {
                Some(last) => Err(MismatchReason::After(last.policy.name.as_str().into())),
                None => match rule.policy.matching.mismatch(request.subject, request.path) {
                    Some(why) => Err(why),
                    None => self
                        .apply(rules, number, rule, overrides, request)
                        .map_err(MismatchReason::from),
                },
            };
            if applied.is_ok() && rule.policy.stop && request.holds_in_every_reading(rule) {
                last = Some(rule);
            }
            let applied = applied.map(|missing| AppliedPolicy {
                items: before..self.items.len(),
                key: &self.keys[start..],
                missing: missing.map(|missing| missing.attribute),
            });
            report(rule, applied, self);
        }
    }

    pub(super) fn apply<'r>(
        &mut self,
        rules: &Rules,
        number: u32,
        rule: &'r Rule,
        overrides: &ActiveOverrides,
        request: &RequestContext<'_, '_>,
    ) -> Result<Option<MissingKeyPart<'r>>, ApplyError<'r>> {
        let RequestContext {
            subject, path, now, ..
        } = *request;
        let policy = &rule.policy;
        let set = rule
            .set_for(rules, subject)
            .map_err(ApplyError::MissingPlan)?;
        let start = self.keys.len();
        let by = (&*policy.key, policy.missing);
        let missing = match key::write(&mut self.keys, by, subject, path, rules.source.ipv6_prefix)
        {
            Ok(missing) => missing,
            Err(missing) => {
                self.keys.truncate(start);
                return Err(ApplyError::MissingKey(missing));
            }
        };
        if let Some(missing) = &missing
            && missing.is_unknown
        {
            rule.warn_unknown(missing.attribute);
        }
        let key = &self.keys[start..];
        // The one that lasts longest: until then the request does not pass.
        let key_overrides = overrides.for_key(rule, key, now);
        if let Some(ban) = key_overrides.ban
            && self
                .banned
                .as_ref()
                .is_none_or(|known| known.until() < ban.until())
        {
            self.banned = Some(ban);
        }
        let replacement = key_overrides.limits;
        let enforced = policy.action != Action::Shadow
            && policy
                .rollout
                .includes_all_or(|| key::stable_hash(&policy.name, key));
        if let Some(missing) = &missing
            && policy.missing == Missing::Deny
        {
            let attribute = policy
                .key
                .iter()
                .position(|attribute| attribute == missing.attribute)
                .unwrap_or_default();
            self.missing_denials.push(MissingDenial {
                policy: number,
                attribute,
                is_enforced: enforced,
            });
            return Ok(Some(*missing));
        }
        let reserve = policy.reserves.as_ref().and_then(|class| class.of(subject));
        let units = policy.cost.of(subject).saturating_mul(request.cost);
        let range = start as u32..self.keys.len() as u32;
        let ask = |role, mode, cost, reserve, replacement| {
            let (policy, key) = (number, range.clone());
            QueryItem {
                policy,
                role,
                mode,
                cost,
                reserve,
                key,
                replacement,
            }
        };
        // Who only watches bans nobody either, not even whom it banned before it did.
        if enforced && rule.penalty.is_some() {
            self.items.push(ask(Role::Ban, Mode::Enforce, 1, 0, None));
        }
        if self.class.is_none() {
            let of_plan = || rules.source.plans.get(set).and_then(|plan| plan.class);
            let by_plan = matches!(policy.limits, Limits::Plan { .. });
            self.class = by_plan.then(of_plan).flatten().or(policy.class);
        }
        if rule.adaptive_queue.is_some() {
            self.adaptive_policies.push((number, enforced));
        }
        let mode = if enforced {
            Mode::Enforce
        } else {
            Mode::Shadow
        };
        let slots = replacement
            .as_ref()
            .map_or(&rule.sets[set][..], |replacement| replacement.slots());
        for (slot, Slot { limit, .. }) in (0..).zip(slots) {
            // A permit is one request, however much it costs; and a reserve is of units.
            let cost = if limit.rate().is_some() { units } else { 1 };
            let reserve = reserve.map_or(0, |reserve| reserve.of(limit.capacity()));
            self.items.push(ask(
                Role::Limit {
                    set: set as u32,
                    slot,
                },
                mode,
                cost,
                reserve,
                replacement.clone(),
            ));
        }
        Ok(missing)
    }

    /// What denies the request before any limit is looked at: a ban by an operator, or an attribute
    /// that it lacks.
    pub(crate) fn denied_without_limits(&mut self, rules: &Rules) -> Option<Reason> {
        if let Some(ban) = self.banned.take() {
            return Some(Reason::Ban(Ban::Operator(ban)));
        }
        let denial = self
            .missing_denials
            .iter()
            .find(|denial| denial.is_enforced)?;
        let policy = &rules.policies[denial.policy as usize].policy;
        let attribute = policy.key.get(denial.attribute)?.clone();
        Some(Reason::MissingAttribute {
            policy: policy.name.as_str().into(),
            attribute,
        })
    }

    /// What the store is asked.
    pub(crate) fn asks<'a>(
        &'a self,
        rules: &'a Rules,
        peek: bool,
    ) -> SmallVec<[Ask<'a>; INLINE_ITEMS]> {
        let mut asks = SmallVec::new();
        self.ask(rules, peek, &mut asks);
        asks
    }

    /// The same, put on a list that is empty: it is large to move.
    #[inline]
    pub(crate) fn ask<'a>(
        &'a self,
        rules: &'a Rules,
        peek: bool,
        asks: &mut SmallVec<[Ask<'a>; INLINE_ITEMS]>,
    ) {
        let ask = |item: &'a QueryItem| {
            let rule = &rules.policies[item.policy as usize];
            let (key, cost, reserve) = (self.key(item), item.cost, item.reserve);
            if let (Role::Ban, Some(penalty)) = (item.role, &rule.penalty) {
                return Ask {
                    limit: &penalty.ban,
                    key,
                    cost,
                    reserve,
                    mode: Mode::Peek,
                    max_wait: None,
                };
            }
            let Slot { limit, handle } = item.slot(rule);
            let mode = if peek { Mode::Peek } else { item.mode };
            let max_wait = match (rule.policy.action, self.max_wait) {
                _ if limit.rate().is_none() => None,
                (Action::Delay { max }, callers) => {
                    Some(callers.map_or(max, |callers| callers.min(max)))
                }
                (_, callers) => callers.or(self.is_reservation.then_some(Duration::ZERO)),
            };
            Ask {
                limit: handle,
                key,
                cost,
                reserve,
                mode,
                max_wait,
            }
        };
        for item in &self.items {
            asks.push(ask(item));
        }
    }

    #[inline]
    pub(crate) fn key(&self, item: &QueryItem) -> &[u8] {
        &self.keys[item.key.start as usize..item.key.end as usize]
    }
}

impl QueryItem {
    /// The limit it is about. Not for a ban, which has none of its own.
    #[inline]
    pub(crate) fn slot<'a>(&'a self, rule: &'a Rule) -> &'a Slot {
        let Role::Limit { set, slot } = self.role else {
            unreachable!("a ban has no limit of its own")
        };
        match &self.replacement {
            Some(replacement) => &replacement.slots()[slot as usize],
            None => &rule.sets[set as usize][slot as usize],
        }
    }
}

impl Rules {
    pub(crate) fn path_of<'a>(&self, subject: &Subject<'a>) -> Option<Path<'a>> {
        if self.needs_path {
            Some(Path::new(subject.raw_path()?, self.source.path_case))
        } else {
            None
        }
    }
}

impl Rule {
    /// Which set of limits is for this subject; an error names the attribute that says no known
    /// plan.
    fn set_for(&self, rules: &Rules, subject: &Subject<'_>) -> Result<usize, &Attribute> {
        match &self.policy.limits {
            Limits::Own(_) => Ok(0),
            Limits::Plan { attribute, default } => {
                let named = subject
                    .bytes(attribute)
                    .and_then(|plan| rules.plans.get(plan));
                let default = || rules.plans.get(default.as_ref()?.as_bytes());
                named.or_else(default).copied().ok_or(attribute)
            }
        }
    }
}

impl ReserveClasses {
    /// What the class of a subject leaves to others.
    fn of(&self, subject: &Subject<'_>) -> Option<Reserve> {
        let named = |class: &[u8]| {
            self.reserves
                .iter()
                .find(|(known, _)| known.as_bytes() == class)
                .map(|(_, reserve)| *reserve)
        };
        subject
            .bytes(&self.attribute)
            .and_then(named)
            .or_else(|| named(self.default.as_ref()?.as_bytes()))
    }
}

impl Cost {
    fn of(&self, subject: &Subject<'_>) -> u64 {
        match self {
            Self::Units(units) => *units,
            Self::Attribute { attribute, default } => subject
                .bytes(attribute)
                .and_then(whole_number)
                .unwrap_or(*default),
        }
    }
}

/// What is too large to be counted is as much as can be.
fn whole_number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let next = |number: u64, digit: &u8| {
        number
            .saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'))
    };
    Some(digits.iter().fold(0, next))
}
