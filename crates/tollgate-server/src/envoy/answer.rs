//! What Envoy is told: a complete status for each descriptor, headers, metadata.

use super::judge::{Few, Found, Part, decisions};
use super::rules::Settings;
use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{self, ListValue, Struct, Value};
use std::time::Duration;
use tollgate::{Algorithm, Decision, Instant, Verdict};

/// What the store said, ask by ask.
pub(super) struct Outcome {
    pub(super) decisions: Few<Decision>,
    /// Whether it is over its limit, shadow or not.
    pub(super) over: Few<bool>,
    /// Whether the request is.
    pub(super) is_over: bool,
    pub(super) now: Instant,
}

impl Outcome {
    pub(super) fn new(found: &[Found<'_>], verdict: &Verdict, is_over: bool, now: Instant) -> Self {
        let decisions = decisions(verdict);
        let over = found.iter().zip(&decisions).map(|(found, decision)| found.is_over(decision)).collect();
        Self { decisions, over, is_over, now }
    }
}

/// What is not limited.
pub(super) fn no_limits(descriptors: usize) -> RateLimitResponse {
    let status = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    let statuses = vec![status; descriptors];
    RateLimitResponse { overall_code: Code::Ok.into(), statuses, ..RateLimitResponse::default() }
}

pub(super) fn is_over(response: &RateLimitResponse) -> bool {
    response.overall_code == i32::from(Code::OverLimit)
}

pub(super) fn response(
    request: &RateLimitRequest,
    settings: &Settings,
    found: &[Found<'_>],
    parts: &[Part],
    outcome: &Outcome,
) -> RateLimitResponse {
    let status = |part: &Part| match part {
        Part::None => DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() },
        Part::Unlimited => {
            DescriptorStatus { code: Code::Ok.into(), limit_remaining: u32::MAX, ..DescriptorStatus::default() }
        }
        Part::Asked(at) => status(&found[*at], &outcome.decisions[*at], is_denied(found, outcome, *at), outcome.now),
    };
    let code = if outcome.is_over { Code::OverLimit } else { Code::Ok };
    let mut response = RateLimitResponse {
        overall_code: code.into(),
        statuses: parts.iter().map(status).collect(),
        ..RateLimitResponse::default()
    };
    if outcome.is_over || settings.response_headers {
        response.response_headers_to_add = headers(settings, found, outcome);
    }
    if settings.dynamic_metadata {
        response.dynamic_metadata = Some(metadata(request, found, parts, outcome));
    }
    response
}

/// Whether that ask turned the request away. Quotas do together, shadows never.
fn is_denied(found: &[Found<'_>], outcome: &Outcome, at: usize) -> bool {
    let is_shadow = found[at].rule.is_some_and(|rule| rule.config.shadow);
    outcome.is_over && outcome.over[at] && !is_shadow
}

fn status(found: &Found<'_>, decision: &Decision, is_denied: bool, now: Instant) -> DescriptorStatus {
    let told = &found.told;
    let name = found.rule.map_or_else(String::new, |rule| rule.config.name.clone());
    let limit = RateLimit { name, requests_per_unit: told.requests_per_unit, unit: told.unit };
    let reset = whole_seconds(until_reset(found, decision, now));
    // The longest time that protobuf can say is 10,000 years.
    let seconds = i64::try_from(reset).unwrap_or(i64::MAX).min(315_576_000_000);
    DescriptorStatus {
        code: if is_denied { Code::OverLimit } else { Code::Ok }.into(),
        current_limit: Some(limit),
        limit_remaining: u32::try_from(decision.remaining()).unwrap_or(u32::MAX),
        duration_until_reset: Some(protobuf::Duration { seconds, nanos: 0 }),
        ..DescriptorStatus::default()
    }
}

/// A window ends whether somebody has come or not; Envoy's clients are told when.
fn until_reset(found: &Found<'_>, decision: &Decision, now: Instant) -> Duration {
    let limit = &found.told.limit;
    let reset = decision.reset_after();
    match limit.rate().filter(|_| limit.judged_by() == Algorithm::FixedWindow && reset.is_zero()) {
        None => reset,
        Some(rate) => {
            let window = u64::try_from(rate.period().as_nanos()).unwrap_or(u64::MAX).max(1);
            Duration::from_nanos(window - now.as_unix_nanos() % window)
        }
    }
}

/// Envoy cuts off fractions; nobody is told to come too early.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// Retry-After for who is turned away; and, if wanted, the figures of the tightest limit.
fn headers(settings: &Settings, found: &[Found<'_>], outcome: &Outcome) -> Vec<HeaderValue> {
    let header =
        |key: &str, value: u64| HeaderValue { key: key.into(), value: value.to_string(), ..Default::default() };
    let mut headers = Vec::new();
    let denying = || (0..found.len()).filter(|at| is_denied(found, outcome, *at)).map(|at| &outcome.decisions[at]);
    if outcome.is_over && !denying().any(Decision::is_never) {
        // In the figures from before a quota gave back there is nothing to wait for but the reset.
        let wait = |decision: &Decision| decision.retry_after().unwrap_or_else(|| decision.reset_after());
        let wait = denying().map(wait).max().filter(|wait| !wait.is_zero());
        headers.extend(wait.map(|wait| header("Retry-After", whole_seconds(wait).max(1))));
    }
    if settings.response_headers {
        let tightest =
            (0..found.len()).min_by_key(|at| (!is_denied(found, outcome, *at), outcome.decisions[*at].remaining()));
        if let Some(at) = tightest {
            let decision = &outcome.decisions[at];
            headers.push(header("RateLimit-Limit", found[at].told.requests_per_unit.into()));
            headers.push(header("RateLimit-Remaining", decision.remaining()));
            headers.push(header("RateLimit-Reset", whole_seconds(until_reset(&found[at], decision, outcome.now))));
        }
    }
    headers
}

/// What later filters of Envoy may read: the request as it was understood, and which quotas are used up.
fn metadata(request: &RateLimitRequest, found: &[Found<'_>], parts: &[Part], outcome: &Outcome) -> Struct {
    let rule = |part: &Part| match part {
        Part::Asked(at) => found[*at].rule,
        _ => None,
    };
    let descriptors = request.descriptors.iter().zip(parts).map(|(descriptor, part)| {
        let entries = descriptor.entries.iter().map(|entry| text(&format!("{}={}", entry.key, entry.value)));
        let mut fields = vec![("entries", list(entries))];
        if let Some(limit) = &descriptor.limit {
            let limit =
                [("requestsPerUnit", number(limit.requests_per_unit.into())), ("unit", number(limit.unit.into()))];
            fields.push(("limit", object(limit)));
        }
        if let Some(hits) = &descriptor.hits_addend {
            fields.push(("hitsAddend", number(hits.value as f64)));
        }
        if let Some(own) = rule(part).and_then(|rule| rule.config.metadata.as_ref()) {
            fields.push(("metadata", from_json(own)));
        }
        object(fields)
    });
    let is_quota = |part: &Part| rule(part).is_some_and(|rule| rule.config.quota);
    let over = parts.iter().enumerate().filter(|(_, part)| match part {
        Part::Asked(at) => is_quota(part) && outcome.over[*at],
        _ => false,
    });
    let over: Vec<Value> = over.map(|(at, _)| number(at as f64)).collect();
    let mut fields = vec![
        ("domain", text(&request.domain)),
        ("descriptors", list(descriptors)),
        ("quotaModeEnabled", value(Kind::BoolValue(parts.iter().any(is_quota)))),
    ];
    if !over.is_empty() {
        fields.push(("quotaModeViolations", list(over.into_iter())));
    }
    if request.hits_addend > 0 {
        fields.push(("hitsAddend", number(request.hits_addend.into())));
    }
    structure(fields)
}

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn text(text: &str) -> Value {
    value(Kind::StringValue(text.to_owned()))
}

fn number(number: f64) -> Value {
    value(Kind::NumberValue(number))
}

fn list(values: impl Iterator<Item = Value>) -> Value {
    value(Kind::ListValue(ListValue { values: values.collect() }))
}

fn structure<'k>(fields: impl IntoIterator<Item = (&'k str, Value)>) -> Struct {
    Struct { fields: fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect() }
}

fn object<'k>(fields: impl IntoIterator<Item = (&'k str, Value)>) -> Value {
    value(Kind::StructValue(structure(fields)))
}

fn from_json(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => value(Kind::NullValue(0)),
        Json::Bool(yes) => value(Kind::BoolValue(*yes)),
        Json::Number(known) => number(known.as_f64().unwrap_or_default()),
        Json::String(known) => text(known),
        Json::Array(values) => list(values.iter().map(from_json)),
        Json::Object(fields) => object(fields.iter().map(|(key, value)| (key.as_str(), from_json(value)))),
    }
}
