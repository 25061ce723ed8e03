//! The response to a request that services may read differently: a problem with status 400.

use super::escape::Json;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use ratekeeper_policy::request::RequestError;

/// Builds the response. gRPC calls get status 400, too, so that it cannot be mistaken for a
/// response of the service.
pub(crate) fn bad_request(error: &RequestError) -> Response<Bytes> {
    let (code, detail) = (error.code(), error.to_string());
    let body = format!(
        r#"{{"type":"about:blank","title":"Bad Request","status":400,"code":{},"detail":{}}}"#,
        Json(code),
        Json(detail)
    );
    let mut response = Response::new(Bytes::from(body + "\n"));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
