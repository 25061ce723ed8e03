//! `POST /v1/reserve`: takes now what is used later; the id says what was taken. `POST /v1/settle`
//! and `/v1/cancel` end it, once, on any node.

use super::check::{Answer, told};
use super::check_request::Source;
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
use ratekeeper_tower::response::whole_millis;
use serde::Serialize;
use std::sync::Arc;

/// What is told who is turned away.
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
    let from = Source::of(request.extensions());
    let body = body::read(request.into_body()).await?;
    let ReserveRequest {
        who,
        cost,
        max_wait,
        ttl,
    } = ReserveRequest::from_json(&body)?;
    let verdict = {
        let identity = app.identity.load();
        app.unknown_attributes.note(who.names(), &identity);
        app.engine
            .reserve(&who.subject(&identity, from), cost, max_wait)
            .await
    };
    let decided = app.traces.get().map(|_| DecisionAttributes::of(&verdict));
    if verdict.is_denied() {
        let mut response = told(
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
    // Whoever waits has as long after that.
    let lives = verdict.delay() + ttl;
    let until = app.engine.store().now() + lives;
    // What is told of it is written before it is taken apart. Structs of text and numbers always
    // have a JSON form.
    let answer = serde_json::to_string(&Answer::new(&verdict)).unwrap_or_default();
    let taken_apart = app.engine.detach(verdict, until).await;
    let receipt =
        taken_apart.map_err(|error| Problem::new(Code::TooManyReservations, error.to_string()))?;
    let (id, expires_after_ms) = (
        app.ids.sign(app.engine.store(), until, &receipt),
        whole_millis(lives),
    );
    // An id has no letters that JSON minds.
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

/// For the span of the request.
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
    let SettleRequest { id, ending } = SettleRequest::from_json(&body)?;
    let receipt = app.ids.open(app.engine.store(), &id)?;
    app.engine.settle_detached(&receipt, ending).await?;
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
    app.engine.cancel_detached(&receipt).await?;
    Ok(json(
        StatusCode::OK,
        "application/json",
        &SettledBody { settled: true },
    ))
}

impl From<IdError> for Problem {
    fn from(bad: IdError) -> Self {
        match bad {
            IdError::Unreadable => unreadable(),
            IdError::Forged => Self::new(
                Code::ForgedId,
                "the id is not signed by this service; send it to a node of the same fleet, with the same id_secret",
            ),
            IdError::Expired => expired(),
        }
    }
}

impl From<SettleError> for Problem {
    fn from(why: SettleError) -> Self {
        match why {
            SettleError::AlreadySettled => Self::new(
                Code::AlreadySettled,
                "the id was settled or cancelled before; what it reserved is settled once",
            ),
            SettleError::Expired => expired(),
            SettleError::UnknownCharge => Self::new(
                Code::LostId,
                "what the id reserved was counted by a process that is no more or shares nothing with this one; reserve again",
            ),
            SettleError::Unreachable => Self::new(
                Code::Unavailable,
                "the store does not answer, so nothing is known to be settled; try again",
            ),
            _ => unreadable(),
        }
    }
}

fn unreadable() -> Problem {
    Problem::new(
        Code::InvalidId,
        "that is no id; send it as POST /v1/reserve has given it",
    )
}

fn expired() -> Problem {
    Problem::new(
        Code::ExpiredId,
        "the id has expired: permits have gone back, the rest stays charged; settle sooner, or reserve with a longer ttl_ms",
    )
}
