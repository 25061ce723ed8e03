//! From a request to what the store is asked: which policies apply, by what they count, how much.

use super::key::{self, Keys, Lacks};
use super::overrides::{InForce, Override};
use super::reason::{Ban, Reason};
use super::rules::{Rules, Ruling, Slot};
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
pub(crate) const FEW: usize = 8;

/// One limit that a request is asked about.
pub(crate) struct Asked {
    /// The policy, by its place among the rules.
    pub(crate) policy: u32,
    pub(crate) role: Role,
    /// Enforce or shadow; what is only peeked at has one too.
    pub(crate) mode: Mode,
    pub(crate) cost: u64,
    reserve: u64,
    pub(crate) key: Range<u32>,
    /// What stands in for the limits of the policy.
    pub(crate) instead: Option<Arc<Override>>,
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
pub(crate) struct LackingDenial {
    /// The policy, by its place among the rules.
    pub(crate) policy: u32,
    /// The attribute, by its place in the key.
    attribute: usize,
    /// Whether the request is denied; otherwise that is only counted.
    pub(crate) is_enforced: bool,
}

/// Everything a request is asked about.
#[derive(Default)]
pub(crate) struct Asking {
    pub(crate) asked: SmallVec<[Asked; FEW]>,
    pub(crate) keys: Keys,
    /// An operator's ban.
    pub(crate) banned: Option<Arc<Override>>,
    /// The policies that deny requests which lack an attribute, as this one does.
    pub(crate) lacking: SmallVec<[LackingDenial; 1]>,
    /// How long the caller would wait, if it says so.
    pub(crate) max_wait: Option<Duration>,
    /// Whether the caller said what it costs.
    pub(crate) scales: bool,
    /// Whether the caller acts later: it is counted where every node counts, not by what this one
    /// holds on lease.
    pub(crate) acts_later: bool,
    /// How important the request is; none if nobody says.
    pub(crate) class: Option<ratekeeper::adaptive::Class>,
    /// Until when anybody waits for the answer, if that is known.
    pub(crate) deadline: Option<Timestamp>,
    /// Whether the caller does not wait in line.
    pub(crate) at_once: bool,
    /// The policies with an adaptive limit, and whether they enforce it.
    pub(crate) gates: SmallVec<[(u32, bool); 2]>,
}

/// Who asks, for how much, and when.
pub(crate) struct Request<'a, 's> {
    pub(crate) subject: &'a Subject<'s>,
    /// Its path, if any condition is about paths.
    pub(crate) path: Option<&'a Path<'s>>,
    pub(crate) cost: u64,
    pub(crate) now: Timestamp,
}

impl Request<'_, '_> {
    /// Whether the conditions of a policy, which hold, do so however services read the path.
    fn holds_in_every_reading(&self, ruling: &Ruling) -> bool {
        self.path.is_none_or(Path::has_one_reading)
            || ruling
                .policy
                .matching
                .holds_in_every_reading(self.subject, self.path)
    }
}

/// A policy that applies to a request.
pub(crate) struct Applied<'a> {
    /// What the request is asked about.
    pub(crate) asked: Range<usize>,
    pub(crate) key: &'a [u8],
    /// The attribute of the key that the request lacks.
    pub(crate) lacks: Option<&'a Attribute>,
}

/// What a policy would need to apply and a request does not have.
pub(super) enum Lacking<'a> {
    Key(&'a Attribute),
    Plan(&'a Attribute),
}

impl From<Lacking<'_>> for MismatchReason {
    fn from(lacking: Lacking<'_>) -> Self {
        match lacking {
            Lacking::Key(attribute) => Self::NoKey(attribute.clone()),
            Lacking::Plan(attribute) => Self::NoPlan(attribute.clone()),
        }
    }
}

impl Asking {
    /// Asks nothing, and keeps no memory beyond its own.
    pub(crate) fn clear(&mut self) {
        (self.banned, self.max_wait, self.scales, self.acts_later) = (None, None, false, false);
        (self.class, self.deadline, self.at_once) = (None, None, false);
        self.asked.clear();
        self.keys.clear();
        self.gates.clear();
        self.lacking.clear();
        if self.asked.spilled()
            || self.keys.spilled()
            || self.gates.spilled()
            || self.lacking.spilled()
        {
            *self = Self::default();
        }
    }

    /// Whether any policy that applies has a limit.
    pub(crate) fn limits_something(&self) -> bool {
        !self.asked.is_empty() || !self.gates.is_empty()
    }

    /// Every policy that applies, found by the path.
    pub(crate) fn gather(&mut self, rules: &Rules, overrides: &InForce, request: &Request<'_, '_>) {
        for number in rules.index.find(request.path) {
            let ruling = &rules.policies[number as usize];
            if ruling
                .policy
                .matching
                .holds_on_path(request.subject, request.path)
                && self
                    .apply(rules, number, ruling, overrides, request)
                    .is_ok()
                && ruling.policy.stop
                && request.holds_in_every_reading(ruling)
            {
                break;
            }
        }
    }

    /// The same by looking at every policy, telling what became of each.
    pub(crate) fn gather_explained(
        &mut self,
        rules: &Rules,
        overrides: &InForce,
        request: &Request<'_, '_>,
        mut told: impl FnMut(&Ruling, Result<Applied<'_>, MismatchReason>, &Self),
    ) {
        let mut last = None::<&Ruling>;
        for (number, ruling) in (0..).zip(&rules.policies) {
            let (before, start) = (self.asked.len(), self.keys.len());
            let applied = match last {
                Some(last) => Err(MismatchReason::After(last.policy.name.as_str().into())),
                None => match ruling
                    .policy
                    .matching
                    .why_not(request.subject, request.path)
                {
                    Some(why) => Err(why),
                    None => self
                        .apply(rules, number, ruling, overrides, request)
                        .map_err(MismatchReason::from),
                },
            };
            if applied.is_ok() && ruling.policy.stop && request.holds_in_every_reading(ruling) {
                last = Some(ruling);
            }
            let applied = applied.map(|lacks| Applied {
                asked: before..self.asked.len(),
                key: &self.keys[start..],
                lacks: lacks.map(|lacks| lacks.attribute),
            });
            told(ruling, applied, self);
        }
    }

    pub(super) fn apply<'r>(
        &mut self,
        rules: &Rules,
        number: u32,
        ruling: &'r Ruling,
        overrides: &InForce,
        request: &Request<'_, '_>,
    ) -> Result<Option<Lacks<'r>>, Lacking<'r>> {
        let Request {
            subject, path, now, ..
        } = *request;
        let policy = &ruling.policy;
        let set = ruling.set_for(rules, subject).map_err(Lacking::Plan)?;
        let start = self.keys.len();
        let by = (&*policy.key, policy.missing);
        let lacks = match key::write(&mut self.keys, by, subject, path, rules.source.ipv6_prefix) {
            Ok(lacks) => lacks,
            Err(missing) => {
                self.keys.truncate(start);
                return Err(Lacking::Key(missing));
            }
        };
        if let Some(lacks) = &lacks
            && lacks.is_unknown
        {
            ruling.warn_unknown(lacks.attribute);
        }
        let key = &self.keys[start..];
        // The one that lasts longest: until then the request does not pass.
        let said = overrides.said(ruling, key, now);
        if let Some(ban) = said.ban
            && self
                .banned
                .as_ref()
                .is_none_or(|known| known.until() < ban.until())
        {
            self.banned = Some(ban);
        }
        let instead = said.limits;
        let enforced = policy.action != Action::Shadow
            && policy
                .rollout
                .includes_all_or(|| key::lasting_hash(&policy.name, key));
        if let Some(lacks) = &lacks
            && policy.missing == Missing::Deny
        {
            let attribute = policy
                .key
                .iter()
                .position(|attribute| attribute == lacks.attribute)
                .unwrap_or_default();
            self.lacking.push(LackingDenial {
                policy: number,
                attribute,
                is_enforced: enforced,
            });
            return Ok(Some(*lacks));
        }
        let reserve = policy.reserves.as_ref().and_then(|class| class.of(subject));
        let units = policy.cost.of(subject).saturating_mul(request.cost);
        let range = start as u32..self.keys.len() as u32;
        let ask = |role, mode, cost, reserve, instead| {
            let (policy, key) = (number, range.clone());
            Asked {
                policy,
                role,
                mode,
                cost,
                reserve,
                key,
                instead,
            }
        };
        // Who only watches bans nobody either, not even whom it banned before it did.
        if enforced && ruling.penalty.is_some() {
            self.asked.push(ask(Role::Ban, Mode::Enforce, 1, 0, None));
        }
        if self.class.is_none() {
            let of_plan = || rules.source.plans.get(set).and_then(|plan| plan.class);
            let by_plan = matches!(policy.limits, Limits::Plan { .. });
            self.class = by_plan.then(of_plan).flatten().or(policy.class);
        }
        if ruling.gate.is_some() {
            self.gates.push((number, enforced));
        }
        let mode = if enforced {
            Mode::Enforce
        } else {
            Mode::Shadow
        };
        let slots = instead
            .as_ref()
            .map_or(&ruling.sets[set][..], |instead| instead.slots());
        for (slot, Slot { limit, .. }) in (0..).zip(slots) {
            // A permit is one request, however much it costs; and a reserve is of units.
            let cost = if limit.rate().is_some() { units } else { 1 };
            let reserve = reserve.map_or(0, |reserve| reserve.of(limit.capacity()));
            self.asked.push(ask(
                Role::Limit {
                    set: set as u32,
                    slot,
                },
                mode,
                cost,
                reserve,
                instead.clone(),
            ));
        }
        Ok(lacks)
    }

    /// What denies the request before any limit is looked at: a ban by an operator, or an attribute
    /// that it lacks.
    pub(crate) fn denied_without_limits(&mut self, rules: &Rules) -> Option<Reason> {
        if let Some(ban) = self.banned.take() {
            return Some(Reason::Ban(Ban::Operator(ban)));
        }
        let lacking = self.lacking.iter().find(|lacking| lacking.is_enforced)?;
        let policy = &rules.policies[lacking.policy as usize].policy;
        let attribute = policy.key.get(lacking.attribute)?.clone();
        Some(Reason::MissingAttribute {
            policy: policy.name.as_str().into(),
            attribute,
        })
    }

    /// What the store is asked.
    pub(crate) fn asks<'a>(&'a self, rules: &'a Rules, peek: bool) -> SmallVec<[Ask<'a>; FEW]> {
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
        asks: &mut SmallVec<[Ask<'a>; FEW]>,
    ) {
        let ask = |asked: &'a Asked| {
            let ruling = &rules.policies[asked.policy as usize];
            let (key, cost, reserve) = (self.key(asked), asked.cost, asked.reserve);
            if let (Role::Ban, Some(penalty)) = (asked.role, &ruling.penalty) {
                return Ask {
                    limit: &penalty.ban,
                    key,
                    cost,
                    reserve,
                    mode: Mode::Peek,
                    max_wait: None,
                };
            }
            let Slot { limit, handle } = asked.slot(ruling);
            let mode = if peek { Mode::Peek } else { asked.mode };
            let max_wait = match (ruling.policy.action, self.max_wait) {
                _ if limit.rate().is_none() => None,
                (Action::Delay { max }, callers) => {
                    Some(callers.map_or(max, |callers| callers.min(max)))
                }
                (_, callers) => callers.or(self.acts_later.then_some(Duration::ZERO)),
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
        for asked in &self.asked {
            asks.push(ask(asked));
        }
    }

    #[inline]
    pub(crate) fn key(&self, asked: &Asked) -> &[u8] {
        &self.keys[asked.key.start as usize..asked.key.end as usize]
    }
}

impl Asked {
    /// The limit it is about. Not for a ban, which has none of its own.
    #[inline]
    pub(crate) fn slot<'a>(&'a self, ruling: &'a Ruling) -> &'a Slot {
        let Role::Limit { set, slot } = self.role else {
            unreachable!("a ban has no limit of its own")
        };
        match &self.instead {
            Some(instead) => &instead.slots()[slot as usize],
            None => &ruling.sets[set as usize][slot as usize],
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

impl Ruling {
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
