//! The configuration files of envoyproxy/ratelimit: what they say, and what is wrong with them. No
//! store, no sockets.
//!
//! A directory of YAML files, one domain each. An unknown key rejects the file. Beyond what they
//! may say there: `algorithm`, `burst`, and any window as the unit, such as "5m".

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

/// How deep descriptors may be nested: far more than Envoy can send.
const DEEPEST: usize = 64;

/// The units, with what they are called on the wire: months have 30 days and years 365, as in
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
    /// The unit of that number in requests and responses.
    pub(crate) fn numbered(number: i32) -> Option<Self> {
        UNITS.into_iter().find(|unit| unit.number == number)
    }

    /// The unit of that name, in whatever case.
    pub(crate) fn named(name: &str) -> Option<Self> {
        UNITS
            .into_iter()
            .find(|unit| unit.name.eq_ignore_ascii_case(name))
    }

    /// The one that is as long.
    fn as_long_as(window: Duration) -> Option<Self> {
        UNITS
            .into_iter()
            .find(|unit| Duration::from_secs(unit.seconds) == window)
    }

    /// Its name on the wire.
    pub(crate) fn wire_name(self) -> String {
        self.name.to_ascii_uppercase()
    }
}

/// All domains of a directory.
#[derive(Default, Debug)]
pub(crate) struct EnvoyConfig {
    pub(crate) domains: HashMap<String, Level>,
    /// What the places in the levels are.
    pub(crate) rules: Vec<RuleConfig>,
}

/// A descriptor with a limit.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct RuleConfig {
    /// Where it is, for people: `domain.key_value.key`, as envoyproxy/ratelimit names its figures.
    pub(crate) path: String,
    /// Where it is, told apart from every other.
    pub(crate) identity: String,
    pub(crate) limit: LimitRef,
    /// By which others replace it.
    pub(crate) name: String,
    pub(crate) replaces: Vec<String>,
    pub(crate) shadow: bool,
    pub(crate) quota: bool,
    /// What is passed on with an answer, as JSON.
    pub(crate) metadata: Option<serde_json::Value>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LimitRef {
    Unlimited,
    /// The limit, and how answers tell it.
    To {
        limit: Limit,
        requests_per_unit: u32,
        unit: i32,
    },
}

/// What is wrong, and where: one sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ConfigError {
    pub(crate) file: String,
    /// Line and column, from 1.
    pub(crate) at: Option<(u64, u64)>,
    pub(crate) what: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some((line, column)) => {
                write!(f, "{}:{line}:{column}: error: {}", self.file, self.what)
            }
            None => write!(f, "{}: error: {}", self.file, self.what),
        }
    }
}

// The files as they are written.

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
    /// How envoyproxy/ratelimit names its figures: accepted, ours have the names of the file.
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
    replaces: Option<Vec<Replaces>>,
    algorithm: Option<Spanned<String>>,
    burst: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Replaces {
    name: Option<Spanned<String>>,
}

/// Where the files of `given` are: there, or in `config` under it, where envoyproxy/ratelimit
/// looks.
pub(crate) fn directory(given: &Path) -> PathBuf {
    let below = given.join("config");
    match given.is_dir() && yaml_files(given).is_ok_and(|files| files.is_empty()) && below.is_dir()
    {
        true => below,
        false => given.to_owned(),
    }
}

/// Reads all files of a directory, or the one that is named. Everything that is wrong is told, the
/// first of each file.
pub(crate) fn load(path: &Path) -> Result<EnvoyConfig, Vec<ConfigError>> {
    let shown = path.display();
    let nothing = |what: String| {
        vec![ConfigError {
            file: shown.to_string(),
            at: None,
            what,
        }]
    };
    let files = match path.is_file() {
        true => vec![path.to_owned()],
        false => yaml_files(path).map_err(|error| nothing(format!("cannot be read: {error}")))?,
    };
    if files.is_empty() {
        return Err(nothing(
            "has no file whose name ends with .yaml or .yml; put one there for each domain".into(),
        ));
    }
    let (mut config, mut wrong) = (EnvoyConfig::default(), Vec::new());
    for file in files {
        let name = file.display().to_string();
        let added = match fs::read_to_string(&file) {
            Ok(text) => config.add(&name, &text),
            Err(error) => Err(ConfigError {
                file: name,
                at: None,
                what: format!("cannot be read: {error}"),
            }),
        };
        wrong.extend(added.err());
    }
    if wrong.is_empty() {
        Ok(config)
    } else {
        Err(wrong)
    }
}

impl EnvoyConfig {
    /// Adds what a file says.
    pub(crate) fn add(&mut self, file: &str, text: &str) -> Result<(), ConfigError> {
        let read: File = serde_saphyr::from_str(text).map_err(|error| syntax(file, &error))?;
        let mut reader = Reader {
            file,
            rules: &mut self.rules,
        };
        let Some(domain) = read.domain.filter(|domain| !domain.value.is_empty()) else {
            return Err(reader.wrong(
                None,
                "has no `domain`; write one, as in `domain: edge`".to_owned(),
            ));
        };
        if self.domains.contains_key(&domain.value) {
            let what = format!(
                "the domain `{}` is in another file too; keep each domain in one file",
                domain.value
            );
            return Err(reader.wrong(Some(domain.referenced), what));
        }
        let above = ParentDescriptor {
            path: domain.value.clone(),
            identity: domain.value.escape_default().to_string(),
            depth: 0,
        };
        let level = reader.level(&above, read.descriptors.unwrap_or_default())?;
        self.domains.insert(domain.value, level);
        Ok(())
    }
}

/// What the parser has to say, without the place, which comes first with us.
fn syntax(file: &str, error: &Error) -> ConfigError {
    let error = error.without_snippet();
    let told = error.to_string();
    let told = told.lines().next().unwrap_or_default();
    let what = told.rsplit_once(" at line ").map_or(told, |(what, _)| what);
    let what = what
        .split(", set DuplicateKeyPolicy")
        .next()
        .unwrap_or(what);
    let at = error.location().map(|at| (at.line(), at.column()));
    ConfigError {
        file: file.to_owned(),
        at,
        what: what.replace("unknown field", "unknown key"),
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
    fn wrong(&self, at: Option<Location>, what: String) -> ConfigError {
        ConfigError {
            file: self.file.to_owned(),
            at: at.map(|at| (at.line(), at.column())),
            what,
        }
    }

    fn level(
        &mut self,
        above: &ParentDescriptor,
        descriptors: Vec<Spanned<Descriptor>>,
    ) -> Result<Level, ConfigError> {
        let mut level = Level::default();
        for written in descriptors {
            let (place, descriptor) = (written.referenced, written.value);
            let Some(key) = descriptor.key.filter(|key| !key.value.is_empty()) else {
                let what = format!(
                    "a descriptor under `{}` has no `key`; every descriptor needs one",
                    above.path
                );
                return Err(self.wrong(Some(place), what));
            };
            if key.value.contains('*') {
                let what = format!(
                    "the `key` `{}` has a `*` and would match no other key; write the whole key, and a `*` in `value`",
                    key.value
                );
                return Err(self.wrong(Some(key.referenced), what));
            }
            let value = descriptor
                .value
                .filter(|value| !value.value.is_empty())
                .map(|value| value.value);
            let share_threshold = descriptor.share_threshold.filter(|share| share.value);
            if let Some(share) = &share_threshold
                && !value.as_ref().is_some_and(|value| value.contains('*'))
            {
                let what = "`share_threshold` is for values with a `*`, which share a bucket; write one in `value`, or leave \
                            it out";
                return Err(self.wrong(Some(share.referenced), what.to_owned()));
            }
            let last = value
                .as_ref()
                .map_or(key.value.clone(), |value| format!("{}_{value}", key.value));
            let path = format!("{}.{last}", above.path);
            // Quoted, so that no value can look like another place.
            let identity = match &value {
                Some(value) => format!("{}/{:?}={value:?}", above.identity, key.value),
                None => format!("{}/{:?}", above.identity, key.value),
            };
            let below = ParentDescriptor {
                path,
                identity,
                depth: above.depth + 1,
            };
            if below.depth > DEEPEST {
                return Err(self.wrong(
                    Some(key.referenced),
                    format!("descriptors nest deeper than {DEEPEST}"),
                ));
            }
            let rule = match descriptor.rate_limit {
                None => None,
                Some(rate_limit) => {
                    let (shadow, quota) = (
                        descriptor.shadow_mode == Some(true),
                        descriptor.quota_mode == Some(true),
                    );
                    let rule = self.rule(&below, rate_limit, descriptor.metadata)?;
                    self.rules.push(RuleConfig {
                        shadow,
                        quota,
                        ..rule
                    });
                    Some(RuleIndex(self.rules.len() - 1))
                }
            };
            let shared = share_threshold.is_some();
            let descriptors = self.level(&below, descriptor.descriptors.unwrap_or_default())?;
            let node = Node {
                rule,
                level: descriptors,
            };
            if !level.add(
                key.value,
                value.map(|value| Value::new(value, shared)),
                node,
            ) {
                let what = format!(
                    "the descriptor `{}` is there twice; say it once",
                    below.path
                );
                return Err(self.wrong(Some(key.referenced), what));
            }
        }
        Ok(level)
    }

    fn rule(
        &self,
        at: &ParentDescriptor,
        written: Spanned<RateLimit>,
        metadata: Option<serde_json::Value>,
    ) -> Result<RuleConfig, ConfigError> {
        let (place, rate_limit) = (written.referenced, written.value);
        let mut replaces = Vec::new();
        for replaced in rate_limit.replaces.iter().flatten() {
            let name = replaced.name.as_ref().map_or("", |name| &name.value);
            let at = replaced.name.as_ref().map_or(place, |name| name.referenced);
            if name.is_empty() {
                return Err(self.wrong(Some(at), "an entry of `replaces` has no `name`".to_owned()));
            }
            if rate_limit.name.as_deref() == Some(name) {
                return Err(self.wrong(
                    Some(at),
                    format!("`{name}` replaces itself; name another limit"),
                ));
            }
            replaces.push(name.to_owned());
        }
        let limit = self.limit(place, &rate_limit)?;
        Ok(RuleConfig {
            path: at.path.clone(),
            identity: at.identity.clone(),
            limit,
            name: rate_limit.name.unwrap_or_default(),
            replaces,
            shadow: false,
            quota: false,
            metadata,
        })
    }

    fn limit(&self, place: Location, rate_limit: &RateLimit) -> Result<LimitRef, ConfigError> {
        if rate_limit.unlimited == Some(true) {
            return match &rate_limit.unit {
                Some(unit) => Err(self.wrong(
                    Some(unit.referenced),
                    "`unlimited` has no `unit`; leave one of them out".into(),
                )),
                None => Ok(LimitRef::Unlimited),
            };
        }
        let Some(unit) = &rate_limit.unit else {
            return Err(self.wrong(
                Some(place),
                "a `rate_limit` has no `unit`; write one, as in `unit: minute`".into(),
            ));
        };
        let Some(requests_per_unit) = rate_limit.requests_per_unit else {
            return Err(self.wrong(
                Some(place),
                "a `rate_limit` has no `requests_per_unit`; write a number".into(),
            ));
        };
        let Some(mut window) = window(&unit.value) else {
            let what = format!(
                "`{}` is not a unit; write second, minute, hour, day, week, month, year, or a time such as 5m",
                unit.value
            );
            return Err(self.wrong(Some(unit.referenced), what));
        };
        if let Some(times) = &rate_limit.unit_multiplier {
            let longer = window
                .checked_mul(times.value)
                .filter(|window| !window.is_zero());
            let wrong = || {
                self.wrong(
                    Some(times.referenced),
                    "`unit_multiplier` must be from 1 on".to_owned(),
                )
            };
            window = longer.ok_or_else(wrong)?;
        }
        let mut limit =
            Limit::of(requests_per_unit.into(), window).algorithm(Algorithm::FixedWindow);
        if let Some(name) = &rate_limit.algorithm {
            let Some(algorithm) = Algorithm::from_name(&name.value) else {
                let known = Algorithm::ALL
                    .map(|algorithm| algorithm.to_string())
                    .join(", ");
                let what = format!("`{}` is not an algorithm; write one of {known}", name.value);
                return Err(self.wrong(Some(name.referenced), what));
            };
            limit = limit.algorithm(algorithm);
        }
        if let Some(burst) = &rate_limit.burst {
            if !matches!(
                limit.algorithm_kind(),
                Algorithm::TokenBucket | Algorithm::LeakyBucket
            ) {
                let what = "`burst` goes with `algorithm: token_bucket` or `leaky_bucket`; windows have none";
                return Err(self.wrong(Some(burst.referenced), what.to_owned()));
            }
            limit = limit.burst(burst.value);
        }
        let unit = Unit::as_long_as(window).map_or(0, |unit| unit.number);
        Ok(LimitRef::To {
            limit,
            requests_per_unit,
            unit,
        })
    }
}

/// A unit, or a time as limits have it: `5m`, `90s`, `2h`.
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

/// The limit that a request brings along.
pub(crate) fn overriding(requests_per_unit: u32, unit: i32) -> Option<Limit> {
    let unit = Unit::numbered(unit)?;
    let window = Duration::from_secs(unit.seconds);
    Some(Limit::of(requests_per_unit.into(), window).algorithm(Algorithm::FixedWindow))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong with a file of these descriptors.
    fn wrong(descriptors: &str) -> String {
        let text = format!("domain: d\ndescriptors:\n{descriptors}");
        EnvoyConfig::default()
            .add("a.yaml", &text)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn what_is_wrong_is_told_in_one_sentence_with_its_place() {
        let limited = |limit: &str| format!("  - key: k\n    rate_limit:\n      {limit}\n");
        for (descriptors, told) in [
            (
                "  - key: k\n    ratelimit: 3\n".to_owned(),
                "a.yaml:4:5: error: unknown key `ratelimit`, expected one of key, value, rate_limit, descriptors, \
                 shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold, metadata",
            ),
            (
                "  - value: v\n".to_owned(),
                "a.yaml:3:5: error: a descriptor under `d` has no `key`; every descriptor needs one",
            ),
            ("  - a\n".to_owned(), "a.yaml:3:5: error: expected mapping start"),
            (
                "  - key: k\n    value: v\n  - key: k\n    value: v\n".to_owned(),
                "a.yaml:5:10: error: the descriptor `d.k_v` is there twice; say it once",
            ),
            (
                limited("{ unit: fortnight, requests_per_unit: 1 }"),
                "a.yaml:5:15: error: `fortnight` is not a unit; write second, minute, hour, day, week, month, year, or a time \
                 such as 5m",
            ),
            (
                limited("{ unit: 0s, requests_per_unit: 1 }"),
                "a.yaml:5:15: error: `0s` is not a unit; write second, minute, hour, day, week, month, year, or a time such as 5m",
            ),
            (
                limited("{ requests_per_unit: 1 }"),
                "a.yaml:5:7: error: a `rate_limit` has no `unit`; write one, as in `unit: minute`",
            ),
            (
                "  - key: foo*\n    rate_limit: { unit: day, requests_per_unit: 1 }\n".to_owned(),
                "a.yaml:3:10: error: the `key` `foo*` has a `*` and would match no other key; write the whole key, and a \
                 `*` in `value`",
            ),
            (
                "  - key: k\n    value: files\n    share_threshold: true\n".to_owned(),
                "a.yaml:5:22: error: `share_threshold` is for values with a `*`, which share a bucket; write one in \
                 `value`, or leave it out",
            ),
            (
                "  - key: k\n    share_threshold: true\n    descriptors: [{ key: j, value: 'a*' }]\n".to_owned(),
                "a.yaml:4:22: error: `share_threshold` is for values with a `*`, which share a bucket; write one in \
                 `value`, or leave it out",
            ),
            (limited("{ unit: day }"), "a.yaml:5:7: error: a `rate_limit` has no `requests_per_unit`; write a number"),
            (limited("{ unit: day, requests_per_unit: -1 }"), "a.yaml:5:39: error: invalid u32"),
            (
                limited("{ unit: day, unlimited: true }"),
                "a.yaml:5:15: error: `unlimited` has no `unit`; leave one of them out",
            ),
            (
                limited("{ unit: day, requests_per_unit: 1, burst: 3 }"),
                "a.yaml:5:49: error: `burst` goes with `algorithm: token_bucket` or `leaky_bucket`; windows have none",
            ),
            (
                limited("{ unlimited: true, name: a, replaces: [{ name: a }] }"),
                "a.yaml:5:54: error: `a` replaces itself; name another limit",
            ),
            (
                limited("{ unlimited: true, replaces: [{ }] }"),
                "a.yaml:5:7: error: an entry of `replaces` has no `name`",
            ),
        ] {
            assert_eq!(wrong(&descriptors), told);
        }
        let mut config = EnvoyConfig::default();
        assert_eq!(
            config.add("b.yaml", "").unwrap_err().to_string(),
            "b.yaml: error: has no `domain`; write one, as in `domain: edge`"
        );
        config.add("a.yaml", "domain: d").unwrap();
        assert_eq!(
            config.add("b.yaml", "\ndomain: d").unwrap_err().to_string(),
            "b.yaml:2:9: error: the domain `d` is in another file too; keep each domain in one file"
        );
        let twice = config
            .add("c.yaml", "domain: c\ndomain: d\n")
            .unwrap_err()
            .to_string();
        assert_eq!(twice, "c.yaml:2:1: error: duplicate mapping key: domain");
    }

    /// Far too deep, or made to grow: told, not a crash.
    #[test]
    fn what_is_made_to_hurt_is_told() {
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
    fn numbers_and_words_are_values_too() {
        let mut config = EnvoyConfig::default();
        let text = "domain: 1\ndescriptors:\n  - key: 2\n    value: 3.5\n  - key: true\n    value: ''\n  - key: none\n    value:\n";
        config.add("a.yaml", text).unwrap();
        assert!(config.domains.contains_key("1"));
    }
}
