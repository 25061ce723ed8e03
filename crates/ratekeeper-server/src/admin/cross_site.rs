//! Rejects requests from web pages of other origins. The page of this listener is allowed.

use super::Admin;
use super::writes::{self, Verb};
use crate::api::{Problem, cross_site};
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::middleware::Next;
use axum::response::Response;
use ratekeeper::Clock;
use std::sync::Arc;

/// Middleware that rejects requests from pages of other origins and, on loopback, requests to
/// another host name (DNS rebinding).
pub(super) async fn reject_cross_site<C: Clock>(
    State(admin): State<Arc<Admin<C>>>,
    request: Request<Body>,
    next: Next,
) -> Result<Response, Problem> {
    let checked_name = if admin.options.on_loopback {
        cross_site::check_host(request.headers())
    } else {
        Ok(())
    };
    if let Err(problem) =
        checked_name.and_then(|()| cross_site::check(request.method(), request.headers()))
    {
        if let Some(verb) = Verb::of(request.method(), request.uri().path()) {
            writes::record_rejected(&admin, verb, &request, &problem);
        }
        return Err(problem);
    }
    Ok(next.run(request).await)
}
