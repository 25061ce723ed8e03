//! `POST /json`: ShouldRateLimit in protobuf's JSON mapping: names in camel case or as in the proto
//! file, 64-bit numbers as text or as numbers, enums by name or number, defaults omitted.

use super::config::Unit;
use super::decide::DecideError;
use super::proto::{
    Code, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse,
};
use crate::api::{Code as ProblemCode, Problem, body, json as json_response};
use crate::app::App;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, HeaderValue, RETRY_AFTER};
use axum::http::{Request, StatusCode};
use axum::response::Response;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use ratekeeper::Clock;
use serde::Deserialize;
use serde_json::{Map, json};
use std::sync::Arc;

const EXAMPLE: &str = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"remote_address","value":"10.0.0.1"}]}]}"#;

pub(crate) async fn handle<C: Clock>(
    State(app): State<Arc<App<C>>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let body = body::read(request.into_body()).await?;
    let request = read(&body)?;
    let response = app
        .envoy
        .decide(&request, None)
        .await
        .map_err(|error| match error {
            DecideError::Invalid(detail) => Problem::new(ProblemCode::InvalidField, detail),
            DecideError::Unavailable(detail) => Problem::new(ProblemCode::Unavailable, detail),
        })?;
    let is_over = response.overall_code == i32::from(Code::OverLimit);
    let status = if is_over {
        StatusCode::TOO_MANY_REQUESTS
    } else {
        StatusCode::OK
    };
    let mut http_response = json_response(status, "application/json", &to_json(&response));
    if is_over {
        http_response
            .headers_mut()
            .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let retry = response
            .response_headers_to_add
            .iter()
            .find(|header| header.key == "Retry-After");
        if let Some(value) = retry.and_then(|header| HeaderValue::from_str(&header.value).ok()) {
            http_response.headers_mut().insert(RETRY_AFTER, value);
        }
    }
    Ok(http_response)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRequest {
    domain: Option<String>,
    descriptors: Option<Vec<Descriptor>>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Number>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Descriptor {
    entries: Option<Vec<JsonEntry>>,
    limit: Option<Override>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Number>,
    #[serde(alias = "isNegativeHits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Override {
    #[serde(alias = "requestsPerUnit")]
    requests_per_unit: Option<Number>,
    unit: Option<EnumValue>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u64),
    Text(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum EnumValue {
    Number(i32),
    Name(String),
}

fn invalid(error: impl std::fmt::Display) -> Problem {
    Problem::new(
        ProblemCode::InvalidJson,
        format!("invalid rate limit request: {error}; send one such as {EXAMPLE}"),
    )
}

fn number(number: Option<Number>) -> Result<u64, Problem> {
    match number {
        None => Ok(0),
        Some(Number::Number(number)) => Ok(number),
        Some(Number::Text(text)) => text
            .parse()
            .map_err(|_| invalid(format_args!("{text:?} is not a whole number"))),
    }
}

fn number_u32(value: Option<Number>) -> Result<u32, Problem> {
    u32::try_from(number(value)?).map_err(|_| invalid("a number has more than 32 bits"))
}

fn read(body: &[u8]) -> Result<RateLimitRequest, Problem> {
    let request: JsonRequest = serde_json::from_slice(body).map_err(invalid)?;
    let descriptors = request
        .descriptors
        .unwrap_or_default()
        .into_iter()
        .map(descriptor)
        .collect::<Result<_, _>>()?;
    let hits_addend = number_u32(request.hits_addend)?;
    Ok(RateLimitRequest {
        domain: request.domain.unwrap_or_default(),
        descriptors,
        hits_addend,
    })
}

fn descriptor(json: Descriptor) -> Result<RateLimitDescriptor, Problem> {
    let entry = |entry: JsonEntry| Entry {
        key: entry.key.unwrap_or_default(),
        value: entry.value.unwrap_or_default(),
    };
    let limit = json.limit.map(|limit| {
        let unit = match limit.unit {
            None => 0,
            Some(EnumValue::Number(number)) => number,
            Some(EnumValue::Name(name)) => match Unit::named(&name) {
                Some(unit) => unit.number,
                None if name == "UNKNOWN" => 0,
                None => return Err(invalid(format_args!("{name:?} is not a unit"))),
            },
        };
        Ok(RateLimitOverride {
            requests_per_unit: number_u32(limit.requests_per_unit)?,
            unit,
        })
    });
    let hits = json.hits_addend.map(|hits| number(Some(hits)));
    Ok(RateLimitDescriptor {
        entries: json
            .entries
            .unwrap_or_default()
            .into_iter()
            .map(entry)
            .collect(),
        limit: limit.transpose()?,
        hits_addend: hits.transpose()?,
        is_negative_hits: json.is_negative_hits.unwrap_or(false),
    })
}

fn to_json(response: &RateLimitResponse) -> serde_json::Value {
    let mut fields = Map::new();
    fields.insert("overallCode".into(), code(response.overall_code));
    let statuses = response.statuses.iter().map(|status| {
        let mut fields = Map::new();
        fields.insert("code".into(), code(status.code));
        if let Some(limit) = &status.current_limit {
            let mut limit_fields = Map::new();
            if limit.requests_per_unit > 0 {
                limit_fields.insert("requestsPerUnit".into(), limit.requests_per_unit.into());
            }
            if let Some(unit) = Unit::numbered(limit.unit) {
                limit_fields.insert("unit".into(), unit.wire_name().into());
            }
            if !limit.name.is_empty() {
                limit_fields.insert("name".into(), limit.name.clone().into());
            }
            fields.insert("currentLimit".into(), limit_fields.into());
        }
        if status.limit_remaining > 0 {
            fields.insert("limitRemaining".into(), status.limit_remaining.into());
        }
        if let Some(reset) = &status.duration_until_reset {
            fields.insert(
                "durationUntilReset".into(),
                format!("{}s", reset.seconds).into(),
            );
        }
        serde_json::Value::from(fields)
    });
    fields.insert("statuses".into(), statuses.collect());
    if !response.response_headers_to_add.is_empty() {
        let headers = response.response_headers_to_add.iter();
        let headers = headers.map(|header| json!({ "key": header.key, "value": header.value }));
        fields.insert("responseHeadersToAdd".into(), headers.collect());
    }
    if let Some(metadata) = &response.dynamic_metadata {
        fields.insert("dynamicMetadata".into(), object(metadata));
    }
    fields.into()
}

fn code(code: i32) -> serde_json::Value {
    Code::try_from(code).map_or(code.into(), |code| code.as_str_name().into())
}

pub(super) fn object(fields: &Struct) -> serde_json::Value {
    fields
        .fields
        .iter()
        .map(|(key, value)| (key.clone(), value_to_json(value)))
        .collect::<Map<_, _>>()
        .into()
}

fn value_to_json(value: &Value) -> serde_json::Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => serde_json::Value::Null,
        Some(Kind::BoolValue(value)) => (*value).into(),
        // Whole numbers as JSON integers.
        Some(Kind::NumberValue(number))
            if number.fract() == 0.0 && number.abs() < 2f64.powi(53) =>
        {
            (*number as i64).into()
        }
        Some(Kind::NumberValue(number)) => (*number).into(),
        Some(Kind::StringValue(text)) => text.clone().into(),
        Some(Kind::ListValue(list)) => list.values.iter().map(value_to_json).collect(),
        Some(Kind::StructValue(fields)) => object(fields),
    }
}
