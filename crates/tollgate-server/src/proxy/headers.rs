//! What a proxy changes in a head: what is of one connection only goes no further, and who asked is written down.

use crate::http::{Code, Problem};
use axum::http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING};
use axum::http::uri::{Authority, Scheme};
use axum::http::{Uri, Version};
use std::net::IpAddr;

/// Headers that are of one connection, beside those that Connection names.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Takes out what is of one connection only.
pub(super) fn strip(headers: &mut HeaderMap) {
    // Trailers may be asked for across hops; nothing else of TE may.
    let trailers = headers.get_all(TE).iter().any(|value| value.as_bytes().eq_ignore_ascii_case(b"trailers"));
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        // A client may not talk us out of what the policies went by.
        .filter(|name| *name != HOST && *name != CONTENT_LENGTH && !tells_who(name.as_str()))
        .collect();
    for name in named {
        headers.remove(name);
    }
    // A body in chunks has the length that they have, whatever else is said.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Whether a body is coded in a way that ends here: chunks are taken apart and made again, others are not.
pub(super) fn has_other_codings(headers: &HeaderMap) -> bool {
    headers.get_all(TRANSFER_ENCODING).iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
}

/// Leaves one host to ask for, the one that the policies saw: the target's, or else that of Host.
pub(super) fn one_host(headers: &mut HeaderMap, target: Option<&Authority>, version: Version) -> Result<(), Problem> {
    let asked = target.map(|target| match target.port() {
        Some(port) => format!("{}:{port}", target.host()),
        None => target.host().to_owned(),
    });
    let said = headers.get_all(HOST).iter().count();
    if said > 1 || said == 0 && version >= Version::HTTP_11 {
        return Err(Problem::new(Code::BadHost, "a request has one header Host, and no two"));
    }
    if let Some(Ok(asked)) = asked.map(HeaderValue::try_from) {
        headers.insert(HOST, asked);
    }
    Ok(())
}

/// Whether a header tells who asked, also if it is spelled with underscores: to many services that is the same.
fn tells_who(name: &str) -> bool {
    const PREFIX: &str = "x-forwarded-";
    let is = |name: &str, known: &str| {
        name.len() == known.len()
            && name.bytes().zip(known.bytes()).all(|(byte, known)| byte == known || byte == b'_' && known == b'-')
    };
    name.get(..PREFIX.len()).is_some_and(|start| is(start, PREFIX)) || is(name, "forwarded") || is(name, "x-real-ip")
}

/// Writes down who asked. What the client itself says of that goes on only if it is trusted.
pub(super) fn forwarded(headers: &mut HeaderMap, peer: Option<IpAddr>, trusted: bool) {
    // A trusted proxy writes them with hyphens; others it may have passed on as they came.
    let unbelieved = |name: &&HeaderName| tells_who(name.as_str()) && (!trusted || name.as_str().contains('_'));
    let unbelieved: Vec<HeaderName> = headers.keys().filter(unbelieved).cloned().collect();
    for name in unbelieved {
        headers.remove(name);
    }
    if let Some(Ok(peer)) = peer.map(|peer| HeaderValue::from_str(&peer.to_string())) {
        headers.append(X_FORWARDED_FOR, peer);
    }
    if !headers.contains_key(X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static("http"));
    }
    if let (Some(host), false) = (headers.get(HOST).cloned(), headers.contains_key(X_FORWARDED_HOST)) {
        headers.insert(X_FORWARDED_HOST, host);
    }
}

/// Whether that is a URL a request can be sent on to.
pub(super) fn is_upstream(uri: &Uri) -> bool {
    // A name and a password would go nowhere but into the log.
    let is_plain = |authority: &Authority| !authority.as_str().contains('@');
    uri.scheme() == Some(&Scheme::HTTP) && uri.authority().is_some_and(is_plain) && uri.query().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn what_is_of_one_connection_goes_no_further() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Private"),
            ("connection", "x-other"),
            ("x-private", "1"),
            ("x-other", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("proxy-authorization", "secret"),
            ("accept", "*/*"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        strip(&mut headers);
        assert_eq!(names(&headers), ["accept", "te"]);
        let mut gzip = map(&[("te", "gzip")]);
        strip(&mut gzip);
        assert!(gzip.is_empty());
    }

    #[test]
    fn a_client_cannot_say_who_it_is() {
        let peer = Some("203.0.113.7".parse().unwrap());
        let mut headers = map(&[("x-forwarded-for", "1.2.3.4"), ("forwarded", "for=1.2.3.4"), ("host", "example.com")]);
        forwarded(&mut headers, peer, false);
        let values: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
        assert_eq!(values, ["203.0.113.7"]);
        assert!(!headers.contains_key("forwarded"));
        assert_eq!(headers["x-forwarded-host"], "example.com");
        assert_eq!(headers["x-forwarded-proto"], "http");
    }

    #[test]
    fn nor_by_another_spelling_or_another_header() {
        let said = [
            ("x_forwarded_for", "1.2.3.4"),
            ("x-forwarded_proto", "https"),
            ("x-forwarded-port", "1"),
            ("x-real-ip", "1.2.3.4"),
            ("x-forwarded", "kept"),
            ("accept", "*/*"),
        ];
        let mut headers = map(&said);
        forwarded(&mut headers, None, false);
        assert_eq!(names(&headers), ["accept", "x-forwarded", "x-forwarded-proto"]);
        let mut headers = map(&said);
        forwarded(&mut headers, None, true);
        assert_eq!(
            names(&headers),
            ["accept", "x-forwarded", "x-forwarded-port", "x-forwarded-proto", "x-real-ip"],
            "a trusted proxy spells them with hyphens"
        );
    }

    #[test]
    fn a_trusted_proxy_is_added_to() {
        let peer = Some("10.0.0.1".parse().unwrap());
        let mut headers = map(&[("x-forwarded-for", "1.2.3.4"), ("x-forwarded-proto", "https")]);
        forwarded(&mut headers, peer, true);
        let values: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
        assert_eq!(values, ["1.2.3.4", "10.0.0.1"]);
        assert_eq!(headers["x-forwarded-proto"], "https");
    }
}
