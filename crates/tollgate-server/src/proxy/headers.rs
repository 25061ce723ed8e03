//! What a proxy changes in a head: what is of one connection only goes no further, and who asked is written down.

use super::client::Client;
use crate::http::{Code, Problem};
use axum::http::Version;
use axum::http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING,
    UPGRADE, VIA,
};
use axum::http::uri::Authority;
use smallvec::SmallVec;
use std::fmt::Write;
use tollgate_policy::HostPattern;

/// Headers that are of one connection, beside those that Connection names.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-authenticate"),
    HeaderName::from_static("proxy-authorization"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Takes out what is of one connection only.
pub(super) fn strip(headers: &mut HeaderMap) {
    let hop = |name: &HeaderName| HOP_BY_HOP.iter().position(|hop| hop == name);
    // To look at the few headers of a message is quicker than to look for eight.
    let found = headers.keys().filter_map(hop).fold(0u8, |found, at| found | 1 << at);
    if found == 0 {
        return;
    }
    // Trailers may be asked for across hops; nothing else of TE may.
    let trailers = headers.get_all(TE).iter().any(|value| value.as_bytes().eq_ignore_ascii_case(b"trailers"));
    let named: SmallVec<[HeaderName; 4]> = connection_names(headers)
        .filter(|name| !is_usual(name))
        .filter_map(|name| HeaderName::from_bytes(name).ok())
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
    for (at, name) in HOP_BY_HOP.iter().enumerate() {
        if found & 1 << at != 0 {
            headers.remove(name);
        }
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// What Connection names.
fn connection_names(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(CONNECTION).into_iter();
    values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

/// What it says without naming a header that needs to be taken out for it.
fn is_usual(name: &[u8]) -> bool {
    [&b"keep-alive"[..], b"close", b"upgrade", b"te"].iter().any(|usual| name.eq_ignore_ascii_case(usual))
}

/// The protocol that a request or a response changes to, if it does.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let upgrade = headers.get(UPGRADE)?;
    connection_names(headers).any(|name| name.eq_ignore_ascii_case(b"upgrade")).then(|| upgrade.clone())
}

/// Says that the connection changes to another protocol.
pub(super) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

/// Whether a body is coded in a way that ends here: chunks are taken apart and made again, others are not.
pub(super) fn has_other_codings(headers: &HeaderMap) -> bool {
    headers.get_all(TRANSFER_ENCODING).iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
}

/// Leaves one host to ask for, the one that the policies saw: the target's, or else that of Host. It must be one of those
/// that are served.
pub(super) fn one_host(
    headers: &mut HeaderMap,
    target: Option<&Authority>,
    version: Version,
    served: &[HostPattern],
) -> Result<(), Problem> {
    let said = headers.get_all(HOST).iter().count();
    let needed = version == Version::HTTP_11 || version > Version::HTTP_11 && target.is_none();
    if said > 1 || said == 0 && needed {
        return Err(Problem::new(Code::BadHost, "a request has one header Host, and no two"));
    }
    if let Some(target) = target {
        let asked = match target.port() {
            Some(port) => format!("{}:{port}", target.host()),
            None => target.host().to_owned(),
        };
        // Of a target there is nothing in it that a header may not have.
        if let Ok(asked) = HeaderValue::try_from(asked) {
            headers.insert(HOST, asked);
        }
    }
    let host = headers.get(HOST).map_or(&b""[..], HeaderValue::as_bytes);
    let is_host = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%:[]".contains(byte);
    if !host.iter().all(is_host) {
        return Err(Problem::new(Code::BadHost, "the header Host names no host; write it as in Host: example.com"));
    }
    if !served.is_empty() && !served.iter().any(|pattern| pattern.matches_host(without_port(host))) {
        return Err(Problem::new(Code::WrongHost, "that host is not served here"));
    }
    Ok(())
}

fn without_port(host: &[u8]) -> &[u8] {
    match host.iter().rposition(|byte| *byte == b':') {
        // The last group of an IPv6 address is no port.
        Some(at) if !host.ends_with(b"]") => &host[..at],
        _ => host,
    }
}

/// Whether a header tells who asked, also if it is spelled with underscores: to many services that is the same.
fn tells_who(name: &str) -> bool {
    const PREFIX: &str = "x-forwarded-";
    let is = |name: &str, known: &str| {
        name.len() == known.len()
            && name.bytes().zip(known.bytes()).all(|(byte, known)| byte == known || byte == b'_' && known == b'-')
    };
    match name.as_bytes().first() {
        Some(b'x') => name.get(..PREFIX.len()).is_some_and(|start| is(start, PREFIX)) || is(name, "x-real-ip"),
        Some(b'f') => is(name, "forwarded"),
        _ => false,
    }
}

/// Writes down who asked. What the client itself says of that, in these headers or in `believed`, goes on only if it is
/// trusted. A trusted proxy that writes one of X-Forwarded-For and Forwarded is added to in that one: what it began in one
/// would be untrue in the other.
pub(super) fn forwarded(headers: &mut HeaderMap, client: &Client, believed: &HeaderName) {
    // A trusted proxy writes them with hyphens; others it may have passed on as they came.
    let unbelieved = |name: &&HeaderName| match client.trusted {
        true => name.as_str().contains('_') && tells_who(name.as_str()),
        false => tells_who(name.as_str()) || *name == believed,
    };
    let unbelieved: SmallVec<[HeaderName; 4]> = headers.keys().filter(unbelieved).cloned().collect();
    for name in unbelieved {
        headers.remove(name);
    }
    let (list, pairs) = (headers.contains_key(X_FORWARDED_FOR), headers.contains_key(FORWARDED));
    if pairs || !list {
        let mut element = format!("for={};proto={}", client.node, client.scheme());
        if let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()).filter(|host| !host.is_empty()) {
            let _ = match host.contains([':', '[']) {
                true => write!(element, ";host=\"{host}\""),
                false => write!(element, ";host={host}"),
            };
        }
        if let Ok(element) = HeaderValue::try_from(element) {
            headers.append(FORWARDED, element);
        }
    }
    if list || !pairs {
        headers.append(X_FORWARDED_FOR, client.written.clone());
    }
    if !headers.contains_key(X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(client.scheme()));
    }
    if let (Some(host), false) = (headers.get(HOST).cloned(), headers.contains_key(X_FORWARDED_HOST)) {
        headers.insert(X_FORWARDED_HOST, host);
    }
}

/// HTTP/2 may send a cookie in pieces; HTTP/1.1 has one header for all of them.
pub(super) fn one_cookie(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().count() > 1 {
        let pieces: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        // Pieces of headers make a header.
        if let Ok(whole) = HeaderValue::from_bytes(&pieces.join(&b"; "[..])) {
            headers.insert(COOKIE, whole);
        }
    }
}

/// Writes down that it came through here, by which version.
pub(super) fn via(headers: &mut HeaderMap, version: Version) {
    headers.append(
        VIA,
        HeaderValue::from_static(match version {
            Version::HTTP_2 => "2.0 tollgate",
            Version::HTTP_10 => "1.0 tollgate",
            _ => "1.1 tollgate",
        }),
    );
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

    fn client(ip: &str, trusted: bool) -> Client {
        Client::new(Some(std::net::SocketAddr::new(ip.parse().unwrap(), 4711)), trusted, false, None)
    }

    #[test]
    fn a_client_cannot_say_who_it_is() {
        let mut headers = map(&[("x-forwarded-for", "1.2.3.4"), ("forwarded", "for=1.2.3.4"), ("host", "example.com")]);
        forwarded(&mut headers, &client("203.0.113.7", false), &X_FORWARDED_FOR);
        let values: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
        assert_eq!(values, ["203.0.113.7"]);
        let values: Vec<_> = headers.get_all("forwarded").iter().collect();
        assert_eq!(values, ["for=203.0.113.7;proto=http;host=example.com"]);
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
        let own = HeaderName::from_static("cf-connecting-ip");
        headers.insert(&own, HeaderValue::from_static("1.2.3.4"));
        forwarded(&mut headers, &client("203.0.113.7", false), &own);
        assert_eq!(names(&headers), ["accept", "forwarded", "x-forwarded", "x-forwarded-for", "x-forwarded-proto"]);
        let mut headers = map(&said);
        headers.insert(&own, HeaderValue::from_static("1.2.3.4"));
        forwarded(&mut headers, &client("203.0.113.7", true), &own);
        assert_eq!(
            names(&headers),
            [
                "accept",
                "cf-connecting-ip",
                "forwarded",
                "x-forwarded",
                "x-forwarded-for",
                "x-forwarded-port",
                "x-forwarded-proto",
                "x-real-ip"
            ],
            "a trusted proxy spells them with hyphens"
        );
    }

    #[test]
    fn a_trusted_proxy_is_added_to() {
        let proxy = client("10.0.0.1", true);
        let mut headers = map(&[("x-forwarded-for", "1.2.3.4"), ("x-forwarded-proto", "https")]);
        forwarded(&mut headers, &proxy, &X_FORWARDED_FOR);
        let values: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
        assert_eq!(values, ["1.2.3.4", "10.0.0.1"]);
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert!(!headers.contains_key("forwarded"), "the proxy would be taken for the client");
        let mut headers = map(&[("forwarded", "for=1.2.3.4"), ("host", "[::1]:8080")]);
        forwarded(&mut headers, &proxy, &X_FORWARDED_FOR);
        let values: Vec<_> = headers.get_all("forwarded").iter().collect();
        assert_eq!(values, ["for=1.2.3.4", "for=10.0.0.1;proto=http;host=\"[::1]:8080\""]);
        assert!(!headers.contains_key("x-forwarded-for"));
        let mut headers = HeaderMap::new();
        forwarded(&mut headers, &client("2001:db8::7", false), &X_FORWARDED_FOR);
        assert_eq!(headers["forwarded"], "for=\"[2001:db8::7]\";proto=http");
    }

    #[test]
    fn a_cookie_in_pieces_is_made_whole() {
        let mut headers = map(&[("cookie", "a=b"), ("cookie", "c=d"), ("accept", "*/*")]);
        one_cookie(&mut headers);
        assert_eq!(headers.get_all("cookie").iter().collect::<Vec<_>>(), ["a=b; c=d"]);
    }

    #[test]
    fn only_hosts_that_are_served() {
        let served = ["example.com".parse().unwrap(), "*.example.com".parse().unwrap()];
        let status = |host: &'static str| {
            let judged = one_host(&mut map(&[("host", host)]), None, Version::HTTP_11, &served);
            judged.err().map_or(200, |problem| problem.plain().status().as_u16())
        };
        let statuses =
            ["example.com", "a.EXAMPLE.com:81", "example.org", "example.com.evil.org", "[::1]:80", "a/b", "a@b"];
        assert_eq!(statuses.map(status), [200, 200, 421, 421, 421, 400, 400]);
    }
}
