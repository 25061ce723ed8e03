//! Random policies and requests as plain data, from which both engines are built.

use super::history::algorithm;
use proptest::prelude::*;
use ratekeeper::{Algorithm, Limit, Timestamp};
use ratekeeper_policy::{
    Action, Cost, Count, ListEntry, Match, Missing, Plan, Policies, Policy, PolicyLimit, Subject,
    policy::DenialStatus, policy::Penalty, policy::Reserve, policy::ReserveClasses,
    policy::Rollout,
};
use std::time::Duration;

#[derive(Clone, Default, Debug)]
pub(crate) struct Conditions {
    pub(crate) methods: Option<Vec<String>>,
    pub(crate) paths: Option<Vec<String>>,
    pub(crate) hosts: Option<Vec<String>>,
    pub(crate) ips: Option<Vec<String>>,
    /// Present, or one of these.
    pub(crate) headers: Vec<(String, Option<Vec<String>>)>,
    pub(crate) attributes: Vec<(&'static str, Vec<String>)>,
    pub(crate) not: Option<Box<Conditions>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Limits {
    Own(Vec<PolicyLimit>),
    /// By the attribute `plan`.
    Plan {
        default: Option<&'static str>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Share {
    Units(u64),
    Percent(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Behaviour {
    Enforce,
    Shadow,
    Delay(u64),
}

#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) when: Conditions,
    pub(crate) key: Vec<&'static str>,
    pub(crate) missing: Missing,
    pub(crate) limits: Limits,
    /// A fixed cost, or that of the attribute `tokens` with this default.
    pub(crate) cost: Result<u64, u64>,
    pub(crate) count: Count,
    pub(crate) does: Behaviour,
    pub(crate) unavailable: bool,
    /// By the attribute `priority`: reserves of `low` and `mid`, and the default class.
    pub(crate) class: Option<(Share, Share, Option<&'static str>)>,
    pub(crate) rolled_out: bool,
    pub(crate) last: bool,
    /// Denials, within, ban.
    pub(crate) penalty: Option<(u64, u64, u64)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) when: Conditions,
    /// Nanoseconds after the start.
    pub(crate) until: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) rules: Vec<Rule>,
    pub(crate) plans: Vec<(&'static str, Vec<PolicyLimit>)>,
    pub(crate) allow: Vec<Entry>,
    pub(crate) deny: Vec<Entry>,
}

/// An operation on one key.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Ban(u64),
    Limits(Vec<PolicyLimit>, u64),
    Reset,
}

pub(crate) fn operations() -> BoxedStrategy<Operation> {
    let kind = prop_oneof![
        3 => (1_u64..=2, 2_u64..=4).prop_map(|(count, burst)| bucket(count, 100, burst)),
        1 => Just(PolicyLimit::Concurrent(2)),
    ];
    prop_oneof![
        (1_u64..300).prop_map(Operation::Ban),
        (prop::collection::vec(kind, 1..=3), 1_u64..600)
            .prop_map(|(kinds, lasts)| Operation::Limits(kinds, lasts)),
        Just(Operation::Reset),
    ]
    .boxed()
}

/// A request.
#[derive(Clone, Default, Debug)]
pub(crate) struct Caller {
    pub(crate) ip: Option<String>,
    pub(crate) method: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) others: Vec<(&'static str, String)>,
}

impl Caller {
    pub(crate) fn subject(&self) -> Subject<'_> {
        let mut subject = Subject::new().headers(&self.headers);
        if let Some(ip) = &self.ip {
            subject = subject.ip(ip.parse().unwrap());
        }
        if let Some(method) = &self.method {
            subject = subject.method(method);
        }
        if let Some(path) = &self.path {
            subject = subject.path(path);
        }
        if let Some(host) = &self.host {
            subject = subject.host(host);
        }
        for (name, value) in &self.others {
            subject = subject.with(name, value);
        }
        subject
    }
}

impl Conditions {
    fn build(&self) -> Match {
        let mut when = Match::new();
        when = self
            .methods
            .iter()
            .flatten()
            .fold(when, |when, method| when.method(method));
        when = self
            .paths
            .iter()
            .flatten()
            .fold(when, |when, path| when.path(path.parse().unwrap()));
        when = self
            .hosts
            .iter()
            .flatten()
            .fold(when, |when, host| when.host(host.parse().unwrap()));
        when = self
            .ips
            .iter()
            .flatten()
            .fold(when, |when, ip| when.ip(ip.parse().unwrap()));
        for (name, values) in &self.headers {
            when = match values {
                None => when.header(name),
                Some(values) => when.header_is(name, values.clone()),
            };
        }
        for (name, values) in &self.attributes {
            when = when.attribute_is(*name, values.clone());
        }
        match &self.not {
            None => when,
            Some(not) => when.unless(not.build()),
        }
    }
}

fn bucket(count: u64, period: u64, burst: u64) -> PolicyLimit {
    Limit::of(count, Duration::from_nanos(period))
        .burst(burst)
        .into()
}

fn window(
    algorithm: Algorithm,
    windows: impl Strategy<Value = u64>,
) -> impl Strategy<Value = PolicyLimit> {
    (2_u64..=5, windows).prop_map(move |(count, window)| {
        let limit = Limit::of(count, Duration::from_nanos(window));
        limit.algorithm(algorithm).into()
    })
}

impl Spec {
    pub(crate) fn name(number: usize) -> String {
        format!("p{number}")
    }

    pub(crate) fn build(&self, start: Timestamp) -> Policies {
        let mut policies = Policies::new();
        for (name, limits) in &self.plans {
            policies = policies.plan(
                limits
                    .iter()
                    .fold(Plan::new(*name), |plan, limit| plan.limit(*limit)),
            );
        }
        for (number, rule) in self.rules.iter().enumerate() {
            policies = policies.policy(rule.build(&Self::name(number)));
        }
        let entry = |entry: &Entry| {
            let listed = ListEntry::new(entry.when.build());
            match entry.until {
                None => listed,
                Some(until) => listed.until(start + Duration::from_nanos(until)),
            }
        };
        policies = self
            .allow
            .iter()
            .fold(policies, |policies, one| policies.allow(entry(one)));
        self.deny
            .iter()
            .fold(policies, |policies, one| policies.deny(entry(one)))
    }
}

impl Rule {
    fn build(&self, name: &str) -> Policy {
        let mut policy = Policy::new(name)
            .matching(self.when.build())
            .count(self.count)
            .missing(self.missing);
        policy = self
            .key
            .iter()
            .fold(policy, |policy, name| policy.key(*name));
        policy = match &self.limits {
            Limits::Own(limits) => limits
                .iter()
                .fold(policy, |policy, limit| policy.limit(*limit)),
            Limits::Plan { default } => policy.plan("plan", *default),
        };
        policy = policy.cost(match self.cost {
            Ok(units) => Cost::Units(units),
            Err(default) => Cost::Attribute {
                attribute: "tokens".into(),
                default,
            },
        });
        policy = policy.action(match self.does {
            Behaviour::Enforce => Action::Enforce,
            Behaviour::Shadow => Action::Shadow,
            Behaviour::Delay(max) => Action::Delay {
                max: Duration::from_nanos(max),
            },
        });
        if self.unavailable {
            policy = policy.status(DenialStatus::ServiceUnavailable);
        }
        if let Some((low, mid, default)) = self.class {
            let share = |share| match share {
                Share::Units(units) => Reserve::Units(units),
                Share::Percent(percent) => Reserve::Percent(percent as f64),
            };
            let class = ReserveClasses::by("priority")
                .reserve("low", share(low))
                .reserve("mid", share(mid));
            policy = policy.reserves(match default {
                None => class,
                Some(default) => class.default(default),
            });
        }
        policy =
            policy.rollout(Rollout::percent(if self.rolled_out { 100.0 } else { 0.0 }).unwrap());
        if self.last {
            policy = policy.stop();
        }
        if let Some((denials, within, ban)) = self.penalty {
            let within = Duration::from_nanos(within);
            let ban = Duration::from_nanos(ban);
            policy = policy.penalty(Penalty {
                denials,
                within,
                ban,
            });
        }
        policy
    }
}

fn some_of(from: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    prop::sample::subsequence(from, 1..=from.len().min(2))
        .prop_map(|some| some.into_iter().map(str::to_owned).collect())
}

fn maybe(weight: f64, from: &'static [&'static str]) -> impl Strategy<Value = Option<Vec<String>>> {
    prop::option::weighted(weight, some_of(from))
}

const PATTERNS: &[&str] = &[
    "/a",
    "/a/*",
    "/a/**",
    "/**",
    "/",
    "/*/b",
    "/a/b",
    "/*/*",
    "/b/*/a/**",
];
const PATHS: &[&str] = &[
    "/a",
    "/a/",
    "//a",
    "/a/b",
    "/%61",
    "/a/./b",
    "/b/../a",
    "/a/%2e%2e/b",
    "/",
    "",
    "/a%2Fb",
    "/a%2F..%2fb",
    "/b\\a",
    "/a/../c",
    "/b/x/a",
    "/b/x/a/y?q=/c",
    "/a/b#x",
    "/c",
    "/%zz",
    "/a/b/",
];
const NETWORKS: &[&str] = &[
    "10.0.0.0/8",
    "10.0.1.0/24",
    "0.0.0.0/0",
    "2001:db8::/32",
    "10.0.0.1/32",
    "::/0",
];
const ADDRESSES: &[&str] = &[
    "10.0.0.1",
    "10.0.1.1",
    "::ffff:10.0.1.1",
    "192.0.2.1",
    "2001:db8::1",
    "2001:db8:0:ff::2",
];
const HOST_PATTERNS: &[&str] = &["example.com", "*.example.com", "Other.example"];
const HOSTS: &[&str] = &[
    "example.com",
    "Example.COM:443",
    "api.example.com",
    "example.com.",
    "xexample.com",
    "other.example",
];
const METHODS: &[&str] = &["GET", "POST", "get"];

fn conditions_without_not() -> BoxedStrategy<Conditions> {
    let header = prop_oneof![
        Just(("x-a".to_owned(), None)),
        some_of(&["1", "2"]).prop_map(|values| ("X-A".to_owned(), Some(values))),
        Just(("x-b".to_owned(), None)),
    ];
    let attribute = prop_oneof![
        some_of(&["ann", "bob"]).prop_map(|values| ("user", values)),
        some_of(&["free", "pro"]).prop_map(|values| ("plan", values)),
        some_of(&["eu", "us"]).prop_map(|values| ("region", values)),
        some_of(&["1", "2"]).prop_map(|values| ("header:x-a", values)),
    ];
    (
        maybe(0.2, METHODS),
        maybe(0.4, PATTERNS),
        maybe(0.15, HOST_PATTERNS),
        maybe(0.2, NETWORKS),
        prop::option::weighted(0.15, header),
        prop::option::weighted(0.2, attribute),
    )
        .prop_map(
            |(methods, paths, hosts, ips, header, attribute)| Conditions {
                methods,
                paths,
                hosts,
                ips,
                headers: header.into_iter().collect(),
                attributes: attribute.into_iter().collect(),
                not: None,
            },
        )
        .boxed()
}

fn conditions() -> BoxedStrategy<Conditions> {
    (
        conditions_without_not(),
        prop::option::weighted(0.25, conditions_without_not()),
    )
        .prop_map(|(when, not)| Conditions {
            not: not.map(Box::new),
            ..when
        })
        .boxed()
}

fn kinds() -> BoxedStrategy<PolicyLimit> {
    let period = prop::sample::select(vec![7_u64, 60, 100, 600]);
    let windows = prop::sample::select(vec![60_u64, 100, 600]);
    prop_oneof![
        8 => (1_u64..=5, period.clone(), 2_u64..=5)
            .prop_map(|(count, period, burst)| bucket(count, period, burst)),
        1 => (1_u64..=3, period, 0_u64..=3).prop_map(|(count, period, longest)| {
            Limit::of(count, Duration::from_nanos(period)).paced_max_queue(longest).into()
        }),
        1 => window(Algorithm::SlidingLog, windows.clone()),
        1 => window(Algorithm::FixedWindow, windows.clone()),
        1 => window(Algorithm::FixedWindowFirstHit, windows.clone()),
        1 => window(Algorithm::SlidingWindow, windows.clone()),
        1 => window(Algorithm::SlidingWindowStrict, windows),
        2 => (2_u64..=4).prop_map(PolicyLimit::Concurrent),
    ]
    .boxed()
}

fn limits() -> BoxedStrategy<Limits> {
    prop_oneof![
        5 => prop::collection::vec(kinds(), 1..=3).prop_map(Limits::Own),
        1 => prop::collection::vec(kinds(), 4..=10).prop_map(Limits::Own),
        1 => prop::option::of(Just("free")).prop_map(|default| Limits::Plan { default }),
    ]
    .boxed()
}

fn rules() -> BoxedStrategy<Rule> {
    const KEYS: &[&str] = &[
        "ip",
        "user",
        "plan",
        "method",
        "path",
        "host",
        "endpoint",
        "header:x-a",
        "region",
    ];
    let key = prop_oneof![
        2 => Just(Vec::new()),
        3 => prop::sample::subsequence(KEYS, 1),
        2 => prop::sample::subsequence(KEYS, 2..=3),
    ];
    let cost = prop_oneof![6 => Just(Ok(1)), 2 => (0_u64..=2).prop_map(Ok), 2 => (0_u64..=2).prop_map(Err)];
    let count =
        prop_oneof![4 => Just(Count::All), 1 => Just(Count::Failures), 1 => Just(Count::Successes)];
    let does = prop_oneof![6 => Just(Behaviour::Enforce), 2 => Just(Behaviour::Shadow), 2 => (1_u64..400).prop_map(Behaviour::Delay)];
    let share = || {
        prop_oneof![
            Just(Share::Units(1)),
            Just(Share::Percent(34)),
            Just(Share::Percent(10))
        ]
    };
    let class = prop::option::weighted(0.2, (share(), share(), prop::option::of(Just("low"))));
    let penalty = prop::option::weighted(0.2, (1_u64..=3, 50_u64..500, 50_u64..500));
    let flags = (
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.85),
        prop::bool::weighted(0.1),
    );
    let key = (key, prop::sample::select(&Missing::ALL[..]));
    (
        conditions(),
        key,
        limits(),
        cost,
        count,
        does,
        class,
        penalty,
        flags,
    )
        .prop_map(
            |(
                when,
                (key, missing),
                limits,
                cost,
                count,
                does,
                class,
                penalty,
                (unavailable, rolled_out, last),
            )| {
                let mut rule = Rule {
                    when,
                    key,
                    missing,
                    limits,
                    cost,
                    count,
                    does,
                    unavailable,
                    class,
                    rolled_out,
                    last,
                    penalty,
                };
                rule.make_possible();
                rule
            },
        )
        .boxed()
}

impl Rule {
    /// Removes settings that are invalid or that the specification does not cover.
    fn make_possible(&mut self) {
        let is = |limit: &PolicyLimit, one: &[Algorithm]| {
            algorithm(*limit).is_some_and(|algorithm| one.contains(&algorithm))
        };
        let waits = |limit: &PolicyLimit| {
            algorithm(*limit).is_none() || is(limit, &[Algorithm::TokenBucket])
        };
        let queue = |limit: &PolicyLimit| is(limit, &[Algorithm::Pacing]);
        let settles =
            |limit: &PolicyLimit| !is(limit, &[Algorithm::Pacing, Algorithm::FixedWindowFirstHit]);
        let (can_wait, has_queue, can_settle) = match &self.limits {
            Limits::Own(limits) => (
                limits.iter().all(waits),
                limits.iter().any(queue),
                limits.iter().all(settles),
            ),
            Limits::Plan { .. } => (false, true, false),
        };
        if matches!(self.does, Behaviour::Delay(_)) && !can_wait {
            self.does = Behaviour::Enforce;
        }
        if has_queue {
            self.class = None;
        }
        // Refunds of future slots are covered by the tests of the store.
        if !can_settle || matches!(self.does, Behaviour::Delay(_)) {
            self.count = Count::All;
            self.cost = Ok(self.cost.unwrap_or_else(|default| default));
        }
    }
}

fn entries() -> BoxedStrategy<Entry> {
    let until = prop::option::weighted(0.7, 1_u64..2_000);
    let named = (
        conditions_without_not(),
        prop::sample::select(vec!["ann", "bob"]),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(when, user, network)| {
            if network {
                Conditions {
                    ips: Some(vec!["10.0.1.0/24".to_owned()]),
                    ..when
                }
            } else {
                Conditions {
                    attributes: vec![("user", vec![user.to_owned()])],
                    ..when
                }
            }
        });
    (named, until)
        .prop_map(|(when, until)| Entry { when, until })
        .boxed()
}

pub(crate) fn specs() -> BoxedStrategy<Spec> {
    (
        prop::collection::vec(rules(), 1..=6),
        prop::collection::vec(kinds(), 1..=2),
        prop::collection::vec(kinds(), 1..=2),
        prop::collection::vec(entries(), 0..=1),
        prop::collection::vec(entries(), 0..=2),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(rules, free, pro, allow, deny, listed)| Spec {
            rules,
            plans: vec![("free", free), ("pro", pro)],
            allow: if listed { allow } else { Vec::new() },
            deny: if listed { deny } else { Vec::new() },
        })
        .boxed()
}

fn text(weight: f64, from: &'static [&'static str]) -> impl Strategy<Value = Option<String>> {
    prop::option::weighted(weight, prop::sample::select(from).prop_map(str::to_owned))
}

/// Few values, so that requests share buckets.
pub(crate) fn requests() -> BoxedStrategy<Caller> {
    let headers = prop::collection::vec(
        (
            prop::sample::select(vec!["x-a", "X-A", "x-b"]),
            prop::sample::select(vec!["1", "2"]),
        )
            .prop_map(|(name, value)| (name.to_owned(), value.to_owned())),
        0..=2,
    );
    let others = (
        text(0.8, &["ann", "bob"]),
        text(0.5, &["free", "pro", "gold"]),
        text(0.5, &["eu", "us"]),
        text(0.4, &["0", "2", "3", "many", "99999999999999999999999"]),
        text(0.4, &["low", "mid", "high"]),
    )
        .prop_map(|(user, plan, region, tokens, priority)| {
            let named = [
                ("user", user),
                ("plan", plan),
                ("region", region),
                ("tokens", tokens),
                ("priority", priority),
            ];
            named
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?)))
                .collect()
        });
    (
        text(0.9, ADDRESSES),
        text(0.9, METHODS),
        text(0.9, PATHS),
        text(0.8, HOSTS),
        headers,
        others,
    )
        .prop_map(|(ip, method, path, host, headers, others)| Caller {
            ip,
            method,
            path,
            host,
            headers,
            others,
        })
        .boxed()
}
