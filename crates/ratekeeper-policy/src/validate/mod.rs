//! Validation of policies: errors and warnings, for code and for files alike.

mod overload;

use crate::matching::Match;
use crate::policies::{ListEntry, Policies};
use crate::policy::{Action, Count, Limits, Policy, Reserve};
use crate::policy_limit::PolicyLimit;
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

/// Collects findings.
struct Findings(Vec<PolicyFinding>);

impl Findings {
    fn error(&mut self, item: Item, key: &'static str, message: String) {
        self.0.push(PolicyFinding {
            severity: Severity::Error,
            item,
            key,
            index: None,
            message,
        });
    }

    fn warn(&mut self, item: Item, key: &'static str, message: String) {
        self.0.push(PolicyFinding {
            severity: Severity::Warning,
            item,
            key,
            index: None,
            message,
        });
    }

    fn at(&mut self, index: usize) {
        if let Some(last) = self.0.last_mut() {
            last.index = Some(index);
        }
    }
}

impl Policies {
    /// All errors and warnings, in the order of the policies.
    pub fn problems(&self) -> Vec<PolicyFinding> {
        let mut findings = Findings(Vec::new());
        self.check_plans(&mut findings);
        let mut names = HashSet::new();
        let mut stopping = Vec::new();
        for (at, policy) in self.policies.iter().enumerate() {
            self.check_policy(
                at,
                policy,
                names.insert(&policy.name),
                &stopping,
                &mut findings,
            );
            if policy.stop {
                stopping.push(policy);
            }
        }
        self.check_single_global_limit(&mut findings);
        self.check_shed(&mut findings);
        self.check_lists(&mut findings);
        findings.0
    }

    fn check_plans(&self, findings: &mut Findings) {
        for (at, plan) in self.plans.iter().enumerate() {
            let name = &plan.name;
            if self.plans[..at].iter().any(|earlier| earlier.name == *name) {
                findings.error(
                    Item::Plan(at),
                    "",
                    format!("there are two plans named `{name}`; rename one"),
                );
            }
            if plan.limits.is_empty() {
                findings.error(
                    Item::Plan(at),
                    "limits",
                    format!("the plan `{name}` has no limits; give it `limits = [\"60/min\"]`, or \"unlimited\""),
                );
            }
            for (index, limit) in plan.limits.iter().enumerate() {
                if let Some(warning) = limit_warning(limit) {
                    findings.warn(Item::Plan(at), "limits", warning);
                    findings.at(index);
                }
            }
            if plan.class.is_some() && !self.uses_classes() {
                let message = format!(
                    "the `class` of the plan `{name}` has no effect; configure [shed], give a policy `adaptive`, or remove the class"
                );
                findings.warn(Item::Plan(at), "class", message);
            }
            let used = self
                .policies
                .iter()
                .any(|policy| matches!(policy.limits, Limits::Plan { .. }));
            if !used {
                findings.warn(Item::Plan(at), "", format!("no policy uses plans, so the plan `{name}` has no effect; give a policy `plan = {{ attribute = \"plan\" }}`"));
            }
        }
    }

    /// `is_new`: no earlier policy has its name. `stopping`: earlier policies that are final.
    fn check_policy(
        &self,
        at: usize,
        policy: &Policy,
        is_new: bool,
        stopping: &[&Policy],
        findings: &mut Findings,
    ) {
        let item = || Item::Policy(at);
        let name = &policy.name;
        if name.is_empty() {
            findings.error(
                item(),
                "name",
                "the name of a policy is empty; give it a name".to_owned(),
            );
        }
        if !is_new {
            findings.error(
                item(),
                "name",
                format!("there are two policies named `{name}`; rename one"),
            );
        }
        let mut key = policy.key.clone();
        key.sort();
        if let Some(twice) = key.windows(2).find(|pair| pair[0] == pair[1]) {
            findings.error(
                item(),
                "key",
                format!("`{}` is in the key twice; remove one", twice[0]),
            );
        }
        if !policy.key.starts_with(&policy.tag) {
            let front: Vec<String> = policy
                .tag
                .iter()
                .map(|attribute| format!("\"{attribute}\""))
                .collect();
            let message = format!(
                "the `tag` of the policy `{name}` must be a prefix of its `key`, so that a bucket lies on one shard; begin the key with {}, or remove the tag",
                front.join(", ")
            );
            findings.error(item(), "tag", message);
        }
        match &policy.limits {
            Limits::Own(limits) => {
                if limits.is_empty() && policy.adaptive.is_none() && policy.class.is_none() {
                    findings.error(
                        item(),
                        "name",
                        format!(
                            "the policy `{name}` has no limit; give it `limit = \"100/min\"`, `limits`, `plan` or `adaptive`"
                        ),
                    );
                }
                for (index, limit) in limits.iter().enumerate() {
                    check_limit(policy, limit, &mut |severity, message| {
                        let key = if limits.len() == 1 { "limit" } else { "limits" };
                        findings.0.push(PolicyFinding {
                            severity,
                            item: item(),
                            key,
                            index: Some(index),
                            message,
                        });
                    });
                }
            }
            Limits::Plan { default, .. } => {
                if let Some(missing) = default
                    .as_ref()
                    .filter(|default| !self.plans.iter().any(|plan| plan.name == **default))
                {
                    let known = self
                        .plans
                        .iter()
                        .map(|plan| format!("`{}`", plan.name))
                        .collect::<Vec<_>>();
                    let known = if known.is_empty() {
                        format!("define it as [plans.{missing}] with `limits`")
                    } else {
                        format!("the plans are {}", known.join(", "))
                    };
                    findings.error(
                        item(),
                        "plan",
                        format!("there is no plan `{missing}`; {known}"),
                    );
                }
                if self.plans.is_empty() && default.is_none() {
                    findings.error(
                        item(),
                        "plan",
                        "there are no plans; define one as [plans.free] with `limits`".to_owned(),
                    );
                }
                for limit in self.plans.iter().flat_map(|plan| &plan.limits) {
                    check_waits(policy, limit, &mut |message| {
                        findings.error(item(), "action", message);
                    });
                    if let Some(warning) = refund_warning(policy, limit) {
                        findings.warn(item(), "action", warning);
                    }
                }
            }
        }
        if policy.matching.is_impossible() {
            findings.warn(
                item(),
                "match",
                format!("the policy `{name}` can never match: its conditions exclude every request; fix `match`"),
            );
        }
        for path in policy
            .matching
            .paths
            .iter()
            .flatten()
            .map(ToString::to_string)
        {
            if let Some(segment) = placeholder(&path) {
                let message = format!(
                    "`{segment}` in the path `{path}` is matched literally; write `*` to match any one segment"
                );
                findings.warn(item(), "match", message);
            }
        }
        if let Some(earlier) = stopping
            .iter()
            .find(|earlier| makes_unreachable(earlier, policy))
        {
            findings.warn(item(), "match", format!("the policy `{name}` can never match: the earlier policy `{}` is final and matches all of its requests; move `{name}` up", earlier.name));
        }
        if let Some(limit) = &policy.adaptive {
            overload::check_adaptive(limit, &mut |message| {
                findings.error(item(), "adaptive", message);
            });
            overload::check_queue(limit, &mut |message| {
                findings.warn(item(), "adaptive", message);
            });
        }
        if policy.class.is_some() && !self.uses_classes() {
            let message = format!(
                "the `class` of the policy `{name}` has no effect; configure [shed], give a policy `adaptive`, or remove the class"
            );
            findings.warn(item(), "class", message);
        }
        if let Some(class) = &policy.reserves {
            self.check_class(at, policy, class, findings);
        }
        if policy.leased.is_some()
            && let Some(reason) = self.lease_blocker(policy)
        {
            let message = format!(
                "the policy `{name}` is leased, but Redis is asked about each of its requests, because {reason}; remove `mode`"
            );
            findings.warn(item(), "mode", message);
        }
        if let Some(penalty) = &policy.penalty {
            if penalty.denials == 0 || penalty.denials > MAX_DENIALS {
                findings.error(
                    item(),
                    "penalty",
                    format!("`denials` must be from 1 to {MAX_DENIALS}"),
                );
            }
            if penalty.within.is_zero() || penalty.ban.is_zero() {
                findings.error(
                    item(),
                    "penalty",
                    "`within` and `ban` must be longer than zero".to_owned(),
                );
            }
            if penalty.within > MAX_DURATION || penalty.ban > MAX_DURATION {
                findings.error(
                    item(),
                    "penalty",
                    "`within` and `ban` must be at most a year".to_owned(),
                );
            }
            if policy.action == Action::Shadow {
                findings.warn(item(), "penalty", format!("the policy `{name}` is in shadow mode, so it denies nothing and its penalty has no effect; change `action` or remove `penalty`"));
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

    fn check_class(
        &self,
        at: usize,
        policy: &Policy,
        class: &crate::policy::ReserveClasses,
        findings: &mut Findings,
    ) {
        let item = || Item::Policy(at);
        if let Some(default) = &class.default
            && !class.reserves.iter().any(|(known, _)| known == default)
        {
            findings.warn(item(), "class", format!("the default class `{default}` has no reserve, so it has no effect; add the class under `reserve` or remove `default`"));
        }
        let own: &[PolicyLimit] = match &policy.limits {
            Limits::Own(limits) => limits,
            Limits::Plan { .. } => &[],
        };
        for (name, reserve) in &class.reserves {
            if let Reserve::Percent(percent) = reserve
                && !(0.0..=100.0).contains(percent)
            {
                findings.error(
                    item(),
                    "class",
                    format!("the reserve of `{name}` must be from 0% to 100%"),
                );
            }
            for limit in own.iter().chain(
                self.plans
                    .iter()
                    .filter(|_| own.is_empty())
                    .flat_map(|plan| &plan.limits),
            ) {
                let capacity = limit.capacity();
                if capacity != u64::MAX && reserve.of(capacity) >= capacity {
                    findings.warn(item(), "class", format!("the class `{name}` must leave {} of the {capacity} that `{limit}` has, so all of its requests are denied; lower the reserve", reserve.of(capacity)));
                }
            }
        }
    }

    /// Warns if one limit for all endpoints is everything: cheap and expensive requests count the
    /// same.
    fn check_single_global_limit(&self, findings: &mut Findings) {
        let is_specific = |matching: &Match| {
            matching
                .paths
                .as_ref()
                .is_some_and(|paths| !paths.iter().all(|path| path.is_everything()))
                || matching.methods.is_some()
                || matching.hosts.is_some()
        };
        let by_endpoint = |policy: &Policy| {
            policy.key.iter().any(|attribute| {
                matches!(
                    attribute,
                    crate::Attribute::Endpoint | crate::Attribute::Path
                )
            })
        };
        // An adaptive limit takes expensive requests into account by itself.
        let limits =
            |policy: &Policy| !matches!(&policy.limits, Limits::Own(own) if own.is_empty());
        if let Some((at, policy)) = self
            .policies
            .iter()
            .enumerate()
            .find(|(_, policy)| limits(policy))
            && !self
                .policies
                .iter()
                .any(|policy| is_specific(&policy.matching) || by_endpoint(policy))
        {
            findings.warn(Item::Policy(at), "name", format!("`{}` is one limit for all endpoints, cheap and expensive alike; add a policy with `match = {{ path = \"…\" }}` for expensive ones", policy.name));
        }
    }

    fn check_lists(&self, findings: &mut Findings) {
        let item = |allow: bool, at: usize| {
            if allow {
                Item::Allow(at)
            } else {
                Item::Deny(at)
            }
        };
        for (allow, list) in [(true, &self.allow), (false, &self.deny)] {
            for (
                at,
                ListEntry {
                    matching, until, ..
                },
            ) in list.iter().enumerate()
            {
                if matching.is_impossible() {
                    findings.warn(
                        item(allow, at),
                        "",
                        "this entry can never match: its conditions exclude every request; fix or remove it".to_owned(),
                    );
                }
                if *matching == Match::new() {
                    findings.error(
                        item(allow, at),
                        "",
                        "this entry matches every request; add a condition, as in `ip = \"203.0.113.0/24\"`".to_owned(),
                    );
                }
                if allow && until.is_none() {
                    findings.warn(
                        item(allow, at),
                        "",
                        "this entry never expires; add an end, as in `until = 2030-01-01T00:00:00Z`".to_owned(),
                    );
                }
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

fn check_limit(policy: &Policy, limit: &PolicyLimit, report: &mut dyn FnMut(Severity, String)) {
    if let Some(warning) = limit_warning(limit) {
        report(Severity::Warning, warning);
    }
    check_waits(policy, limit, &mut |message| {
        report(Severity::Error, message);
    });
    if let Some(warning) = refund_warning(policy, limit) {
        report(Severity::Warning, warning);
    }
    if let (crate::policy::Cost::Units(units), capacity) = (&policy.cost, limit.capacity())
        && limit.rate().is_some()
        && *units > capacity
        && capacity > 0
    {
        report(
            Severity::Warning,
            format!(
                "every request costs {units} and `{limit}` holds {capacity}, so every request is denied; raise the burst or lower the cost"
            ),
        );
    }
}

/// Windows, logs and concurrency limits cannot delay requests.
fn check_waits(policy: &Policy, limit: &PolicyLimit, report: &mut dyn FnMut(String)) {
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
            report(format!(
                "`{limit}` cannot delay requests; with `action = \"delay\"` use token_bucket or pacing"
            ));
        }
    }
    if max == Duration::ZERO {
        report("`max_delay` must be longer than zero".to_owned());
    }
}

/// A warning about a token bucket that cannot refund requests in full, because it delays them.
fn refund_warning(policy: &Policy, limit: &PolicyLimit) -> Option<String> {
    if policy.count == Count::All || !matches!(policy.action, Action::Delay { .. }) {
        return None;
    }
    match limit.rate()?.in_micros() {
        MicrosLimit::Bucket {
            refundable: false, ..
        } => Some(format!(
            "`{limit}` with `action = \"delay\"` is not always refunded in full for requests that `count` excludes, so the policy `{}` may deny too many; remove `action`, and use `algorithm = \"sliding_log\"` to count exactly",
            policy.name
        )),
        _ => None,
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

/// A warning about a limit with a burst too small for its rate, or with a rate or burst of zero.
fn limit_warning(limit: &PolicyLimit) -> Option<String> {
    let rate = limit.rate()?;
    let written = rate.rate()?;
    let burst = rate.capacity();
    let has_burst = matches!(
        rate.algorithm_kind(),
        Algorithm::TokenBucket | Algorithm::LeakyBucket
    );
    if written.count() > 0 && burst == 0 {
        return Some(format!(
            "`{limit}` has a capacity of 0, so every request is denied; raise the burst, or write \"0\" to deny all requests"
        ));
    }
    if written.count() == 0 && burst > 0 {
        return Some(format!(
            "`{limit}` never refills, so after {burst} every request is denied; write a rate above 0, or \"0\" to deny all requests"
        ));
    }
    (has_burst && burst > 0 && u128::from(burst) * 100 < u128::from(written.count())).then(|| {
        let wanted = written.count().div_ceil(100);
        format!("the burst of `{limit}` is below 1 % of its rate, so simultaneous requests are denied long before the rate is reached; raise it to {wanted} or more")
    })
}
