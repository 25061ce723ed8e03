//! Configuration files of envoyproxy/ratelimit, parsed and validated without a store or sockets.
//!
//! A directory of YAML files, one domain each. An unknown key rejects the file. Extensions:
//! `algorithm`, `burst`, and any window as the unit, such as "5m".

use super::matching::{Level, Node, RuleIndex, Value};
use ratekeeper::{Algorithm, Limit};
use ratekeeper_policy::config::yaml_files;
use serde::Deserialize;
use serde_saphyr::{Error, Location, Spanned};
use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SECOND: u64 = 1;
const DAY: u64 = 24 * 60 * 60;

/// Nesting depth of descriptors: far more than Envoy can send.
const MAX_DEPTH: usize = 64;

/// A unit of time and its number in the protocol. Months have 30 days and years 365, as in
/// envoyproxy/ratelimit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Unit {
    pub(crate) seconds: u64,
    /// Its number in responses.
    pub(crate) number: i32,
    name: &'static str,
}

const UNITS: [Unit; 7] = [
    Unit {
        name: "second",
        number: 1,
        seconds: SECOND,
    },
    Unit {
        name: "minute",
        number: 2,
        seconds: 60,
    },
    Unit {
        name: "hour",
        number: 3,
        seconds: 60 * 60,
    },
    Unit {
        name: "day",
        number: 4,
        seconds: DAY,
    },
    Unit {
        name: "month",
        number: 5,
        seconds: 30 * DAY,
    },
    Unit {
        name: "year",
        number: 6,
        seconds: 365 * DAY,
    },
    Unit {
        name: "week",
        number: 7,
        seconds: 7 * DAY,
    },
];

impl Unit {
    /// The unit with a number in requests and responses.
    pub(crate) fn numbered(number: i32) -> Option<Self> {
        UNITS.into_iter().find(|unit| unit.number == number)
    }

    /// The unit with a name, ignoring case.
    pub(crate) fn named(name: &str) -> Option<Self> {
        UNITS
            .into_iter()
            .find(|unit| unit.name.eq_ignore_ascii_case(name))
    }

    /// The unit with the length of a window.
    fn of_window(window: Duration) -> Option<Self> {
        UNITS
            .into_iter()
            .find(|unit| Duration::from_secs(unit.seconds) == window)
    }

    /// The name in the protocol.
    pub(crate) fn wire_name(self) -> String {
        self.name.to_ascii_uppercase()
    }
}

/// All domains of a directory.
#[derive(Default, Debug)]
pub(crate) struct EnvoyConfig {
    pub(crate) domains: HashMap<String, Level>,
    /// The rules that [`RuleIndex`] in the levels refers to.
    pub(crate) rules: Vec<RuleConfig>,
}

/// A descriptor with a limit.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct RuleConfig {
    /// Path for people: `domain.key_value.key`, as in the statistics of envoyproxy/ratelimit.
    pub(crate) path: String,
    /// Unambiguous path.
    pub(crate) identity: String,
    pub(crate) limit: LimitRef,
    /// The name that `replaces` of other rules refers to.
    pub(crate) name: String,
    pub(crate) replaces: Vec<String>,
    pub(crate) shadow: bool,
    pub(crate) quota: bool,
    /// Metadata for responses, as JSON.
    pub(crate) metadata: Option<serde_json::Value>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LimitRef {
    Unlimited,
    /// The limit, and the numbers for responses.
    To {
        limit: Limit,
        requests_per_unit: u32,
        unit: i32,
    },
}

/// An error in a file, with its location.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ConfigError {
    pub(crate) file: String,
    /// Line and column, from 1.
    pub(crate) location: Option<(u64, u64)>,
    pub(crate) message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.location {
            Some((line, column)) => {
                write!(f, "{}:{line}:{column}: error: {}", self.file, self.message)
            }
            None => write!(f, "{}: error: {}", self.file, self.message),
        }
    }
}

// The format of the files.

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    domain: Option<Spanned<String>>,
    descriptors: Option<Vec<Spanned<Descriptor>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Descriptor {
    key: Option<Spanned<String>>,
    value: Option<Spanned<String>>,
    rate_limit: Option<Spanned<RateLimit>>,
    descriptors: Option<Vec<Spanned<Descriptor>>>,
    shadow_mode: Option<bool>,
    quota_mode: Option<bool>,
    /// Names of statistics in envoyproxy/ratelimit: accepted; ours are named after the paths.
    #[serde(rename = "detailed_metric")]
    _detailed_metric: Option<bool>,
    #[serde(rename = "value_to_metric")]
    _value_to_metric: Option<bool>,
    share_threshold: Option<Spanned<bool>>,
    metadata: Option<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RateLimit {
    unit: Option<Spanned<String>>,
    unit_multiplier: Option<Spanned<u32>>,
    requests_per_unit: Option<u32>,
    unlimited: Option<bool>,
    name: Option<String>,
    replaces: Option<Vec<ReplacedLimit>>,
    algorithm: Option<Spanned<String>>,
    burst: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplacedLimit {
    name: Option<Spanned<String>>,
}

/// The directory of the files: `given`, or its subdirectory `config` as in envoyproxy/ratelimit.
pub(crate) fn directory(given: &Path) -> PathBuf {
    let subdirectory = given.join("config");
    let is_empty = given.is_dir() && yaml_files(given).is_ok_and(|files| files.is_empty());
    if is_empty && subdirectory.is_dir() {
        subdirectory
    } else {
        given.to_owned()
    }
}

/// Reads all files of a directory, or a single file. Returns the first error of each file.
pub(crate) fn load(path: &Path) -> Result<EnvoyConfig, Vec<ConfigError>> {
    let shown = path.display();
    let path_error = |message: String| {
        vec![ConfigError {
            file: shown.to_string(),
            location: None,
            message,
        }]
    };
    let files = if path.is_file() {
        vec![path.to_owned()]
    } else {
        yaml_files(path).map_err(|error| path_error(format!("cannot be read: {error}")))?
    };
    if files.is_empty() {
        return Err(path_error(
            "no .yaml or .yml file; add one for each domain".into(),
        ));
    }
    let mut config = EnvoyConfig::default();
    let mut errors = Vec::new();
    for file in files {
        let name = file.display().to_string();
        let added = match fs::read_to_string(&file) {
            Ok(text) => config.add(&name, &text),
            Err(error) => Err(ConfigError {
                file: name,
                location: None,
                message: format!("cannot be read: {error}"),
            }),
        };
        errors.extend(added.err());
    }
    if errors.is_empty() {
        Ok(config)
    } else {
        Err(errors)
    }
}

impl EnvoyConfig {
    /// Adds the domain of a file.
    pub(crate) fn add(&mut self, file: &str, text: &str) -> Result<(), ConfigError> {
        let read: File = serde_saphyr::from_str(text).map_err(|error| syntax(file, &error))?;
        let mut reader = Reader {
            file,
            rules: &mut self.rules,
        };
        let Some(domain) = read.domain.filter(|domain| !domain.value.is_empty()) else {
            return Err(reader.error(
                None,
                "no `domain`; add one such as `domain: edge`".to_owned(),
            ));
        };
        if self.domains.contains_key(&domain.value) {
            let message = format!(
                "domain `{}` is defined in another file; keep each domain in one file",
                domain.value
            );
            return Err(reader.error(Some(domain.referenced), message));
        }
        let parent = ParentDescriptor {
            path: domain.value.clone(),
            identity: domain.value.escape_default().to_string(),
            depth: 0,
        };
        let level = reader.level(&parent, read.descriptors.unwrap_or_default())?;
        self.domains.insert(domain.value, level);
        Ok(())
    }
}

/// Converts a parser error; the location goes in front of the message.
fn syntax(file: &str, error: &Error) -> ConfigError {
    let error = error.without_snippet();
    let text = error.to_string();
    let text = text.lines().next().unwrap_or_default();
    let text = text.rsplit_once(" at line ").map_or(text, |(text, _)| text);
    let text = text
        .split(", set DuplicateKeyPolicy")
        .next()
        .unwrap_or(text);
    ConfigError {
        file: file.to_owned(),
        location: error
            .location()
            .map(|location| (location.line(), location.column())),
        message: text.replace("unknown field", "unknown key"),
    }
}

struct ParentDescriptor {
    path: String,
    identity: String,
    depth: usize,
}

struct Reader<'a> {
    file: &'a str,
    rules: &'a mut Vec<RuleConfig>,
}

impl Reader<'_> {
    fn error(&self, location: Option<Location>, message: String) -> ConfigError {
        ConfigError {
            file: self.file.to_owned(),
            location: location.map(|location| (location.line(), location.column())),
            message,
        }
    }

    fn level(
        &mut self,
        parent: &ParentDescriptor,
        descriptors: Vec<Spanned<Descriptor>>,
    ) -> Result<Level, ConfigError> {
        let mut level = Level::default();
        for entry in descriptors {
            let location = entry.referenced;
            let descriptor = entry.value;
            let Some(key) = descriptor.key.filter(|key| !key.value.is_empty()) else {
                let message = format!("a descriptor under `{}` has no `key`; add one", parent.path);
                return Err(self.error(Some(location), message));
            };
            if key.value.contains('*') {
                let message = format!(
                    "the `key` `{}` has a `*` and would match no other key; write the whole key, and a `*` in `value`",
                    key.value
                );
                return Err(self.error(Some(key.referenced), message));
            }
            let value = descriptor
                .value
                .filter(|value| !value.value.is_empty())
                .map(|value| value.value);
            let share_threshold = descriptor.share_threshold.filter(|share| share.value);
            if let Some(share) = &share_threshold
                && !value.as_ref().is_some_and(|value| value.contains('*'))
            {
                let message = "`share_threshold` is for values with a `*`, which share a bucket; write one in `value`, or remove \
                               it";
                return Err(self.error(Some(share.referenced), message.to_owned()));
            }
            let last = value
                .as_ref()
                .map_or(key.value.clone(), |value| format!("{}_{value}", key.value));
            let path = format!("{}.{last}", parent.path);
            // Quoted, so that no value can look like another path.
            let identity = match &value {
                Some(value) => format!("{}/{:?}={value:?}", parent.identity, key.value),
                None => format!("{}/{:?}", parent.identity, key.value),
            };
            let child = ParentDescriptor {
                path,
                identity,
                depth: parent.depth + 1,
            };
            if child.depth > MAX_DEPTH {
                return Err(self.error(
                    Some(key.referenced),
                    format!("descriptors are nested deeper than {MAX_DEPTH} levels; use fewer"),
                ));
            }
            let rule = match descriptor.rate_limit {
                None => None,
                Some(rate_limit) => {
                    let rule = self.rule(&child, rate_limit, descriptor.metadata)?;
                    self.rules.push(RuleConfig {
                        shadow: descriptor.shadow_mode == Some(true),
                        quota: descriptor.quota_mode == Some(true),
                        ..rule
                    });
                    Some(RuleIndex(self.rules.len() - 1))
                }
            };
            let shared = share_threshold.is_some();
            let descriptors = self.level(&child, descriptor.descriptors.unwrap_or_default())?;
            let node = Node {
                rule,
                level: descriptors,
            };
            if !level.add(
                key.value,
                value.map(|value| Value::new(value, shared)),
                node,
            ) {
                let message = format!("descriptor `{}` is defined twice; remove one", child.path);
                return Err(self.error(Some(key.referenced), message));
            }
        }
        Ok(level)
    }

    fn rule(
        &self,
        descriptor: &ParentDescriptor,
        entry: Spanned<RateLimit>,
        metadata: Option<serde_json::Value>,
    ) -> Result<RuleConfig, ConfigError> {
        let location = entry.referenced;
        let rate_limit = entry.value;
        let mut replaces = Vec::new();
        for replaced in rate_limit.replaces.iter().flatten() {
            let name = replaced.name.as_ref().map_or("", |name| &name.value);
            let name_location = replaced
                .name
                .as_ref()
                .map_or(location, |name| name.referenced);
            if name.is_empty() {
                return Err(self.error(
                    Some(name_location),
                    "an entry of `replaces` has no `name`; add one".to_owned(),
                ));
            }
            if rate_limit.name.as_deref() == Some(name) {
                return Err(self.error(
                    Some(name_location),
                    format!("`{name}` replaces itself; name another limit"),
                ));
            }
            replaces.push(name.to_owned());
        }
        let limit = self.limit(location, &rate_limit)?;
        Ok(RuleConfig {
            path: descriptor.path.clone(),
            identity: descriptor.identity.clone(),
            limit,
            name: rate_limit.name.unwrap_or_default(),
            replaces,
            shadow: false,
            quota: false,
            metadata,
        })
    }

    fn limit(&self, location: Location, rate_limit: &RateLimit) -> Result<LimitRef, ConfigError> {
        if rate_limit.unlimited == Some(true) {
            return match &rate_limit.unit {
                Some(unit) => Err(self.error(
                    Some(unit.referenced),
                    "`unlimited` has no `unit`; remove one".into(),
                )),
                None => Ok(LimitRef::Unlimited),
            };
        }
        let Some(unit) = &rate_limit.unit else {
            return Err(self.error(
                Some(location),
                "a `rate_limit` has no `unit`; add one such as `unit: minute`".into(),
            ));
        };
        let Some(requests_per_unit) = rate_limit.requests_per_unit else {
            return Err(self.error(
                Some(location),
                "a `rate_limit` has no `requests_per_unit`; add a number".into(),
            ));
        };
        let Some(mut window) = window(&unit.value) else {
            let message = format!(
                "`{}` is not a unit; use second, minute, hour, day, week, month, year, or a time such as 5m",
                unit.value
            );
            return Err(self.error(Some(unit.referenced), message));
        };
        if let Some(times) = &rate_limit.unit_multiplier {
            let longer = window
                .checked_mul(times.value)
                .filter(|window| !window.is_zero());
            let error = || {
                self.error(
                    Some(times.referenced),
                    "`unit_multiplier` must be at least 1".to_owned(),
                )
            };
            window = longer.ok_or_else(error)?;
        }
        let mut limit =
            Limit::of(requests_per_unit.into(), window).algorithm(Algorithm::FixedWindow);
        if let Some(name) = &rate_limit.algorithm {
            let Some(algorithm) = Algorithm::from_name(&name.value) else {
                let known = Algorithm::ALL
                    .map(|algorithm| algorithm.to_string())
                    .join(", ");
                let message = format!("unknown algorithm `{}`; use one of {known}", name.value);
                return Err(self.error(Some(name.referenced), message));
            };
            limit = limit.algorithm(algorithm);
        }
        if let Some(burst) = &rate_limit.burst {
            if !matches!(
                limit.algorithm_kind(),
                Algorithm::TokenBucket | Algorithm::LeakyBucket
            ) {
                let message = "only token_bucket and leaky_bucket have a `burst`; set one as `algorithm`, or remove it";
                return Err(self.error(Some(burst.referenced), message.to_owned()));
            }
            limit = limit.burst(burst.value);
        }
        let unit = Unit::of_window(window).map_or(0, |unit| unit.number);
        Ok(LimitRef::To {
            limit,
            requests_per_unit,
            unit,
        })
    }
}

/// Parses a unit, or a time as in limits: `5m`, `90s`, `2h`.
fn window(unit: &str) -> Option<Duration> {
    if let Some(unit) = Unit::named(unit) {
        return Some(Duration::from_secs(unit.seconds));
    }
    let limit: Limit = format!("1/{unit}").parse().ok()?;
    let is_time = limit == Limit::of(1, limit.rate()?.period());
    is_time
        .then(|| limit.rate().map(|rate| rate.period()))
        .flatten()
}

/// The limit of an override in a request.
pub(crate) fn override_limit(requests_per_unit: u32, unit: i32) -> Option<Limit> {
    let unit = Unit::numbered(unit)?;
    let window = Duration::from_secs(unit.seconds);
    Some(Limit::of(requests_per_unit.into(), window).algorithm(Algorithm::FixedWindow))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of a file with these descriptors.
    fn error(descriptors: &str) -> String {
        let text = format!("domain: d\ndescriptors:\n{descriptors}");
        EnvoyConfig::default()
            .add("a.yaml", &text)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn errors_have_a_location_and_a_remedy() {
        let limited = |limit: &str| format!("  - key: k\n    rate_limit:\n      {limit}\n");
        for (descriptors, expected) in [
            (
                "  - key: k\n    ratelimit: 3\n".to_owned(),
                "a.yaml:4:5: error: unknown key `ratelimit`, expected one of key, value, rate_limit, descriptors, \
                 shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold, metadata",
            ),
            (
                "  - value: v\n".to_owned(),
                "a.yaml:3:5: error: a descriptor under `d` has no `key`; add one",
            ),
            ("  - a\n".to_owned(), "a.yaml:3:5: error: expected mapping start"),
            (
                "  - key: k\n    value: v\n  - key: k\n    value: v\n".to_owned(),
                "a.yaml:5:10: error: descriptor `d.k_v` is defined twice; remove one",
            ),
            (
                limited("{ unit: fortnight, requests_per_unit: 1 }"),
                "a.yaml:5:15: error: `fortnight` is not a unit; use second, minute, hour, day, week, month, year, or a time \
                 such as 5m",
            ),
            (
                limited("{ unit: 0s, requests_per_unit: 1 }"),
                "a.yaml:5:15: error: `0s` is not a unit; use second, minute, hour, day, week, month, year, or a time such as 5m",
            ),
            (
                limited("{ requests_per_unit: 1 }"),
                "a.yaml:5:7: error: a `rate_limit` has no `unit`; add one such as `unit: minute`",
            ),
            (
                "  - key: foo*\n    rate_limit: { unit: day, requests_per_unit: 1 }\n".to_owned(),
                "a.yaml:3:10: error: the `key` `foo*` has a `*` and would match no other key; write the whole key, and a \
                 `*` in `value`",
            ),
            (
                "  - key: k\n    value: files\n    share_threshold: true\n".to_owned(),
                "a.yaml:5:22: error: `share_threshold` is for values with a `*`, which share a bucket; write one in \
                 `value`, or remove it",
            ),
            (
                "  - key: k\n    share_threshold: true\n    descriptors: [{ key: j, value: 'a*' }]\n".to_owned(),
                "a.yaml:4:22: error: `share_threshold` is for values with a `*`, which share a bucket; write one in \
                 `value`, or remove it",
            ),
            (limited("{ unit: day }"), "a.yaml:5:7: error: a `rate_limit` has no `requests_per_unit`; add a number"),
            (limited("{ unit: day, requests_per_unit: -1 }"), "a.yaml:5:39: error: invalid u32"),
            (
                limited("{ unit: day, unlimited: true }"),
                "a.yaml:5:15: error: `unlimited` has no `unit`; remove one",
            ),
            (
                limited("{ unit: day, requests_per_unit: 1, burst: 3 }"),
                "a.yaml:5:49: error: only token_bucket and leaky_bucket have a `burst`; set one as `algorithm`, or remove it",
            ),
            (
                limited("{ unlimited: true, name: a, replaces: [{ name: a }] }"),
                "a.yaml:5:54: error: `a` replaces itself; name another limit",
            ),
            (
                limited("{ unlimited: true, replaces: [{ }] }"),
                "a.yaml:5:7: error: an entry of `replaces` has no `name`; add one",
            ),
        ] {
            assert_eq!(error(&descriptors), expected);
        }
        let mut config = EnvoyConfig::default();
        assert_eq!(
            config.add("b.yaml", "").unwrap_err().to_string(),
            "b.yaml: error: no `domain`; add one such as `domain: edge`"
        );
        config.add("a.yaml", "domain: d").unwrap();
        assert_eq!(
            config.add("b.yaml", "\ndomain: d").unwrap_err().to_string(),
            "b.yaml:2:9: error: domain `d` is defined in another file; keep each domain in one file"
        );
        let twice = config
            .add("c.yaml", "domain: c\ndomain: d\n")
            .unwrap_err()
            .to_string();
        assert_eq!(twice, "c.yaml:2:1: error: duplicate mapping key: domain");
    }

    /// Too deep nesting and exponential expansion are errors, not crashes.
    #[test]
    fn malicious_files_are_rejected() {
        let mut deep = String::from("domain: d\n");
        for depth in 0..1_000 {
            let indent = " ".repeat(depth);
            deep.push_str(&format!("{indent}descriptors:\n{indent}- key: k\n"));
        }
        assert!(EnvoyConfig::default().add("a.yaml", &deep).is_err());
        let bomb = "a: &a [x, x, x]\nb: &b [*a, *a]\ndomain: *b\n";
        assert!(EnvoyConfig::default().add("a.yaml", bomb).is_err());
    }

    #[test]
    fn numbers_and_booleans_are_text_values() {
        let mut config = EnvoyConfig::default();
        let text = "domain: 1\ndescriptors:\n  - key: 2\n    value: 3.5\n  - key: true\n    value: ''\n  - key: none\n    value:\n";
        config.add("a.yaml", text).unwrap();
        assert!(config.domains.contains_key("1"));
    }
}
