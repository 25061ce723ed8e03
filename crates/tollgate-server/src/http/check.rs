//! `POST /v1/check`: one request, judged by the policies.

use super::check_request::CheckRequest;
use super::problem::Problem;
use super::{body, json, millis, retry_after};
use crate::app::App;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, HeaderValue, RETRY_AFTER};
use axum::http::{Request, StatusCode};
use axum::response::Response;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tollgate::Clock;
use tollgate_policy::{LimitStatus, Verdict};

pub(super) async fn check<C: Clock>(
    State(app): State<Arc<App<C>>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let body = body::read(request.into_body()).await?;
    let request = CheckRequest::from_json(&body)?;
    let identity = app.identity.load();
    let subject = request.subject(&identity);
    let verdict = match request.peek {
        true => app.engine.peek(&subject, request.cost).await,
        false => app.engine.decide_n(&subject, request.cost).await,
    };
    Ok(answer(&verdict))
}

#[derive(Serialize)]
struct Answer<'a> {
    allowed: bool,
    source: &'static str,
    /// What it goes back to: the limits, a list, a ban.
    reason: &'static str,
    /// Who turned it away; null when allowed.
    policy: Option<&'a str>,
    /// Null when allowed, when never, and when nobody knows.
    retry_after_ms: Option<u64>,
    delay_ms: u64,
    never: bool,
    limits: Vec<Limit<'a>>,
}

#[derive(Serialize)]
struct Limit<'a> {
    policy: &'a str,
    key: &'a str,
    /// Null when unlimited.
    limit: Option<u64>,
    /// Null when unlimited.
    remaining: Option<u64>,
    /// Null when what was used never comes back.
    reset_after_ms: Option<u64>,
    retry_after_ms: Option<u64>,
    outcome: &'static str,
}

impl<'a> Limit<'a> {
    fn new(limit: LimitStatus<'a>) -> Self {
        let decision = limit.decision();
        let counted = |figure: u64| (!decision.is_unlimited()).then_some(figure);
        Self {
            policy: limit.policy(),
            key: limit.key(),
            limit: counted(decision.limit()),
            remaining: counted(decision.remaining()),
            reset_after_ms: Some(decision.reset_after()).filter(|reset| *reset != Duration::MAX).map(millis),
            retry_after_ms: decision.retry_after().map(millis),
            outcome: limit.outcome().name(),
        }
    }
}

fn answer(verdict: &Verdict) -> Response {
    let body = Answer {
        allowed: verdict.is_allowed(),
        source: verdict.source().name(),
        reason: verdict.reason().name(),
        policy: verdict.policy(),
        retry_after_ms: verdict.retry_after().map(millis),
        delay_ms: millis(verdict.delay()),
        never: verdict.is_never(),
        limits: verdict.limits().map(Limit::new).collect(),
    };
    let status = StatusCode::from_u16(verdict.status()).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let mut response = json(status, "application/json", &body);
    if !body.allowed {
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if !body.never {
            // Nobody knows when a permit comes back: a second is as good as any.
            let wait = verdict.retry_after().unwrap_or_default();
            response.headers_mut().insert(RETRY_AFTER, retry_after(wait));
        }
    }
    response
}
