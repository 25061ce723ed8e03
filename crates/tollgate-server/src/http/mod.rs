//! HTTP: which path does what.

mod body;
mod problem;
mod request;
mod throttle;

use crate::buckets::Buckets;
use axum::Router;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{Method, StatusCode, Uri};
use axum::response::Response;
use axum::routing::{get, post};
use problem::{Code, Problem, quoted};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tollgate::Clock;

const THROTTLE: &str = "/v1/throttle";
const LIVE: &str = "/livez";
const READY: &str = "/readyz";

/// Everything that is served over HTTP.
pub(crate) fn router<C: Clock>(buckets: Arc<Buckets<C>>) -> Router {
    Router::new()
        .route(THROTTLE, post(throttle::throttle::<C>))
        .route(LIVE, get(well))
        .route(READY, get(well))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .with_state(buckets)
}

/// A server in memory is ready when it lives.
async fn well() -> &'static str {
    "ok\n"
}

async fn not_found(uri: Uri) -> Problem {
    let path = quoted(uri.path());
    Problem::new(Code::NotFound, format!("{path} is not served here; POST {THROTTLE}, GET {LIVE} and GET {READY} are"))
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let (method, path) = (quoted(method.as_str()), quoted(uri.path()));
    Problem::new(Code::MethodNotAllowed, format!("{method} is not for {path}; the header Allow says what is"))
}

/// A response whose body is JSON, and a line of its own in a terminal.
fn json(status: StatusCode, media_type: &'static str, body: &impl Serialize) -> Response {
    // Structs of text and numbers always have a JSON form.
    let mut text = serde_json::to_vec(body).unwrap_or_default();
    text.push(b'\n');
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// `Retry-After`: whole seconds, rounded up so that nobody comes too early, at least 1.
fn retry_after(wait: Duration) -> HeaderValue {
    HeaderValue::from(wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1))
}

#[cfg(test)]
mod tests;
