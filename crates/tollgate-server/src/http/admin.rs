//! What the admin listener serves: figures, the heaviest keys, and a reload on request.

use super::problem::{Code, Problem, quoted};
use super::{LIVE, READY, json, readiness, web_pages, well, wrong_method};
use crate::metrics;
use crate::reload::Reload;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{StatusCode, Uri};
use axum::middleware;
use axum::response::Response;
use axum::routing::{get, post};
use serde::Serialize;
use std::sync::Arc;
use tollgate::Clock;
use tollgate_policy::TopKey;

const METRICS: &str = "/metrics";
const RELOAD: &str = "/admin/reload";
const TOP: &str = "/admin/top";

/// How many keys each list of them shows.
const SHOWN: usize = 20;

/// `on_loopback`: whether it listens for this machine only.
pub(crate) fn admin<C: Clock>(reload: Arc<Reload<C>>, on_loopback: bool) -> Router {
    Router::new()
        .route(METRICS, get(figures::<C>))
        .route(RELOAD, post(again::<C>))
        .route(TOP, get(top::<C>))
        .route(LIVE, get(well))
        .route(READY, get(ready::<C>))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(on_loopback, web_pages::refused))
        .with_state(reload)
}

async fn ready<C: Clock>(State(reload): State<Arc<Reload<C>>>) -> (StatusCode, String) {
    readiness(reload.app())
}

async fn figures<C: Clock>(State(reload): State<Arc<Reload<C>>>) -> Response {
    let mut response = Response::new(Body::from(metrics::page(reload.app()).await));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
    response
}

#[derive(Serialize)]
struct Reloaded {
    policies: usize,
    warnings: Vec<String>,
}

async fn again<C: Clock>(State(reload): State<Arc<Reload<C>>>) -> Result<Response, Problem> {
    // It takes its time with a large file, and probes of this listener must be answered meanwhile.
    let loading = Arc::clone(&reload);
    let loaded = tokio::task::spawn_blocking(move || loading.now("on request")).await;
    match loaded.unwrap_or_else(|_| Err(vec!["loading it ended in a panic; the log says why".to_owned()])) {
        Ok(warnings) => {
            let policies = reload.app().engine.policies().iter().len();
            Ok(json(StatusCode::OK, "application/json", &Reloaded { policies, warnings }))
        }
        Err(problems) => Err(Problem::new(Code::InvalidConfig, problems.join("; "))),
    }
}

#[derive(Serialize)]
struct Top {
    heaviest: Vec<Key>,
    most_denied: Vec<Key>,
}

/// A key by its fingerprint, or as it is where `[stats] keys` says so.
#[derive(Serialize)]
struct Key {
    policy: String,
    key: String,
    /// At most so many requests, and at least so many.
    count: u64,
    at_least: u64,
}

async fn top<C: Clock>(State(reload): State<Arc<Reload<C>>>) -> Response {
    let told = |TopKey { policy, key, count, at_least, .. }| Key { policy, key, count, at_least };
    let engine = &reload.app().engine;
    let heaviest = engine.heaviest(SHOWN).into_iter().map(told).collect();
    let most_denied = engine.most_denied(SHOWN).into_iter().map(told).collect();
    json(StatusCode::OK, "application/json", &Top { heaviest, most_denied })
}

async fn not_found(uri: Uri) -> Problem {
    let path = quoted(uri.path());
    let served = format!("GET {METRICS}, GET {TOP}, POST {RELOAD}, GET {LIVE} and GET {READY}");
    Problem::new(Code::NotFound, format!("{path} is not served here; {served} are"))
}
