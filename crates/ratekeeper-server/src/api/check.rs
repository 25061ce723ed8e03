//! `POST /v1/check`: one or several requests, decided by the policies.

use super::check_request::{CheckRequest, HeaderTrust};
use super::problem::Problem;
use super::{body, json};
use crate::app::App;
use crate::observe::traces::DecisionAttributes;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, HeaderValue, RETRY_AFTER};
use axum::http::{Request, StatusCode};
use axum::response::Response;
use ratekeeper::Clock;
use ratekeeper_policy::{PolicyVerdict, engine::LimitStatus};
use ratekeeper_tower::{response::retry_after, response::whole_millis};
use serde::Serialize;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

pub(super) async fn check<C: Clock>(
    State(app): State<Arc<App<C>>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let trust = HeaderTrust::of(request.extensions());
    let body = body::read_maybe_list(request.into_body()).await?;
    if body::is_list(&body) {
        return check_all(&app, &body, trust).await;
    }
    let request = CheckRequest::from_json(&body)?;
    let verdict = decide(&app, &request, trust).await;
    let mut response = answer(&verdict);
    if app.traces.get().is_some() {
        response
            .extensions_mut()
            .insert(DecisionAttributes::of(&verdict));
    }
    Ok(response)
}

async fn decide<C: Clock>(
    app: &App<C>,
    request: &CheckRequest<'_>,
    trust: HeaderTrust,
) -> PolicyVerdict {
    let identity = app.identity.load();
    app.unknown_attributes
        .note(request.subject.names(), &identity);
    // The request is not served here: it takes no permit, and waits for none.
    let subject = request
        .subject
        .subject(&identity, trust)
        .cost(request.cost)
        .no_wait();
    if request.peek {
        app.engine.peek(&subject).await
    } else {
        app.engine.decide(&subject).await
    }
}

/// Decides a list in order; queries to Redis run concurrently.
async fn check_all<C: Clock>(
    app: &App<C>,
    body: &[u8],
    trust: HeaderTrust,
) -> Result<Response, Problem> {
    let requests = CheckRequest::list_from_json(body)?;
    let verdicts = all(requests.iter().map(|request| decide(app, request, trust))).await;
    let results: Vec<CheckResult<'_>> = verdicts
        .iter()
        .map(|verdict| CheckResult {
            status: verdict.status(),
            answer: Answer::new(verdict),
        })
        .collect();
    Ok(json(StatusCode::OK, "application/json", &results))
}

/// Waits for all futures, polled in their order.
async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        let mut ready = true;
        for (future, output) in waiting.iter_mut().filter(|(_, output)| output.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(value) => *output = Some(value),
                Poll::Pending => ready = false,
            }
        }
        if ready {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    waiting
        .into_iter()
        .filter_map(|(_, output)| output)
        .collect()
}

/// One result of a list, with the status that it would have alone.
#[derive(Serialize)]
struct CheckResult<'a> {
    status: u16,
    #[serde(flatten)]
    answer: Answer<'a>,
}

#[derive(Serialize)]
pub(super) struct Answer<'a> {
    allowed: bool,
    source: &'static str,
    /// The reason of the decision: the limits, a list, a ban.
    reason: &'static str,
    /// The policy that denied it; null if allowed.
    policy: Option<&'a str>,
    /// Null if allowed, never or unknown.
    retry_after_ms: Option<u64>,
    delay_ms: u64,
    never: bool,
    limits: Vec<Limit<'a>>,
}

#[derive(Serialize)]
struct Limit<'a> {
    policy: &'a str,
    key: &'a str,
    /// Null if unlimited.
    limit: Option<u64>,
    /// Null if unlimited.
    remaining: Option<u64>,
    /// Null if it never refills.
    reset_after_ms: Option<u64>,
    retry_after_ms: Option<u64>,
    outcome: &'static str,
}

impl<'a> Limit<'a> {
    fn new(limit: LimitStatus<'a>) -> Self {
        let decision = limit.decision();
        let unless_unlimited = |count: u64| (!decision.is_unlimited()).then_some(count);
        Self {
            policy: limit.policy(),
            key: limit.key(),
            limit: unless_unlimited(decision.capacity()),
            remaining: unless_unlimited(decision.remaining()),
            reset_after_ms: Some(decision.reset_after())
                .filter(|reset| *reset != Duration::MAX)
                .map(whole_millis),
            retry_after_ms: decision.retry_after().map(whole_millis),
            outcome: limit.outcome().name(),
        }
    }
}

impl<'a> Answer<'a> {
    pub(super) fn new(verdict: &'a PolicyVerdict) -> Self {
        Self {
            allowed: verdict.is_allowed(),
            source: verdict.source().name(),
            reason: verdict.reason().name(),
            policy: verdict.policy(),
            retry_after_ms: verdict.retry_after().map(whole_millis),
            delay_ms: whole_millis(verdict.delay()),
            never: verdict.is_never(),
            limits: verdict.limits().map(Limit::new).collect(),
        }
    }
}

fn answer(verdict: &PolicyVerdict) -> Response {
    response(verdict, &Answer::new(verdict))
}

/// A response with the status and headers of a verdict.
pub(super) fn response(verdict: &PolicyVerdict, body: &impl Serialize) -> Response {
    let status = StatusCode::from_u16(verdict.status()).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let mut response = json(status, "application/json", body);
    if verdict.is_denied() {
        response
            .headers_mut()
            .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if !verdict.is_never() {
            // It is unknown when a permit is released: the header is then one second.
            let wait = verdict.retry_after().unwrap_or_default();
            response
                .headers_mut()
                .insert(RETRY_AFTER, retry_after(wait).into());
        }
    }
    response
}
