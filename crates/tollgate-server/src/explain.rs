//! `tollgate explain`: what a configuration makes of a request, policy by policy, on counters that are fresh.

use crate::cli::{ExplainArgs, Format};
use crate::http::HEADER;
use crate::{CANNOT, NO, configuration, http, print};
use serde::Serialize;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;
use tollgate::MemoryStore;
use tollgate_policy::{Engine, Explanation, Level, Tried};

pub(crate) fn run(args: &ExplainArgs) -> ExitCode {
    let loaded = configuration::load(args.config.as_deref());
    let Some(config) = &loaded.config else { return configuration::refused(&loaded) };
    let words = match words(&args.subject) {
        Ok(words) => words,
        Err(problem) => return failed(&format!("--subject: {problem}, as in 'ip=1.2.3.4 method=GET path=/api/x'")),
    };
    let is_header = |(name, _): &(String, String)| name.starts_with(HEADER);
    let (headers, others): (Vec<_>, Vec<_>) = words.into_iter().partition(is_header);
    let headers = headers.into_iter().map(|(name, value)| (name[HEADER.len()..].to_owned(), value)).collect();
    let identified = http::identified(&headers, &config.identity);
    let subject = others.iter().fold(identified, |subject, (name, value)| subject.with(name, value));

    let engine = match Engine::new(MemoryStore::builder().max_keys(1_000).build(), config.policies.clone()) {
        Ok(engine) => engine,
        Err(error) => return failed(&error.to_string()),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.to_string()),
    };
    let explanation = runtime.block_on(engine.explain(&subject, args.cost));
    print(match args.format {
        Format::Text => in_words(&explanation),
        // Structs of text and numbers always have a JSON form.
        Format::Json => serde_json::to_string_pretty(&Told::new(&explanation)).unwrap_or_default() + "\n",
    });
    if explanation.verdict().is_allowed() { ExitCode::SUCCESS } else { ExitCode::from(NO) }
}

fn failed(problem: &str) -> ExitCode {
    eprintln!("tollgate: {problem}");
    ExitCode::from(CANNOT)
}

/// `name=value`, with spaces in between; a value with spaces is in double quotes.
fn words(text: &str) -> Result<Vec<(String, String)>, String> {
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
            Some(quoted) => {
                quoted.split_once('"').ok_or_else(|| format!("the quotes of `{name}` do not end; close them"))?
            }
        };
        if name == "ip" && value.parse::<std::net::IpAddr>().is_err() {
            return Err(format!("`{}` is no address; write one", value.escape_debug()));
        }
        // A header may well be there twice.
        if !name.starts_with(HEADER) && words.iter().any(|(known, _)| known == name) {
            return Err(format!("`{}` is there twice; write it once", name.escape_debug()));
        }
        words.push((name.to_owned(), value.to_owned()));
        rest = after.trim_start();
    }
    Ok(words)
}

fn in_words(explanation: &Explanation) -> String {
    let verdict = explanation.verdict();
    let mut text = match (verdict.is_allowed(), verdict.policy()) {
        (true, _) if !verdict.delay().is_zero() => format!("allowed after {}", time(verdict.delay())),
        (true, _) => "allowed".to_owned(),
        (false, Some(policy)) => format!("denied by {policy} with status {}", verdict.status()),
        (false, None) => format!("denied with status {}", verdict.status()),
    };
    let reason = match verdict.reason().name() {
        "limits" => "",
        "no_policy" => ": no policy applies",
        "allow_list" => ": it is on the allow list, so no limit is asked",
        "deny_list" => ": it is on the deny list",
        "ban" => ": it is banned",
        "off" => ": limits are switched off",
        _ => ": the store does not answer",
    };
    text.push_str(reason);
    if verdict.is_denied() {
        let _ = match (verdict.is_never(), verdict.retry_after()) {
            (true, _) => write!(text, "; waiting will not help"),
            (false, Some(after)) => write!(text, "; admitted in {} if nobody else comes", time(after)),
            (false, None) => write!(text, "; admitted once a place is free"),
        };
    }
    text.push('\n');
    for tried in explanation.tried() {
        // Writing to a string cannot fail.
        let _ = match &tried.outcome {
            Err(why) => writeln!(text, "\n{}\n  does not apply: {why}", tried.policy),
            Ok(standing) => {
                let key = if standing.key.is_empty() { "one bucket for all" } else { &standing.key };
                let shadow = if standing.shadow { ", only watching" } else { "" };
                writeln!(text, "\n{}\n  applies, counted by {key}{shadow}", tried.policy)
            }
        };
        for level in tried.outcome.iter().flat_map(|standing| &standing.levels) {
            let _ = writeln!(text, "  {}", in_a_line(level));
        }
    }
    text
}

fn in_a_line(level: &Level) -> String {
    let Level { limit, cost, decision, outcome, .. } = level;
    let left = match decision.is_unlimited() {
        true => String::new(),
        false => format!(", {} of {} left, costs {cost}", decision.remaining(), decision.limit()),
    };
    let wait = match decision.retry_after() {
        Some(after) => format!(", admits in {}", time(after)),
        None => String::new(),
    };
    format!("{limit}: {}{left}{wait}", outcome.name().replace('_', " "))
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

#[derive(Serialize)]
struct Told<'a> {
    allowed: bool,
    status: u16,
    reason: &'static str,
    policy: Option<&'a str>,
    retry_after_ms: Option<u64>,
    delay_ms: u64,
    never: bool,
    tried: Vec<ToldPolicy<'a>>,
}

#[derive(Serialize)]
struct ToldPolicy<'a> {
    policy: &'a str,
    applies: bool,
    /// Why it does not.
    why: Option<String>,
    key: Option<&'a str>,
    shadow: bool,
    limits: Vec<ToldLimit>,
}

#[derive(Serialize)]
struct ToldLimit {
    limit: String,
    capacity: Option<u64>,
    remaining: Option<u64>,
    cost: u64,
    outcome: &'static str,
    retry_after_ms: Option<u64>,
}

impl<'a> Told<'a> {
    fn new(explanation: &'a Explanation) -> Self {
        let verdict = explanation.verdict();
        Self {
            allowed: verdict.is_allowed(),
            status: verdict.status(),
            reason: verdict.reason().name(),
            policy: verdict.policy(),
            retry_after_ms: verdict.retry_after().map(http::millis),
            delay_ms: http::millis(verdict.delay()),
            never: verdict.is_never(),
            tried: explanation.tried().iter().map(ToldPolicy::new).collect(),
        }
    }
}

impl<'a> ToldPolicy<'a> {
    fn new(tried: &'a Tried) -> Self {
        let standing = tried.outcome.as_ref().ok();
        Self {
            policy: &tried.policy,
            applies: standing.is_some(),
            why: tried.outcome.as_ref().err().map(ToString::to_string),
            key: standing.map(|standing| &*standing.key),
            shadow: standing.is_some_and(|standing| standing.shadow),
            limits: standing.iter().flat_map(|standing| &standing.levels).map(ToldLimit::new).collect(),
        }
    }
}

impl ToldLimit {
    fn new(level: &Level) -> Self {
        let decision = &level.decision;
        let counted = |figure: u64| (!decision.is_unlimited()).then_some(figure);
        Self {
            limit: level.limit.to_string(),
            capacity: counted(decision.limit()),
            remaining: counted(decision.remaining()),
            cost: level.cost,
            outcome: level.outcome.name(),
            retry_after_ms: decision.retry_after().map(http::millis),
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
            [pair("ip", "::1"), pair("path", "/a=b"), pair("header:x-t", "a b"), pair("user", "")]
        );
        assert_eq!(words("").unwrap(), []);
        assert_eq!(words("ip=1.2.3.4 GET").unwrap_err(), "`GET` has no value; write name=value");
        assert_eq!(words("GET ip=1.2.3.4").unwrap_err(), "`GET` has no value; write name=value");
        assert_eq!(words("=x").unwrap_err(), "`=x` has no value; write name=value");
        assert_eq!(words("a=\"b").unwrap_err(), "the quotes of `a` do not end; close them");
        assert_eq!(words("user=a user=b").unwrap_err(), "`user` is there twice; write it once");
        assert_eq!(words("header:x=a header:x=b").unwrap().len(), 2);
        assert_eq!(words("ip=localhost").unwrap_err(), "`localhost` is no address; write one");
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
