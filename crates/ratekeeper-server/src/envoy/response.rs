//! What Envoy is told: a complete status for each descriptor, headers, metadata.

use super::config::Unit;
use super::decide::{Few, MatchedDescriptor, Part};
use super::rules::Settings;
use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{self, ListValue, Struct, Value};
use ratekeeper::{Algorithm, Decision, Timestamp, Verdict};
use ratekeeper_tower::{response::retry_after, response::whole_seconds};
use std::time::Duration;

/// The decisions of the store and what they come to.
pub(super) struct DescriptorOutcome {
    /// What the store decided on each limit, before hits that do not fit used anything up.
    judged: Few<Decision>,
    /// The figures of each limit, after everything that was charged.
    pub(super) decisions: Few<Decision>,
    /// Whether each is over its limit, shadow or not.
    pub(super) over: Few<bool>,
    /// Whether there are quotas, and all of them are over.
    pub(super) are_quotas_over: bool,
    /// Whether the request is denied.
    pub(super) is_over: bool,
    pub(super) now: Timestamp,
}

/// How long a denied request has to wait.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RetryAfter {
    For(Duration),
    Forever,
}

impl DescriptorOutcome {
    pub(super) fn new(
        found: &[MatchedDescriptor<'_>],
        judged: Few<Decision>,
        is_denied: bool,
        now: Timestamp,
    ) -> Self {
        let over: Few<bool> = found
            .iter()
            .zip(&judged)
            .map(|(found, decision)| found.is_over(decision))
            .collect();
        let mut quotas = found
            .iter()
            .zip(&over)
            .filter(|(found, _)| found.is_quota())
            .peekable();
        let are_quotas_over =
            quotas.peek().is_some() && quotas.all(|(found, over)| *over && !found.is_shadow());
        let decisions = judged.clone();
        Self {
            judged,
            decisions,
            over,
            are_quotas_over,
            is_over: is_denied || are_quotas_over,
            now,
        }
    }

    /// Takes the figures of the limits `at` from a later decision.
    pub(super) fn update(&mut self, at: &[usize], verdict: &Verdict) {
        for (at, status) in at.iter().zip(verdict.statuses()) {
            self.decisions[*at] = status.decision();
        }
    }

    /// When the same request has room in a limit that it was over.
    fn wait(&self, at: usize) -> RetryAfter {
        let (judged, now) = (&self.judged[at], &self.decisions[at]);
        match judged.retry_after() {
            _ if judged.is_never() => RetryAfter::Forever,
            // What was left is used up since. Not earlier than this, and for windows just then.
            _ if now.remaining() < judged.remaining() => RetryAfter::For(now.reset_after()),
            Some(wait) => RetryAfter::For(wait),
            // A look at a limit that has nothing left.
            None => RetryAfter::For(judged.reset_after()),
        }
    }

    /// When the same request would pass: all limits have room again, and one of the quotas has.
    fn retry_after(&self, found: &[MatchedDescriptor<'_>]) -> RetryAfter {
        let waits = |quota: bool| {
            let denying = (0..found.len()).filter(move |at| is_over_limit(found, self, *at));
            denying
                .filter(move |at| found[*at].is_quota() == quota)
                .map(|at| self.wait(at))
        };
        let quotas = waits(true).min().filter(|_| self.are_quotas_over);
        waits(false)
            .chain(quotas)
            .max()
            .unwrap_or(RetryAfter::For(Duration::ZERO))
    }
}

/// What is not limited.
pub(super) fn no_limits(descriptors: usize) -> RateLimitResponse {
    let status = DescriptorStatus {
        code: Code::Ok.into(),
        ..DescriptorStatus::default()
    };
    let statuses = vec![status; descriptors];
    RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses,
        ..RateLimitResponse::default()
    }
}

pub(super) fn is_over(response: &RateLimitResponse) -> bool {
    response.overall_code == i32::from(Code::OverLimit)
}

pub(super) fn response(
    request: &RateLimitRequest,
    settings: &Settings,
    found: &[MatchedDescriptor<'_>],
    parts: &[Part],
    outcome: &DescriptorOutcome,
) -> RateLimitResponse {
    let status = |part: &Part| match part {
        Part::None => DescriptorStatus {
            code: Code::Ok.into(),
            ..DescriptorStatus::default()
        },
        Part::Unlimited => DescriptorStatus {
            code: Code::Ok.into(),
            limit_remaining: u32::MAX,
            ..DescriptorStatus::default()
        },
        Part::Asked(at) => status(
            &found[*at],
            &outcome.decisions[*at],
            is_over_limit(found, outcome, *at),
            outcome.now,
        ),
    };
    let code = if outcome.is_over {
        Code::OverLimit
    } else {
        Code::Ok
    };
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

/// Whether a descriptor is told OVER_LIMIT: an exhausted quota too, though another may have room; a
/// shadow never.
fn is_over_limit(found: &[MatchedDescriptor<'_>], outcome: &DescriptorOutcome, at: usize) -> bool {
    outcome.over[at] && !found[at].is_shadow()
}

fn status(
    found: &MatchedDescriptor<'_>,
    decision: &Decision,
    is_over: bool,
    now: Timestamp,
) -> DescriptorStatus {
    let told = &found.told;
    let name = found
        .rule
        .map_or_else(String::new, |rule| rule.config.name.clone());
    let limit = RateLimit {
        name,
        requests_per_unit: told.requests_per_unit,
        unit: told.unit,
    };
    let reset = whole_seconds(until_reset(found, decision, now));
    // The longest time that protobuf can say is 10,000 years.
    let seconds = i64::try_from(reset)
        .unwrap_or(i64::MAX)
        .min(315_576_000_000);
    DescriptorStatus {
        code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        current_limit: Some(limit),
        limit_remaining: u32::try_from(decision.remaining()).unwrap_or(u32::MAX),
        duration_until_reset: Some(protobuf::Duration { seconds, nanos: 0 }),
        ..DescriptorStatus::default()
    }
}

/// A window ends whether somebody has come or not; Envoy's clients are told when.
fn until_reset(found: &MatchedDescriptor<'_>, decision: &Decision, now: Timestamp) -> Duration {
    let limit = &found.told.limit;
    let reset = decision.reset_after();
    match limit
        .rate()
        .filter(|_| limit.algorithm_kind() == Algorithm::FixedWindow && reset.is_zero())
    {
        None => reset,
        Some(rate) => {
            let window = u64::try_from(rate.period().as_nanos())
                .unwrap_or(u64::MAX)
                .max(1);
            Duration::from_nanos(window - now.as_unix_nanos() % window)
        }
    }
}

/// Retry-After for who is turned away; and, if wanted, the figures of the tightest limit.
fn headers(
    settings: &Settings,
    found: &[MatchedDescriptor<'_>],
    outcome: &DescriptorOutcome,
) -> Vec<HeaderValue> {
    let header = |key: &str, value: u64| HeaderValue {
        key: key.into(),
        value: value.to_string(),
        ..Default::default()
    };
    let mut headers = Vec::new();
    if outcome.is_over
        && let RetryAfter::For(wait) = outcome.retry_after(found)
        && !wait.is_zero()
    {
        headers.push(header("Retry-After", retry_after(wait)));
    }
    if settings.response_headers {
        let denies = |at: usize| is_over_limit(found, outcome, at) && !found[at].is_quota();
        let tightest =
            (0..found.len()).min_by_key(|at| (!denies(*at), outcome.decisions[*at].remaining()));
        if let Some(at) = tightest {
            let decision = &outcome.decisions[at];
            headers.push(header(
                "RateLimit-Limit",
                found[at].told.requests_per_unit.into(),
            ));
            headers.push(header("RateLimit-Remaining", decision.remaining()));
            headers.push(header(
                "RateLimit-Reset",
                whole_seconds(until_reset(&found[at], decision, outcome.now)),
            ));
        }
    }
    headers
}

/// What later filters of Envoy may read: the request as it was understood, and the metadata of the
/// limits that have room.
fn metadata(
    request: &RateLimitRequest,
    found: &[MatchedDescriptor<'_>],
    parts: &[Part],
    outcome: &DescriptorOutcome,
) -> Struct {
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entries = descriptor
            .entries
            .iter()
            .map(|entry| text(&format!("{}={}", entry.key, entry.value)));
        let mut fields = vec![("entries", list(entries))];
        if let Some(limit) = &descriptor.limit {
            fields.push(("limit", text(&override_text(limit))));
        }
        if let Some(hits) = &descriptor.hits_addend {
            fields.push(("hitsAddend", number(hits.value as f64)));
        }
        object(fields)
    });
    let mut fields = vec![
        ("domain", text(&request.domain)),
        ("descriptors", list(descriptors)),
    ];
    if request.hits_addend > 0 {
        fields.push(("hitsAddend", number(request.hits_addend.into())));
    }
    let mut merged = Struct::default();
    for part in parts {
        if let Part::Asked(at) = part
            && !is_over_limit(found, outcome, *at)
            && let Some(serde_json::Value::Object(own)) = found[*at]
                .rule
                .and_then(|rule| rule.config.metadata.as_ref())
        {
            merge(&mut merged, own);
        }
    }
    if !merged.fields.is_empty() {
        fields.push(("metadata", value(Kind::StructValue(merged))));
    }
    structure(fields)
}

/// Adds `more` to `merged`. Of a name that both have the first value stays, but structures are
/// merged.
fn merge(merged: &mut Struct, more: &serde_json::Map<String, serde_json::Value>) {
    for (name, new) in more {
        match merged.fields.get_mut(name).map(|known| &mut known.kind) {
            None => {
                merged.fields.insert(name.clone(), from_json(new));
            }
            Some(Some(Kind::StructValue(known))) => {
                if let serde_json::Value::Object(new) = new {
                    merge(known, new);
                }
            }
            Some(_) => {}
        }
    }
}

/// A limit of a descriptor as protobuf's text format has it on one line.
fn override_text(limit: &RateLimitOverride) -> String {
    let unit = Unit::numbered(limit.unit).map_or_else(|| limit.unit.to_string(), Unit::wire_name);
    match limit.requests_per_unit {
        // A zero is left out, as protobuf does.
        0 => format!("unit:{unit}"),
        requests_per_unit => format!("requests_per_unit:{requests_per_unit} unit:{unit}"),
    }
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
    value(Kind::ListValue(ListValue {
        values: values.collect(),
    }))
}

fn structure<'k>(fields: impl IntoIterator<Item = (&'k str, Value)>) -> Struct {
    Struct {
        fields: fields
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
    }
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
        Json::Object(fields) => object(
            fields
                .iter()
                .map(|(key, value)| (key.as_str(), from_json(value))),
        ),
    }
}
