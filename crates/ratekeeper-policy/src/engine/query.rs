//! The query of a request to the store: which policies apply, by which keys, at what cost.

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

/// Items that a query holds inline; the number that a store decides without allocating.
pub(crate) const INLINE_ITEMS: usize = 8;

/// One limit or ban that the store is asked about.
pub(crate) struct QueryItem {
    /// The policy, as an index into the rules.
    pub(crate) policy: u32,
    pub(crate) role: Role,
    /// Enforce or shadow, also in a peek.
    pub(crate) mode: Mode,
    pub(crate) cost: u64,
    reserve: u64,
    pub(crate) key: Range<u32>,
    /// An override that replaces the limits of the policy.
    pub(crate) replacement: Option<Arc<Override>>,
}

/// What an item of a query is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A limit: the index of its set, and its index in the set.
    Limit { set: u32, slot: u32 },
    /// The ban of the key by a penalty.
    Ban,
}

/// A policy with `missing = "deny"` that applies to a request without an attribute of its key.
pub(crate) struct MissingDenial {
    /// The policy, as an index into the rules.
    pub(crate) policy: u32,
    /// The attribute, as an index into the key.
    attribute: usize,
    /// Whether the request is denied; in shadow mode the denial is only counted.
    pub(crate) is_enforced: bool,
}

/// Everything about one request that is decided by the store or before it.
#[derive(Default)]
pub(crate) struct Query {
    pub(crate) items: SmallVec<[QueryItem; INLINE_ITEMS]>,
    pub(crate) keys: KeyBuffer,
    /// A ban by an operator.
    pub(crate) banned: Option<Arc<Override>>,
    /// Policies that deny the request because it lacks an attribute.
    pub(crate) missing_denials: SmallVec<[MissingDenial; 1]>,
    /// The longest wait that the caller accepts, if it sets one.
    pub(crate) max_wait: Option<Duration>,
    /// Whether the caller gave a cost: then the final cost scales all policies.
    pub(crate) explicit_cost: bool,
    /// Whether this is a reservation: the caller acts later, so the charge goes to the shared
    /// store, not to a lease of this node.
    pub(crate) is_reservation: bool,
    /// The importance of the request, if it is known.
    pub(crate) class: Option<ratekeeper::adaptive::Class>,
    /// The deadline of the request, if it has one.
    pub(crate) deadline: Option<Timestamp>,
    /// Whether the caller does not wait in a queue.
    pub(crate) no_wait: bool,
    /// The policies with an adaptive limit, and whether they enforce it.
    pub(crate) adaptive_policies: SmallVec<[(u32, bool); 2]>,
}

/// A request to be decided: subject, path, cost and time.
pub(crate) struct RequestContext<'a, 's> {
    pub(crate) subject: &'a Subject<'s>,
    /// Its path, if any condition uses paths.
    pub(crate) path: Option<&'a Path<'s>>,
    pub(crate) cost: u64,
    pub(crate) now: Timestamp,
}

impl RequestContext<'_, '_> {
    /// Whether a policy, whose conditions hold, matches in every reading of the path.
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
    /// The items of the query that the policy added.
    pub(crate) items: Range<usize>,
    pub(crate) key: &'a [u8],
    /// The attribute of the key that the request lacks.
    pub(crate) missing: Option<&'a Attribute>,
}

/// Why a policy whose conditions hold does not apply: the request lacks an attribute.
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
    /// Empties the query, and frees memory beyond the inline one.
    pub(crate) fn clear(&mut self) {
        self.banned = None;
        self.max_wait = None;
        self.explicit_cost = false;
        self.is_reservation = false;
        self.class = None;
        self.deadline = None;
        self.no_wait = false;
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

    /// Adds every policy that applies, found by the path index.
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

    /// Does the same by trying every policy, and reports the result of each.
    pub(crate) fn gather_explained(
        &mut self,
        rules: &Rules,
        overrides: &ActiveOverrides,
        request: &RequestContext<'_, '_>,
        mut report: impl FnMut(&Rule, Result<AppliedPolicy<'_>, MismatchReason>, &Self),
    ) {
        let mut last = None::<&Rule>;
        for (number, rule) in (0..).zip(&rules.policies) {
            let before = self.items.len();
            let start = self.keys.len();
            let applied = match last {
                Some(last) => Err(MismatchReason::After(last.policy.name.as_str().into())),
                None => match rule.policy.matching.mismatch(request.subject, request.path) {
                    Some(reason) => Err(reason),
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
        // The ban that lasts longest wins.
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
            let policy = number;
            let key = range.clone();
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
        // A policy in shadow mode bans nothing, not even keys banned before it was in shadow mode.
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
            // A permit is one per request, whatever the cost; and reserves are in units.
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

    /// The denial that needs no limit: a ban by an operator, or a missing attribute.
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

    /// The asks for the store.
    pub(crate) fn asks<'a>(
        &'a self,
        rules: &'a Rules,
        peek: bool,
    ) -> SmallVec<[Ask<'a>; INLINE_ITEMS]> {
        let mut asks = SmallVec::new();
        self.ask(rules, peek, &mut asks);
        asks
    }

    /// Appends the asks to an empty list: the list is large to move.
    #[inline]
    pub(crate) fn ask<'a>(
        &'a self,
        rules: &'a Rules,
        peek: bool,
        asks: &mut SmallVec<[Ask<'a>; INLINE_ITEMS]>,
    ) {
        let ask = |item: &'a QueryItem| {
            let rule = &rules.policies[item.policy as usize];
            let key = self.key(item);
            let cost = item.cost;
            let reserve = item.reserve;
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
    /// The limit of the item. Panics for a ban, which has none.
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
    /// The index of the limit set for this subject; the error is the attribute that names no known
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
    /// The reserve for the class of a subject.
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

/// Parses a whole number; too large a number becomes `u64::MAX`.
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
