//! Requests that web pages of other origins send: refused, because a browser that runs beside this
//! service would carry them to it.

use super::problem::{Code, Problem, quoted};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use axum::http::uri::Authority;
use axum::middleware::Next;
use axum::response::Response;
use std::net::IpAddr;

/// What browsers say of who asks, beside the origin.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Middleware for calls of programs: refuses those of web pages of other origins, and on loopback
/// of pages of another name.
pub(super) async fn refused(
    State(on_loopback): State<bool>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let headers = request.headers();
    check(request.method(), headers)?;
    // A program may know this machine by any name.
    if on_loopback && headers.contains_key(ORIGIN) {
        check_name(headers)?;
    }
    Ok(next.run(request).await)
}

/// Refuses what the page of another origin sends, by the headers that browsers send with every
/// request that is to change something.
pub(crate) fn check(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name: &HeaderName| {
        headers
            .get(name)
            .map(|value| String::from_utf8_lossy(value.as_bytes()))
    };
    let host = text(&HOST);
    let of_another = |origin: &str| {
        let own = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        !own.zip(host.as_deref())
            .is_some_and(|(own, host)| own.eq_ignore_ascii_case(host))
    };
    // Following a link to the page is no harm; anything else that another site begins may be.
    let begun_elsewhere = text(&SITE).is_some_and(|site| !matches!(&*site, "same-origin" | "none"));
    if text(&ORIGIN).is_some_and(|origin| of_another(&origin))
        || begun_elsewhere && method != Method::GET
    {
        let detail = "a web page of another origin sent this; use the page of this listener, or a program such as curl";
        return Err(Problem::new(Code::Forbidden, detail));
    }
    Ok(())
}

/// Refuses on loopback what was sent to a name of somebody else, who let it point here so that a
/// page may read the answer.
pub(crate) fn check_name(headers: &HeaderMap) -> Result<(), Problem> {
    match headers
        .get(HOST)
        .map(|host| String::from_utf8_lossy(host.as_bytes()))
    {
        Some(host) if !is_of_this_machine(&host) => {
            let host = quoted(&host);
            let detail = format!(
                "{host} is no name of this listener, which is on loopback; ask for localhost or its address"
            );
            Err(Problem::new(Code::Forbidden, detail))
        }
        _ => Ok(()),
    }
}

/// Nobody can let an address or `localhost` point elsewhere.
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
    fn only_the_page_of_this_listener_may_ask() {
        let asked = |method: &Method, headers: &[(&'static str, &'static str)], on_loopback| {
            let headers = headers
                .iter()
                .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
            let headers = headers.collect();
            check(method, &headers).is_ok() && !(on_loopback && check_name(&headers).is_err())
        };
        let own = [
            ("host", "127.0.0.1:9090"),
            ("origin", "http://127.0.0.1:9090"),
        ];
        assert!(asked(&Method::POST, &own, true));
        assert!(asked(
            &Method::POST,
            &[own[0], own[1], ("sec-fetch-site", "same-origin")],
            true
        ));
        assert!(asked(
            &Method::POST,
            &[("host", "Gate.example"), ("origin", "https://gate.example")],
            false
        ));
        assert!(
            asked(
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
            (
                &[("origin", "http://127.0.0.1:9090")],
                "nobody says to whom",
            ),
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
                "a name that was bent here",
            ),
        ] {
            assert!(!asked(&Method::POST, headers, true), "{why}");
        }
    }
}
