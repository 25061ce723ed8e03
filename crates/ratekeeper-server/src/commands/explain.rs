//! `ratekeeper explain`: what a configuration makes of a request, policy by policy, on counters
//! that are fresh.

use crate::api::HEADER;
use crate::api::check_request::HeaderTrust;
use crate::cli::{ExplainArgs, Format};
use crate::commands::config as config_command;
use crate::commands::terminal::{self, escape};
use crate::{CANNOT, NO, api, print, store};
use ratekeeper::MemoryStore;
use ratekeeper_policy::config::known_attribute;
use ratekeeper_policy::{
    Engine, EngineOptions, Explanation, engine::LimitState, engine::PolicyTrace,
};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

pub(crate) fn run(args: &ExplainArgs) -> ExitCode {
    let loaded = config_command::load(args.config.as_deref());
    let Some(config) = &loaded.config else {
        return config_command::refused(&loaded);
    };
    let words = match words(&args.subject) {
        Ok(words) => words,
        Err(problem) => {
            return failed(&format!(
                "--subject: {problem}, as in 'ip=1.2.3.4 method=GET path=/api/x'"
            ));
        }
    };
    let attributes = words.iter().filter(|(name, _)| !name.starts_with(HEADER));
    for (name, _) in attributes {
        // As an attribute that no policy uses it would change nothing.
        if let Err(error) = known_attribute(name, &config.identity.attributes) {
            return failed(&format!("--subject: {error}"));
        }
    }
    let is_header = |(name, _): &(String, String)| name.starts_with(HEADER);
    let (headers, others): (Vec<_>, Vec<_>) = words.into_iter().partition(is_header);
    let headers = headers
        .into_iter()
        .map(|(name, value)| (name[HEADER.len()..].to_owned(), value))
        .collect();
    let identified = api::identified(&headers, &config.identity, HeaderTrust::Operator);
    let subject = others.iter().fold(identified, |subject, (name, value)| {
        subject.with(name, value)
    });

    let mut options = EngineOptions::default();
    options.fingerprints = store::fingerprint_secret(&config.store);
    // Without a secret in the configuration this process makes its own, and its fingerprints match
    // those of no other.
    let lasting = options.fingerprints.is_some();
    let store = MemoryStore::builder().max_keys(1_000).build();
    let engine = match Engine::with_options(store, config.policies.clone(), options) {
        Ok(engine) => engine,
        Err(error) => return failed(&error.to_string()),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.to_string()),
    };
    let explanation = runtime.block_on(engine.explain(&subject, args.cost));
    let mut told = ExplainAnswer::new(&explanation);
    if !lasting {
        told.tried
            .iter_mut()
            .for_each(|policy| policy.fingerprint = None);
    }
    print(match args.format {
        // Text always reads back as text.
        Format::Text => in_words(&terminal::escaped(&told).unwrap_or(told)),
        Format::Json => terminal::json(&told),
    });
    if explanation.verdict().is_allowed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NO)
    }
}

fn failed(problem: &str) -> ExitCode {
    eprintln!("ratekeeper: {}", escape(problem));
    ExitCode::from(CANNOT)
}

/// `name=value`, with spaces in between; a value with spaces is in double quotes.
pub(crate) fn words(text: &str) -> Result<Vec<(String, String)>, String> {
    let (mut words, mut rest) = (Vec::new(), text.trim_start());
    while !rest.is_empty() {
        let (name, after) = rest
            .split_once('=')
            .filter(|(name, _)| !name.is_empty() && !name.contains(char::is_whitespace))
            .ok_or_else(|| {
                let word = rest.split_whitespace().next().unwrap_or_default();
                format!("`{}` has no value; write name=value", word.escape_debug())
            })?;
        let (value, after) = match after.strip_prefix('"') {
            None => after.split_at(after.find(char::is_whitespace).unwrap_or(after.len())),
            Some(quoted) => quoted
                .split_once('"')
                .ok_or_else(|| format!("the quotes of `{name}` do not end; close them"))?,
        };
        if name == "ip" && value.parse::<std::net::IpAddr>().is_err() {
            return Err(format!(
                "`{}` is no address; write one",
                value.escape_debug()
            ));
        }
        // A header may well be there twice.
        if !name.starts_with(HEADER) && words.iter().any(|(known, _)| known == name) {
            return Err(format!(
                "`{}` is there twice; write it once",
                name.escape_debug()
            ));
        }
        words.push((name.to_owned(), value.to_owned()));
        rest = after.trim_start();
    }
    Ok(words)
}

/// The same for people.
pub(crate) fn in_words(told: &ExplainAnswer) -> String {
    let ms = Duration::from_millis;
    let mut text = match (told.allowed, &told.policy) {
        (true, _) if told.delay_ms > 0 => format!("allowed after {}", time(ms(told.delay_ms))),
        (true, _) => "allowed".to_owned(),
        (false, Some(policy)) => format!("denied by {policy} with status {}", told.status),
        (false, None) => format!("denied with status {}", told.status),
    };
    let reason = match told.reason.as_str() {
        "limits" => "",
        "no_policy" => ": no policy applies",
        "allow_list" => ": it is on the allow list, so no limit is asked",
        "deny_list" => ": it is on the deny list",
        "ban" => ": it is banned",
        "missing_attribute" => ": it lacks an attribute of the key",
        "closed" => ": the store does not answer",
        "off" => ": limits are switched off",
        other => &format!(": {}", other.replace('_', " ")),
    };
    text.push_str(reason);
    if !told.allowed {
        let _ = match (told.never, told.retry_after_ms) {
            (true, _) => write!(text, "; waiting will not help"),
            (false, Some(after)) => write!(
                text,
                "; admitted in {} if nobody else comes",
                time(ms(after))
            ),
            (false, None) => write!(text, "; admitted once a place is free"),
        };
    }
    text.push('\n');
    for tried in &told.tried {
        // Writing to a string cannot fail.
        let _ = match (&tried.why, &tried.key) {
            (Some(why), _) => writeln!(text, "\n{}\n  does not apply: {why}", tried.policy),
            (None, key) => {
                let key = key
                    .as_deref()
                    .filter(|key| !key.is_empty())
                    .unwrap_or("one bucket for all");
                let shadow = if tried.shadow { ", only watching" } else { "" };
                let fingerprint = tried
                    .fingerprint
                    .as_deref()
                    .filter(|fingerprint| ![key, ""].contains(fingerprint));
                let shown = fingerprint
                    .map(|fingerprint| format!(", shown as {fingerprint}"))
                    .unwrap_or_default();
                let counted = match &tried.missing {
                    None => format!("counted by {key}{shown}"),
                    Some(missing) => missing.in_words(key, &shown),
                };
                writeln!(text, "\n{}\n  applies, {counted}{shadow}", tried.policy)
            }
        };
        for limit in &tried.limits {
            let _ = writeln!(text, "  {}", in_a_line(limit));
        }
    }
    text
}

fn in_a_line(limit: &ExplainedLimit) -> String {
    let left = match (limit.remaining, limit.capacity) {
        (Some(remaining), Some(capacity)) => {
            format!(", {remaining} of {capacity} left, costs {}", limit.cost)
        }
        _ => String::new(),
    };
    let wait = match limit.retry_after_ms {
        Some(after) => format!(", admits in {}", time(Duration::from_millis(after))),
        None => String::new(),
    };
    format!(
        "{}: {}{left}{wait}",
        limit.limit,
        limit.outcome.replace('_', " ")
    )
}

/// For people: three digits are enough, rounded up.
fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        _ if seconds >= 100.0 => format!("{} s", seconds.ceil()),
        _ if seconds >= 1.0 => format!("{} s", (seconds * 10.0).ceil() / 10.0),
        _ => format!("{} ms", (seconds * 1e3).ceil()),
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct ExplainAnswer {
    allowed: bool,
    status: u16,
    reason: String,
    policy: Option<String>,
    retry_after_ms: Option<u64>,
    delay_ms: u64,
    never: bool,
    tried: Vec<ExplainedPolicy>,
}

#[derive(Serialize, Deserialize)]
struct ExplainedPolicy {
    policy: String,
    applies: bool,
    /// Why it does not.
    why: Option<String>,
    key: Option<String>,
    /// The key by its fingerprints; absent where they would match those of no other process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    /// The attribute of the key that the request lacks; absent if it has all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    missing: Option<ExplainedMissing>,
    shadow: bool,
    limits: Vec<ExplainedLimit>,
}

#[derive(Serialize, Deserialize)]
struct ExplainedMissing {
    attribute: String,
    /// `missing` of the policy.
    action: String,
}

impl ExplainedMissing {
    fn in_words(&self, key: &str, shown: &str) -> String {
        let Self { attribute, action } = self;
        let done = match action.as_str() {
            "deny" => "it is denied".to_owned(),
            _ => format!("it is counted by {key}{shown}"),
        };
        format!("the request has no {attribute}: {done} (missing = \"{action}\")")
    }
}

#[derive(Serialize, Deserialize)]
struct ExplainedLimit {
    limit: String,
    capacity: Option<u64>,
    remaining: Option<u64>,
    cost: u64,
    outcome: String,
    retry_after_ms: Option<u64>,
}

impl ExplainAnswer {
    pub(crate) fn new(explanation: &Explanation) -> Self {
        let verdict = explanation.verdict();
        Self {
            allowed: verdict.is_allowed(),
            status: verdict.status(),
            reason: verdict.reason().name().to_owned(),
            policy: verdict.policy().map(ToOwned::to_owned),
            retry_after_ms: verdict
                .retry_after()
                .map(ratekeeper_tower::response::whole_millis),
            delay_ms: ratekeeper_tower::response::whole_millis(verdict.delay()),
            never: verdict.is_never(),
            tried: explanation
                .traces()
                .iter()
                .map(ExplainedPolicy::new)
                .collect(),
        }
    }
}

impl ExplainedPolicy {
    fn new(tried: &PolicyTrace) -> Self {
        let standing = tried.outcome.as_ref().ok();
        Self {
            policy: tried.policy.clone(),
            applies: standing.is_some(),
            why: tried.outcome.as_ref().err().map(ToString::to_string),
            key: standing.map(|standing| standing.key.clone()),
            fingerprint: standing.map(|standing| standing.fingerprint.clone()),
            missing: standing.and_then(|standing| standing.missing.as_ref()).map(
                |(attribute, missing)| ExplainedMissing {
                    attribute: attribute.to_string(),
                    action: missing.name().to_owned(),
                },
            ),
            shadow: standing.is_some_and(|standing| standing.shadow),
            limits: standing
                .iter()
                .flat_map(|standing| &standing.limits)
                .map(ExplainedLimit::new)
                .collect(),
        }
    }
}

impl ExplainedLimit {
    fn new(level: &LimitState) -> Self {
        let decision = &level.decision;
        let counted = |figure: u64| (!decision.is_unlimited()).then_some(figure);
        Self {
            limit: level.limit.to_string(),
            capacity: counted(decision.capacity()),
            remaining: counted(decision.remaining()),
            cost: level.cost,
            outcome: level.outcome.name().to_owned(),
            retry_after_ms: decision
                .retry_after()
                .map(ratekeeper_tower::response::whole_millis),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_names_and_values() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            words(r#" ip=::1  path=/a=b header:x-t="a b" user="#).unwrap(),
            [
                pair("ip", "::1"),
                pair("path", "/a=b"),
                pair("header:x-t", "a b"),
                pair("user", "")
            ]
        );
        assert_eq!(words("").unwrap(), []);
        assert_eq!(
            words("ip=1.2.3.4 GET").unwrap_err(),
            "`GET` has no value; write name=value"
        );
        assert_eq!(
            words("GET ip=1.2.3.4").unwrap_err(),
            "`GET` has no value; write name=value"
        );
        assert_eq!(
            words("=x").unwrap_err(),
            "`=x` has no value; write name=value"
        );
        assert_eq!(
            words("a=\"b").unwrap_err(),
            "the quotes of `a` do not end; close them"
        );
        assert_eq!(
            words("user=a user=b").unwrap_err(),
            "`user` is there twice; write it once"
        );
        assert_eq!(words("header:x=a header:x=b").unwrap().len(), 2);
        assert_eq!(
            words("ip=localhost").unwrap_err(),
            "`localhost` is no address; write one"
        );
    }

    #[test]
    fn times_are_rounded_up() {
        let told = |nanos| time(Duration::from_nanos(nanos));
        assert_eq!(told(1), "1 ms");
        assert_eq!(told(999_000_001), "1000 ms");
        assert_eq!(told(1_000_000_001), "1.1 s");
        assert_eq!(told(12_000_000_000), "12 s");
        assert_eq!(told(3_599_000_000_001), "3600 s");
    }
}
