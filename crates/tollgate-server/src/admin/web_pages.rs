//! Keeps web pages of others from the admin listener: a browser that runs beside it would carry their requests to it. The
//! page that this listener serves itself is let through.

use super::Admin;
use super::write::{self, Verb};
use crate::http::{Code, Problem, quoted};
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{HOST, HeaderMap, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{Method, Request};
use axum::middleware::Next;
use axum::response::Response;
use std::net::IpAddr;
use std::sync::Arc;
use tollgate::Clock;

/// What browsers say of who asks, beside the origin.
const SITE: &str = "sec-fetch-site";

/// Refuses what the page of another origin asks for, by the headers that browsers send with every request that is to change
/// something; and, on loopback, what was sent to a name of somebody else, who let it point here so that the page may read
/// the answer.
pub(super) async fn refused<C: Clock>(
    State(admin): State<Arc<Admin<C>>>,
    request: Request<Body>,
    next: Next,
) -> Result<Response, Problem> {
    if let Err(detail) = judge(request.method(), request.headers(), admin.options.on_loopback) {
        let problem = Problem::new(Code::Forbidden, detail);
        if let Some(verb) = Verb::of(request.method(), request.uri().path()) {
            write::turned_away(&admin, verb, &request, &problem);
        }
        return Err(problem);
    }
    Ok(next.run(request).await)
}

/// What is wrong with who asks.
fn judge(method: &Method, headers: &HeaderMap, on_loopback: bool) -> Result<(), String> {
    let text = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let host = text(HOST.as_str());
    if let Some(host) = host.as_deref().filter(|host| on_loopback && !is_of_this_machine(host)) {
        let host = quoted(host);
        return Err(format!(
            "{host} is no name of this listener, which is on loopback; ask for localhost or its address"
        ));
    }
    let of_another = |origin: &str| {
        let own = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        !own.zip(host.as_deref()).is_some_and(|(own, host)| own.eq_ignore_ascii_case(host))
    };
    // Following a link to the page is no harm; anything else that another site begins may be.
    let begun_elsewhere = text(SITE).is_some_and(|site| !matches!(&*site, "same-origin" | "none"));
    if text(ORIGIN.as_str()).is_some_and(|origin| of_another(&origin)) || begun_elsewhere && method != Method::GET {
        return Err("a web page of another origin sent this; use the page of this listener, or a program such as curl"
            .to_owned());
    }
    Ok(())
}

/// Nobody can let an address or `localhost` point elsewhere.
fn is_of_this_machine(host: &str) -> bool {
    let Ok(host) = host.parse::<Authority>() else { return false };
    let name = host.host().trim_matches(['[', ']']);
    name.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn addresses_and_localhost_are_of_this_machine() {
        for host in ["localhost", "LOCALHOST:9090", "127.0.0.1:9090", "[::1]", "[::1]:9090", "10.0.0.1"] {
            assert!(is_of_this_machine(host), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example:9090", "127.0.0.1.evil.example", "a b"] {
            assert!(!is_of_this_machine(host), "{host}");
        }
    }

    #[test]
    fn only_the_page_of_this_listener_may_ask() {
        let asked = |method: &Method, headers: &[(&'static str, &'static str)], on_loopback| {
            let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
            judge(method, &headers.collect(), on_loopback).is_ok()
        };
        let own = [("host", "127.0.0.1:9090"), ("origin", "http://127.0.0.1:9090")];
        assert!(asked(&Method::POST, &own, true));
        assert!(asked(&Method::POST, &[own[0], own[1], (SITE, "same-origin")], true));
        assert!(asked(&Method::POST, &[("host", "Gate.example"), ("origin", "https://gate.example")], false));
        assert!(asked(&Method::GET, &[own[0], (SITE, "cross-site")], true), "a link to the page");
        for (headers, why) in [
            (&[own[0], ("origin", "http://127.0.0.1:8080")][..], "another port is another origin"),
            (&[own[0], ("origin", "http://evil.example")], "another site"),
            (&[own[0], ("origin", "null")], "a page in a frame without an origin"),
            (&[("origin", "http://127.0.0.1:9090")], "nobody says to whom"),
            (&[own[0], (SITE, "cross-site")], "a form of another site"),
            (&[own[0], (SITE, "same-site")], "another port of this machine"),
            (&[("host", "evil.example:9090"), ("origin", "http://evil.example:9090")], "a name that was bent here"),
        ] {
            assert!(!asked(&Method::POST, headers, true), "{why}");
        }
    }
}
