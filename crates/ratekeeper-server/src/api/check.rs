//! `POST /v1/check`: one request, or several, judged by the policies.

use super::check_request::{CheckRequest, Source};
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
    let from = Source::of(request.extensions());
    let body = body::read_maybe_list(request.into_body()).await?;
    if body::is_list(&body) {
        return check_all(&app, &body, from).await;
    }
    let request = CheckRequest::from_json(&body)?;
    let verdict = judge(&app, &request, from).await;
    let mut response = answer(&verdict);
    if app.traces.get().is_some() {
        response
            .extensions_mut()
            .insert(DecisionAttributes::of(&verdict));
    }
    Ok(response)
}

async fn judge<C: Clock>(app: &App<C>, request: &CheckRequest<'_>, from: Source) -> PolicyVerdict {
    let identity = app.identity.load();
    app.unknown_attributes.note(request.who.names(), &identity);
    // The request is served elsewhere, if at all: it holds no place here, and waits for none.
    let subject = request.who.subject(&identity, from).no_wait();
    match request.peek {
        true => app.engine.peek(&subject, request.cost).await,
        false => app.engine.decide_n(&subject, request.cost).await,
    }
}

/// Each by itself, in their order; what has to be asked elsewhere goes there together.
async fn check_all<C: Clock>(app: &App<C>, body: &[u8], from: Source) -> Result<Response, Problem> {
    let requests = CheckRequest::list_from_json(body)?;
    let verdicts = all(requests.iter().map(|request| judge(app, request, from))).await;
    let answers: Vec<CheckOutcome<'_>> = verdicts
        .iter()
        .map(|verdict| CheckOutcome {
            status: verdict.status(),
            answer: Answer::new(verdict),
        })
        .collect();
    Ok(json(StatusCode::OK, "application/json", &answers))
}

/// Waits for all of them, begun in their order.
async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        let mut ready = true;
        for (future, output) in waiting.iter_mut().filter(|(_, output)| output.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(told) => *output = Some(told),
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

/// CheckOutcome of several answers, with the status that it would have alone.
#[derive(Serialize)]
struct CheckOutcome<'a> {
    status: u16,
    #[serde(flatten)]
    answer: Answer<'a>,
}

#[derive(Serialize)]
pub(super) struct Answer<'a> {
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
            limit: counted(decision.capacity()),
            remaining: counted(decision.remaining()),
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
    told(verdict, &Answer::new(verdict))
}

/// What is told of a verdict, with the status and the headers that it has.
pub(super) fn told(verdict: &PolicyVerdict, body: &impl Serialize) -> Response {
    let status = StatusCode::from_u16(verdict.status()).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let mut response = json(status, "application/json", body);
    if verdict.is_denied() {
        response
            .headers_mut()
            .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if !verdict.is_never() {
            // Nobody knows when a permit comes back: a second is as good as any.
            let wait = verdict.retry_after().unwrap_or_default();
            response
                .headers_mut()
                .insert(RETRY_AFTER, retry_after(wait).into());
        }
    }
    response
}
