//! The original request: the one that a proxy asks about, rebuilt from what the proxy says of it.
//!
//! Each proxy is read by the one family of headers that its configuration in docs/deploy sets or
//! that it always sets itself. Whatever else has the form of such a header came from the client,
//! and is not read.

use super::Proxy;
use crate::api::problem::{Code, Problem};
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Uri, header};
use ratekeeper_tower::{identity::Forwarding, identity::PeerAddr};
use std::net::{IpAddr, SocketAddr};

/// The reason why a request cannot be decided on.
pub(super) enum OriginalError {
    /// The proxy is not set up as it has to be.
    Setup(Problem),
    /// The client sent what no server should accept.
    Client(Problem),
}

/// A header that a proxy sets, and the line of its configuration that makes it do so.
struct Setting {
    name: &'static str,
    line: &'static str,
}

/// Headers in which a proxy describes a request.
struct Family {
    method: Setting,
    target: Setting,
}

const NGINX: Family = Family {
    method: Setting {
        name: "x-original-method",
        line: "add `proxy_set_header X-Original-Method $request_method;` to the location that asks",
    },
    target: Setting {
        name: "x-original-uri",
        line: "add `proxy_set_header X-Original-URI $request_uri;` to the location that asks",
    },
};

const NGINX_IP: Setting = Setting {
    name: "x-real-ip",
    line: "add `proxy_set_header X-Real-IP $remote_addr;` to the location that asks",
};

const CADDY: Family = Family {
    method: Setting {
        name: "x-forwarded-method",
        line: "use `forward_auth`, which sets it, or add `header_up X-Forwarded-Method {method}`",
    },
    target: Setting {
        name: "x-forwarded-uri",
        line: "use `forward_auth`, which sets it, or add `header_up X-Forwarded-Uri {uri}`",
    },
};

const TRAEFIK: Family = Family {
    method: Setting {
        name: "x-forwarded-method",
        line: "use the middleware `forwardAuth`, which sets it",
    },
    target: Setting {
        name: "x-forwarded-uri",
        line: "use the middleware `forwardAuth`, which sets it",
    },
};

/// The request that `proxy` asks about. `identity_header` is the forwarding header that the
/// configuration reads.
pub(super) fn request(
    proxy: Proxy,
    identity_header: &str,
    asked: Request<Body>,
) -> Result<Request<()>, OriginalError> {
    let (mut parts, _) = asked.into_parts();
    let headers = &mut parts.headers;
    let family = match proxy {
        Proxy::Nginx => Some(&NGINX),
        Proxy::Caddy => Some(&CADDY),
        Proxy::Traefik => Some(&TRAEFIK),
        // Its request is that of the client, but for the prefix.
        Proxy::Envoy => None,
    };
    if let Some(family) = family {
        parts.method = method(proxy, headers, &family.method)?;
        parts.uri = target(only(proxy, headers, &family.target)?.as_bytes())?;
    } else {
        parts.uri = behind_prefix(proxy, &parts.uri)?;
    }
    if matches!(proxy, Proxy::Caddy | Proxy::Traefik) {
        forwarded_host(headers);
    }
    let peer = match proxy {
        Proxy::Nginx => real_ip(proxy, headers)?,
        Proxy::Caddy => last_hop(
            proxy,
            headers,
            "use `forward_auth`, which sets it; behind a Unix socket also `trusted_proxies`",
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
    // What is left of them is the client's own, unless the configuration names it.
    for name in Forwarding::known()
        .iter()
        .filter(|name| !identity_header.eq_ignore_ascii_case(name.as_str()))
    {
        headers.remove(name);
    }
    // That of the connection was the proxy's.
    parts.extensions.insert(PeerAddr(SocketAddr::new(peer, 0)));
    Ok(Request::from_parts(parts, ()))
}

/// The only value of a header that the proxy sets.
fn only<'a>(
    proxy: Proxy,
    headers: &'a HeaderMap,
    header: &Setting,
) -> Result<&'a HeaderValue, OriginalError> {
    let mut values = headers.get_all(header.name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(value),
        (None, _) => Err(setup(proxy, header, "is missing")),
        // One of them is the client's.
        (Some(_), Some(_)) => Err(setup(
            proxy,
            header,
            "came twice; the proxy has to overwrite that of the client",
        )),
    }
}

fn method(proxy: Proxy, headers: &HeaderMap, header: &Setting) -> Result<Method, OriginalError> {
    let value = only(proxy, headers, header)?;
    Method::from_bytes(value.as_bytes()).map_err(|_| setup(proxy, header, "is no method"))
}

/// The path and query of a request target, which may come as a whole URL.
fn target(target: &[u8]) -> Result<Uri, OriginalError> {
    // The parser would leave out a fragment, which the service behind the proxy takes for a part of
    // the path.
    if target.contains(&b'#') {
        return Err(unreadable());
    }
    let uri = Uri::try_from(target).map_err(|_| unreadable())?;
    uri.path_and_query()
        .cloned()
        .map(Uri::from)
        .ok_or_else(unreadable)
}

/// The request target that Envoy appended to its prefix.
fn behind_prefix(proxy: Proxy, uri: &Uri) -> Result<Uri, OriginalError> {
    let whole = uri.path_and_query().map_or("", |path| path.as_str());
    let rest = whole.strip_prefix(proxy.path()).unwrap_or(whole);
    if rest.starts_with('/') {
        target(rest.as_bytes())
    } else {
        target(format!("/{rest}").as_bytes())
    }
}

/// Puts the host that the client asked for in place of ratekeeper's own, which stays if the client
/// named none: without any, policies that count by host would not apply.
fn forwarded_host(headers: &mut HeaderMap) {
    if let Some(host) = headers
        .get("x-forwarded-host")
        .filter(|host| !host.is_empty())
        .cloned()
    {
        headers.insert(header::HOST, host);
    }
}

/// The client of nginx. Its header is removed: to the policies it is no forwarding header.
fn real_ip(proxy: Proxy, headers: &mut HeaderMap) -> Result<IpAddr, OriginalError> {
    let value = only(proxy, headers, &NGINX_IP)?;
    let ip = value.to_str().ok().and_then(|ip| ip.trim().parse().ok());
    let ip = ip.ok_or_else(|| {
        setup(
            proxy,
            &NGINX_IP,
            "is no IP address (over a Unix socket nginx has none: see `set_real_ip_from`)",
        )
    })?;
    headers.remove(NGINX_IP.name);
    Ok(ip)
}

/// The client of a proxy that appends it to `X-Forwarded-For`. What is before it came from there.
fn last_hop(
    proxy: Proxy,
    headers: &mut HeaderMap,
    line: &'static str,
) -> Result<IpAddr, OriginalError> {
    let header = Setting {
        name: "x-forwarded-for",
        line,
    };
    Forwarding::XForwardedFor.take_last(headers).ok_or_else(|| {
        match headers.contains_key(header.name) {
            true => setup(proxy, &header, "does not end with an IP address"),
            false => setup(proxy, &header, "is missing"),
        }
    })
}

fn setup(proxy: Proxy, header: &Setting, wrong: &str) -> OriginalError {
    let Setting { name, line } = header;
    OriginalError::Setup(Problem::new(
        Code::BadTarget,
        format!(
            "the header {name}, which {} needs, {wrong}: {line} (see docs/deploy)",
            proxy.path()
        ),
    ))
}

fn unreadable() -> OriginalError {
    let detail =
        "the path of the request is malformed; percent-encode what is not allowed in a URL";
    OriginalError::Client(Problem::new(Code::BadTarget, detail))
}
