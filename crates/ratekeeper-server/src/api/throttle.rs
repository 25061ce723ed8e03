//! `POST /v1/throttle`: checks one bucket, identified by its key and limit.

use super::problem::{Code, Problem};
use super::throttle_request::ThrottleRequest;
use super::{body, json};
use crate::api::throttle_buckets::{ThrottleDecision, TooManyLimitsError};
use crate::app::App;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, HeaderValue, RETRY_AFTER};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use ratekeeper::{Clock, Decision, store::Source};
use ratekeeper_tower::{response::retry_after, response::whole_millis};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// `Retry-After` if no other limit can be registered.
const TOO_MANY_LIMITS_RETRY: Duration = Duration::from_secs(1);

pub(super) async fn throttle<C: Clock>(
    State(app): State<Arc<App<C>>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let body = body::read(request.into_body()).await?;
    let ThrottleRequest { bucket, cost, peek } = ThrottleRequest::from_json(&body)?;
    Ok(match app.buckets.check(&bucket, cost, peek).await {
        Ok(ThrottleDecision { decision, source }) => answer(&decision, source),
        Err(TooManyLimitsError) => too_many_limits(),
    })
}

fn too_many_limits() -> Response {
    let detail = "too many different limits; reuse one or try later";
    let mut response = Problem::new(Code::TooManyLimits, detail).into_response();
    response
        .headers_mut()
        .insert(RETRY_AFTER, retry_after(TOO_MANY_LIMITS_RETRY).into());
    response
}

#[derive(Serialize)]
struct Answer {
    allowed: bool,
    /// Null if unlimited: 2^64 − 1 is not exact in JavaScript.
    limit: Option<u64>,
    /// Null if unlimited.
    remaining: Option<u64>,
    /// 0 if unlimited: nothing is counted.
    used: u64,
    delay_ms: u64,
    /// Null if allowed or never.
    retry_after_ms: Option<u64>,
    /// Null if it never refills.
    reset_after_ms: Option<u64>,
    never: bool,
}

fn answer(decision: &Decision, source: Source) -> Response {
    let unless_unlimited = |count: u64| (!decision.is_unlimited()).then_some(count);
    let wait = decision.retry_after();
    let body = Answer {
        allowed: decision.is_allowed(),
        limit: unless_unlimited(decision.capacity()),
        remaining: unless_unlimited(decision.remaining()),
        used: decision.capacity() - decision.remaining(),
        delay_ms: whole_millis(decision.delay()),
        retry_after_ms: wait.map(whole_millis),
        reset_after_ms: Some(decision.reset_after())
            .filter(|reset| *reset != Duration::MAX)
            .map(whole_millis),
        never: decision.is_never(),
    };
    let status = if body.allowed {
        StatusCode::OK
    } else if source == Source::Closed {
        // No limit is exceeded: the store is unavailable.
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::TOO_MANY_REQUESTS
    };
    let mut response = json(status, "application/json", &body);
    if !body.allowed {
        response
            .headers_mut()
            .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    if let Some(wait) = wait {
        response
            .headers_mut()
            .insert(RETRY_AFTER, retry_after(wait).into());
    }
    response
}
