//! A policy: conditions on requests, a key to count them by, and limits.

use crate::attribute::Attribute;
use crate::matching::Match;
use crate::overload::AdaptiveLimit;
use crate::policy_limit::PolicyLimit;
use ratekeeper::store::OnFailure;
use std::time::Duration;

pub use crate::policy_limit::ParsePolicyLimitError;

/// A policy: which requests it matches, what they are counted by, and how many are allowed.
///
/// ```
/// use ratekeeper::{Algorithm, Limit};
/// use ratekeeper_policy::{Attribute, Count, Match, Policy};
///
/// let login = Policy::new("login")
///     .matching(Match::new().method("POST").path("/login".parse()?))
///     .key(Attribute::Ip)
///     .limit(Limit::per_minute(5).algorithm(Algorithm::SlidingLog))
///     .count(Count::Failures);
/// # Ok::<_, ratekeeper_policy::matching::PatternError>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Policy {
    pub(crate) name: String,
    pub(crate) matching: Match,
    pub(crate) key: Vec<Attribute>,
    pub(crate) missing: Missing,
    pub(crate) tag: Vec<Attribute>,
    pub(crate) limits: Limits,
    pub(crate) cost: Cost,
    pub(crate) count: Count,
    pub(crate) failure_status: Vec<StatusRange>,
    pub(crate) action: Action,
    pub(crate) status: DenialStatus,
    pub(crate) reserves: Option<ReserveClasses>,
    pub(crate) rollout: Rollout,
    pub(crate) stop: bool,
    pub(crate) penalty: Option<Penalty>,
    pub(crate) on_failure: Option<OnFailure>,
    pub(crate) leased: Option<Duration>,
    pub(crate) adaptive: Option<AdaptiveLimit>,
    pub(crate) class: Option<ratekeeper::adaptive::Class>,
}

impl Policy {
    /// The attributes that it uses, with duplicates.
    pub(crate) fn attributes(&self) -> Vec<&Attribute> {
        let plan = match &self.limits {
            Limits::Plan { attribute, .. } => Some(attribute),
            Limits::Own(_) => None,
        };
        let cost = match &self.cost {
            Cost::Attribute { attribute, .. } => Some(attribute),
            Cost::Units(_) => None,
        };
        let class = self.reserves.as_ref().map(|class| &class.attribute);
        let own = self
            .key
            .iter()
            .chain(&self.tag)
            .chain(plan)
            .chain(cost)
            .chain(class);
        own.chain(self.matching.attributes()).collect()
    }
}

/// How a policy handles a request that lacks an attribute of its key.
///
/// Requests that lack an attribute never share a bucket with requests that have it: the user
/// `203.0.113.7` and requests without a user from the address 203.0.113.7 are counted apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Missing {
    /// `address`: the client address is counted instead; requests that have no address either share
    /// one bucket.
    #[default]
    Address,
    /// `skip`: the policy does not apply.
    Skip,
    /// `shared`: all requests that lack the attribute share one bucket.
    Shared,
    /// `deny`: the request is denied.
    Deny,
}

impl Missing {
    /// All values.
    pub const ALL: [Self; 4] = [Self::Address, Self::Skip, Self::Shared, Self::Deny];

    /// The name in a file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Skip => "skip",
            Self::Shared => "shared",
            Self::Deny => "deny",
        }
    }

    /// The value with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|missing| missing.name() == name)
    }
}

/// The limits of a policy: its own, or those of a plan.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Limits {
    /// Its own limits.
    Own(Vec<PolicyLimit>),
    /// The limits of the plan that an attribute names, else of the default.
    Plan {
        attribute: Attribute,
        default: Option<String>,
    },
}

/// The cost of a request, in units.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cost {
    /// A fixed cost.
    Units(u64),
    /// The value of an attribute; the default if that is not a whole number.
    Attribute {
        /// The attribute.
        attribute: Attribute,
        /// The cost of a request without it.
        default: u64,
    },
}

/// Which requests count. Every request is charged when it comes; those that do not count are
/// refunded when they are settled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Count {
    /// `all`
    #[default]
    All,
    /// `failures`: requests that end with one of the failure statuses.
    Failures,
    /// `successes`: all other requests.
    Successes,
}

/// What happens to a request over the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Action {
    /// `enforce`: it is denied.
    #[default]
    Enforce,
    /// `shadow`: it is allowed, and counted as a shadow denial.
    Shadow,
    /// `delay`: it has to wait, up to a longest wait.
    Delay {
        /// The longest wait.
        max: Duration,
    },
}

/// The HTTP status of a denied request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DenialStatus {
    /// `429`: this client sends too many requests.
    #[default]
    TooManyRequests,
    /// `503`: all clients together do.
    ServiceUnavailable,
}

impl DenialStatus {
    /// The number.
    pub const fn code(self) -> u16 {
        match self {
            Self::TooManyRequests => 429,
            Self::ServiceUnavailable => 503,
        }
    }
}

/// A range of HTTP statuses, inclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusRange {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

impl StatusRange {
    pub(crate) fn contains(&self, status: u16) -> bool {
        (self.first..=self.last).contains(&status)
    }
}

/// Classes of requests with reserves: each class leaves a part of a limit to the others.
#[derive(Clone, PartialEq, Debug)]
pub struct ReserveClasses {
    pub(crate) attribute: Attribute,
    pub(crate) default: Option<String>,
    pub(crate) reserves: Vec<(String, Reserve)>,
}

/// The part of a limit that a class leaves to others.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Reserve {
    /// A number of units.
    Units(u64),
    /// A share of the capacity in percent, rounded up to a unit.
    Percent(f64),
}

impl Reserve {
    pub(crate) fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Units(units) => units,
            Self::Percent(percent) => (capacity as f64 * percent / 100.0).ceil() as u64,
        }
    }
}

/// The share of keys a policy is enforced for; for the other keys it is in shadow mode. A key
/// always stays on the same side.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rollout(pub(crate) u32);

impl Rollout {
    /// All keys.
    pub const ALL: Self = Self(Self::WHOLE);

    const WHOLE: u32 = 1_000_000;

    /// A share in percent; `None` if it is not between 0 and 100.
    pub fn percent(percent: f64) -> Option<Self> {
        (0.0..=100.0)
            .contains(&percent)
            .then(|| Self((percent * f64::from(Self::WHOLE) / 100.0).round() as u32))
    }

    /// The share in percent.
    pub fn as_percent(self) -> f64 {
        f64::from(self.0) * 100.0 / f64::from(Self::WHOLE)
    }

    /// Whether a key is in the share; its hash is computed only if needed.
    pub(crate) fn includes_all_or(self, hash: impl FnOnce() -> u64) -> bool {
        self == Self::ALL || self.includes(hash())
    }

    /// Whether a key with this hash is in the share.
    pub(crate) fn includes(self, hash: u64) -> bool {
        (u128::from(hash) * u128::from(Self::WHOLE)) >> 64 < u128::from(self.0)
    }
}

/// A temporary ban for keys that are denied too often.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Penalty {
    /// The number of denials …
    pub denials: u64,
    /// … within this time …
    pub within: Duration,
    /// … that lead to a ban of this duration.
    pub ban: Duration,
}

impl Policy {
    /// Creates a policy that matches every request, with one bucket for all and no limit.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            matching: Match::new(),
            key: Vec::new(),
            missing: Missing::default(),
            tag: Vec::new(),
            limits: Limits::Own(Vec::new()),
            cost: Cost::Units(1),
            count: Count::All,
            failure_status: vec![StatusRange {
                first: 400,
                last: 599,
            }],
            action: Action::Enforce,
            status: DenialStatus::TooManyRequests,
            reserves: None,
            rollout: Rollout::ALL,
            stop: false,
            penalty: None,
            on_failure: None,
            leased: None,
            adaptive: None,
            class: None,
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets which requests count.
    pub fn counts(&self) -> Count {
        self.count
    }

    /// Whether it has an adaptive limit.
    pub fn is_adaptive(&self) -> bool {
        self.adaptive.is_some()
    }

    /// Sets the conditions on requests: `match` in a file.
    #[must_use]
    pub fn matching(mut self, matching: Match) -> Self {
        self.matching = matching;
        self
    }

    /// Adds an attribute to the key: `key` in a file. See [`missing`](Self::missing) for a request
    /// without it.
    #[must_use]
    pub fn key(mut self, attribute: impl Into<Attribute>) -> Self {
        self.key.push(attribute.into());
        self
    }

    /// Sets how a request that lacks an attribute of the key is handled: `missing` in a file.
    #[must_use]
    pub fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    /// Adds an attribute to the shard prefix: `tag` in a file. In a store with several shards, such
    /// as a Redis Cluster, keys with equal prefixes are on one shard, so that they are charged all
    /// or nothing. The attributes must be the first of the key, in order. By default the whole key
    /// is the prefix.
    #[must_use]
    pub fn tag(mut self, attribute: impl Into<Attribute>) -> Self {
        self.tag.push(attribute.into());
        self
    }

    /// Adds a limit. With several limits, a request must be within all of them.
    #[must_use]
    pub fn limit(mut self, limit: impl Into<PolicyLimit>) -> Self {
        match &mut self.limits {
            Limits::Own(limits) => limits.push(limit.into()),
            plan => *plan = Limits::Own(vec![limit.into()]),
        }
        self
    }

    /// Takes the limits from the plan that an attribute names, or from the default plan if it names
    /// none. Without a default the policy does not apply to requests without a plan.
    #[must_use]
    pub fn plan(mut self, attribute: impl Into<Attribute>, default: Option<&str>) -> Self {
        self.limits = Limits::Plan {
            attribute: attribute.into(),
            default: default.map(Into::into),
        };
        self
    }

    /// Sets the cost of a request.
    #[must_use]
    pub fn cost(mut self, cost: Cost) -> Self {
        self.cost = cost;
        self
    }

    /// Sets which requests count.
    #[must_use]
    pub fn count(mut self, count: Count) -> Self {
        self.count = count;
        self
    }

    /// Sets which statuses are failures; 400 to 599 by default.
    #[must_use]
    pub fn failure_status(mut self, ranges: impl IntoIterator<Item = StatusRange>) -> Self {
        self.failure_status = ranges.into_iter().collect();
        self
    }

    /// Sets what happens to a request over the limit.
    #[must_use]
    pub fn action(mut self, action: Action) -> Self {
        self.action = action;
        self
    }

    /// Sets the HTTP status of a denied request.
    #[must_use]
    pub fn status(mut self, status: DenialStatus) -> Self {
        self.status = status;
        self
    }

    /// Sets classes of requests, with the reserve that each leaves to the others: `class` as a
    /// table in a file.
    #[must_use]
    pub fn reserves(mut self, class: ReserveClasses) -> Self {
        self.reserves = Some(class);
        self
    }

    /// Adds an adaptive concurrency limit for all keys together; requests over it are denied with a
    /// 503: `adaptive` in a file.
    #[must_use]
    pub fn adaptive(mut self, limit: AdaptiveLimit) -> Self {
        self.adaptive = Some(limit);
        self
    }

    /// Sets the importance of its requests for [load shedding](crate::Policies::shed): `class` in a
    /// file.
    #[must_use]
    pub fn class(mut self, class: ratekeeper::adaptive::Class) -> Self {
        self.class = Some(class);
        self
    }

    /// Sets the share of keys it is enforced for.
    #[must_use]
    pub fn rollout(mut self, rollout: Rollout) -> Self {
        self.rollout = rollout;
        self
    }

    /// No later policy applies to a request that matches this one: `final` in a file.
    #[must_use]
    pub fn stop(mut self) -> Self {
        self.stop = true;
        self
    }

    /// Bans keys that are denied too often, for a while.
    #[must_use]
    pub fn penalty(mut self, penalty: Penalty) -> Self {
        self.penalty = Some(penalty);
        self
    }

    /// Sets how its requests are decided while the store cannot be reached; by default as set for
    /// the [policies](crate::Policies::on_failure). Meanwhile its penalty counts no denials and
    /// bans no key.
    #[must_use]
    pub fn on_failure(mut self, then: OnFailure) -> Self {
        self.on_failure = Some(then);
        self
    }

    /// Lets every node decide by tokens that it leases from the store, for `staleness` at most:
    /// `mode = "leased"` and `staleness` in a file. Decisions are made at the speed of memory,
    /// within the same bound. A shorter time is fairer between nodes, a longer one asks the store
    /// less often. It has no effect on a store in memory. See docs/distributed.md for the
    /// trade-offs.
    #[must_use]
    pub fn leased(mut self, staleness: Duration) -> Self {
        self.leased = Some(staleness);
        self
    }

    /// A limit of this policy as registered in the store: a token bucket is refundable where only
    /// some requests count. `action = "delay"` needs slots ahead of time, which a refundable bucket
    /// does not have.
    pub(crate) fn stored(&self, limit: &PolicyLimit) -> PolicyLimit {
        match *limit {
            PolicyLimit::Rate(rate)
                if self.count != Count::All && !matches!(self.action, Action::Delay { .. }) =>
            {
                PolicyLimit::Rate(rate.refundable())
            }
            limit => limit,
        }
    }

    /// The key in words: `ip`, `user+endpoint`, or `global` for one bucket.
    pub(crate) fn key_name(&self) -> String {
        match &self.key[..] {
            [] => "global".to_owned(),
            key => key
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("+"),
        }
    }

    /// Whether its conditions or its key use the path of a request.
    pub(crate) fn uses_path(&self) -> bool {
        self.matching.uses_path()
            || self
                .key
                .iter()
                .any(|attribute| matches!(attribute, Attribute::Path | Attribute::Endpoint))
    }

    pub(crate) fn is_failure(&self, status: u16) -> bool {
        self.failure_status
            .iter()
            .any(|range| range.contains(status))
    }
}

impl ReserveClasses {
    /// Takes the class of a request from an attribute.
    pub fn by(attribute: impl Into<Attribute>) -> Self {
        Self {
            attribute: attribute.into(),
            default: None,
            reserves: Vec::new(),
        }
    }

    /// Sets the class of requests that name no known class.
    #[must_use]
    pub fn default(mut self, class: &str) -> Self {
        self.default = Some(class.to_owned());
        self
    }

    /// Sets the reserve of a class. A class without one leaves no reserve.
    #[must_use]
    pub fn reserve(mut self, class: &str, reserve: Reserve) -> Self {
        self.reserves.push((class.to_owned(), reserve));
        self
    }
}
