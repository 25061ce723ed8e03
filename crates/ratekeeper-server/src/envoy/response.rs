//! Responses to Envoy: a complete status for each descriptor, headers, metadata.

use super::config::Unit;
use super::decide::{DescriptorMatch, Few, MatchedDescriptor};
use super::proto::{
    Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitOverride, RateLimitRequest,
    RateLimitResponse,
};
use super::rules::Settings;
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use ratekeeper::{Algorithm, Decision, Timestamp, Verdict};
use ratekeeper_tower::{response::retry_after, response::whole_seconds};
use std::time::Duration;

/// The store's decisions on a request, and their outcome.
pub(super) struct DescriptorOutcome {
    /// First decision on each limit, before denied hits consumed the rest.
    initial: Few<Decision>,
    /// Decision on each limit after all charges.
    pub(super) decisions: Few<Decision>,
    /// Whether each is over its limit, shadow or not.
    pub(super) over: Few<bool>,
    /// Whether there are quotas, and all of them are over.
    pub(super) are_quotas_over: bool,
    /// Whether the request is denied.
    pub(super) is_over: bool,
    pub(super) now: Timestamp,
}

/// Time until a denied request is allowed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RetryAfter {
    For(Duration),
    Forever,
}

impl DescriptorOutcome {
    pub(super) fn new(
        matched: &[MatchedDescriptor<'_>],
        initial: Few<Decision>,
        is_denied: bool,
        now: Timestamp,
    ) -> Self {
        let over: Few<bool> = matched
            .iter()
            .zip(&initial)
            .map(|(descriptor, decision)| descriptor.is_over(decision))
            .collect();
        let mut quotas = matched
            .iter()
            .zip(&over)
            .filter(|(descriptor, _)| descriptor.is_quota())
            .peekable();
        let are_quotas_over = quotas.peek().is_some()
            && quotas.all(|(descriptor, over)| *over && !descriptor.is_shadow());
        let decisions = initial.clone();
        Self {
            initial,
            decisions,
            over,
            are_quotas_over,
            is_over: is_denied || are_quotas_over,
            now,
        }
    }

    /// Replaces the decisions on the limits `indices` by later ones.
    pub(super) fn update(&mut self, indices: &[usize], verdict: &Verdict) {
        for (index, status) in indices.iter().zip(verdict.results()) {
            self.decisions[*index] = status.decision();
        }
    }

    /// Time until a limit that the request was over allows the same request.
    fn wait(&self, at: usize) -> RetryAfter {
        let (initial, now) = (&self.initial[at], &self.decisions[at]);
        match initial.retry_after() {
            _ if initial.is_never() => RetryAfter::Forever,
            // The rest was consumed since. Not earlier than this; exact for windows.
            _ if now.remaining() < initial.remaining() => RetryAfter::For(now.reset_after()),
            Some(wait) => RetryAfter::For(wait),
            // A peek at an exhausted limit.
            None => RetryAfter::For(initial.reset_after()),
        }
    }

    /// Time until the same request is allowed by all limits and by one of the quotas.
    fn retry_after(&self, matched: &[MatchedDescriptor<'_>]) -> RetryAfter {
        let waits = |quota: bool| {
            let denying = (0..matched.len()).filter(move |at| is_over_limit(matched, self, *at));
            denying
                .filter(move |at| matched[*at].is_quota() == quota)
                .map(|at| self.wait(at))
        };
        let quotas = waits(true).min().filter(|_| self.are_quotas_over);
        waits(false)
            .chain(quotas)
            .max()
            .unwrap_or(RetryAfter::For(Duration::ZERO))
    }
}

/// The response to a request without limits.
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
    matched: &[MatchedDescriptor<'_>],
    matches: &[DescriptorMatch],
    outcome: &DescriptorOutcome,
) -> RateLimitResponse {
    let status = |descriptor_match: &DescriptorMatch| match descriptor_match {
        DescriptorMatch::None => DescriptorStatus {
            code: Code::Ok.into(),
            ..DescriptorStatus::default()
        },
        DescriptorMatch::Unlimited => DescriptorStatus {
            code: Code::Ok.into(),
            limit_remaining: u32::MAX,
            ..DescriptorStatus::default()
        },
        DescriptorMatch::Limited(at) => status(
            &matched[*at],
            &outcome.decisions[*at],
            is_over_limit(matched, outcome, *at),
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
        statuses: matches.iter().map(status).collect(),
        ..RateLimitResponse::default()
    };
    if outcome.is_over || settings.response_headers {
        response.response_headers_to_add = headers(settings, matched, outcome);
    }
    if settings.dynamic_metadata {
        response.dynamic_metadata = Some(metadata(request, matched, matches, outcome));
    }
    response
}

/// Whether the status of a descriptor is OVER_LIMIT: also of an exhausted quota while another one
/// has hits left, never of a shadow.
fn is_over_limit(
    matched: &[MatchedDescriptor<'_>],
    outcome: &DescriptorOutcome,
    at: usize,
) -> bool {
    outcome.over[at] && !matched[at].is_shadow()
}

fn status(
    descriptor: &MatchedDescriptor<'_>,
    decision: &Decision,
    is_over: bool,
    now: Timestamp,
) -> DescriptorStatus {
    let info = &descriptor.limit;
    let name = descriptor
        .rule
        .map_or_else(String::new, |rule| rule.config.name.clone());
    let limit = RateLimit {
        name,
        requests_per_unit: info.requests_per_unit,
        unit: info.unit,
    };
    let reset = whole_seconds(until_reset(descriptor, decision, now));
    // The maximum duration of protobuf is 10,000 years.
    let seconds = i64::try_from(reset)
        .unwrap_or(i64::MAX)
        .min(315_576_000_000);
    DescriptorStatus {
        code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        current_limit: Some(limit),
        limit_remaining: u32::try_from(decision.remaining()).unwrap_or(u32::MAX),
        duration_until_reset: Some(prost_types::Duration { seconds, nanos: 0 }),
        ..DescriptorStatus::default()
    }
}

/// Time until a limit resets; for an unused fixed window until its end.
fn until_reset(
    descriptor: &MatchedDescriptor<'_>,
    decision: &Decision,
    now: Timestamp,
) -> Duration {
    let limit = &descriptor.limit.limit;
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

/// `Retry-After` of denials and, if enabled, the `RateLimit-…` headers of the tightest limit.
fn headers(
    settings: &Settings,
    matched: &[MatchedDescriptor<'_>],
    outcome: &DescriptorOutcome,
) -> Vec<HeaderValue> {
    let header = |key: &str, value: u64| HeaderValue {
        key: key.into(),
        value: value.to_string(),
        ..Default::default()
    };
    let mut headers = Vec::new();
    if outcome.is_over
        && let RetryAfter::For(wait) = outcome.retry_after(matched)
        && !wait.is_zero()
    {
        headers.push(header("Retry-After", retry_after(wait)));
    }
    if settings.response_headers {
        let denies = |at: usize| is_over_limit(matched, outcome, at) && !matched[at].is_quota();
        let tightest =
            (0..matched.len()).min_by_key(|at| (!denies(*at), outcome.decisions[*at].remaining()));
        if let Some(at) = tightest {
            let decision = &outcome.decisions[at];
            headers.push(header(
                "RateLimit-Limit",
                matched[at].limit.requests_per_unit.into(),
            ));
            headers.push(header("RateLimit-Remaining", decision.remaining()));
            headers.push(header(
                "RateLimit-Reset",
                whole_seconds(until_reset(&matched[at], decision, outcome.now)),
            ));
        }
    }
    headers
}

/// Metadata for later filters of Envoy: the request, and the metadata of the limits that are not
/// over.
fn metadata(
    request: &RateLimitRequest,
    matched: &[MatchedDescriptor<'_>],
    matches: &[DescriptorMatch],
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
        if let Some(hits) = descriptor.hits_addend {
            fields.push(("hitsAddend", number(hits as f64)));
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
    for descriptor_match in matches {
        if let DescriptorMatch::Limited(at) = descriptor_match
            && !is_over_limit(matched, outcome, *at)
            && let Some(serde_json::Value::Object(own)) = matched[*at]
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

/// Adds `more` to `merged`. Existing values stay, but structures are merged.
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

/// A limit of a descriptor in protobuf's text format, on one line.
fn override_text(limit: &RateLimitOverride) -> String {
    let unit = Unit::numbered(limit.unit).map_or_else(|| limit.unit.to_string(), Unit::wire_name);
    match limit.requests_per_unit {
        // As in protobuf, a zero is omitted.
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
