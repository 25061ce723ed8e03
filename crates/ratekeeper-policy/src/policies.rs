//! The set of policies with their plans and lists, as loaded from a file and given to an engine.

use crate::address::IPV6_PREFIX;
use crate::attribute::Attribute;
use crate::matching::Match;
use crate::overload::Shed;
use crate::path::PathCase;
use crate::policy::{Limits, Policy};
use crate::policy_limit::PolicyLimit;
use ratekeeper::{Limit, Timestamp, store::OnFailure};

/// The policies with their plans, lists and shared settings.
///
/// ```
/// use ratekeeper::Limit;
/// use ratekeeper_policy::{Attribute, Plan, Policies, Policy};
///
/// let policies = Policies::new()
///     .plan(Plan::new("free").limit(Limit::per_minute(60).burst(10)))
///     .plan(Plan::new("pro").limit(Limit::per_minute(600).burst(100)))
///     .policy(Policy::new("api").key(Attribute::User).plan(Attribute::Plan, Some("free")))
///     .policy(Policy::new("everything").limit(Limit::per_minute(100_000)));
/// assert!(policies.problems().iter().all(|problem| !problem.is_error()));
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Policies {
    pub(crate) enabled: bool,
    pub(crate) path_case: PathCase,
    pub(crate) ipv6_prefix: u8,
    pub(crate) plans: Vec<Plan>,
    pub(crate) policies: Vec<Policy>,
    pub(crate) allow: Vec<ListEntry>,
    pub(crate) deny: Vec<ListEntry>,
    pub(crate) on_failure: OnFailure,
    pub(crate) shed: Option<Shed>,
}

/// A named set of limits, for policies that choose the limits by an attribute.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    pub(crate) name: String,
    pub(crate) limits: Vec<PolicyLimit>,
    pub(crate) class: Option<ratekeeper::adaptive::Class>,
}

/// An entry of the allow list or the deny list.
#[derive(Clone, PartialEq, Debug)]
pub struct ListEntry {
    pub(crate) matching: Match,
    pub(crate) until: Option<Timestamp>,
    pub(crate) reason: Option<String>,
}

impl Match {
    /// The attributes it matches on, with duplicates.
    pub(crate) fn attributes(&self) -> Vec<&Attribute> {
        let mut all: Vec<&Attribute> = self
            .attributes
            .iter()
            .map(|(attribute, _)| attribute)
            .collect();
        let known = [
            (self.methods.is_some(), &Attribute::Method),
            (self.paths.is_some(), &Attribute::Path),
            (self.hosts.is_some(), &Attribute::Host),
            (self.ips.is_some(), &Attribute::Ip),
        ];
        all.extend(
            known
                .into_iter()
                .filter(|(is_there, _)| *is_there)
                .map(|(_, attribute)| attribute),
        );
        all.extend(self.not.iter().flat_map(|not| not.attributes()));
        all
    }
}

impl Policies {
    /// The attributes that policies and lists use, without duplicates; headers only where they are
    /// used as keys.
    pub fn attributes(&self) -> Vec<&Attribute> {
        let lists = self
            .allow
            .iter()
            .chain(&self.deny)
            .flat_map(|entry| entry.matching.attributes());
        let mut all: Vec<&Attribute> = self
            .policies
            .iter()
            .flat_map(Policy::attributes)
            .chain(lists)
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// An empty set: every request is allowed.
    pub fn new() -> Self {
        Self {
            enabled: true,
            path_case: PathCase::default(),
            ipv6_prefix: IPV6_PREFIX,
            plans: Vec::new(),
            policies: Vec::new(),
            allow: Vec::new(),
            deny: Vec::new(),
            on_failure: OnFailure::default(),
            shed: None,
        }
    }

    /// The built-in policies: 100 requests a minute for each address, with a burst of 20.
    pub fn built_in() -> Self {
        let limit = Limit::per_minute(100).burst(20);
        Self::new().policy(
            Policy::new("default")
                .key(crate::Attribute::Ip)
                .limit(limit),
        )
    }

    /// Adds a policy after the others.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Adds a plan.
    #[must_use]
    pub fn plan(mut self, plan: Plan) -> Self {
        self.plans.push(plan);
        self
    }

    /// Adds an entry to the allow list: its requests are allowed whatever the limits.
    #[must_use]
    pub fn allow(mut self, entry: ListEntry) -> Self {
        self.allow.push(entry);
        self
    }

    /// Adds an entry to the deny list: its requests are denied, unless they are on the allow list.
    #[must_use]
    pub fn deny(mut self, entry: ListEntry) -> Self {
        self.deny.push(entry);
        self
    }

    /// Enables or disables the limits. Disabled, every request is allowed, and the verdict has the
    /// reason `off`.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// Whether limits are enabled.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Sets whether paths are case-sensitive; they are by default.
    #[must_use]
    pub fn path_case(mut self, case: PathCase) -> Self {
        self.path_case = case;
        self
    }

    /// Sets how many bits of an IPv6 address identify a client; 56 by default.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = bits.min(128);
        self
    }

    /// Sets how requests are decided while the store cannot be reached, for policies without a
    /// setting of their own; by default each node allows its share of the limits.
    #[must_use]
    pub fn on_failure(mut self, then: OnFailure) -> Self {
        self.on_failure = then;
        self
    }

    /// Turns on load shedding: under overload the least important requests are denied first. It is
    /// off by default.
    #[must_use]
    pub fn shed(mut self, shed: Shed) -> Self {
        self.shed = Some(shed);
        self
    }

    /// How requests are decided while the store cannot be reached, for policies without a setting
    /// of their own.
    pub fn default_on_failure(&self) -> OnFailure {
        self.on_failure
    }

    /// The limits of a policy: its own, or those of all plans if it uses plans.
    pub fn limits_of<'a>(&'a self, policy: &'a Policy) -> impl Iterator<Item = &'a PolicyLimit> {
        let (own, plans) = match &policy.limits {
            Limits::Own(limits) => (&limits[..], &[][..]),
            Limits::Plan { .. } => (&[][..], &self.plans[..]),
        };
        own.iter().chain(plans.iter().flat_map(|plan| &plan.limits))
    }

    /// The policies in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Policy> {
        self.policies.iter()
    }
}

impl Default for Policies {
    fn default() -> Self {
        Self::new()
    }
}

impl Plan {
    /// Creates a plan without limits.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            limits: Vec::new(),
            class: None,
        }
    }

    /// Adds a limit. With several limits, a request must be within all of them.
    #[must_use]
    pub fn limit(mut self, limit: impl Into<PolicyLimit>) -> Self {
        self.limits.push(limit.into());
        self
    }

    /// Sets the importance of the plan's requests for [load shedding](Policies::shed): `class` in a
    /// file.
    #[must_use]
    pub fn class(mut self, class: ratekeeper::adaptive::Class) -> Self {
        self.class = Some(class);
        self
    }
}

impl ListEntry {
    /// Creates an entry for requests that match.
    pub fn new(matching: Match) -> Self {
        Self {
            matching,
            until: None,
            reason: None,
        }
    }

    /// Sets when the entry expires.
    #[must_use]
    pub fn until(mut self, until: Timestamp) -> Self {
        self.until = Some(until);
        self
    }

    /// Sets the reason that is shown.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }
}
