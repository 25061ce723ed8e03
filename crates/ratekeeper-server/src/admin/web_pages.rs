//! Keeps web pages of others from the admin listener. The page that this listener serves itself is
//! let through.

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

/// Refuses what the page of another origin asks for; and, on loopback, what was sent to a name of
/// somebody else.
pub(super) async fn refused<C: Clock>(
    State(admin): State<Arc<Admin<C>>>,
    request: Request<Body>,
    next: Next,
) -> Result<Response, Problem> {
    let name = if admin.options.on_loopback {
        cross_site::check_host(request.headers())
    } else {
        Ok(())
    };
    if let Err(problem) = name.and_then(|()| cross_site::check(request.method(), request.headers()))
    {
        if let Some(verb) = Verb::of(request.method(), request.uri().path()) {
            writes::turned_away(&admin, verb, &request, &problem);
        }
        return Err(problem);
    }
    Ok(next.run(request).await)
}
