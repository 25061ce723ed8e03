//! `ratekeeper explain`: how a configuration decides a request, policy by policy, with fresh
//! counters.

use crate::api::HEADER;
use crate::api::check_request::HeaderTrust;
use crate::cli::{ExplainArgs, Format};
use crate::commands::config as config_command;
use crate::commands::terminal::{self, escape};
use crate::config::known_attribute;
use crate::{EXIT_CANNOT_RUN, EXIT_FAILURE, api, print, store};
use ratekeeper::MemoryStore;
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
        return config_command::print_errors(&loaded);
    };
    let pairs = match parse_pairs(&args.subject) {
        Ok(pairs) => pairs,
        Err(problem) => {
            return fail(&format!(
                "--subject: {problem}, as in 'ip=1.2.3.4 method=GET path=/api/x'"
            ));
        }
    };
    let attributes = pairs.iter().filter(|(name, _)| !name.starts_with(HEADER));
    for (name, _) in attributes {
        // An attribute that no policy uses would silently change nothing.
        if let Err(error) = known_attribute(name, &config.identity.attributes) {
            return fail(&format!("--subject: {error}"));
        }
    }
    let is_header = |(name, _): &(String, String)| name.starts_with(HEADER);
    let (headers, others): (Vec<_>, Vec<_>) = pairs.into_iter().partition(is_header);
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
    // Without a configured secret the engine makes a random one, and its fingerprints match those
    // of no other process.
    let has_secret = options.fingerprints.is_some();
    let store = MemoryStore::builder().max_keys(1_000).build();
    let engine = match Engine::with_options(store, config.policies.clone(), options) {
        Ok(engine) => engine,
        Err(error) => return fail(&error.to_string()),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.to_string()),
    };
    let explanation = runtime.block_on(engine.explain(&subject.cost(args.cost)));
    let mut answer = ExplainAnswer::new(&explanation);
    if !has_secret {
        answer
            .policies
            .iter_mut()
            .for_each(|policy| policy.fingerprint = None);
    }
    print(match args.format {
        // Escaping cannot fail: text stays text.
        Format::Text => to_text(&terminal::escaped(&answer).unwrap_or(answer)),
        Format::Json => terminal::json(&answer),
    });
    if explanation.verdict().is_allowed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_FAILURE)
    }
}

fn fail(problem: &str) -> ExitCode {
    eprintln!("ratekeeper: {}", escape(problem));
    ExitCode::from(EXIT_CANNOT_RUN)
}

/// Parses `name=value` pairs separated by spaces; a value with spaces is in double quotes.
pub(crate) fn parse_pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
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
                .ok_or_else(|| format!("the closing quote of `{name}` is missing"))?,
        };
        if name == "ip" && value.parse::<std::net::IpAddr>().is_err() {
            return Err(format!("`{}` is not an IP address", value.escape_debug()));
        }
        // A header may be repeated.
        if !name.starts_with(HEADER) && pairs.iter().any(|(known, _)| known == name) {
            return Err(format!(
                "`{}` is given twice; give it once",
                name.escape_debug()
            ));
        }
        pairs.push((name.to_owned(), value.to_owned()));
        rest = after.trim_start();
    }
    Ok(pairs)
}

/// The explanation as text.
pub(crate) fn to_text(answer: &ExplainAnswer) -> String {
    let ms = Duration::from_millis;
    let mut text = match (answer.allowed, &answer.policy) {
        (true, _) if answer.delay_ms > 0 => {
            format!("allowed after {}", time(ms(answer.delay_ms)))
        }
        (true, _) => "allowed".to_owned(),
        (false, Some(policy)) => format!("denied by {policy} with status {}", answer.status),
        (false, None) => format!("denied with status {}", answer.status),
    };
    let reason = match answer.reason.as_str() {
        "limits" => "",
        "no_policy" => ": no policy applies",
        "allow_list" => ": it is on the allow list, so no limit is checked",
        "deny_list" => ": it is on the deny list",
        "ban" => ": it is banned",
        "missing_attribute" => ": it lacks an attribute of the key",
        "closed" => ": the store is unavailable",
        "off" => ": limits are disabled",
        other => &format!(": {}", other.replace('_', " ")),
    };
    text.push_str(reason);
    if !answer.allowed {
        let _ = match (answer.never, answer.retry_after_ms) {
            (true, _) => write!(text, "; waiting will not help"),
            (false, Some(after)) => write!(
                text,
                "; allowed in {} if no other requests come",
                time(ms(after))
            ),
            (false, None) => write!(text, "; allowed once a permit is free"),
        };
    }
    text.push('\n');
    for policy in &answer.policies {
        // Writing to a string cannot fail.
        let _ = match (&policy.reason, &policy.key) {
            (Some(reason), _) => {
                writeln!(text, "\n{}\n  does not apply: {reason}", policy.policy)
            }
            (None, key) => {
                let key = key
                    .as_deref()
                    .filter(|key| !key.is_empty())
                    .unwrap_or("one bucket for all requests");
                let shadow = if policy.shadow { ", shadow" } else { "" };
                let fingerprint = policy
                    .fingerprint
                    .as_deref()
                    .filter(|fingerprint| ![key, ""].contains(fingerprint));
                let shown = fingerprint
                    .map(|fingerprint| format!(", shown as {fingerprint}"))
                    .unwrap_or_default();
                let counted = match &policy.missing {
                    None => format!("counted by {key}{shown}"),
                    Some(missing) => missing.to_text(key, &shown),
                };
                writeln!(text, "\n{}\n  applies, {counted}{shadow}", policy.policy)
            }
        };
        for limit in &policy.limits {
            let _ = writeln!(text, "  {}", limit_line(limit));
        }
    }
    text
}

fn limit_line(limit: &LimitExplanation) -> String {
    let remaining = match (limit.remaining, limit.capacity) {
        (Some(remaining), Some(capacity)) => {
            format!(", {remaining} of {capacity} left, costs {}", limit.cost)
        }
        _ => String::new(),
    };
    let wait = match limit.retry_after_ms {
        Some(after) => format!(", allows in {}", time(Duration::from_millis(after))),
        None => String::new(),
    };
    format!(
        "{}: {}{remaining}{wait}",
        limit.limit,
        limit.outcome.replace('_', " ")
    )
}

/// A time in text, rounded up to about three digits.
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
    policies: Vec<PolicyExplanation>,
}

#[derive(Serialize, Deserialize)]
struct PolicyExplanation {
    policy: String,
    applies: bool,
    /// The reason why it does not apply.
    reason: Option<String>,
    key: Option<String>,
    /// The key in fingerprints; absent where they would match those of no other process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    /// The attribute of the key that the request lacks; absent if it has all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    missing: Option<MissingAttribute>,
    shadow: bool,
    limits: Vec<LimitExplanation>,
}

#[derive(Serialize, Deserialize)]
struct MissingAttribute {
    attribute: String,
    /// The value of `missing` in the policy.
    action: String,
}

impl MissingAttribute {
    fn to_text(&self, key: &str, shown: &str) -> String {
        let Self { attribute, action } = self;
        let effect = match action.as_str() {
            "deny" => "denied".to_owned(),
            _ => format!("counted by {key}{shown}"),
        };
        format!("the request has no {attribute}, so it is {effect} (missing = \"{action}\")")
    }
}

#[derive(Serialize, Deserialize)]
struct LimitExplanation {
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
            policies: explanation
                .traces()
                .iter()
                .map(PolicyExplanation::new)
                .collect(),
        }
    }
}

impl PolicyExplanation {
    fn new(trace: &PolicyTrace) -> Self {
        let state = trace.outcome.as_ref().ok();
        Self {
            policy: trace.policy.clone(),
            applies: state.is_some(),
            reason: trace.outcome.as_ref().err().map(ToString::to_string),
            key: state.map(|state| state.key.clone()),
            fingerprint: state.map(|state| state.fingerprint.clone()),
            missing: state
                .and_then(|state| state.missing.as_ref())
                .map(|(attribute, missing)| MissingAttribute {
                    attribute: attribute.to_string(),
                    action: missing.name().to_owned(),
                }),
            shadow: state.is_some_and(|state| state.shadow),
            limits: state
                .iter()
                .flat_map(|state| &state.limits)
                .map(LimitExplanation::new)
                .collect(),
        }
    }
}

impl LimitExplanation {
    fn new(state: &LimitState) -> Self {
        let decision = &state.decision;
        let unless_unlimited = |number: u64| (!decision.is_unlimited()).then_some(number);
        Self {
            limit: state.limit.to_string(),
            capacity: unless_unlimited(decision.capacity()),
            remaining: unless_unlimited(decision.remaining()),
            cost: state.cost,
            outcome: state.outcome.name().to_owned(),
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
    fn pairs_are_parsed() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            parse_pairs(r#" ip=::1  path=/a=b header:x-t="a b" user="#).unwrap(),
            [
                pair("ip", "::1"),
                pair("path", "/a=b"),
                pair("header:x-t", "a b"),
                pair("user", "")
            ]
        );
        assert_eq!(parse_pairs("").unwrap(), []);
        assert_eq!(
            parse_pairs("ip=1.2.3.4 GET").unwrap_err(),
            "`GET` has no value; write name=value"
        );
        assert_eq!(
            parse_pairs("GET ip=1.2.3.4").unwrap_err(),
            "`GET` has no value; write name=value"
        );
        assert_eq!(
            parse_pairs("=x").unwrap_err(),
            "`=x` has no value; write name=value"
        );
        assert_eq!(
            parse_pairs("a=\"b").unwrap_err(),
            "the closing quote of `a` is missing"
        );
        assert_eq!(
            parse_pairs("user=a user=b").unwrap_err(),
            "`user` is given twice; give it once"
        );
        assert_eq!(parse_pairs("header:x=a header:x=b").unwrap().len(), 2);
        assert_eq!(
            parse_pairs("ip=localhost").unwrap_err(),
            "`localhost` is not an IP address"
        );
    }

    #[test]
    fn times_are_rounded_up() {
        let rounded = |nanos| time(Duration::from_nanos(nanos));
        assert_eq!(rounded(1), "1 ms");
        assert_eq!(rounded(999_000_001), "1000 ms");
        assert_eq!(rounded(1_000_000_001), "1.1 s");
        assert_eq!(rounded(12_000_000_000), "12 s");
        assert_eq!(rounded(3_599_000_000_001), "3600 s");
    }
}
