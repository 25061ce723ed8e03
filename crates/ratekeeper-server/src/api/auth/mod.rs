//! Forward-auth: another proxy asks whether to let a request through.
//!
//! | path | asked by | the request is in | a denial is |
//! | --- | --- | --- | --- |
//! | `/auth/nginx` | `auth_request` | `X-Original-Method`, `X-Original-URI`, `X-Real-IP`, `Host` | 403, and `X-RateLimit-Status: 429` |
//! | `/auth/caddy` | `forward_auth` | `X-Forwarded-Method`, `-Uri`, `-Host`, `-For` | 429, which the client gets as it is |
//! | `/auth/traefik` | `forwardAuth` | the same | 429, the same |
//! | `/auth/envoy…` | `ext_authz` over HTTP | its own method and `Host`, the path behind the prefix, `X-Forwarded-For` | 429, the same |
//!
//! A denial with another status, such as 503, is sent as one that the proxy does not take for a
//! failure of ratekeeper ([`Proxy::status`]); `X-RateLimit-Status` has the status that was meant.
//!
//! The path alone chooses the proxy: it stands in the operator's configuration, and nothing that a
//! client sends can become one of the first three. The query of the first three is ignored, since
//! Caddy appends the client's own.

mod original;

use super::problem::{Code, Problem, quoted};
use super::wrong_method;
use crate::api::user_header::UserHeader;
use crate::app::App;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::ALLOW;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use original::OriginalError;
use ratekeeper::Clock;
use ratekeeper_tower::identity::peer;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

/// Everything below it belongs to forward-auth, whether it is served or not.
const AUTH: &str = "/auth";

/// The paths that are served, as an operator reads them.
pub(super) const PATHS: &str = "/auth/nginx, /auth/caddy, /auth/traefik, /auth/envoy";

/// The status that a denial had before it became one that the proxy understands.
const STATUS: HeaderName = HeaderName::from_static("x-ratelimit-status");

/// The proxy that asks. Each one writes other headers, and overwrites what a client sent of those
/// only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Proxy {
    Nginx,
    Caddy,
    Traefik,
    Envoy,
}

impl Proxy {
    /// Its path, which is the prefix of Envoy's.
    const fn path(self) -> &'static str {
        match self {
            Self::Nginx => "/auth/nginx",
            Self::Caddy => "/auth/caddy",
            Self::Traefik => "/auth/traefik",
            Self::Envoy => "/auth/envoy",
        }
    }

    /// The status in place of one that would make the proxy fail or, as docs/deploy sets it up, let
    /// the request through.
    fn status(self, status: StatusCode) -> StatusCode {
        match self {
            // It accepts 401 and 403 only.
            Self::Nginx => StatusCode::FORBIDDEN,
            // It takes any 5xx for a failure, which `failure_mode_allow` lets through.
            Self::Envoy if status.is_server_error() => StatusCode::TOO_MANY_REQUESTS,
            // So does the snippet with the status of a timeout.
            Self::Traefik if status == StatusCode::GATEWAY_TIMEOUT => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Caddy | Self::Traefik | Self::Envoy => status,
        }
    }

    /// How a response that is not a success reaches it.
    fn denial(self, mut response: Response) -> Response {
        let status = response.status();
        let sent = self.status(status);
        if sent != status {
            response
                .headers_mut()
                .insert(STATUS, HeaderValue::from(status.as_u16()));
            *response.status_mut() = sent;
        }
        response
    }
}

/// The routes of all proxies.
pub(super) fn routes<C: Clock>() -> Router<Arc<App<C>>> {
    let route = |proxy: Proxy| {
        any(
            move |State(app): State<Arc<App<C>>>, request: Request<Body>| async move {
                decide(&app, proxy, request).await
            },
        )
        .trace(refuse_trace)
    };
    let prefix = Proxy::Envoy.path();
    // The last of these needs something behind the slash.
    [Proxy::Nginx, Proxy::Caddy, Proxy::Traefik, Proxy::Envoy]
        .into_iter()
        .fold(Router::new(), |router, proxy| {
            router.route(proxy.path(), route(proxy))
        })
        .route(&format!("{prefix}/"), route(Proxy::Envoy))
        .route(&format!("{prefix}/{{*path}}"), route(Proxy::Envoy))
}

/// The problem of a path below `/auth` that is not served.
pub(super) fn not_found(path: &str) -> Option<Problem> {
    let below = path.strip_prefix(AUTH)?;
    let detail = || {
        let path = quoted(path);
        format!(
            "{path} is not served here; a proxy asks at the path named after it: {PATHS} (the path prefix of ext_authz)"
        )
    };
    (below.is_empty() || below.starts_with('/')).then(|| Problem::new(Code::NotFound, detail()))
}

/// TRACE would tell back what a proxy added to a request: no proxy asks with it.
async fn refuse_trace(uri: Uri) -> (HeaderMap, Problem) {
    let allow = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    let headers = HeaderMap::from_iter([(ALLOW, allow)]);
    (headers, wrong_method(Method::TRACE, uri).await)
}

async fn decide<C: Clock>(app: &App<C>, proxy: Proxy, mut request: Request<Body>) -> Response {
    app.note_forward_auth();
    let identity = app.identity.load();
    if let Some(user) = UserHeader::of(&identity) {
        // The peer is the proxy that asks: the client it asks about is no peer of ours.
        user.strip(peer(request.extensions()), request.headers_mut());
    }
    let original = match original::request(proxy, &identity.header, request) {
        Ok(original) => original,
        Err(OriginalError::Client(problem)) => return proxy.denial(problem.into_response()),
        Err(OriginalError::Setup(problem)) => {
            // nginx does not show its operator what it was answered.
            tracing::warn!("{} cannot decide: {}", proxy.path(), problem.detail());
            return problem.into_response();
        }
    };
    let mut service = app.layer.load().layer(AlwaysOk);
    // The inner one is always ready.
    let Ok(response) = service.call(original).await;
    let response = response.map(Body::new);
    if response.status().is_success() {
        response
    } else {
        proxy.denial(response)
    }
}

/// The inner service: what comes this far passes.
#[derive(Clone, Copy)]
struct AlwaysOk;

impl Service<Request<()>> for AlwaysOk {
    type Response = axum::http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(Body::empty())))
    }
}
