//! `POST /json`: the request and the response of ShouldRateLimit as JSON, by the rules of protobuf:
//! names in camel case or as in the file, numbers of 64 bits as text or as numbers, enums by name
//! or number, defaults left out.

use super::config::Unit;
use super::decide::DecideError;
use crate::api::{Code as ProblemCode, Problem, body, json as answer};
use crate::app::App;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, HeaderValue, RETRY_AFTER};
use axum::http::{Request, StatusCode};
use axum::response::Response;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, UInt64Value, Value};
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
        .judge(&request, None)
        .await
        .map_err(|trouble| match trouble {
            DecideError::Invalid(why) => Problem::new(ProblemCode::InvalidField, why),
            DecideError::Unavailable(why) => Problem::new(ProblemCode::Unavailable, why),
        })?;
    let over = response.overall_code == i32::from(Code::OverLimit);
    let status = if over {
        StatusCode::TOO_MANY_REQUESTS
    } else {
        StatusCode::OK
    };
    let mut told = answer(status, "application/json", &written(&response));
    if over {
        told.headers_mut()
            .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let retry = response
            .response_headers_to_add
            .iter()
            .find(|header| header.key == "Retry-After");
        if let Some(value) = retry.and_then(|header| HeaderValue::from_str(&header.value).ok()) {
            told.headers_mut().insert(RETRY_AFTER, value);
        }
    }
    Ok(told)
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
    entries: Option<Vec<Pair>>,
    limit: Option<Override>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Number>,
    #[serde(alias = "isNegativeHits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Override {
    #[serde(alias = "requestsPerUnit")]
    requests_per_unit: Option<Number>,
    unit: Option<Word>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u64),
    Text(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    Number(i32),
    Name(String),
}

fn wrong(what: impl std::fmt::Display) -> Problem {
    Problem::new(
        ProblemCode::InvalidJson,
        format!("the body is no rate limit request: {what}; send it as in {EXAMPLE}"),
    )
}

fn number(number: Option<Number>) -> Result<u64, Problem> {
    match number {
        None => Ok(0),
        Some(Number::Number(number)) => Ok(number),
        Some(Number::Text(text)) => text
            .parse()
            .map_err(|_| wrong(format_args!("{text:?} is not a whole number"))),
    }
}

fn small_number(written: Option<Number>) -> Result<u32, Problem> {
    u32::try_from(number(written)?).map_err(|_| wrong("a number has more than 32 bits"))
}

fn read(body: &[u8]) -> Result<RateLimitRequest, Problem> {
    let asked: JsonRequest = serde_json::from_slice(body).map_err(wrong)?;
    let descriptors = asked
        .descriptors
        .unwrap_or_default()
        .into_iter()
        .map(descriptor)
        .collect::<Result<_, _>>()?;
    let hits_addend = small_number(asked.hits_addend)?;
    Ok(RateLimitRequest {
        domain: asked.domain.unwrap_or_default(),
        descriptors,
        hits_addend,
    })
}

fn descriptor(read: Descriptor) -> Result<RateLimitDescriptor, Problem> {
    let pair = |pair: Pair| Entry {
        key: pair.key.unwrap_or_default(),
        value: pair.value.unwrap_or_default(),
    };
    let limit = read.limit.map(|limit| {
        let unit = match limit.unit {
            None => 0,
            Some(Word::Number(number)) => number,
            Some(Word::Name(name)) => match Unit::named(&name) {
                Some(unit) => unit.number,
                None if name == "UNKNOWN" => 0,
                None => return Err(wrong(format_args!("{name:?} is not a unit"))),
            },
        };
        Ok(RateLimitOverride {
            requests_per_unit: small_number(limit.requests_per_unit)?,
            unit,
        })
    });
    let hits = read.hits_addend.map(|hits| {
        Ok::<_, Problem>(UInt64Value {
            value: number(Some(hits))?,
        })
    });
    Ok(RateLimitDescriptor {
        entries: read
            .entries
            .unwrap_or_default()
            .into_iter()
            .map(pair)
            .collect(),
        limit: limit.transpose()?,
        hits_addend: hits.transpose()?,
        is_negative_hits: read.is_negative_hits.unwrap_or(false),
    })
}

fn written(response: &RateLimitResponse) -> serde_json::Value {
    let mut told = Map::new();
    told.insert("overallCode".into(), code(response.overall_code));
    let statuses = response.statuses.iter().map(|status| {
        let mut told = Map::new();
        told.insert("code".into(), code(status.code));
        if let Some(limit) = &status.current_limit {
            let mut of = Map::new();
            if limit.requests_per_unit > 0 {
                of.insert("requestsPerUnit".into(), limit.requests_per_unit.into());
            }
            if let Some(unit) = Unit::numbered(limit.unit) {
                of.insert("unit".into(), unit.wire_name().into());
            }
            if !limit.name.is_empty() {
                of.insert("name".into(), limit.name.clone().into());
            }
            told.insert("currentLimit".into(), of.into());
        }
        if status.limit_remaining > 0 {
            told.insert("limitRemaining".into(), status.limit_remaining.into());
        }
        if let Some(reset) = &status.duration_until_reset {
            told.insert(
                "durationUntilReset".into(),
                format!("{}s", reset.seconds).into(),
            );
        }
        serde_json::Value::from(told)
    });
    told.insert("statuses".into(), statuses.collect());
    if !response.response_headers_to_add.is_empty() {
        let headers = response.response_headers_to_add.iter();
        let headers = headers.map(|header| json!({ "key": header.key, "value": header.value }));
        told.insert("responseHeadersToAdd".into(), headers.collect());
    }
    if let Some(metadata) = &response.dynamic_metadata {
        told.insert("dynamicMetadata".into(), object(metadata));
    }
    told.into()
}

fn code(code: i32) -> serde_json::Value {
    Code::try_from(code).map_or(code.into(), |code| code.as_str_name().into())
}

pub(super) fn object(of: &Struct) -> serde_json::Value {
    of.fields
        .iter()
        .map(|(key, value)| (key.clone(), plain(value)))
        .collect::<Map<_, _>>()
        .into()
}

fn plain(value: &Value) -> serde_json::Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => serde_json::Value::Null,
        Some(Kind::BoolValue(yes)) => (*yes).into(),
        // Whole numbers are written as such.
        Some(Kind::NumberValue(number))
            if number.fract() == 0.0 && number.abs() < 2f64.powi(53) =>
        {
            (*number as i64).into()
        }
        Some(Kind::NumberValue(number)) => (*number).into(),
        Some(Kind::StringValue(text)) => text.clone().into(),
        Some(Kind::ListValue(list)) => list.values.iter().map(plain).collect(),
        Some(Kind::StructValue(of)) => object(of),
    }
}
