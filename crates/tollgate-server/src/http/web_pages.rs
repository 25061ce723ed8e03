//! Keeps web pages from the admin listener: a browser that runs beside it would carry their requests to it.

use super::problem::{Code, Problem, quoted};
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::middleware::Next;
use axum::response::Response;
use std::net::IpAddr;

/// Refuses what a page asks for, by the header that browsers send with every request that is to change something; and, on
/// loopback, what was sent to a name of somebody else, who let it point here so that the page may read the answer.
pub(super) async fn refused(
    State(on_loopback): State<bool>,
    request: Request<Body>,
    next: Next,
) -> Result<Response, Problem> {
    let headers = request.headers();
    if headers.contains_key(ORIGIN) {
        return Err(Problem::new(Code::Forbidden, "a web page sent this; use a program, such as curl"));
    }
    if let Some(host) = headers.get(HOST).filter(|_| on_loopback) {
        let host = String::from_utf8_lossy(host.as_bytes());
        if !is_of_this_machine(&host) {
            let host = quoted(&host);
            let detail =
                format!("{host} is no name of this listener, which is on loopback; ask for localhost or its address");
            return Err(Problem::new(Code::Forbidden, detail));
        }
    }
    Ok(next.run(request).await)
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

    #[test]
    fn addresses_and_localhost_are_of_this_machine() {
        for host in ["localhost", "LOCALHOST:9090", "127.0.0.1:9090", "[::1]", "[::1]:9090", "10.0.0.1"] {
            assert!(is_of_this_machine(host), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example:9090", "127.0.0.1.evil.example", "a b"] {
            assert!(!is_of_this_machine(host), "{host}");
        }
    }
}
