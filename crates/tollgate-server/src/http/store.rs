//! `POST /v1/store`: the store of this service, for programs elsewhere. What is said is in `tollgate_remote::wire`.

use super::body;
use super::problem::{Code, Problem};
use crate::app::App;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use std::sync::Arc;
use tollgate::Clock;
use tollgate_remote::wire;

pub(super) async fn store<C: Clock>(
    State(app): State<Arc<App<C>>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    // A form of a web page cannot say so: it would have to ask first, and nobody answers.
    if request.headers().get(CONTENT_TYPE).is_none_or(|found| found != wire::MEDIA_TYPE) {
        let detail = format!("the body must be of the type {}, which clients of tollgate send", wire::MEDIA_TYPE);
        return Err(Problem::new(Code::UnknownMediaType, detail));
    }
    let token = request.headers().get(AUTHORIZATION).and_then(|found| found.as_bytes().strip_prefix(b"Bearer "));
    let Some(caller) = app.remote.caller(token) else {
        let detail = "only who has the `store_token` of [server] is served; send it as `Authorization: Bearer …`";
        return Err(Problem::new(Code::Unauthorized, detail));
    };
    let body = body::read_up_to(request.into_body(), |_| wire::LARGEST).await?;
    let call = wire::Call::read(&body).map_err(|_| {
        let detail = format!(
            "the body is no call of version {}; use a tollgate-remote of the same release as this tollgate",
            wire::VERSION
        );
        Problem::new(Code::UnknownCall, detail)
    })?;
    let mut response = Response::new(Body::from(app.remote.serve(&call, caller).await));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(wire::MEDIA_TYPE));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
