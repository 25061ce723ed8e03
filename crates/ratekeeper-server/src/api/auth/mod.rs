//! Forward-auth: decisions for other proxies.
//!
//! | path | for | the request is in | a denial is |
//! | --- | --- | --- | --- |
//! | `/auth/nginx` | `auth_request` | `X-Original-Method`, `X-Original-URI`, `X-Real-IP`, `Host` | 403, and `X-RateLimit-Status: 429` |
//! | `/auth/caddy` | `forward_auth` | `X-Forwarded-Method`, `-Uri`, `-Host`, `-For` | 429, which the client gets unchanged |
//! | `/auth/traefik` | `forwardAuth` | the same | 429, the same |
//! | `/auth/envoy…` | `ext_authz` over HTTP | its own method and `Host`, the path behind the prefix, `X-Forwarded-For` | 429, the same |
//!
//! A denial with another status, such as 503, becomes one that the proxy does not treat as a
//! failure of ratekeeper ([`Proxy::status`]); `X-RateLimit-Status` has the original status.
//!
//! Only the path selects the proxy: it is in the operator's configuration, and a client cannot
//! cause one of the first three. The query of the first three is ignored, since Caddy appends the
//! client's.

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

/// The prefix of all forward-auth paths.
const AUTH: &str = "/auth";

/// The available paths, for error messages.
pub(super) const PATHS: &str = "/auth/nginx, /auth/caddy, /auth/traefik, /auth/envoy";

/// The header with the original status of a denial.
const STATUS: HeaderName = HeaderName::from_static("x-ratelimit-status");

/// The calling proxy. Each one sets different headers, and overwrites the client's values of those
/// only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Proxy {
    Nginx,
    Caddy,
    Traefik,
    Envoy,
}

impl Proxy {
    /// The path of this proxy; for Envoy the path prefix.
    const fn path(self) -> &'static str {
        match self {
            Self::Nginx => "/auth/nginx",
            Self::Caddy => "/auth/caddy",
            Self::Traefik => "/auth/traefik",
            Self::Envoy => "/auth/envoy",
        }
    }

    /// The status to send in place of one that would make the proxy fail or, configured as in
    /// docs/deploy, allow the request.
    fn status(self, status: StatusCode) -> StatusCode {
        match self {
            // It accepts 401 and 403 only.
            Self::Nginx => StatusCode::FORBIDDEN,
            // It treats any 5xx as a failure, which `failure_mode_allow` allows.
            Self::Envoy if status.is_server_error() => StatusCode::TOO_MANY_REQUESTS,
            // So does the snippet in docs/deploy with the status of a timeout.
            Self::Traefik if status == StatusCode::GATEWAY_TIMEOUT => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Caddy | Self::Traefik | Self::Envoy => status,
        }
    }

    /// Converts a denial into one that this proxy understands.
    fn denial(self, mut response: Response) -> Response {
        let status = response.status();
        let proxy_status = self.status(status);
        if proxy_status != status {
            response
                .headers_mut()
                .insert(STATUS, HeaderValue::from(status.as_u16()));
            *response.status_mut() = proxy_status;
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
        .trace(reject_trace)
    };
    let prefix = Proxy::Envoy.path();
    // `{*path}` does not match an empty path.
    [Proxy::Nginx, Proxy::Caddy, Proxy::Traefik, Proxy::Envoy]
        .into_iter()
        .fold(Router::new(), |router, proxy| {
            router.route(proxy.path(), route(proxy))
        })
        .route(&format!("{prefix}/"), route(Proxy::Envoy))
        .route(&format!("{prefix}/{{*path}}"), route(Proxy::Envoy))
}

/// The problem for an unknown path below `/auth`.
pub(super) fn not_found(path: &str) -> Option<Problem> {
    let below = path.strip_prefix(AUTH)?;
    let detail = || {
        let path = quoted(path);
        format!("no such path: {path}; available: {PATHS} (the path prefix of ext_authz)")
    };
    (below.is_empty() || below.starts_with('/')).then(|| Problem::new(Code::NotFound, detail()))
}

/// Rejects TRACE, which would return headers that the proxy added. No proxy uses it.
async fn reject_trace(uri: Uri) -> (HeaderMap, Problem) {
    let allow = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    let headers = HeaderMap::from_iter([(ALLOW, allow)]);
    (headers, wrong_method(Method::TRACE, uri).await)
}

async fn decide<C: Clock>(app: &App<C>, proxy: Proxy, mut request: Request<Body>) -> Response {
    app.note_forward_auth();
    let identity = app.identity.load();
    if let Some(user) = UserHeader::of(&identity) {
        // The peer is the proxy, not its client.
        user.strip(peer(request.extensions()), request.headers_mut());
    }
    let original = match original::request(proxy, &identity.header, request) {
        Ok(original) => original,
        Err(OriginalError::Client(problem)) => return proxy.denial(problem.into_response()),
        Err(OriginalError::Setup(problem)) => {
            // nginx does not log the response body.
            tracing::warn!("{} cannot decide: {}", proxy.path(), problem.detail());
            return problem.into_response();
        }
    };
    let mut service = app.layer.load().layer(AlwaysOk);
    // The inner service is always ready.
    let Ok(response) = service.call(original).await;
    let response = response.map(Body::new);
    if response.status().is_success() {
        response
    } else {
        proxy.denial(response)
    }
}

/// The inner service, called for allowed requests.
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
