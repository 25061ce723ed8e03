//! `GET /openapi.json`: what is served here, for programs.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::Response;

/// Written by hand; a test holds it against what is really served.
const DESCRIPTION: &str = include_str!("../../openapi.json");

pub(super) async fn description() -> Response {
    let mut response = Response::new(Body::from(DESCRIPTION));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
