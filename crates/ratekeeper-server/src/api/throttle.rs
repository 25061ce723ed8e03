//! `POST /v1/throttle`: one call against one bucket, named by its key and limit.

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

/// When to come back if there is no room for another limit.
const RETRY: Duration = Duration::from_secs(1);

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
    let detail =
        "there is no room for another limit; use one that was used before, or try again later";
    let mut response = Problem::new(Code::TooManyLimits, detail).into_response();
    response
        .headers_mut()
        .insert(RETRY_AFTER, retry_after(RETRY).into());
    response
}

#[derive(Serialize)]
struct Answer {
    allowed: bool,
    /// Null when unlimited: no number says that, and 2^64 − 1 is not even a number in JavaScript.
    limit: Option<u64>,
    /// Null when unlimited.
    remaining: Option<u64>,
    /// 0 when unlimited: nothing is counted.
    used: u64,
    delay_ms: u64,
    /// Null when allowed or never.
    retry_after_ms: Option<u64>,
    /// Null when what was used never comes back.
    reset_after_ms: Option<u64>,
    never: bool,
}

fn answer(decision: &Decision, source: Source) -> Response {
    let counted = |figure: u64| (!decision.is_unlimited()).then_some(figure);
    let wait = decision.retry_after();
    let body = Answer {
        allowed: decision.is_allowed(),
        limit: counted(decision.capacity()),
        remaining: counted(decision.remaining()),
        used: decision.capacity() - decision.remaining(),
        delay_ms: whole_millis(decision.delay()),
        retry_after_ms: wait.map(whole_millis),
        reset_after_ms: Some(decision.reset_after())
            .filter(|reset| *reset != Duration::MAX)
            .map(whole_millis),
        never: decision.is_never(),
    };
    let status = match body.allowed {
        true => StatusCode::OK,
        // Nobody was asked too often: the store does not answer.
        false if source == Source::Closed => StatusCode::SERVICE_UNAVAILABLE,
        false => StatusCode::TOO_MANY_REQUESTS,
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
