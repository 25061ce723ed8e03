//! `POST /v1/reserve`: reserves now, to be settled later by an id. `POST /v1/settle` and
//! `/v1/cancel` settle it, once, on any node.

use super::check::{Answer, response};
use super::check_request::HeaderTrust;
use super::problem::{Code, Problem};
use super::reserve_request::{ReserveRequest, SettleRequest, id_from_json};
use super::{body, json, json_text};
use crate::api::ids::IdError;
use crate::app::App;
use crate::observe::traces::DecisionAttributes;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, HeaderValue};
use axum::http::{Extensions, Request, StatusCode};
use axum::response::Response;
use ratekeeper::{Clock, Store, store::SettleError};
use ratekeeper_policy::Completion;
use ratekeeper_tower::response::whole_millis;
use serde::Serialize;
use std::sync::Arc;

/// The body of a denial.
#[derive(Serialize)]
struct DeniedBody<'a> {
    id: (),
    expires_after_ms: (),
    #[serde(flatten)]
    answer: Answer<'a>,
}

pub(super) async fn reserve<C: Clock>(
    State(app): State<Arc<App<C>>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let trust = HeaderTrust::of(request.extensions());
    let body = body::read(request.into_body()).await?;
    let ReserveRequest {
        subject,
        cost,
        max_wait,
        ttl,
    } = ReserveRequest::from_json(&body)?;
    let verdict = {
        let identity = app.identity.load();
        app.unknown_attributes.note(subject.names(), &identity);
        let mut subject = subject.subject(&identity, trust);
        if let Some(cost) = cost {
            subject = subject.cost(cost);
        }
        app.engine.reserve(&subject, max_wait).await
    };
    let decided = app.traces.get().map(|_| DecisionAttributes::of(&verdict));
    if verdict.is_denied() {
        let mut response = response(
            &verdict,
            &DeniedBody {
                id: (),
                expires_after_ms: (),
                answer: Answer::new(&verdict),
            },
        );
        response
            .extensions_mut()
            .extend(decided.map(extension).unwrap_or_default());
        return Ok(response);
    }
    // The time to live begins after the delay.
    let lifetime = verdict.delay() + ttl;
    let until = app.engine.store().now() + lifetime;
    // Serialized before `detach` consumes the verdict. Structs of text and numbers always
    // serialize.
    let answer = serde_json::to_string(&Answer::new(&verdict)).unwrap_or_default();
    let detached = app.engine.detach(verdict, until).await;
    let receipt =
        detached.map_err(|error| Problem::new(Code::TooManyReservations, error.to_string()))?;
    let id = app.ids.sign(app.engine.store(), until, &receipt);
    let expires_after_ms = whole_millis(lifetime);
    // An id has no characters that JSON escapes.
    let fields = answer.strip_prefix('{').unwrap_or("}");
    let text = format!(r#"{{"id":"{id}","expires_after_ms":{expires_after_ms},{fields}"#);
    let mut response = json_text(StatusCode::OK, "application/json", text.into_bytes());
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
        .extensions_mut()
        .extend(decided.map(extension).unwrap_or_default());
    Ok(response)
}

/// Response extensions with attributes for the span of the request.
fn extension(decided: DecisionAttributes) -> Extensions {
    let mut extensions = Extensions::new();
    extensions.insert(decided);
    extensions
}

#[derive(Serialize)]
struct SettledBody {
    settled: bool,
}

pub(super) async fn settle<C: Clock>(
    State(app): State<Arc<App<C>>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let body = body::read(request.into_body()).await?;
    let SettleRequest { id, completion } = SettleRequest::from_json(&body)?;
    let receipt = app.ids.open(app.engine.store(), &id)?;
    app.engine.settle_detached(&receipt, completion).await?;
    Ok(json(
        StatusCode::OK,
        "application/json",
        &SettledBody { settled: true },
    ))
}

pub(super) async fn cancel<C: Clock>(
    State(app): State<Arc<App<C>>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let body = body::read(request.into_body()).await?;
    let receipt = app.ids.open(app.engine.store(), &id_from_json(&body)?)?;
    app.engine
        .settle_detached(&receipt, Completion::cancelled())
        .await?;
    Ok(json(
        StatusCode::OK,
        "application/json",
        &SettledBody { settled: true },
    ))
}

impl From<IdError> for Problem {
    fn from(error: IdError) -> Self {
        match error {
            IdError::Malformed => invalid_id(),
            IdError::Forged => Self::new(
                Code::ForgedId,
                "the id is not signed by this service; send it to a node of the same fleet, with the same id_secret",
            ),
            IdError::Expired => expired(),
        }
    }
}

impl From<SettleError> for Problem {
    fn from(error: SettleError) -> Self {
        match error {
            SettleError::AlreadySettled => Self::new(
                Code::AlreadySettled,
                "already settled or cancelled; settle each id once",
            ),
            SettleError::Expired => expired(),
            SettleError::UnknownCharge => Self::new(
                Code::LostId,
                "the reservation is unknown: its process has ended or shares no store; reserve again",
            ),
            SettleError::Unreachable => Self::new(
                Code::Unavailable,
                "the store is unavailable; nothing was settled, try again",
            ),
            _ => invalid_id(),
        }
    }
}

fn invalid_id() -> Problem {
    Problem::new(
        Code::InvalidId,
        "invalid id; send it as POST /v1/reserve returned it",
    )
}

fn expired() -> Problem {
    Problem::new(
        Code::ExpiredId,
        "the id has expired: permits were released, charges stay; settle sooner, or reserve with a longer ttl_ms",
    )
}
