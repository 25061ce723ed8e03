//! The admin listener: metrics, status, the live page, and the API for bans, overrides and other
//! operator actions.

pub(crate) mod audit;
mod cross_site;
mod doctor;
mod explain;
pub(crate) mod fleet;
mod key_actions;
mod key_selection;
mod overload;
pub(crate) mod overrides;
mod page;
mod playground;
mod query;
pub(crate) mod shadow;
pub(crate) mod status;
mod stream;
pub(crate) mod top;
mod writes;

pub(crate) use status::{PolicyStatus, RuleStatus, ServerStatus, Totals};
pub(crate) use top::{Key, Top};

use crate::api::{Code, LIVE, Problem, READY, json, liveness, quoted, readiness, wrong_method};
use crate::app::App;
use crate::config::{KeyDisplay, Secret};
use crate::observe::metrics as exporter;
use crate::run::reload::Reload;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{StatusCode, Uri};
use axum::middleware;
use axum::response::Response;
use axum::routing::{get, post};
use fleet::Fleet;
use ratekeeper::{Clock, Store, Timestamp};
use std::sync::Arc;
use tokio::sync::watch;
use writes::Verb;

const METRICS: &str = "/metrics";
const STATUS: &str = "/admin/status";
const STREAM: &str = "/admin/stream";
const TOP: &str = "/admin/top";
const OVERRIDES: &str = "/admin/overrides";
const SHADOW: &str = "/admin/shadow";
const AUDIT: &str = "/admin/audit";
const DOCTOR: &str = crate::commands::doctor::PATH;
const EXPLAIN: &str = "/admin/explain";
const PLAYGROUND: &str = "/admin/playground";

/// The state of the admin listener.
pub(crate) struct Admin<C: Clock> {
    reload: Arc<Reload<C>>,
    options: Options,
    started: Timestamp,
    /// Open event streams.
    streams: stream::EventStreams,
    /// The other nodes, if the store is shared.
    fleet: Option<Arc<Fleet<C>>>,
}

/// Settings of the admin listener.
pub(crate) struct Options {
    /// Whether it listens on loopback.
    pub(crate) on_loopback: bool,
    /// The token that changes require.
    pub(crate) token: Option<Secret>,
    /// How keys are displayed.
    pub(crate) keys: KeyDisplay,
    /// Becomes true on shutdown.
    pub(crate) stopped: watch::Receiver<bool>,
}

impl<C: Clock> Admin<C> {
    pub(crate) fn new(
        reload: Arc<Reload<C>>,
        fleet: Option<Arc<Fleet<C>>>,
        options: Options,
    ) -> Arc<Self> {
        let started = reload.app().engine.store().now();
        Arc::new(Self {
            reload,
            options,
            started,
            streams: stream::EventStreams::default(),
            fleet,
        })
    }

    fn app(&self) -> &App<C> {
        self.reload.app()
    }
}

pub(crate) fn router<C: Clock>(admin: Arc<Admin<C>>) -> Router {
    let mut router = Router::new()
        .route(METRICS, get(metrics::<C>))
        .route(STATUS, get(status::status::<C>))
        .route(STREAM, get(stream::stream::<C>))
        .route(TOP, get(top::top::<C>))
        .route(OVERRIDES, get(overrides::overrides::<C>))
        .route(SHADOW, get(shadow::shadow::<C>))
        .route(AUDIT, get(audit_log::<C>))
        .route(DOCTOR, get(doctor::doctor::<C>))
        .route(EXPLAIN, post(explain::explain::<C>))
        .route(PLAYGROUND, post(playground::playground))
        .route(LIVE, get(live::<C>))
        .route(READY, get(ready::<C>))
        .merge(page::routes());
    for verb in Verb::ALL {
        router = router.route(
            verb.path(),
            post(move |admin, request| writes::write::<C>(admin, verb, request)),
        );
    }
    router
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(
            Arc::clone(&admin),
            cross_site::reject_cross_site::<C>,
        ))
        .with_state(admin)
}

async fn live<C: Clock>(State(admin): State<Arc<Admin<C>>>) -> (StatusCode, String) {
    liveness(admin.app())
}

async fn ready<C: Clock>(State(admin): State<Arc<Admin<C>>>) -> (StatusCode, String) {
    readiness(admin.app())
}

async fn metrics<C: Clock>(State(admin): State<Arc<Admin<C>>>) -> Response {
    let mut response = Response::new(Body::from(exporter::page(admin.app()).await));
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static(exporter::CONTENT_TYPE),
    );
    response
}

async fn audit_log<C: Clock>(
    State(admin): State<Arc<Admin<C>>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let count = query::count(&uri, 100, 2 * audit::MAX_ENTRIES)?;
    Ok(no_store_json(&admin.app().audit.newest(count)))
}

/// A JSON response that caches must not store.
fn no_store_json(body: &impl serde::Serialize) -> Response {
    let mut response = json(StatusCode::OK, "application/json", body);
    response.headers_mut().insert(
        axum::http::header::CACHE_CONTROL,
        HeaderValue::from_static("no-store"),
    );
    response
}

async fn not_found(uri: Uri) -> Problem {
    let path = quoted(uri.path());
    let reads = [
        page::PAGE,
        METRICS,
        STATUS,
        STREAM,
        TOP,
        OVERRIDES,
        SHADOW,
        AUDIT,
        DOCTOR,
        LIVE,
        READY,
    ];
    let reads = reads.map(|path| format!("GET {path}")).join(", ");
    let writes = Verb::ALL
        .map(|verb| format!("POST {}", verb.path()))
        .join(", ");
    Problem::new(
        Code::NotFound,
        format!(
            "no such path: {path}; available: {reads}, POST {EXPLAIN}, POST {PLAYGROUND}, {writes}"
        ),
    )
}
