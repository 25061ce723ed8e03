//! OTLP encoding of spans in protobuf: the used fields of opentelemetry/proto/trace/v1.
//!
//! opentelemetry-proto is not used, because it depends on the whole SDK; a test decodes the spans
//! with that crate.

use super::{EndedSpan, Resource};
use prost::{Message, Oneof};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The body of `POST /v1/traces`.
pub(super) fn request(resource: &Resource, spans: &[EndedSpan]) -> Vec<u8> {
    let attributes = vec![
        text("service.name", "ratekeeper"),
        text("service.version", env!("CARGO_PKG_VERSION")),
        text("ratekeeper.store", resource.store),
    ];
    let scope = Scope {
        name: "ratekeeper".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let scope_spans = ScopeSpans {
        scope: Some(scope),
        spans: spans.iter().map(span).collect(),
    };
    let resource_spans = ResourceSpans {
        resource: Some(OtlpResource { attributes }),
        scope_spans: vec![scope_spans],
    };
    Request {
        resource_spans: vec![resource_spans],
    }
    .encode_to_vec()
}

fn span(ended: &EndedSpan) -> Span {
    const SERVER: i32 = 2;
    const ERROR: i32 = 2;
    let mut attributes = vec![text("http.request.method", ended.method)];
    attributes.extend(
        ended
            .route
            .as_deref()
            .map(|route| text("http.route", route)),
    );
    if ended.status > 0 {
        attributes.push(number("http.response.status_code", ended.status.into()));
    }
    let decision = &ended.decision;
    attributes.extend(
        decision
            .outcome
            .map(|outcome| text("ratekeeper.outcome", outcome)),
    );
    attributes.extend(
        decision
            .source
            .map(|source| text("ratekeeper.source", source)),
    );
    if !decision.policies.is_empty() {
        attributes.push(text("ratekeeper.policy", &decision.policies.join(",")));
    }
    attributes.extend(
        decision
            .upstream
            .as_deref()
            .map(|upstream| text("ratekeeper.upstream", upstream)),
    );
    let name = ended.route.as_deref().map_or_else(
        || ended.method.to_owned(),
        |route| format!("{} {route}", ended.method),
    );
    Span {
        trace_id: ended.trace.to_vec(),
        span_id: ended.span.to_vec(),
        parent_span_id: ended.parent.map(Vec::from).unwrap_or_default(),
        name,
        kind: SERVER,
        start: nanos(ended.start),
        end: nanos(ended.start + ended.elapsed),
        attributes,
        // A denied request is not an error of the server.
        status: (ended.status >= 500).then_some(Status { code: ERROR }),
    }
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn text(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(Value::Text(value.to_owned())),
        }),
    }
}

fn number(key: &str, value: i64) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(Value::Number(value)),
        }),
    }
}

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<OtlpResource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct OtlpResource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start: u64,
    #[prost(fixed64, tag = "8")]
    end: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 3")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}
