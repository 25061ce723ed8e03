//! `/auth`: another proxy asks whether to let a request through, and tells which one in headers.
//!
//! | asked by | the request is in | a denial is |
//! | --- | --- | --- |
//! | Traefik, Caddy: `/auth` | `X-Forwarded-Method`, `-Host`, `-Uri`, `-For` | 429, which goes to the client as it is |
//! | nginx: `/auth?deny=403` | `X-Original-Method`, `X-Original-URI` or `-URL`, `X-Real-IP` | 403, and `X-RateLimit-Status: 429` |
//! | Envoy's ext_authz: `/auth` as its path prefix | its own method and path, behind the prefix | 429 |
//!
//! One family of headers is read and the other is not: whoever sets one passes on what a client sends of the other.

use super::problem::{Code, Problem};
use crate::app::App;
use crate::user_header::UserHeader;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use tollgate::Clock;
use tollgate_tower::{PeerAddr, peer};
use tower_layer::Layer;
use tower_service::Service;

/// Where it is served, and where Envoy puts the path of a request behind it.
pub(super) const AUTH: &str = "/auth";
pub(super) const AUTH_PREFIX: &str = "/auth/{*path}";

/// What the status of a denial was before it became a 403.
const STATUS: HeaderName = HeaderName::from_static("x-ratelimit-status");

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

pub(super) async fn auth<C: Clock>(State(app): State<Arc<App<C>>>, request: Request<Body>) -> Response {
    match decide(&app, request).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

async fn decide<C: Clock>(app: &App<C>, mut request: Request<Body>) -> Result<Response, Problem> {
    let asked = Asked::by(&request)?;
    if let Some(user) = UserHeader::of(&app.identity.load()) {
        // The peer is the proxy that asks: whom it asks about is no peer of ours.
        user.strip(peer(request.extensions()), request.headers_mut());
    }
    let original = asked.original(request)?;
    let mut service = app.layer.load().layer(Passes);
    // The inner one is always ready.
    let Ok(response) = service.call(original).await;
    let mut response = response.map(Body::new);
    if asked == Asked::Nginx && !response.status().is_success() {
        let status = response.status();
        response.headers_mut().insert(STATUS, HeaderValue::from(status.as_u16()));
        *response.status_mut() = StatusCode::FORBIDDEN;
    }
    Ok(response)
}

/// Who asks, which says where the request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Forwarded,
    Nginx,
    Envoy,
}

impl Asked {
    fn by(request: &Request<Body>) -> Result<Self, Problem> {
        if request.uri().path() != AUTH {
            return Ok(Self::Envoy);
        }
        match request.uri().query() {
            None | Some("") => Ok(Self::Forwarded),
            Some("deny=403") => Ok(Self::Nginx),
            Some(_) => Err(Problem::new(
                Code::BadTarget,
                format!("{AUTH} is asked with no query, or with ?deny=403 where nginx asks"),
            )),
        }
    }

    /// The request that is asked about.
    fn original(self, request: Request<Body>) -> Result<Request<()>, Problem> {
        let (mut parts, _) = request.into_parts();
        let said = |name: &'static str| parts.headers.get(name);
        let (method, target, host) = match self {
            Self::Forwarded => (said("x-forwarded-method"), said("x-forwarded-uri"), said("x-forwarded-host")),
            Self::Nginx => (said("x-original-method"), said("x-original-uri").or_else(|| said("x-original-url")), None),
            Self::Envoy => (None, None, None),
        };
        let method = match method {
            Some(method) => Method::from_bytes(method.as_bytes()).map_err(|_| unreadable("method"))?,
            // Traefik and Caddy ask with GET whatever the method was, and say it; Envoy asks with the request's own.
            None => parts.method.clone(),
        };
        let uri = match (self, target) {
            (Self::Envoy, _) => behind_prefix(&parts.uri)?,
            (_, Some(target)) => path_of(target).ok_or_else(|| unreadable("path"))?,
            (Self::Forwarded, None) => return Err(missing("X-Forwarded-Uri, as Traefik and Caddy do")),
            (Self::Nginx, None) => {
                return Err(missing("X-Original-URI: proxy_set_header X-Original-URI $request_uri;"));
            }
        };
        let host = host.cloned();
        let peer = match self {
            Self::Nginx => {
                let peer = said("x-real-ip").and_then(|ip| ip.to_str().ok()?.trim().parse().ok());
                Some(peer.ok_or_else(|| missing("X-Real-IP: proxy_set_header X-Real-IP $remote_addr;"))?)
            }
            Self::Forwarded | Self::Envoy => take_last_hop(&mut parts.headers),
        };
        if let Some(host) = host {
            parts.headers.insert(header::HOST, host);
        }
        // It was this connection's.
        parts.extensions.remove::<PeerAddr>();
        if let Some(peer) = peer {
            parts.extensions.insert(PeerAddr(SocketAddr::new(peer, 0)));
        }
        (parts.method, parts.uri) = (method, uri);
        Ok(Request::from_parts(parts, ()))
    }
}

/// The path of a request, which may come as a whole address.
fn path_of(target: &HeaderValue) -> Option<Uri> {
    let uri = Uri::try_from(target.as_bytes()).ok()?;
    uri.path_and_query().cloned().map(Uri::from)
}

/// The path that Envoy put behind its prefix.
fn behind_prefix(uri: &Uri) -> Result<Uri, Problem> {
    let whole = uri.path_and_query().map_or("", |path| path.as_str());
    let path = whole.strip_prefix(AUTH).unwrap_or(whole);
    path.parse().map_err(|_| unreadable("path"))
}

/// Who was at the other end of the proxy's connection: the proxy put it last. What is before it came from there.
fn take_last_hop(headers: &mut HeaderMap) -> Option<IpAddr> {
    let lines: Vec<HeaderValue> = headers.get_all(FORWARDED_FOR).iter().cloned().collect();
    let all = lines.iter().filter_map(|line| line.to_str().ok()).collect::<Vec<_>>().join(", ");
    let (before, last) = all.rsplit_once(',').unwrap_or(("", &all));
    let last: IpAddr = last.trim().parse().ok()?;
    headers.remove(FORWARDED_FOR);
    if let (false, Ok(before)) = (before.trim().is_empty(), HeaderValue::from_str(before.trim())) {
        headers.insert(FORWARDED_FOR, before);
    }
    Some(last)
}

fn unreadable(what: &str) -> Problem {
    Problem::new(Code::BadTarget, format!("the {what} of the request that is asked about cannot be read"))
}

fn missing(header: &str) -> Problem {
    Problem::new(Code::BadTarget, format!("nobody says which request is asked about; have the proxy send {header}"))
}

/// Stands where the service would be: what comes this far passes.
#[derive(Clone, Copy)]
struct Passes;

impl Service<Request<()>> for Passes {
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
