//! The limits as Markdown tables, for the callers of an API: `ratekeeper config docs`.

use super::Config;
use super::time::duration_text;
use crate::attribute::Attribute;
use crate::matching::{HeaderTest, Match};
use crate::policies::Policies;
use crate::policy::{Action, Cost, Count, DenialStatus, Limits, Policy};
use crate::policy_limit::PolicyLimit;
use ratekeeper::{Algorithm, Rate};
use std::fmt::{Display, Write as _};

impl Config {
    /// The limits as Markdown tables, for the documentation of an API. Shadow policies are left
    /// out.
    pub fn to_markdown(&self) -> String {
        let mut policies = self.policies.clone();
        self.each_key_header(&mut policies, |test| *test = HeaderTest::Present);
        if !policies.enabled {
            return "No limits are enforced.\n".to_owned();
        }
        let mut text = "| Policy | Requests | Counted for | Limit | When exceeded |\n".to_owned();
        text += "| --- | --- | --- | --- | --- |\n";
        // An adaptive limit has no number that callers could rely on.
        let has_numbers =
            |policy: &&Policy| !matches!(&policy.limits, Limits::Own(own) if own.is_empty());
        for policy in policies
            .iter()
            .filter(|policy| policy.action != Action::Shadow)
            .filter(has_numbers)
        {
            let cells = [
                cell(&policy.name),
                conditions(&policy.matching),
                counted_for(&policy.key),
                limit_text(policy),
                denial_text(policy),
            ];
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        text + &plans(&policies)
    }
}

/// The table of plans, if a policy uses plans.
fn plans(policies: &Policies) -> String {
    let defaults = policies.iter().filter_map(|policy| match &policy.limits {
        Limits::Plan { default, .. } if policy.action != Action::Shadow => Some(default.as_deref()),
        _ => None,
    });
    let defaults = defaults.collect::<Vec<_>>();
    if defaults.is_empty() || policies.plans.is_empty() {
        return String::new();
    }
    let mut text = "\n| Plan | Limit |\n| --- | --- |\n".to_owned();
    for plan in &policies.plans {
        let suffix = if defaults.contains(&Some(&plan.name)) {
            " (default)"
        } else {
            ""
        };
        let _ = writeln!(
            text,
            "| {}{suffix} | {} |",
            cell(&plan.name),
            limits(&plan.limits)
        );
    }
    text
}

/// Escapes text for a table cell.
fn cell(text: &str) -> String {
    let mut cell = String::new();
    for c in text.chars() {
        match c {
            '|' | '\\' | '`' | '*' | '_' | '<' | '[' => cell.extend(['\\', c]),
            c if c.is_control() => cell.push(' '),
            c => cell.push(c),
        }
    }
    cell
}

/// Formats text as inline code for a table cell.
fn code(text: impl Display) -> String {
    let text = text
        .to_string()
        .replace(|c: char| c == '`' || c.is_control(), " ")
        .replace('|', "\\|");
    if text.is_empty() {
        "(empty)".to_owned()
    } else {
        format!("`{text}`")
    }
}

/// A list of inline code: `a`, `b` or `c`.
fn codes<T: Display>(values: &[T]) -> String {
    let values = values.iter().map(code).collect::<Vec<_>>();
    match values.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => "none".to_owned(),
    }
}

/// The requests that conditions match, in words.
fn conditions(matching: &Match) -> String {
    match phrases(matching) {
        phrases if phrases.is_empty() => "all".to_owned(),
        phrases => phrases.join(", "),
    }
}

fn phrases(matching: &Match) -> Vec<String> {
    let mut phrases = Vec::new();
    match (&matching.methods, &matching.paths) {
        (Some(methods), Some(paths)) => {
            phrases.push(format!("{} {}", codes(methods), codes(paths)));
        }
        (Some(methods), None) => phrases.push(codes(methods)),
        (None, Some(paths)) => phrases.push(codes(paths)),
        (None, None) => {}
    }
    phrases.extend(
        matching
            .hosts
            .as_ref()
            .map(|hosts| format!("on {}", codes(hosts))),
    );
    phrases.extend(
        matching
            .ips
            .as_ref()
            .map(|networks| format!("from {}", codes(networks))),
    );
    for (name, test) in &matching.headers {
        phrases.push(match test {
            HeaderTest::OneOf(values) if !Attribute::header(name).is_secret() => {
                format!("with the header {} {}", code(name), codes(values))
            }
            _ => format!("with the header {}", code(name)),
        });
    }
    for (attribute, values) in &matching.attributes {
        phrases.push(if attribute.is_secret() {
            format!("of certain {}s", noun(attribute))
        } else {
            format!("of the {} {}", noun(attribute), codes(values))
        });
    }
    if let Some(not) = &matching.not {
        phrases.push(format!("except {}", conditions(not)));
    }
    phrases
}

fn noun(attribute: &Attribute) -> String {
    match attribute {
        Attribute::Ip => "IP address".to_owned(),
        Attribute::ApiKey => "API key".to_owned(),
        Attribute::Header(name) => format!("header {}", code(name)),
        other => cell(other.name()),
    }
}

/// What requests are counted for, in words: the key.
fn counted_for(key: &[Attribute]) -> String {
    match key {
        [] => "all callers together".to_owned(),
        key => format!(
            "each {}",
            key.iter().map(noun).collect::<Vec<_>>().join(" and ")
        ),
    }
}

/// The limits of a policy, and how requests count, in words.
fn limit_text(policy: &Policy) -> String {
    let mut text = match &policy.limits {
        Limits::Own(own) => limits(own),
        Limits::Plan { .. } => "depends on your plan".to_owned(),
    };
    text += match policy.count {
        Count::All => "",
        Count::Failures => "; only failed requests count",
        Count::Successes => "; only successful requests count",
    };
    match &policy.cost {
        Cost::Units(1) => {}
        Cost::Units(units) => {
            let _ = write!(text, "; each request counts as {units}");
        }
        Cost::Attribute { attribute, .. } => {
            let _ = write!(text, "; each request counts by its {}", noun(attribute));
        }
    }
    text
}

fn limits(limits: &[PolicyLimit]) -> String {
    limits.iter().map(limit).collect::<Vec<_>>().join(" and ")
}

fn limit(limit: &PolicyLimit) -> String {
    let rate = match limit {
        PolicyLimit::Concurrent(max) => return format!("{} at the same time", grouped(*max)),
        PolicyLimit::Rate(rate) => rate,
    };
    match rate.rate() {
        None => "unlimited".to_owned(),
        Some(written) if written.count() == 0 => "none".to_owned(),
        Some(written) => match rate.algorithm_kind() {
            Algorithm::Pacing => format!("{} (evenly spaced)", per(written)),
            Algorithm::TokenBucket | Algorithm::LeakyBucket
                if rate.capacity() != written.count() =>
            {
                format!("{} ({} at once)", per(written), grouped(rate.capacity()))
            }
            _ => per(written),
        },
    }
}

/// A rate in words: `60 a minute`, `5 in 15 min`.
fn per(rate: Rate) -> String {
    let time = duration_text(rate.period());
    let unit = match time.as_str() {
        "1s" => "a second",
        "1min" => "a minute",
        "1h" => "an hour",
        "1d" => "a day",
        "1w" => "a week",
        _ => return format!("{} in {}", grouped(rate.count()), spaced(&time)),
    };
    format!("{} {unit}", grouped(rate.count()))
}

/// A number with thousands separators: `100,000`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration with a space before its unit: `15 min`.
fn spaced(time: &str) -> String {
    let digits = time
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(time.len());
    format!("{} {}", &time[..digits], &time[digits..])
}

/// What happens to requests over the limit, in words.
fn denial_text(policy: &Policy) -> String {
    let status = match policy.status {
        DenialStatus::TooManyRequests => "429 Too Many Requests",
        DenialStatus::ServiceUnavailable => "503 Service Unavailable",
    };
    let mut text = match policy.action {
        Action::Delay { max } => format!(
            "delayed for up to {}, then {status}",
            spaced(&duration_text(max))
        ),
        _ => status.to_owned(),
    };
    if let Some(penalty) = policy.penalty {
        let (within, ban) = (
            spaced(&duration_text(penalty.within)),
            spaced(&duration_text(penalty.ban)),
        );
        let _ = write!(
            text,
            "; after {} denials within {within}, banned for {ban}",
            penalty.denials
        );
    }
    text
}
