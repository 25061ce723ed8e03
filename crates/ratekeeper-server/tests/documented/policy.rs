//! A policy of a documented file: its limits, and a request that it applies to.

use ratekeeper::Limit;
use ratekeeper_policy::{PolicyLimit, config};
use serde_json::{Map, json};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;
use toml::{Table, Value};

#[derive(Clone)]
pub(crate) struct DocumentedPolicy {
    /// The whole file.
    pub(crate) file: Table,
    pub(crate) name: String,
    policy: Table,
    /// The plan whose limits are tested.
    plan: Option<String>,
}

/// A request that a policy applies to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) host: Option<String>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) attributes: BTreeMap<String, String>,
}

impl Request {
    /// The subject of `POST /v1/check`.
    pub(crate) fn subject(&self) -> serde_json::Value {
        let mut subject = Map::new();
        subject.insert("method".to_owned(), json!(self.method));
        subject.insert("path".to_owned(), json!(self.path));
        subject.insert("headers".to_owned(), json!(self.headers));
        for (name, value) in &self.attributes {
            subject.insert(name.clone(), json!(value));
        }
        subject.into()
    }
}

/// The policies of a file, once for each plan.
pub(crate) fn policies(file: &Table) -> Vec<DocumentedPolicy> {
    let mut all = Vec::new();
    for policy in file
        .get("policy")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let policy = policy.as_table().unwrap().clone();
        let plans = match policy.get("plan") {
            None => vec![None],
            Some(_) => file["plans"]
                .as_table()
                .unwrap()
                .keys()
                .cloned()
                .map(Some)
                .collect(),
        };
        all.extend(plans.into_iter().map(|plan| DocumentedPolicy {
            file: file.clone(),
            name: policy["name"].as_str().unwrap().to_owned(),
            policy: policy.clone(),
            plan,
        }));
    }
    all
}

fn texts(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::Array(list)) => list.iter().flat_map(|one| texts(Some(one))).collect(),
        Some(Value::String(text)) => vec![text.clone()],
        Some(other) => vec![other.to_string()],
        None => Vec::new(),
    }
}

impl DocumentedPolicy {
    fn text(&self, name: &str) -> Option<&str> {
        self.policy.get(name)?.as_str()
    }

    /// The same policy in a file without the others.
    pub(crate) fn alone(&self) -> Self {
        let mut alone = self.clone();
        alone
            .file
            .insert("policy".to_owned(), vec![self.policy.clone()].into());
        alone
    }

    fn limits(&self) -> Vec<PolicyLimit> {
        let of = |table: &Table| [texts(table.get("limit")), texts(table.get("limits"))].concat();
        let limits = match &self.plan {
            Some(plan) => of(self.file["plans"][plan].as_table().unwrap()),
            None => of(&self.policy),
        };
        let parse = |text: &String| PolicyLimit::parse(text, None).unwrap();
        limits.iter().map(parse).collect()
    }

    /// The rate limit with the lowest capacity.
    pub(crate) fn tightest(&self) -> Option<Limit> {
        let rates = self.limits().into_iter().filter_map(|limit| match limit {
            PolicyLimit::Rate(limit) if !limit.is_unlimited() => Some(limit),
            _ => None,
        });
        rates.min_by_key(Limit::capacity)
    }

    pub(crate) fn concurrent(&self) -> Option<u64> {
        self.limits().into_iter().find_map(|limit| match limit {
            PolicyLimit::Concurrent(many) => Some(many),
            _ => None,
        })
    }

    /// How many requests may be in flight at first under an adaptive policy, with those in the queue.
    /// Less important requests leave a part of it to the max important class.
    pub(crate) fn adaptive(&self) -> Option<RangeInclusive<u64>> {
        let adaptive = self.policy.get("adaptive")?.as_table()?;
        let number = |name: &str| {
            adaptive
                .get(name)
                .and_then(Value::as_integer)
                .map(i64::unsigned_abs)
        };
        let max = number("max").unwrap_or(500) + number("queue").unwrap_or(0);
        Some(match number("start") {
            Some(start) => start * 3 / 4..=start + number("queue").unwrap_or(0),
            None => number("min").unwrap_or(1)..=max,
        })
    }

    /// Whether it applies to a part of the callers only.
    pub(crate) fn is_rolled_out(&self) -> bool {
        self.policy.contains_key("rollout")
    }

    /// The cost factor of the policy.
    pub(crate) fn cost(&self) -> u64 {
        let cost = self.policy.get("cost").and_then(Value::as_integer);
        cost.map_or(1, i64::unsigned_abs)
    }

    /// The cost of a request that states none.
    pub(crate) fn default_cost(&self) -> u64 {
        let cost = self.policy.get("cost").and_then(Value::as_table);
        let default = cost.and_then(|cost| cost.get("default")?.as_integer());
        default.map_or(self.cost(), i64::unsigned_abs)
    }

    pub(crate) fn max_delay(&self) -> Option<Duration> {
        (self.text("action") == Some("delay")).then(|| {
            let longest = self.text("max_delay").and_then(config::duration);
            longest.unwrap_or_default()
        })
    }

    pub(crate) fn is_shadow(&self) -> bool {
        self.text("action") == Some("shadow")
    }

    /// The status that the service must answer with for a request to count.
    pub(crate) fn counted_status(&self) -> u16 {
        match self.text("count") {
            Some("failures") => 401,
            _ => 200,
        }
    }

    pub(crate) fn is_leased(&self) -> bool {
        self.text("mode") == Some("leased")
    }

    /// A request of a caller that it applies to.
    pub(crate) fn request(&self, caller: usize) -> Request {
        let mut request = Request::default();
        let empty = Table::new();
        let when = self
            .policy
            .get("match")
            .and_then(Value::as_table)
            .unwrap_or(&empty);
        let not = when.get("not").and_then(Value::as_table);
        let not_methods = texts(not.and_then(|not| not.get("method")));
        let first = |name: &str| texts(when.get(name)).into_iter().next();
        let methods = ["GET", "POST", "PUT"].map(ToOwned::to_owned);
        let other = methods
            .into_iter()
            .find(|method| !not_methods.contains(method));
        request.method = first("method").or(other).unwrap();
        let path = first("path").unwrap_or_else(|| "/x".to_owned());
        let segment = |segment: &str| match segment {
            "*" | "**" => "x".to_owned(),
            name if name.starts_with('{') => "x".to_owned(),
            name => name.replace('*', "x"),
        };
        request.path = path.split('/').map(segment).collect::<Vec<_>>().join("/");
        let known = ["method", "path", "header", "attribute", "not", "host", "ip"];
        let own = when
            .iter()
            .filter(|(name, _)| !known.contains(&name.as_str()));
        let named = when
            .get("attribute")
            .and_then(Value::as_table)
            .into_iter()
            .flatten();
        for (name, value) in own.chain(named) {
            let value = texts(Some(value)).swap_remove(0).replace('*', "x");
            request.attributes.insert(name.clone(), value);
        }
        for (name, value) in when
            .get("header")
            .and_then(Value::as_table)
            .into_iter()
            .flatten()
        {
            match texts(Some(value)).swap_remove(0).as_str() {
                "false" => {}
                value => {
                    request
                        .headers
                        .insert(name.clone(), value.replace('*', "x"));
                }
            }
        }
        let network = first("ip").map(|ip| ip.split('/').next().unwrap().to_owned());
        let address = network.unwrap_or_else(|| format!("203.0.113.{}", caller % 250 + 1));
        request.attributes.insert("ip".to_owned(), address);
        request.host = first("host").map(|host| host.replace('*', "x"));
        let value = format!("caller-{caller}");
        for name in texts(self.policy.get("key")) {
            match name.strip_prefix("header:") {
                Some(header) => {
                    request
                        .headers
                        .entry(header.to_owned())
                        .or_insert_with(|| value.clone());
                }
                None if matches!(&*name, "method" | "path" | "host" | "endpoint") => {}
                None => {
                    request
                        .attributes
                        .entry(name)
                        .or_insert_with(|| value.clone());
                }
            }
        }
        if let Some(plan) = &self.plan {
            let plan_of = self.policy["plan"]
                .as_table()
                .and_then(|plan| plan.get("attribute"));
            let attribute = texts(plan_of.or(self.policy.get("plan"))).swap_remove(0);
            request.attributes.insert(attribute, plan.clone());
        }
        if let Some(cost) = self.policy.get("cost").and_then(Value::as_table) {
            request
                .attributes
                .insert(texts(cost.get("attribute")).swap_remove(0), "1".to_owned());
        }
        request
    }

    /// Whether the tested plan is the default one.
    pub(crate) fn is_of_default_plan(&self) -> bool {
        let plan = self.policy.get("plan").and_then(Value::as_table);
        let default = plan.and_then(|plan| plan.get("default")?.as_str());
        self.plan.as_deref() == default
    }
}

/// Adapts a file to the test: replaces listener addresses, certificates, log paths, Redis, trusted
/// proxies, and settings that depend on the load of the machine.
pub(crate) fn for_this_machine(file: &Table, redis: &str) -> Table {
    let mut file = file.clone();
    let mut without = |table: &str, names: &[&str]| {
        if let Some(table) = file.get_mut(table).and_then(Value::as_table_mut) {
            names.iter().for_each(|name| drop(table.remove(*name)));
        }
    };
    without(
        "server",
        &["http", "grpc", "resp", "admin", "tls", "audit_log"],
    );
    without("gateway", &["tls", "access_log", "upstreams"]);
    without("store", &["ca_file", "sentinel_user", "sentinel_password"]);
    without("shed", &["cpu"]);
    file.remove("traces");
    file.remove("envoy");
    if let Some(store) = file.get_mut("store").and_then(Value::as_table_mut)
        && store.get("kind").and_then(Value::as_str) == Some("redis")
    {
        store.insert("url".to_owned(), redis.into());
        store.insert("timeout".to_owned(), "5s".into());
    }
    if let Some(identity) = file.get_mut("identity").and_then(Value::as_table_mut)
        && let Some(user) = identity.get_mut("user").and_then(Value::as_table_mut)
        && user.contains_key("from")
    {
        user.insert("from".to_owned(), vec!["127.0.0.0/8"].into());
    }
    file
}
