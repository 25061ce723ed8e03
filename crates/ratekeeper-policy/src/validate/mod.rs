//! Validation of policies: errors and warnings, for code and for files alike.

mod overload;

use crate::attribute::Attribute;
use crate::matching::Match;
use crate::policies::{ListEntry, Policies};
use crate::policy::{Action, Cost, Count, Limits, Policy, Reserve, ReserveClasses};
use crate::policy_limit::PolicyLimit;
use ratekeeper::adaptive::Class;
use ratekeeper::{Algorithm, store::backend::MicrosLimit, store::backend::WindowCounter};
use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

/// A finding of the validation: an error or a warning about policies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyFinding {
    pub(crate) severity: Severity,
    pub(crate) item: Item,
    /// The key of the item that it is about, as in a file.
    pub(crate) key: &'static str,
    /// The index of the value, where the key has a list.
    pub(crate) index: Option<usize>,
    pub(crate) message: String,
}

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// The policies are valid, but probably not as intended.
    Warning,
    /// The policies are invalid.
    Error,
}

/// The item that a finding is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Item {
    Plan(usize),
    Policy(usize),
    Allow(usize),
    Deny(usize),
    Shed,
}

impl Item {
    /// The table of the file that it is in, and its index there.
    #[cfg(feature = "config")]
    pub(crate) fn table(&self) -> (&'static str, usize) {
        match self {
            Self::Plan(index) => ("plans", *index),
            Self::Policy(index) => ("policy", *index),
            Self::Allow(index) => ("allow", *index),
            Self::Deny(index) => ("deny", *index),
            Self::Shed => ("shed", 0),
        }
    }
}

/// Maximum number of denials of a penalty: each key stores as many words.
pub(crate) const MAX_DENIALS: u64 = 10_000;

/// Minimum capacity of a limit that can be leased.
const MIN_LEASED_CAPACITY: u64 = 16;

/// Maximum duration of a ban.
const MAX_DURATION: Duration = crate::engine::MAX_OVERRIDE_DURATION;

impl PolicyFinding {
    /// Whether it is an error.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

impl fmt::Display for PolicyFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Collects findings about one item after the other.
struct Findings {
    all: Vec<PolicyFinding>,
    /// The item that is checked.
    item: Item,
}

impl Findings {
    fn error(&mut self, key: &'static str, message: impl Into<String>) {
        self.push(Severity::Error, key, message.into());
    }

    fn warn(&mut self, key: &'static str, message: impl Into<String>) {
        self.push(Severity::Warning, key, message.into());
    }

    fn push(&mut self, severity: Severity, key: &'static str, message: String) {
        self.all.push(PolicyFinding {
            severity,
            item: self.item.clone(),
            key,
            index: None,
            message,
        });
    }

    /// The findings of `check` are about one value of a list.
    fn at(&mut self, index: usize, check: impl FnOnce(&mut Self)) {
        let before = self.all.len();
        check(self);
        for finding in &mut self.all[before..] {
            finding.index = Some(index);
        }
    }
}

impl Policies {
    /// All errors and warnings, in the order of the policies.
    pub fn problems(&self) -> Vec<PolicyFinding> {
        let mut findings = Findings {
            all: Vec::new(),
            item: Item::Shed,
        };
        self.check_plans(&mut findings);
        let mut names = HashSet::new();
        let mut stopping = Vec::new();
        for (at, policy) in self.policies.iter().enumerate() {
            findings.item = Item::Policy(at);
            if policy.name.is_empty() {
                findings.error("name", "the name of a policy is empty; give it a name");
            }
            if !names.insert(&policy.name) {
                let name = &policy.name;
                findings.error(
                    "name",
                    format!("there are two policies named `{name}`; rename one"),
                );
            }
            self.check_policy(policy, &stopping, &mut findings);
            if policy.stop {
                stopping.push(policy);
            }
        }
        self.check_single_global_limit(&mut findings);
        findings.item = Item::Shed;
        self.check_shed(&mut findings);
        self.check_lists(&mut findings);
        findings.all
    }

    fn check_plans(&self, findings: &mut Findings) {
        let is_planned = |policy: &Policy| matches!(policy.limits, Limits::Plan { .. });
        let are_used = self.policies.iter().any(is_planned);
        for (at, plan) in self.plans.iter().enumerate() {
            findings.item = Item::Plan(at);
            let name = &plan.name;
            if self.plans[..at].iter().any(|earlier| earlier.name == *name) {
                findings.error(
                    "",
                    format!("there are two plans named `{name}`; rename one"),
                );
            }
            if plan.limits.is_empty() {
                let message = format!(
                    "the plan `{name}` has no limits; give it `limits = [\"60/min\"]`, or \
                     \"unlimited\""
                );
                findings.error("limits", message);
            }
            for (index, limit) in plan.limits.iter().enumerate() {
                findings.at(index, |findings| warn_of_limit(limit, "limits", findings));
            }
            self.check_class(plan.class, &format!("plan `{name}`"), findings);
            if !are_used {
                let message = format!(
                    "no policy uses plans, so the plan `{name}` has no effect; give a policy `plan \
                     = {{ attribute = \"plan\" }}`"
                );
                findings.warn("", message);
            }
        }
    }

    /// Warns of a priority class that has no effect.
    fn check_class(&self, class: Option<Class>, owner: &str, findings: &mut Findings) {
        if class.is_some() && !self.uses_classes() {
            let message = format!(
                "the `class` of the {owner} has no effect; configure [shed], give a policy \
                 `adaptive`, or remove the class"
            );
            findings.warn("class", message);
        }
    }

    /// `stopping`: earlier policies that are final.
    fn check_policy(&self, policy: &Policy, stopping: &[&Policy], findings: &mut Findings) {
        let name = &policy.name;
        let mut key = policy.key.clone();
        key.sort();
        if let Some(twice) = key.windows(2).find(|pair| pair[0] == pair[1]) {
            findings.error(
                "key",
                format!("`{}` is in the key twice; remove one", twice[0]),
            );
        }
        if !policy.key.starts_with(&policy.tag) {
            let front = policy
                .tag
                .iter()
                .map(|attribute| format!("\"{attribute}\""));
            let front = front.collect::<Vec<_>>().join(", ");
            let message = format!(
                "the `tag` of the policy `{name}` must be a prefix of its `key`, so that a bucket \
                 lies on one shard; begin the key with {front}, or remove the tag"
            );
            findings.error("tag", message);
        }
        self.check_limits(policy, findings);
        if policy.matching.is_impossible() {
            let message = format!(
                "the policy `{name}` can never match: its conditions exclude every request; fix \
                 `match`"
            );
            findings.warn("match", message);
        }
        let paths = policy.matching.paths.iter().flatten();
        for path in paths.map(ToString::to_string) {
            if let Some(segment) = placeholder(&path) {
                let message = format!(
                    "`{segment}` in the path `{path}` is matched literally; write `*` to match any \
                     one segment"
                );
                findings.warn("match", message);
            }
        }
        let mut stopping = stopping.iter();
        if let Some(earlier) = stopping.find(|earlier| makes_unreachable(earlier, policy)) {
            let message = format!(
                "the policy `{name}` can never match: the earlier policy `{}` is final and matches \
                 all of its requests; move `{name}` up",
                earlier.name
            );
            findings.warn("match", message);
        }
        if let Some(limit) = &policy.adaptive {
            overload::check_adaptive(limit, findings);
        }
        self.check_class(policy.class, &format!("policy `{name}`"), findings);
        if let Some(classes) = &policy.reserves {
            self.check_reserves(policy, classes, findings);
        }
        let blocker = policy.leased.and_then(|_| self.lease_blocker(policy));
        if let Some(reason) = blocker {
            let message = format!(
                "the policy `{name}` is leased, but Redis is asked about each of its requests, \
                 because {reason}; remove `mode`"
            );
            findings.warn("mode", message);
        }
        if let Some(penalty) = &policy.penalty {
            if penalty.denials == 0 || penalty.denials > MAX_DENIALS {
                findings.error(
                    "penalty",
                    format!("`denials` must be from 1 to {MAX_DENIALS}"),
                );
            }
            if penalty.within.is_zero() || penalty.ban.is_zero() {
                findings.error("penalty", "`within` and `ban` must be longer than zero");
            }
            if penalty.within > MAX_DURATION || penalty.ban > MAX_DURATION {
                findings.error("penalty", "`within` and `ban` must be at most a year");
            }
            if policy.action == Action::Shadow {
                let message = format!(
                    "the policy `{name}` is in shadow mode, so it denies nothing and its penalty \
                     has no effect; change `action` or remove `penalty`"
                );
                findings.warn("penalty", message);
            }
        }
    }

    /// Checks the limits of a policy, its own or those of the plans.
    fn check_limits(&self, policy: &Policy, findings: &mut Findings) {
        match &policy.limits {
            Limits::Own(limits) => {
                if limits.is_empty() && policy.adaptive.is_none() && policy.class.is_none() {
                    let message = format!(
                        "the policy `{}` has no limit; give it `limit = \"100/min\"`, `limits`, \
                         `plan` or `adaptive`",
                        policy.name
                    );
                    findings.error("name", message);
                }
                let key = if limits.len() == 1 { "limit" } else { "limits" };
                for (index, limit) in limits.iter().enumerate() {
                    findings.at(index, |findings| check_limit(policy, limit, key, findings));
                }
            }
            Limits::Plan { default, .. } => {
                let is_known = |name: &&String| self.plans.iter().any(|plan| plan.name == **name);
                if let Some(missing) = default.as_ref().filter(|name| !is_known(name)) {
                    let known = self.plans.iter().map(|plan| format!("`{}`", plan.name));
                    let help = match known.collect::<Vec<_>>() {
                        known if known.is_empty() => {
                            format!("define it as [plans.{missing}] with `limits`")
                        }
                        known => format!("the plans are {}", known.join(", ")),
                    };
                    findings.error("plan", format!("there is no plan `{missing}`; {help}"));
                }
                if self.plans.is_empty() && default.is_none() {
                    let message = "there are no plans; define one as [plans.free] with `limits`";
                    findings.error("plan", message);
                }
                for limit in self.plans.iter().flat_map(|plan| &plan.limits) {
                    check_waits(policy, limit, "action", findings);
                }
            }
        }
    }

    /// Why no request of a policy can be decided by leases; `None` if some can.
    fn lease_blocker(&self, policy: &Policy) -> Option<String> {
        match policy.action {
            Action::Shadow => return Some("it is in shadow mode".to_owned()),
            Action::Delay { .. } => return Some("it delays requests".to_owned()),
            Action::Enforce => {}
        }
        if policy.penalty.is_some() {
            return Some("it has a penalty".to_owned());
        }
        let limits = match &policy.limits {
            Limits::Own(limits) => limits,
            Limits::Plan { .. } => return None,
        };
        limits.iter().find_map(|limit| {
            let stored = policy.stored(limit);
            let reason = match stored.rate().map(ratekeeper::Limit::in_micros) {
                None => "is a concurrency limit",
                Some(MicrosLimit::Pacing { .. }) => "is a pacing limit",
                Some(MicrosLimit::Window {
                    count: WindowCounter::FirstHit,
                    ..
                }) => "has windows that start at the first request",
                Some(MicrosLimit::Bucket { per_micro: 0, .. }) => "never refills",
                Some(MicrosLimit::Bucket {
                    refundable: true, ..
                }) => "refunds requests that `count` excludes",
                Some(MicrosLimit::Unlimited) => return None,
                Some(_) if limit.capacity() < MIN_LEASED_CAPACITY => "is too small to be leased",
                Some(_) => return None,
            };
            Some(format!("`{limit}` {reason}"))
        })
    }

    /// Checks the reserves of the classes of a policy.
    fn check_reserves(&self, policy: &Policy, classes: &ReserveClasses, findings: &mut Findings) {
        let has_reserve = |class: &String| classes.reserves.iter().any(|(known, _)| known == class);
        if let Some(default) = classes.default.as_ref().filter(|class| !has_reserve(class)) {
            let message = format!(
                "the default class `{default}` has no reserve, so it has no effect; add the class \
                 under `reserve` or remove `default`"
            );
            findings.warn("class", message);
        }
        let limits: Vec<&PolicyLimit> = match &policy.limits {
            Limits::Own(own) if !own.is_empty() => own.iter().collect(),
            _ => self.plans.iter().flat_map(|plan| &plan.limits).collect(),
        };
        for (name, reserve) in &classes.reserves {
            if matches!(reserve, Reserve::Percent(percent) if !(0.0..=100.0).contains(percent)) {
                let message = format!("the reserve of `{name}` must be from 0% to 100%");
                findings.error("class", message);
            }
            for limit in &limits {
                let capacity = limit.capacity();
                let reserved = reserve.of(capacity);
                if capacity != u64::MAX && reserved >= capacity {
                    let message = format!(
                        "the class `{name}` must leave {reserved} of the {capacity} that `{limit}` \
                         has, so all of its requests are denied; lower the reserve"
                    );
                    findings.warn("class", message);
                }
            }
        }
    }

    /// Warns if one limit for all endpoints is everything: cheap and expensive requests count the
    /// same.
    fn check_single_global_limit(&self, findings: &mut Findings) {
        let is_specific = |Policy { matching, key, .. }: &Policy| {
            let mut paths = matching.paths.iter().flatten();
            matching.methods.is_some()
                || matching.hosts.is_some()
                || paths.any(|path| !path.is_everything())
                || key.contains(&Attribute::Endpoint)
                || key.contains(&Attribute::Path)
        };
        // An adaptive limit takes expensive requests into account by itself.
        let has_limits =
            |policy: &Policy| !matches!(&policy.limits, Limits::Own(own) if own.is_empty());
        let first = self.policies.iter().position(has_limits);
        if let Some(at) = first.filter(|_| !self.policies.iter().any(is_specific)) {
            findings.item = Item::Policy(at);
            let message = format!(
                "`{}` is one limit for all endpoints, cheap and expensive alike; add a policy with \
                 `match = {{ path = \"…\" }}` for expensive ones",
                self.policies[at].name
            );
            findings.warn("name", message);
        }
    }

    fn check_lists(&self, findings: &mut Findings) {
        let allow = self.allow.iter().enumerate();
        let allow = allow.map(|(at, entry)| (Item::Allow(at), entry));
        let deny = self.deny.iter().enumerate();
        let deny = deny.map(|(at, entry)| (Item::Deny(at), entry));
        for (
            item,
            ListEntry {
                matching, until, ..
            },
        ) in allow.chain(deny)
        {
            let never_ends = matches!(item, Item::Allow(_)) && until.is_none();
            findings.item = item;
            if matching.is_impossible() {
                let message = "this entry can never match: its conditions exclude every request; \
                               fix or remove it";
                findings.warn("", message);
            }
            if *matching == Match::new() {
                let message = "this entry matches every request; add a condition, as in `ip = \
                               \"203.0.113.0/24\"`";
                findings.error("", message);
            }
            if never_ends {
                let message =
                    "this entry never expires; add an end, as in `until = 2030-01-01T00:00:00Z`";
                findings.warn("", message);
            }
        }
    }
}

/// Whether the earlier policy applies to every request that the later one applies to.
fn makes_unreachable(earlier: &Policy, later: &Policy) -> bool {
    let keyed = earlier
        .key
        .iter()
        .all(|attribute| later.key.contains(attribute));
    let planned = match &earlier.limits {
        Limits::Own(_) => true,
        Limits::Plan { default, .. } => default.is_some(),
    };
    keyed && planned && later.matching.implies(&earlier.matching)
}

fn check_limit(policy: &Policy, limit: &PolicyLimit, key: &'static str, findings: &mut Findings) {
    warn_of_limit(limit, key, findings);
    check_waits(policy, limit, key, findings);
    let capacity = limit.capacity();
    if let Cost::Units(units) = policy.cost
        && limit.rate().is_some()
        && units > capacity
        && capacity > 0
    {
        let message = format!(
            "every request costs {units} and `{limit}` holds {capacity}, so every request is \
             denied; raise the burst or lower the cost"
        );
        findings.warn(key, message);
    }
}

/// Windows, logs and concurrency limits cannot delay requests, and a token bucket that delays them
/// cannot refund all in full.
fn check_waits(policy: &Policy, limit: &PolicyLimit, key: &'static str, findings: &mut Findings) {
    let Action::Delay { max } = policy.action else {
        return;
    };
    if let PolicyLimit::Rate(rate) = limit {
        let waits = rate.is_unlimited()
            || matches!(
                rate.algorithm_kind(),
                Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Pacing
            );
        if !waits {
            let message = format!(
                "`{limit}` cannot delay requests; with `action = \"delay\"` use token_bucket or \
                 pacing"
            );
            findings.error(key, message);
        }
    }
    if max == Duration::ZERO {
        findings.error(key, "`max_delay` must be longer than zero");
    }
    let is_refundable = !matches!(
        limit.rate().map(ratekeeper::Limit::in_micros),
        Some(MicrosLimit::Bucket {
            refundable: false,
            ..
        })
    );
    if policy.count != Count::All && !is_refundable {
        let message = format!(
            "`{limit}` with `action = \"delay\"` is not always refunded in full for requests that \
             `count` excludes, so the policy `{}` may deny too many; remove `action`, and use \
             `algorithm = \"sliding_log\"` to count exactly",
            policy.name
        );
        findings.warn(key, message);
    }
}

/// The first segment that other programs treat as a placeholder, but that is matched literally
/// here.
fn placeholder(path: &str) -> Option<&str> {
    let wrapped =
        |segment: &str, open, close| segment.starts_with(open) && segment.ends_with(close);
    path.split('/').find(|segment| {
        (segment.len() > 1 && segment.starts_with(':'))
            || wrapped(segment, '{', '}')
            || wrapped(segment, '<', '>')
    })
}

/// Warns of a limit with a burst too small for its rate, or with a rate or burst of zero.
fn warn_of_limit(limit: &PolicyLimit, key: &'static str, findings: &mut Findings) {
    let Some((rate, written)) = limit.rate().and_then(|rate| Some((rate, rate.rate()?))) else {
        return;
    };
    let (count, burst) = (written.count(), rate.capacity());
    let has_burst = matches!(
        rate.algorithm_kind(),
        Algorithm::TokenBucket | Algorithm::LeakyBucket
    );
    let message = if count > 0 && burst == 0 {
        format!(
            "`{limit}` has a capacity of 0, so every request is denied; raise the burst, or write \
             \"0\" to deny all requests"
        )
    } else if count == 0 && burst > 0 {
        format!(
            "`{limit}` never refills, so after {burst} every request is denied; write a rate above \
             0, or \"0\" to deny all requests"
        )
    } else if has_burst && burst > 0 && u128::from(burst) * 100 < u128::from(count) {
        let wanted = count.div_ceil(100);
        format!(
            "the burst of `{limit}` is below 1 % of its rate, so simultaneous requests are denied \
             long before the rate is reached; raise it to {wanted} or more"
        )
    } else {
        return;
    };
    findings.warn(key, message);
}
