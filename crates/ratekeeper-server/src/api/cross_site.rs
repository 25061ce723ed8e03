//! Rejects cross-origin requests of web pages, which a browser near this service would send to it.

use super::problem::{Code, Problem, quoted};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use axum::http::uri::Authority;
use axum::middleware::Next;
use axum::response::Response;
use std::net::IpAddr;

/// The header in which browsers describe the origin of a request.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Middleware that rejects cross-origin requests and, on loopback, requests of web pages to unknown
/// host names.
pub(super) async fn reject(
    State(on_loopback): State<bool>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let headers = request.headers();
    check(request.method(), headers)?;
    // Programs may use any name for this machine.
    if on_loopback && headers.contains_key(ORIGIN) {
        check_host(headers)?;
    }
    Ok(next.run(request).await)
}

/// Rejects cross-origin requests by `Origin` and `Sec-Fetch-Site`, which browsers send with every
/// request that can change state.
pub(crate) fn check(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name: &HeaderName| {
        headers
            .get(name)
            .map(|value| String::from_utf8_lossy(value.as_bytes()))
    };
    let host = text(&HOST);
    let is_other = |origin: &str| {
        let own = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        !own.zip(host.as_deref())
            .is_some_and(|(own, host)| own.eq_ignore_ascii_case(host))
    };
    // Following a link to the page (GET) is safe; other requests of another site may not be.
    let is_cross_site = text(&SITE).is_some_and(|site| !matches!(&*site, "same-origin" | "none"));
    if text(&ORIGIN).is_some_and(|origin| is_other(&origin))
        || is_cross_site && method != Method::GET
    {
        let detail = "cross-origin request rejected; use the page of this listener, or a program such as curl";
        return Err(Problem::new(Code::Forbidden, detail));
    }
    Ok(())
}

/// Rejects on loopback a `Host` other than an address or `localhost`, against DNS rebinding.
pub(crate) fn check_host(headers: &HeaderMap) -> Result<(), Problem> {
    match headers
        .get(HOST)
        .map(|host| String::from_utf8_lossy(host.as_bytes()))
    {
        Some(host) if !is_of_this_machine(&host) => {
            let host = quoted(&host);
            let detail = format!(
                "unknown host {host} for a loopback listener; use localhost or its address"
            );
            Err(Problem::new(Code::Forbidden, detail))
        }
        _ => Ok(()),
    }
}

/// Whether a host is an IP address or `localhost`, which DNS rebinding cannot use.
fn is_of_this_machine(host: &str) -> bool {
    let Ok(host) = host.parse::<Authority>() else {
        return false;
    };
    let name = host.host().trim_matches(['[', ']']);
    name.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn addresses_and_localhost_are_of_this_machine() {
        for host in [
            "localhost",
            "LOCALHOST:9090",
            "127.0.0.1:9090",
            "[::1]",
            "[::1]:9090",
            "10.0.0.1",
        ] {
            assert!(is_of_this_machine(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example:9090",
            "127.0.0.1.evil.example",
            "a b",
        ] {
            assert!(!is_of_this_machine(host), "{host}");
        }
    }

    #[test]
    fn only_pages_of_this_origin_are_allowed() {
        let is_allowed =
            |method: &Method, headers: &[(&'static str, &'static str)], on_loopback| {
                let headers = headers
                    .iter()
                    .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
                let headers = headers.collect();
                check(method, &headers).is_ok() && !(on_loopback && check_host(&headers).is_err())
            };
        let own = [
            ("host", "127.0.0.1:9090"),
            ("origin", "http://127.0.0.1:9090"),
        ];
        assert!(is_allowed(&Method::POST, &own, true));
        assert!(is_allowed(
            &Method::POST,
            &[own[0], own[1], ("sec-fetch-site", "same-origin")],
            true
        ));
        assert!(is_allowed(
            &Method::POST,
            &[("host", "Gate.example"), ("origin", "https://gate.example")],
            false
        ));
        assert!(
            is_allowed(
                &Method::GET,
                &[own[0], ("sec-fetch-site", "cross-site")],
                true
            ),
            "a link to the page"
        );
        for (headers, why) in [
            (
                &[own[0], ("origin", "http://127.0.0.1:8080")][..],
                "another port is another origin",
            ),
            (&[own[0], ("origin", "http://evil.example")], "another site"),
            (
                &[own[0], ("origin", "null")],
                "a page in a frame without an origin",
            ),
            (&[("origin", "http://127.0.0.1:9090")], "no Host"),
            (
                &[own[0], ("sec-fetch-site", "cross-site")],
                "a form of another site",
            ),
            (
                &[own[0], ("sec-fetch-site", "same-site")],
                "another port of this machine",
            ),
            (
                &[
                    ("host", "evil.example:9090"),
                    ("origin", "http://evil.example:9090"),
                ],
                "DNS rebinding",
            ),
        ] {
            assert!(!is_allowed(&Method::POST, headers, true), "{why}");
        }
    }
}
