//! The original request, rebuilt from the headers of the proxy.
//!
//! For each proxy only one family of headers is read: those that its configuration in docs/deploy
//! sets or that it always sets. Other headers of this kind come from the client and are not read.

use super::Proxy;
use crate::api::problem::{Code, Problem};
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Uri, header};
use ratekeeper_tower::{identity::Forwarding, identity::PeerAddr};
use std::net::{IpAddr, SocketAddr};

/// The reason why a request cannot be decided on.
pub(super) enum OriginalError {
    /// The proxy is not configured correctly.
    Setup(Problem),
    /// The request of the client is malformed.
    Client(Problem),
}

/// A header that a proxy must set, and how to configure that.
struct ProxyHeader {
    name: &'static str,
    setup: &'static str,
}

/// The headers in which a proxy describes a request.
struct HeaderFamily {
    method: ProxyHeader,
    target: ProxyHeader,
}

const NGINX: HeaderFamily = HeaderFamily {
    method: ProxyHeader {
        name: "x-original-method",
        setup: "add `proxy_set_header X-Original-Method $request_method;` to the location that asks",
    },
    target: ProxyHeader {
        name: "x-original-uri",
        setup: "add `proxy_set_header X-Original-URI $request_uri;` to the location that asks",
    },
};

const NGINX_IP: ProxyHeader = ProxyHeader {
    name: "x-real-ip",
    setup: "add `proxy_set_header X-Real-IP $remote_addr;` to the location that asks",
};

const CADDY: HeaderFamily = HeaderFamily {
    method: ProxyHeader {
        name: "x-forwarded-method",
        setup: "use `forward_auth`, which sets it, or add `header_up X-Forwarded-Method {method}`",
    },
    target: ProxyHeader {
        name: "x-forwarded-uri",
        setup: "use `forward_auth`, which sets it, or add `header_up X-Forwarded-Uri {uri}`",
    },
};

const TRAEFIK: HeaderFamily = HeaderFamily {
    method: ProxyHeader {
        name: "x-forwarded-method",
        setup: "use the middleware `forwardAuth`, which sets it",
    },
    target: ProxyHeader {
        name: "x-forwarded-uri",
        setup: "use the middleware `forwardAuth`, which sets it",
    },
};

/// The original request. `identity_header` is the configured forwarding header.
pub(super) fn request(
    proxy: Proxy,
    identity_header: &str,
    auth_request: Request<Body>,
) -> Result<Request<()>, OriginalError> {
    let (mut parts, _) = auth_request.into_parts();
    let headers = &mut parts.headers;
    let family = match proxy {
        Proxy::Nginx => Some(&NGINX),
        Proxy::Caddy => Some(&CADDY),
        Proxy::Traefik => Some(&TRAEFIK),
        // Its request is the client's with a prefix.
        Proxy::Envoy => None,
    };
    if let Some(family) = family {
        parts.method = method(proxy, headers, &family.method)?;
        parts.uri = target(only(proxy, headers, &family.target)?.as_bytes())?;
    } else {
        parts.uri = without_prefix(proxy, &parts.uri)?;
    }
    if matches!(proxy, Proxy::Caddy | Proxy::Traefik) {
        forwarded_host(headers);
    }
    let peer = match proxy {
        Proxy::Nginx => real_ip(proxy, headers)?,
        Proxy::Caddy => last_hop(
            proxy,
            headers,
            "use `forward_auth`, which sets it; on a Unix socket also `trusted_proxies`",
        )?,
        Proxy::Traefik => last_hop(
            proxy,
            headers,
            "use the middleware `forwardAuth`, which sets it",
        )?,
        Proxy::Envoy => last_hop(
            proxy,
            headers,
            "add `use_remote_address: true` to the connection manager, and `{ exact: x-forwarded-for }` to `allowed_headers` \
             of the filter",
        )?,
    };
    // Forwarding headers left are the client's, unless the configuration reads them.
    for name in Forwarding::known()
        .iter()
        .filter(|name| !identity_header.eq_ignore_ascii_case(name.as_str()))
    {
        headers.remove(name);
    }
    // Replaces the peer of the connection, which is the proxy.
    parts.extensions.insert(PeerAddr(SocketAddr::new(peer, 0)));
    Ok(Request::from_parts(parts, ()))
}

/// The value of a header that must be there once.
fn only<'a>(
    proxy: Proxy,
    headers: &'a HeaderMap,
    header: &ProxyHeader,
) -> Result<&'a HeaderValue, OriginalError> {
    let mut values = headers.get_all(header.name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(value),
        (None, _) => Err(setup_error(proxy, header, "is missing")),
        // One of them is the client's.
        (Some(_), Some(_)) => Err(setup_error(
            proxy,
            header,
            "appeared twice; the proxy must overwrite the client's",
        )),
    }
}

fn method(
    proxy: Proxy,
    headers: &HeaderMap,
    header: &ProxyHeader,
) -> Result<Method, OriginalError> {
    let value = only(proxy, headers, header)?;
    Method::from_bytes(value.as_bytes()).map_err(|_| setup_error(proxy, header, "is not a method"))
}

/// The path and query of a request target, which may be an absolute URL.
fn target(target: &[u8]) -> Result<Uri, OriginalError> {
    // The parser would drop a fragment, which the upstream treats as a part of the path.
    if target.contains(&b'#') {
        return Err(malformed());
    }
    let uri = Uri::try_from(target).map_err(|_| malformed())?;
    uri.path_and_query()
        .cloned()
        .map(Uri::from)
        .ok_or_else(malformed)
}

/// The request target that Envoy appended to its prefix.
fn without_prefix(proxy: Proxy, uri: &Uri) -> Result<Uri, OriginalError> {
    let full = uri.path_and_query().map_or("", |path| path.as_str());
    let rest = full.strip_prefix(proxy.path()).unwrap_or(full);
    if rest.starts_with('/') {
        target(rest.as_bytes())
    } else {
        target(format!("/{rest}").as_bytes())
    }
}

/// Replaces `Host` by the client's. Without one ratekeeper's own stays, since policies that count
/// by host would not apply without any.
fn forwarded_host(headers: &mut HeaderMap) {
    if let Some(host) = headers
        .get("x-forwarded-host")
        .filter(|host| !host.is_empty())
        .cloned()
    {
        headers.insert(header::HOST, host);
    }
}

/// The client address from nginx. The header is removed: policies do not know it.
fn real_ip(proxy: Proxy, headers: &mut HeaderMap) -> Result<IpAddr, OriginalError> {
    let value = only(proxy, headers, &NGINX_IP)?;
    let ip = value.to_str().ok().and_then(|ip| ip.trim().parse().ok());
    let ip = ip.ok_or_else(|| {
        setup_error(
            proxy,
            &NGINX_IP,
            "is not an IP address (on a Unix socket nginx has none: see `set_real_ip_from`)",
        )
    })?;
    headers.remove(NGINX_IP.name);
    Ok(ip)
}

/// The client address that a proxy appends to `X-Forwarded-For`. Addresses before it come from the
/// client.
fn last_hop(
    proxy: Proxy,
    headers: &mut HeaderMap,
    setup: &'static str,
) -> Result<IpAddr, OriginalError> {
    let header = ProxyHeader {
        name: "x-forwarded-for",
        setup,
    };
    Forwarding::XForwardedFor.take_last(headers).ok_or_else(|| {
        if headers.contains_key(header.name) {
            setup_error(proxy, &header, "does not end with an IP address")
        } else {
            setup_error(proxy, &header, "is missing")
        }
    })
}

fn setup_error(proxy: Proxy, header: &ProxyHeader, fault: &str) -> OriginalError {
    let ProxyHeader { name, setup } = header;
    OriginalError::Setup(Problem::new(
        Code::BadTarget,
        format!(
            "the header {name}, which {} needs, {fault}: {setup} (see docs/deploy)",
            proxy.path()
        ),
    ))
}

fn malformed() -> OriginalError {
    let detail =
        "the path of the request is malformed; percent-encode characters not allowed in a URL";
    OriginalError::Client(Problem::new(Code::BadTarget, detail))
}
