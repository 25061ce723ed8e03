//! One policy: which requests it is about, by what they are counted, and how much passes.

use crate::attribute::Attribute;
use crate::matching::Match;
use crate::overload::AdaptiveLimit;
use crate::policy_limit::PolicyLimit;
use ratekeeper::store::OnFailure;
use std::time::Duration;

pub use crate::policy_limit::ParsePolicyLimitError;

/// Which requests, counted by what, how many of them.
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
    /// The attributes that it counts by or looks at, each perhaps several times.
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

/// What happens to a request that lacks an attribute of the key of a policy.
///
/// Buckets of requests that lack an attribute are separate from those of requests that have it: the
/// user `203.0.113.7` does not share one with requests from the address 203.0.113.7 that have no
/// user.
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
    /// All of them.
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

    /// The one with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|missing| missing.name() == name)
    }
}

/// Where the limits of a policy come from.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Limits {
    /// They are its own.
    Own(Vec<PolicyLimit>),
    /// The plan that an attribute names, else the default.
    Plan {
        attribute: Attribute,
        default: Option<String>,
    },
}

/// How many units one request takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cost {
    /// Always so many.
    Units(u64),
    /// As many as an attribute says; where it says no whole number, the default.
    Attribute {
        /// Which one.
        attribute: Attribute,
        /// What a request without it takes.
        default: u64,
    },
}

/// Which requests count. All are charged when they come; those that do not count get it back when
/// they are settled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Count {
    /// `all`
    #[default]
    All,
    /// `failures`: what ends with one of the failure statuses.
    Failures,
    /// `successes`: everything else.
    Successes,
}

/// What becomes of a request that is over the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Action {
    /// `enforce`: it is turned away.
    #[default]
    Enforce,
    /// `shadow`: it passes, and is counted.
    Shadow,
    /// `delay`: it is told to wait, if that is not too long.
    Delay {
        /// The longest wait.
        max: Duration,
    },
}

/// The HTTP status of who is turned away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DenialStatus {
    /// `429`: this client asks too often.
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

/// HTTP statuses from one to another, both included.
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

/// Classes of requests that may not use a limit up: each leaves a part of it to the others.
#[derive(Clone, PartialEq, Debug)]
pub struct ReserveClasses {
    pub(crate) attribute: Attribute,
    pub(crate) default: Option<String>,
    pub(crate) reserves: Vec<(String, Reserve)>,
}

/// What a class leaves to others.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Reserve {
    /// So many units.
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

/// The share of keys a policy is enforced for; it watches the others. A key is always on the same
/// side.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rollout(pub(crate) u32);

impl Rollout {
    /// Everybody.
    pub const ALL: Self = Self(Self::WHOLE);

    const WHOLE: u32 = 1_000_000;

    /// A share in percent; none if it is not between 0 and 100.
    pub fn percent(percent: f64) -> Option<Self> {
        (0.0..=100.0)
            .contains(&percent)
            .then(|| Self((percent * f64::from(Self::WHOLE) / 100.0).round() as u32))
    }

    /// The share in percent.
    pub fn as_percent(self) -> f64 {
        f64::from(self.0) * 100.0 / f64::from(Self::WHOLE)
    }

    /// Whether a key is among those it is enforced for, its hash being asked for only if that
    /// matters.
    pub(crate) fn includes_all_or(self, hash: impl FnOnce() -> u64) -> bool {
        self == Self::ALL || self.includes(hash())
    }

    /// Whether a key of that hash is among those it is enforced for.
    pub(crate) fn includes(self, hash: u64) -> bool {
        (u128::from(hash) * u128::from(Self::WHOLE)) >> 64 < u128::from(self.0)
    }
}

/// Who is turned away too often is turned away altogether for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Penalty {
    /// So many denials …
    pub denials: u64,
    /// … within this time …
    pub within: Duration,
    /// … are a ban for so long.
    pub ban: Duration,
}

impl Policy {
    /// A policy about every request, all in one bucket, that limits nothing yet.
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

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which requests count.
    pub fn counts(&self) -> Count {
        self.count
    }

    /// Whether it finds out how many may be in flight.
    pub fn is_adaptive(&self) -> bool {
        self.adaptive.is_some()
    }

    /// Which requests it is about: `match` in a file.
    #[must_use]
    pub fn matching(mut self, matching: Match) -> Self {
        self.matching = matching;
        self
    }

    /// Counted by this, and by what was said before: `key` in a file. See
    /// [`missing`](Self::missing) for a request without it.
    #[must_use]
    pub fn key(mut self, attribute: impl Into<Attribute>) -> Self {
        self.key.push(attribute.into());
        self
    }

    /// What happens to a request that lacks an attribute of the key: `missing` in a file.
    #[must_use]
    pub fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    /// In a store that is spread over several servers, such as a Redis Cluster: what has the same
    /// such attributes is kept on one of them, and charged all or nothing: `tag` in a file. They
    /// are the first of its key, in their order. If nothing is said, what has the same key is kept
    /// together.
    #[must_use]
    pub fn tag(mut self, attribute: impl Into<Attribute>) -> Self {
        self.tag.push(attribute.into());
        self
    }

    /// So much passes. With several limits all must have room.
    #[must_use]
    pub fn limit(mut self, limit: impl Into<PolicyLimit>) -> Self {
        match &mut self.limits {
            Limits::Own(limits) => limits.push(limit.into()),
            plan => *plan = Limits::Own(vec![limit.into()]),
        }
        self
    }

    /// The limits are those of the plan that an attribute names; of the default where it names none
    /// that is known. Without a default the policy is not about such requests.
    #[must_use]
    pub fn plan(mut self, attribute: impl Into<Attribute>, default: Option<&str>) -> Self {
        self.limits = Limits::Plan {
            attribute: attribute.into(),
            default: default.map(Into::into),
        };
        self
    }

    /// How many units a request takes.
    #[must_use]
    pub fn cost(mut self, cost: Cost) -> Self {
        self.cost = cost;
        self
    }

    /// Which requests count.
    #[must_use]
    pub fn count(mut self, count: Count) -> Self {
        self.count = count;
        self
    }

    /// Which statuses are failures; 400 to 599 unless said.
    #[must_use]
    pub fn failure_status(mut self, ranges: impl IntoIterator<Item = StatusRange>) -> Self {
        self.failure_status = ranges.into_iter().collect();
        self
    }

    /// What becomes of a request that is over the limit.
    #[must_use]
    pub fn action(mut self, action: Action) -> Self {
        self.action = action;
        self
    }

    /// The HTTP status of who is turned away.
    #[must_use]
    pub fn status(mut self, status: DenialStatus) -> Self {
        self.status = status;
        self
    }

    /// Requests have classes, by an attribute; what each leaves to the others.
    #[must_use]
    pub fn reserves(mut self, class: ReserveClasses) -> Self {
        self.reserves = Some(class);
        self
    }

    /// As many of its requests are in flight as are served well, all keys together; the others are
    /// turned away with a 503: `adaptive` in a file.
    #[must_use]
    pub fn adaptive(mut self, limit: AdaptiveLimit) -> Self {
        self.adaptive = Some(limit);
        self
    }

    /// How important its requests are, where [some are shed](crate::Policies::shed): `class` in a
    /// file.
    #[must_use]
    pub fn class(mut self, class: ratekeeper::adaptive::Class) -> Self {
        self.class = Some(class);
        self
    }

    /// The share of keys it is enforced for.
    #[must_use]
    pub fn rollout(mut self, rollout: Rollout) -> Self {
        self.rollout = rollout;
        self
    }

    /// No policy after it applies to a request it is about: `final` in a file.
    #[must_use]
    pub fn stop(mut self) -> Self {
        self.stop = true;
        self
    }

    /// Who is turned away too often is banned for a while.
    #[must_use]
    pub fn penalty(mut self, penalty: Penalty) -> Self {
        self.penalty = Some(penalty);
        self
    }

    /// What becomes of its requests while the store cannot be reached; what the
    /// [policies](crate::Policies::on_failure) say unless said. While that lasts its penalty counts
    /// nothing and bans nobody.
    #[must_use]
    pub fn on_failure(mut self, then: OnFailure) -> Self {
        self.on_failure = Some(then);
        self
    }

    /// Lets every node decide by tokens that it takes on lease from where the counts are, for
    /// `staleness` at most: at the speed of memory, in the same bound. A shorter one is fairer
    /// between nodes, a longer one asks less. A store in this process has no use for it. See
    /// docs/distributed.md for what is given up.
    #[must_use]
    pub fn leased(mut self, staleness: Duration) -> Self {
        self.leased = Some(staleness);
        self
    }

    /// A limit of this policy as the store counts it: a token bucket is refundable where only some
    /// requests count. `action = "delay"` needs slots ahead of time, which a refundable bucket has
    /// not.
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

    /// By what it counts, in words: `ip`, `user+endpoint`, or `global` for one bucket.
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

    /// Whether its conditions or its key need the path of a request.
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
    /// Requests are of the class that an attribute names.
    pub fn by(attribute: impl Into<Attribute>) -> Self {
        Self {
            attribute: attribute.into(),
            default: None,
            reserves: Vec::new(),
        }
    }

    /// The class of requests that name none, or one that is not known.
    #[must_use]
    pub fn default(mut self, class: &str) -> Self {
        self.default = Some(class.to_owned());
        self
    }

    /// What a class leaves to others. A class that is not named here leaves nothing.
    #[must_use]
    pub fn reserve(mut self, class: &str, reserve: Reserve) -> Self {
        self.reserves.push((class.to_owned(), reserve));
        self
    }
}
