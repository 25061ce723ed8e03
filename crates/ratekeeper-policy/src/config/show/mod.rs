//! `config show`: the configuration as TOML, with the provenance of each value.

mod gateway;
mod observability;
mod overload;
mod tls;

use super::diagnostic::Location;
use super::key_type::{DefaultValue, KeyType};
use super::provenance::Provenance;
use super::time::{duration_text, timestamp_text};
use super::{Config, EnvoyConfig, KeyDisplay, LoadedConfig, RedisConfig, Secret, UserHeader, keys};
use crate::attribute::Attribute;
use crate::matching::{HeaderTest, Match};
use crate::policies::{ListEntry, Policies};
use crate::policy::{
    Action, Cost, Count, Limits, Missing, Policy, Reserve, ReserveClasses, Rollout,
};
use crate::policy_limit::PolicyLimit;
use ratekeeper::store::OnFailure;
use std::fmt::{Display, Write as _};

/// The replacement for a secret.
const HIDDEN: &str = "(hidden)";

/// The replacement for a secret that has a minimum length.
const HIDDEN_KEY: &str = "(hidden, 16 bytes or more)";

impl LoadedConfig {
    /// The effective configuration as TOML for people: with the provenance of each value, and
    /// secrets hidden. `None` if there are errors.
    pub fn show(&self) -> Option<String> {
        let config = self.config.as_ref()?.each_key_header(|test| {
            if let HeaderTest::OneOf(values) = test {
                values.fill(HIDDEN.to_owned());
            }
        });
        Some(
            Writer {
                text: String::new(),
                provenance: Some(&self.provenance),
                hide: true,
                path: String::new(),
            }
            .config(&config),
        )
    }
}

impl Config {
    /// A copy in which conditions on the header with the API key are changed, because their values
    /// are secrets, whatever the name of the header.
    pub(super) fn each_key_header(&self, change: impl Fn(&mut HeaderTest)) -> Self {
        let mut config = self.clone();
        let Some(key) = self.identity.api_key.as_deref() else {
            return config;
        };
        let Policies {
            policies,
            allow,
            deny,
            ..
        } = &mut config.policies;
        let entries = allow
            .iter_mut()
            .chain(deny)
            .map(|entry| &mut entry.matching);
        for matching in policies
            .iter_mut()
            .map(|policy| &mut policy.matching)
            .chain(entries)
        {
            let mut next = Some(matching);
            while let Some(matching) = next {
                matching
                    .headers
                    .iter_mut()
                    .filter(|(name, _)| **name == *key)
                    .for_each(|(_, test)| change(test));
                next = matching.not.as_deref_mut();
            }
        }
        config
    }
}

impl Config {
    /// The configuration as TOML that loads to the same, secrets included.
    pub fn to_toml(&self) -> String {
        Writer {
            text: String::new(),
            provenance: None,
            hide: false,
            path: String::new(),
        }
        .config(self)
    }
}

/// Writes the configuration as TOML.
struct Writer<'a> {
    text: String,
    provenance: Option<&'a Provenance>,
    hide: bool,
    /// The path of the table that is being written, as in the provenance.
    path: String,
}

impl Writer<'_> {
    fn config(mut self, config: &Config) -> String {
        let policies = &config.policies;
        self.line("enabled", policies.enabled.to_string());
        self.line("path_case", text(policies.path_case.name()));
        self.table("[server]", "server");
        let server = &config.server;
        let listeners = [
            ("http", &server.http),
            ("grpc", &server.grpc),
            ("resp", &server.resp),
            ("admin", &server.admin),
        ];
        for (name, address) in listeners {
            self.line(
                name,
                text(
                    address
                        .as_ref()
                        .map_or("off".to_owned(), ToString::to_string),
                ),
            );
        }
        self.secret("id_secret", server.id_secret.as_ref());
        self.secret("admin_token", server.admin_token.as_ref());
        self.optional(
            "audit_log",
            server.audit_log.as_ref().map(|file| text(file.display())),
        );
        self.tls(&server.tls);
        self.table("[store]", "store");
        self.line(
            "kind",
            text(if config.store.redis.is_some() {
                "redis"
            } else {
                "memory"
            }),
        );
        self.line("max_keys", config.store.max_keys.to_string());
        self.optional(
            "max_bytes",
            config.store.max_bytes.map(|bytes| bytes.to_string()),
        );
        self.secret("key_secret", config.store.key_secret.as_ref());
        if let Some(redis) = &config.store.redis {
            self.redis(redis, policies.on_failure);
        }
        self.table("[identity]", "identity");
        let identity = &config.identity;
        let unix = identity.trusts_unix.then(|| text("unix"));
        self.line(
            "trusted_proxies",
            list(identity.trusted_proxies.iter().map(text).chain(unix)),
        );
        self.line("header", text(&identity.header));
        self.line("ipv6_prefix", identity.ipv6_prefix.to_string());
        let from_header = |header: &Option<String>| {
            header
                .as_ref()
                .map(|name| format!("{{ header = {} }}", text(name)))
        };
        let user = |user: &UserHeader| {
            let unix = user.from.has_unix().then(|| text("unix"));
            let from = list(user.from.as_networks().iter().map(text).chain(unix));
            format!("{{ header = {}, from = {from} }}", text(&user.header))
        };
        self.optional("user", identity.user.as_ref().map(user));
        self.optional("api_key", from_header(&identity.api_key));
        if !identity.attributes.is_empty() {
            self.line("attributes", list(identity.attributes.iter().map(text)));
        }
        self.table("[stats]", "stats");
        self.line(
            "keys",
            text(match config.stats.keys {
                KeyDisplay::Fingerprint => "fingerprint",
                KeyDisplay::Plain => "plain",
            }),
        );
        self.line("top", config.stats.top.to_string());
        self.log(&config.log);
        self.traces(&config.traces);
        self.envoy(&config.envoy);
        self.gateway(&config.gateway);
        self.shed(policies.shed.as_ref(), &config.identity);
        for (index, plan) in policies.plans.iter().enumerate() {
            self.table(
                &format!("[plans.{}]", name(&plan.name)),
                &format!("plans.{index}"),
            );
            self.limits(&plan.limits);
            self.optional("class", plan.class.map(text));
        }
        for (index, policy) in policies.policies.iter().enumerate() {
            self.table("[[policy]]", &format!("policy.{index}"));
            self.policy(policy);
        }
        for (title, list) in [("allow", &policies.allow), ("deny", &policies.deny)] {
            for (index, entry) in list.iter().enumerate() {
                self.table(&format!("[[{title}]]"), &format!("{title}.{index}"));
                self.list_entry(entry);
            }
        }
        self.text
    }

    /// Writes `[envoy]`, unless it is all defaults.
    fn envoy(&mut self, envoy: &EnvoyConfig) {
        if *envoy == EnvoyConfig::default() {
            return;
        }
        let EnvoyConfig {
            config,
            denied_hits_consume,
            response_headers,
            dynamic_metadata,
        } = envoy;
        self.table("[envoy]", "envoy");
        self.optional("config", config.as_ref().map(|path| text(path.display())));
        self.line(
            "denied_hits",
            text(if *denied_hits_consume {
                "consume"
            } else {
                "free"
            }),
        );
        self.line("response_headers", response_headers.to_string());
        self.line("dynamic_metadata", dynamic_metadata.to_string());
    }

    /// Writes a secret, hidden if secrets are.
    fn secret(&mut self, name: &str, secret: Option<&Secret>) {
        let shown = secret.map(|secret| {
            text(if self.hide {
                HIDDEN_KEY
            } else {
                secret.reveal()
            })
        });
        self.optional(name, shown);
    }

    fn redis(&mut self, redis: &RedisConfig, on_failure: OnFailure) {
        let RedisConfig {
            url,
            timeout,
            prefix,
            nodes,
            rollout_grace,
            connections,
            ca_file,
            ..
        } = redis;
        self.line(
            "url",
            if self.hide {
                text(url)
            } else {
                text(url.reveal())
            },
        );
        self.line("timeout", text(duration_text(*timeout)));
        self.line("on_failure", text(on_failure));
        self.line("prefix", text(prefix));
        self.line("nodes", nodes.to_string());
        self.line("rollout_grace", text(duration_text(*rollout_grace)));
        self.line("connections", connections.to_string());
        self.optional("ca_file", ca_file.as_ref().map(|file| text(file.display())));
        self.optional("sentinel_user", redis.sentinel_user.as_ref().map(text));
        let password = redis.sentinel_password.as_ref();
        let password =
            password.map(|secret| text(if self.hide { HIDDEN } else { secret.reveal() }));
        self.optional("sentinel_password", password);
    }

    /// Begins a table.
    fn table(&mut self, header: &str, path: &str) {
        path.clone_into(&mut self.path);
        let _ = writeln!(self.text, "\n{header}");
    }

    /// Writes a key and its value, with its provenance unless it is the default.
    fn line(&mut self, key: &str, value: String) {
        let path = if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        };
        let location = self.provenance.and_then(|provenance| {
            provenance
                .get(&path)
                .or_else(|| provenance.get(&other_name(&path)?))
        });
        let _ = match location.filter(|_| !is_default(&path, &value)) {
            Some(Location::File { file, line, .. }) => {
                writeln!(self.text, "{key} = {value} # {}:{line}", one_line(file))
            }
            Some(Location::Variable(name)) => writeln!(self.text, "{key} = {value} # {name}"),
            _ => writeln!(self.text, "{key} = {value}"),
        };
    }

    /// Writes a key if it has a value.
    fn optional(&mut self, key: &str, value: Option<String>) {
        if let Some(value) = value {
            self.line(key, value);
        }
    }

    fn limits(&mut self, limits: &[PolicyLimit]) {
        match limits {
            [one] => self.line("limit", text(one)),
            several => self.line("limits", list(several.iter().map(text))),
        }
    }

    fn policy(&mut self, policy: &Policy) {
        self.line("name", text(&policy.name));
        if policy.matching != Match::new() {
            let conditions = self.conditions(&policy.matching);
            self.line("match", inline(conditions));
        }
        self.line("key", list(policy.key.iter().map(text)));
        if policy.missing != Missing::default() {
            self.line("missing", text(policy.missing.name()));
        }
        if !policy.tag.is_empty() {
            self.line("tag", list(policy.tag.iter().map(text)));
        }
        match &policy.limits {
            Limits::Own(limits) if limits.is_empty() => {}
            Limits::Own(limits) => self.limits(limits),
            Limits::Plan { attribute, default } => {
                let default = default
                    .as_ref()
                    .map(|default| ("default".to_owned(), text(default)));
                let keys = [("attribute".to_owned(), text(attribute))]
                    .into_iter()
                    .chain(default);
                self.line("plan", inline(keys.collect()));
            }
        }
        match &policy.cost {
            Cost::Units(1) => {}
            Cost::Units(units) => self.line("cost", units.to_string()),
            Cost::Attribute { attribute, default } => {
                self.line(
                    "cost",
                    format!("{{ attribute = {}, default = {default} }}", text(attribute)),
                );
            }
        }
        match policy.count {
            Count::All => {}
            Count::Failures => self.line("count", text("failures")),
            Count::Successes => self.line("count", text("successes")),
        }
        if policy.failure_status != Policy::new("").failure_status {
            let ranges = policy.failure_status.iter().map(|range| {
                if range.first == range.last {
                    range.first.to_string()
                } else {
                    format!("\"{}-{}\"", range.first, range.last)
                }
            });
            self.line("failure_status", list(ranges));
        }
        match policy.action {
            Action::Enforce => {}
            Action::Shadow => self.line("action", text("shadow")),
            Action::Delay { max } => {
                self.line("action", text("delay"));
                self.line("max_delay", text(duration_text(max)));
            }
        }
        if policy.status != Policy::new("").status {
            self.line("status", policy.status.code().to_string());
        }
        self.optional("adaptive", policy.adaptive.as_ref().map(overload::adaptive));
        self.optional(
            "class",
            policy
                .reserves
                .as_ref()
                .map(class)
                .or(policy.class.map(text)),
        );
        if policy.rollout != Rollout::ALL {
            self.line("rollout", policy.rollout.as_percent().to_string());
        }
        if policy.stop {
            self.line("final", "true".to_owned());
        }
        if let Some(penalty) = policy.penalty {
            let (within, ban) = (
                text(duration_text(penalty.within)),
                text(duration_text(penalty.ban)),
            );
            self.line(
                "penalty",
                format!(
                    "{{ denials = {}, within = {within}, ban = {ban} }}",
                    penalty.denials
                ),
            );
        }
        self.optional("on_failure", policy.on_failure.map(text));
        if let Some(staleness) = policy.leased {
            self.line("mode", text("leased"));
            self.line("staleness", text(duration_text(staleness)));
        }
    }

    /// Writes an entry of the allow or deny list.
    fn list_entry(&mut self, entry: &ListEntry) {
        for (key, value) in self.conditions(&entry.matching) {
            self.line(&key, value);
        }
        self.optional("until", entry.until.map(timestamp_text));
        self.optional("reason", entry.reason.as_ref().map(text));
    }

    /// The conditions as keys and values, in the order they are read.
    fn conditions(&self, matching: &Match) -> Vec<(String, String)> {
        let mut keys = Vec::new();
        let mut add = |key: &str, value: Option<String>| {
            keys.extend(value.map(|value| (key.to_owned(), value)));
        };
        add(
            "method",
            matching
                .methods
                .as_ref()
                .map(|methods| list(methods.iter().map(text))),
        );
        add(
            "path",
            matching
                .paths
                .as_ref()
                .map(|paths| list(paths.iter().map(text))),
        );
        add(
            "host",
            matching
                .hosts
                .as_ref()
                .map(|hosts| list(hosts.iter().map(text))),
        );
        add(
            "ip",
            matching
                .ips
                .as_ref()
                .map(|networks| list(networks.iter().map(text))),
        );
        let mut own = Vec::new();
        for (attribute, values) in &matching.attributes {
            let values = self.values(attribute, values);
            match attribute {
                Attribute::Custom(custom) => own.push((name(custom), values)),
                known => add(known.name(), Some(values)),
            }
        }
        let headers = matching.headers.iter().map(|(header, test)| match test {
            HeaderTest::Present => (name(header), "true".to_owned()),
            HeaderTest::OneOf(values) => (
                name(header),
                self.values(&Attribute::header(header), values),
            ),
        });
        let headers = headers.collect::<Vec<_>>();
        add("header", (!headers.is_empty()).then(|| inline(headers)));
        add("attribute", (!own.is_empty()).then(|| inline(own)));
        add(
            "not",
            matching
                .not
                .as_ref()
                .map(|not| inline(self.conditions(not))),
        );
        keys
    }

    fn values(&self, attribute: &Attribute, values: &[String]) -> String {
        if self.hide && attribute.is_secret() {
            list(values.iter().map(|_| text(HIDDEN)))
        } else {
            list(values.iter().map(text))
        }
    }
}

/// The value of a `class` table.
fn class(class: &ReserveClasses) -> String {
    let reserves = class.reserves.iter().map(|(class, reserve)| match reserve {
        Reserve::Units(units) => (name(class), units.to_string()),
        Reserve::Percent(percent) => (name(class), format!("\"{percent}%\"")),
    });
    let mut keys = vec![("attribute".to_owned(), text(&class.attribute))];
    keys.extend(
        class
            .default
            .as_ref()
            .map(|default| ("default".to_owned(), text(default))),
    );
    if !class.reserves.is_empty() {
        keys.push(("reserve".to_owned(), inline(reserves.collect())));
    }
    inline(keys)
}

/// The other name of a key, if it may be written under one name and shown under another.
fn other_name(path: &str) -> Option<String> {
    let (table, key) = path.rsplit_once('.')?;
    match key {
        "limit" => Some(format!("{table}.limits")),
        "limits" => Some(format!("{table}.limit")),
        _ => None,
    }
}

/// Whether a value is the default of its key.
fn is_default(path: &str, value: &str) -> bool {
    let mut table = &keys::FILE;
    let mut names = path.split('.').peekable();
    while let Some(name) = names.next() {
        let Some(key) = table.key(name) else {
            return false;
        };
        let inner = match &key.key_type {
            // The index in the array makes no difference.
            KeyType::Tables(inner) => names.next().map(|_| *inner),
            KeyType::Named(key_type) => names.next().and_then(|_| key_type.table()),
            key_type => key_type.table(),
        };
        match (names.peek(), inner) {
            (None, _) => {
                return !matches!(key.default, DefaultValue::Unset)
                    && key.default.to_string() == value;
            }
            (Some(_), Some(inner)) => table = inner,
            (Some(_), None) => return false,
        }
    }
    false
}

/// Escapes line breaks and other control characters.
fn one_line(text: &str) -> String {
    text.escape_debug().to_string()
}

/// A string in TOML syntax.
fn text(value: impl Display) -> String {
    let mut text = "\"".to_owned();
    for c in value.to_string().chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '\n' => text += "\\n",
            '\t' => text += "\\t",
            c if c.is_control() => {
                let _ = write!(text, "\\u{:04X}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text + "\""
}

/// The name of a key in TOML syntax, in quotes if it needs them.
fn name(name: &str) -> String {
    let is_bare = !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if is_bare { name.to_owned() } else { text(name) }
}

/// A list in TOML syntax.
fn list(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.collect::<Vec<_>>().join(", "))
}

/// An inline table in TOML syntax.
fn inline(keys: Vec<(String, String)>) -> String {
    match &keys[..] {
        [] => "{}".to_owned(),
        keys => {
            let keys = keys
                .iter()
                .map(|(key, value)| format!("{key} = {value}"))
                .collect::<Vec<_>>();
            format!("{{ {} }}", keys.join(", "))
        }
    }
}
