//! HTTP API: routes, health checks and JSON responses.

mod auth;
pub(crate) mod body;
mod check;
pub(crate) mod check_request;
pub(crate) mod cross_site;
pub(crate) mod ids;
pub(crate) mod json;
mod openapi;
mod problem;
mod reserve;
mod reserve_request;
mod throttle;
pub(crate) mod throttle_buckets;
mod throttle_request;
pub(crate) mod token;
pub(crate) mod unknown_attributes;
pub(crate) mod user_header;

pub(crate) use check_request::{HEADER, identified};

use crate::app::App;
use crate::observe::traces;
use crate::store::AnyStore;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{get, post};
pub(crate) use problem::{Code, NO_SNIFF, Problem, quoted};
use ratekeeper::{Clock, store::OnFailure};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const CHECK: &str = "/v1/check";
const RESERVE: &str = "/v1/reserve";
const SETTLE: &str = "/v1/settle";
const CANCEL: &str = "/v1/cancel";
const THROTTLE: &str = "/v1/throttle";
const ENVOY: &str = "/json";
pub(crate) const LIVE: &str = "/livez";
pub(crate) const READY: &str = "/readyz";
const OPENAPI: &str = "/openapi.json";

/// Routes of the HTTP listener. Calls that charge or settle reject cross-origin requests of web
/// pages.
pub(crate) fn router<C: Clock>(app: Arc<App<C>>, on_loopback: bool) -> Router {
    let traces = app.traces.get().cloned();
    let calls = Router::new()
        .route(CHECK, post(check::check::<C>))
        .route(RESERVE, post(reserve::reserve::<C>))
        .route(SETTLE, post(reserve::settle::<C>))
        .route(CANCEL, post(reserve::cancel::<C>))
        .route(THROTTLE, post(throttle::throttle::<C>))
        .route(ENVOY, post(crate::envoy::json::<C>))
        .route_layer(from_fn_with_state(on_loopback, cross_site::reject));
    let router = calls
        .merge(auth::routes::<C>())
        .route(LIVE, get(live::<C>))
        .route(READY, get(ready::<C>))
        .route(OPENAPI, get(openapi::description))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .with_state(app);
    match traces {
        Some(tracer) => router.layer(from_fn_with_state(tracer, traces::trace)),
        None => router,
    }
}

/// Liveness: whether all workers run.
async fn live<C: Clock>(State(app): State<Arc<App<C>>>) -> (StatusCode, String) {
    liveness(&app)
}

pub(crate) fn liveness<C: Clock>(app: &App<C>) -> (StatusCode, String) {
    match app.health.dead() {
        Some(dead) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{dead}; restart this process\n"),
        ),
        None => (StatusCode::OK, "ok\n".to_owned()),
    }
}

/// Readiness: whether this process decides, with all of its workers. Without Redis it decides by
/// its share of the limits, unless `on_failure` is `closed`.
async fn ready<C: Clock>(State(app): State<Arc<App<C>>>) -> (StatusCode, String) {
    readiness(&app)
}

pub(crate) fn readiness<C: Clock>(app: &App<C>) -> (StatusCode, String) {
    if app.shutting_down.load(Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n".to_owned());
    }
    if let Some(stalled) = app.health.stalled() {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not ready: {stalled}\n"),
        );
    }
    let AnyStore::Redis(redis) = app.engine.store() else {
        return (StatusCode::OK, "ok\n".to_owned());
    };
    let store = redis.status();
    let Some((since, error)) = store.error else {
        let reported = store.other_limits.filter(|others| others.is_reported);
        let text = match (store.heartbeat, reported) {
            (Some(error), _) => format!("ok, but other nodes do not count this one: {error}\n"),
            (None, Some(others)) => format!("ok, but {others}\n"),
            (None, None) => "ok\n".to_owned(),
        };
        return (StatusCode::OK, text);
    };
    let on_failure = app.engine.policies().default_on_failure();
    let (status, word) = match on_failure {
        OnFailure::Closed => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
        _ => (StatusCode::OK, "degraded"),
    };
    (
        status,
        format!(
            "{word} for {} s, deciding by {on_failure}: {error}\n",
            since.as_secs()
        ),
    )
}

async fn not_found(uri: Uri) -> Problem {
    if let Some(problem) = auth::not_found(uri.path()) {
        return problem;
    }
    let path = quoted(uri.path());
    let post_routes = [CHECK, RESERVE, SETTLE, CANCEL, THROTTLE, ENVOY]
        .map(|path| format!("POST {path}"))
        .join(", ");
    let available = format!(
        "{post_routes}, {}, GET {LIVE}, GET {READY}, GET {OPENAPI}",
        auth::PATHS
    );
    Problem::new(
        Code::NotFound,
        format!("no such path: {path}; available: {available}"),
    )
}

pub(crate) async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let (method, path) = (quoted(method.as_str()), quoted(uri.path()));
    Problem::new(
        Code::MethodNotAllowed,
        format!("method {method} not allowed for {path}; see Allow"),
    )
}

/// A response with a JSON body that ends with a newline.
pub(crate) fn json(
    status: StatusCode,
    media_type: &'static str,
    body: &impl Serialize,
) -> Response {
    json_bytes(status, media_type, body).map(Body::from)
}

fn json_bytes(
    status: StatusCode,
    media_type: &'static str,
    body: &impl Serialize,
) -> Response<Bytes> {
    // Enough for an answer with two limits.
    let mut text = Vec::with_capacity(512);
    // Structs of text and numbers always serialize, and writing to memory does not fail.
    let _ = serde_json::to_writer(&mut text, body);
    from_json(status, media_type, text)
}

/// A response with a body that is JSON already.
fn json_text(status: StatusCode, media_type: &'static str, text: Vec<u8>) -> Response {
    from_json(status, media_type, text).map(Body::from)
}

fn from_json(status: StatusCode, media_type: &'static str, mut text: Vec<u8>) -> Response<Bytes> {
    text.push(b'\n');
    let mut response = Response::new(Bytes::from(text));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

#[cfg(test)]
mod tests;
