//! Header rewriting of the proxy: removes hop-by-hop headers and adds forwarding headers.

mod hop_by_hop;

use super::client::Client;
use crate::api::{Code, Problem};
use axum::http::Version;
use axum::http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRANSFER_ENCODING, UPGRADE, VIA,
};
use axum::http::uri::Authority;
use ratekeeper_policy::{matching::HostPattern, request::RequestError, request::check_hosts};
use smallvec::SmallVec;

use hop_by_hop::names_client;
pub(super) use hop_by_hop::{all, first, is_hop_by_hop, may_trail, strip, upgrade};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Removes the headers of a request that are not forwarded, before the policies decide: policies
/// see what the upstream will get. A protocol that the connection may switch to stays, and so does
/// TE where trailers are accepted.
pub(super) fn strip_request(headers: &mut HeaderMap, may_upgrade: bool) {
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    let protocol = if may_upgrade { upgrade(headers) } else { None };
    let trailers = all(headers, &TE).any(|value| accepts_trailers(value.as_bytes()));
    strip(headers);
    if let Some(protocol) = protocol {
        set_upgrade(headers, protocol);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Adds a header line to a head or to trailers.
pub(super) fn put_header(head: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    head.extend_from_slice(name.as_str().as_bytes());
    head.extend_from_slice(b": ");
    head.extend_from_slice(value);
    head.extend_from_slice(b"\r\n");
}

/// Whether a value of TE accepts trailers.
pub(super) fn accepts_trailers(value: &[u8]) -> bool {
    value
        .split(|byte| *byte == b',')
        .any(|existing| existing.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// Adds the headers of a protocol switch.
pub(super) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

/// Whether a body has a transfer coding other than chunked, or is chunked twice. Chunks are decoded
/// and encoded again; other codings are not.
pub(super) fn has_other_codings(headers: &HeaderMap) -> bool {
    let mut codings = all(headers, &TRANSFER_ENCODING);
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    codings.next().is_some_and(|coding| !is_chunked(coding)) || codings.next().is_some()
}

/// Makes target and Host name the same host, which must be a served one.
pub(super) fn validate_host(
    headers: &mut HeaderMap,
    target: Option<&Authority>,
    version: Version,
    served: &[HostPattern],
) -> Result<(), Problem> {
    let existing = all(headers, &HOST).count();
    let needed = version == Version::HTTP_11 || version > Version::HTTP_11 && target.is_none();
    if existing > 1 || existing == 0 && needed {
        return Err(Problem::new(
            Code::BadHost,
            "a request must have exactly one Host header",
        ));
    }
    let authority = target.map(|target| target.as_str().as_bytes());
    check_hosts(authority, all(headers, &HOST).map(HeaderValue::as_bytes)).map_err(bad_host)?;
    if let Some(target) = target {
        // A target contains nothing that a header value may not.
        if let Ok(host) = HeaderValue::from_str(target.as_str()) {
            headers.insert(HOST, host);
        }
    }
    let host = first(headers, &HOST).map_or(&b""[..], HeaderValue::as_bytes);
    if !served.is_empty() && !served.iter().any(|pattern| pattern.matches_host(host)) {
        return Err(Problem::new(
            Code::WrongHost,
            "this gateway does not serve the requested host",
        ));
    }
    Ok(())
}

fn bad_host(error: RequestError) -> Problem {
    Problem::new(Code::BadHost, error.to_string())
}

/// Writes the headers of a request for an upstream: without hop-by-hop headers, with forwarding
/// headers. Headers that Connection names are gone by then: see [`strip_request`].
///
/// The client's own forwarding headers, including `trusted_header`, are forwarded only if the
/// client is a trusted proxy. If that wrote just one of X-Forwarded-For and Forwarded, only that
/// one is appended to: starting the other here would name the proxy as the client.
pub(crate) struct RequestHeaderRewriter<'a> {
    pub(super) client: &'a Client,
    /// The header in which trusted proxies name the client.
    pub(super) trusted_header: &'a HeaderName,
    /// The HTTP version of the client.
    pub(super) version: Version,
    /// The protocol that the client wants to switch to.
    pub(super) upgrade: Option<HeaderValue>,
}

/// The forwarding headers of a trusted proxy, and other headers of the request that are written
/// anew.
#[derive(Default, PartialEq, Eq)]
struct ExistingHeaders {
    /// X-Forwarded-For is present.
    x_forwarded_for: bool,
    /// Forwarded is present.
    forwarded: bool,
    proto: bool,
    host: bool,
    /// TE accepts trailers.
    trailers: bool,
}

impl RequestHeaderRewriter<'_> {
    /// Calls `write` for each forwarded header, Host first. Leaves out framing and HTTP/1
    /// connection headers: the caller writes those.
    pub(super) fn for_each(&self, headers: &HeaderMap, mut write: impl FnMut(&HeaderName, &[u8])) {
        let host = first(headers, &HOST);
        let existing = self.write_client_headers(headers, host, &mut write);
        self.write_own_headers(&existing, host, write);
    }

    /// Writes the same headers as lines of an HTTP/1 head.
    pub(super) fn write(&self, headers: &HeaderMap, head: &mut Vec<u8>) {
        let host = first(headers, &HOST);
        let existing =
            self.write_client_headers(headers, host, |name, value| put_header(head, name, value));
        let write_own_headers = |lines: &mut Vec<u8>| {
            self.write_own_headers(&existing, host, |name, value| {
                put_header(lines, name, value);
            });
        };
        if existing == ExistingHeaders::default() && self.upgrade.is_none() {
            // The lines are then the same for all requests of a client to that host.
            self.client.forwarded_headers.add(
                host.map(HeaderValue::as_bytes),
                self.version,
                head,
                write_own_headers,
            );
        } else {
            self.connection(&existing, head);
            write_own_headers(head);
        }
    }

    /// Writes the hop-by-hop headers of HTTP/1. TE must be an option of Connection (RFC 9110,
    /// 10.1.4).
    fn connection(&self, existing: &ExistingHeaders, head: &mut Vec<u8>) {
        match (existing.trailers, &self.upgrade) {
            (true, Some(_)) => put_header(head, &CONNECTION, b"te, upgrade"),
            (true, None) => put_header(head, &CONNECTION, b"te"),
            (false, Some(_)) => put_header(head, &CONNECTION, b"upgrade"),
            (false, None) => {}
        }
        if let Some(protocol) = &self.upgrade {
            put_header(head, &UPGRADE, protocol.as_bytes());
        }
    }

    /// Writes the client's headers that are forwarded.
    fn write_client_headers(
        &self,
        headers: &HeaderMap,
        host: Option<&HeaderValue>,
        mut write: impl FnMut(&HeaderName, &[u8]),
    ) -> ExistingHeaders {
        let client = self.client;
        if let Some(host) = host {
            write(&HOST, host.as_bytes());
        }
        let mut existing = ExistingHeaders::default();
        for (name, value) in headers {
            if *name == HOST || *name == CONTENT_LENGTH || is_hop_by_hop(name) {
                // TE may ask for trailers across hops, and for nothing else.
                existing.trailers |= *name == TE && accepts_trailers(value.as_bytes());
                continue;
            }
            if names_client(name.as_str()) || name == self.trusted_header {
                // A trusted proxy writes these with hyphens; other spellings may come from its
                // clients.
                if !client.trusted || name.as_str().contains('_') && names_client(name.as_str()) {
                    continue;
                }
                existing.x_forwarded_for |= *name == X_FORWARDED_FOR;
                existing.forwarded |= *name == FORWARDED;
                existing.proto |= *name == X_FORWARDED_PROTO;
                existing.host |= *name == X_FORWARDED_HOST;
            }
            write(name, value.as_bytes());
        }
        existing
    }

    /// Writes the forwarding headers that the gateway adds.
    fn write_own_headers(
        &self,
        existing: &ExistingHeaders,
        host: Option<&HeaderValue>,
        mut write: impl FnMut(&HeaderName, &[u8]),
    ) {
        let client = self.client;
        if existing.trailers {
            write(&TE, b"trailers");
        }
        if existing.forwarded || !existing.x_forwarded_for {
            write(&FORWARDED, &element(client, host));
        }
        if existing.x_forwarded_for || !existing.forwarded {
            write(&X_FORWARDED_FOR, client.forwarded_for.as_bytes());
        }
        if !existing.proto {
            write(&X_FORWARDED_PROTO, client.scheme().as_bytes());
        }
        if let (Some(host), false) = (host, existing.host) {
            write(&X_FORWARDED_HOST, host.as_bytes());
        }
        write(&VIA, via_value(self.version).as_bytes());
    }
}

/// The element that the gateway adds to Forwarded: the client, the protocol and the host.
fn element(client: &Client, host: Option<&HeaderValue>) -> SmallVec<[u8; 128]> {
    let mut element = SmallVec::new();
    let mut put = |text: &str| element.extend_from_slice(text.as_bytes());
    put("for=");
    put(&client.forwarded_node);
    put(";proto=");
    put(client.scheme());
    if let Some(host) = host
        .and_then(|host| host.to_str().ok())
        .filter(|host| !host.is_empty())
    {
        let quote = if host.contains([':', '[']) { "\"" } else { "" };
        put(";host=");
        put(quote);
        put(host);
        put(quote);
    }
    element
}

/// The number of headers as HTTP/1.1 would have them: the parts of an HTTP/2 cookie count as one.
pub(super) fn count(headers: &HeaderMap) -> usize {
    headers.len() - headers.get_all(COOKIE).iter().count().saturating_sub(1)
}

/// Joins the cookie headers that HTTP/2 may split; HTTP/1.1 has one for all of them.
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().count() > 1 {
        let values: Vec<&[u8]> = headers
            .get_all(COOKIE)
            .iter()
            .map(HeaderValue::as_bytes)
            .collect();
        // Header values joined by `; ` are a valid value.
        if let Ok(whole) = HeaderValue::from_bytes(&values.join(&b"; "[..])) {
            headers.insert(COOKIE, whole);
        }
    }
}

/// Adds this gateway to Via, with the HTTP version in which the message was received.
pub(super) fn add_via(headers: &mut HeaderMap, version: Version) {
    headers.append(VIA, HeaderValue::from_static(via_value(version)));
}

fn via_value(version: Version) -> &'static str {
    match version {
        Version::HTTP_2 => "2.0 ratekeeper",
        Version::HTTP_10 => "1.0 ratekeeper",
        _ => "1.1 ratekeeper",
    }
}

#[cfg(test)]
mod tests;
