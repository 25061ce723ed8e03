//! What a proxy changes in a head: what is of one connection only goes no further, and who asked is
//! written down.

mod hop_by_hop;

use super::client::Client;
use super::http1::put_header;
use crate::api::{Code, Problem};
use axum::http::Version;
use axum::http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRANSFER_ENCODING, UPGRADE, VIA,
};
use axum::http::uri::Authority;
use ratekeeper_policy::{matching::HostPattern, request::RequestError, request::check_hosts};
use smallvec::SmallVec;

use hop_by_hop::tells_who;
pub(super) use hop_by_hop::{all, first, is_hop_by_hop, may_trail, strip, upgrade};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Takes what goes no further out of a request, before anybody decides on it: policies see what the
/// upstream will get. A protocol that it may change to stays, and so does TE where trailers are
/// welcome.
pub(super) fn strip_request(headers: &mut HeaderMap, may_upgrade: bool) {
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    let protocol = if may_upgrade { upgrade(headers) } else { None };
    let trailers = all(headers, &TE).any(|value| welcomes_trailers(value.as_bytes()));
    strip(headers);
    if let Some(protocol) = protocol {
        set_upgrade(headers, protocol);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Whether a value of TE says that trailers are welcome.
pub(super) fn welcomes_trailers(value: &[u8]) -> bool {
    value
        .split(|byte| *byte == b',')
        .any(|said| said.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// Says that the connection changes to another protocol.
pub(super) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

/// Whether a body is coded in a way that ends here: chunks are taken apart and made again, others
/// are not.
pub(super) fn has_other_codings(headers: &HeaderMap) -> bool {
    all(headers, &TRANSFER_ENCODING)
        .any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
}

/// Leaves one host to ask for, which target and Host agree on. It must be one of those that are
/// served.
pub(super) fn one_host(
    headers: &mut HeaderMap,
    target: Option<&Authority>,
    version: Version,
    served: &[HostPattern],
) -> Result<(), Problem> {
    let said = all(headers, &HOST).count();
    let needed = version == Version::HTTP_11 || version > Version::HTTP_11 && target.is_none();
    if said > 1 || said == 0 && needed {
        return Err(Problem::new(
            Code::BadHost,
            "a request has one header Host, and no two",
        ));
    }
    let authority = target.map(|target| target.as_str().as_bytes());
    check_hosts(authority, all(headers, &HOST).map(HeaderValue::as_bytes)).map_err(bad_host)?;
    if let Some(target) = target {
        // Of a target there is nothing in it that a header may not have.
        if let Ok(host) = HeaderValue::from_str(target.as_str()) {
            headers.insert(HOST, host);
        }
    }
    let host = first(headers, &HOST).map_or(&b""[..], HeaderValue::as_bytes);
    if !served.is_empty() && !served.iter().any(|pattern| pattern.matches_host(host)) {
        return Err(Problem::new(
            Code::WrongHost,
            "that host is not served here",
        ));
    }
    Ok(())
}

fn bad_host(error: RequestError) -> Problem {
    Problem::new(Code::BadHost, error.to_string())
}

/// How the headers of a request go on to an upstream: without what is of one connection only, and
/// with who asked. What Connection names is gone by then: see [`strip_request`].
///
/// What the client itself says of that, in these headers or in `believed`, goes on only if it is
/// trusted. A trusted proxy that writes one of X-Forwarded-For and Forwarded is added to in that
/// one: what it began in one would be untrue in the other.
pub(super) struct RequestHeaderRewriter<'a> {
    pub(super) client: &'a Client,
    /// The header that trusted proxies tell clients in.
    pub(super) believed: &'a HeaderName,
    /// The version that the client speaks.
    pub(super) version: Version,
    /// The protocol that it wants to change to.
    pub(super) upgrade: Option<HeaderValue>,
}

/// What a trusted proxy has written of who asked, and what else a request says that is written
/// anew.
#[derive(Default, PartialEq, Eq)]
struct Said {
    /// X-Forwarded-For.
    list: bool,
    /// Forwarded.
    pairs: bool,
    proto: bool,
    host: bool,
    /// That trailers are welcome.
    trailers: bool,
}

impl RequestHeaderRewriter<'_> {
    /// Tells every header that goes on, Host first, but for how long the body is, and what is of
    /// one connection of HTTP/1: whoever sends it says so.
    pub(super) fn each(&self, headers: &HeaderMap, mut tell: impl FnMut(&HeaderName, &[u8])) {
        let host = first(headers, &HOST);
        let said = self.theirs(headers, host, &mut tell);
        self.ours(&said, host, tell);
    }

    /// The same as the lines of a head.
    pub(super) fn write(&self, headers: &HeaderMap, head: &mut Vec<u8>) {
        let host = first(headers, &HOST);
        let said = self.theirs(headers, host, |name, value| put_header(head, name, value));
        let ours = |lines: &mut Vec<u8>| {
            self.ours(&said, host, |name, value| put_header(lines, name, value));
        };
        match said == Said::default() && self.upgrade.is_none() {
            // Then it is the same for all requests of a client to that host.
            true => {
                self.client
                    .about
                    .add(host.map(HeaderValue::as_bytes), self.version, head, ours);
            }
            false => {
                self.connection(&said, head);
                ours(head);
            }
        }
    }

    /// What is of one connection of HTTP/1. TE is one of the options of Connection (RFC 9110,
    /// 10.1.4).
    fn connection(&self, said: &Said, head: &mut Vec<u8>) {
        match (said.trailers, &self.upgrade) {
            (true, Some(_)) => put_header(head, &CONNECTION, b"te, upgrade"),
            (true, None) => put_header(head, &CONNECTION, b"te"),
            (false, Some(_)) => put_header(head, &CONNECTION, b"upgrade"),
            (false, None) => {}
        }
        if let Some(protocol) = &self.upgrade {
            put_header(head, &UPGRADE, protocol.as_bytes());
        }
    }

    /// What the client says, as far as it goes on.
    fn theirs(
        &self,
        headers: &HeaderMap,
        host: Option<&HeaderValue>,
        mut tell: impl FnMut(&HeaderName, &[u8]),
    ) -> Said {
        let client = self.client;
        if let Some(host) = host {
            tell(&HOST, host.as_bytes());
        }
        let mut said = Said::default();
        for (name, value) in headers {
            if *name == HOST || *name == CONTENT_LENGTH || is_hop_by_hop(name) {
                // Trailers may be asked for across hops; nothing else of TE may.
                said.trailers |= *name == TE && welcomes_trailers(value.as_bytes());
                continue;
            }
            if tells_who(name.as_str()) || name == self.believed {
                // A trusted proxy writes them with hyphens; others it may have passed on as they
                // came.
                if !client.trusted || name.as_str().contains('_') && tells_who(name.as_str()) {
                    continue;
                }
                said.list |= *name == X_FORWARDED_FOR;
                said.pairs |= *name == FORWARDED;
                said.proto |= *name == X_FORWARDED_PROTO;
                said.host |= *name == X_FORWARDED_HOST;
            }
            tell(name, value.as_bytes());
        }
        said
    }

    /// What is written beside it.
    fn ours(
        &self,
        said: &Said,
        host: Option<&HeaderValue>,
        mut tell: impl FnMut(&HeaderName, &[u8]),
    ) {
        let client = self.client;
        if said.trailers {
            tell(&TE, b"trailers");
        }
        if said.pairs || !said.list {
            tell(&FORWARDED, &element(client, host));
        }
        if said.list || !said.pairs {
            tell(&X_FORWARDED_FOR, client.written.as_bytes());
        }
        if !said.proto {
            tell(&X_FORWARDED_PROTO, client.scheme().as_bytes());
        }
        if let (Some(host), false) = (host, said.host) {
            tell(&X_FORWARDED_HOST, host.as_bytes());
        }
        tell(&VIA, through(self.version).as_bytes());
    }
}

/// Who asked for which host, as an element of Forwarded.
fn element(client: &Client, host: Option<&HeaderValue>) -> SmallVec<[u8; 128]> {
    let mut element = SmallVec::new();
    let mut put = |text: &str| element.extend_from_slice(text.as_bytes());
    put("for=");
    put(&client.node);
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

/// How many headers there are, those of HTTP/2 counted as HTTP/1.1 would have them: the pieces of a
/// cookie are one.
pub(super) fn count(headers: &HeaderMap) -> usize {
    headers.len() - headers.get_all(COOKIE).iter().count().saturating_sub(1)
}

/// HTTP/2 may send a cookie in pieces; HTTP/1.1 has one header for all of them.
pub(super) fn one_cookie(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().count() > 1 {
        let pieces: Vec<&[u8]> = headers
            .get_all(COOKIE)
            .iter()
            .map(HeaderValue::as_bytes)
            .collect();
        // Pieces of headers make a header.
        if let Ok(whole) = HeaderValue::from_bytes(&pieces.join(&b"; "[..])) {
            headers.insert(COOKIE, whole);
        }
    }
}

/// Writes down that it came through here, by which version.
pub(super) fn via(headers: &mut HeaderMap, version: Version) {
    headers.append(VIA, HeaderValue::from_static(through(version)));
}

fn through(version: Version) -> &'static str {
    match version {
        Version::HTTP_2 => "2.0 ratekeeper",
        Version::HTTP_10 => "1.0 ratekeeper",
        _ => "1.1 ratekeeper",
    }
}

#[cfg(test)]
mod tests;
