//! Hop-by-hop headers, and headers that may not be trailers.

use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, MAX_FORWARDS, SET_COOKIE, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use smallvec::SmallVec;

/// Hop-by-hop headers, beside those that Connection names.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-authenticate"),
    HeaderName::from_static("proxy-authorization"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Headers that may not be trailers, beside the hop-by-hop ones.
const NO_TRAILERS: [HeaderName; 11] = [
    AUTHORIZATION,
    CACHE_CONTROL,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
    COOKIE,
    HOST,
    MAX_FORWARDS,
    SET_COOKIE,
    TRAILER,
];

/// All values of a header. Scanning the few headers of a message is quicker than hashing the name.
pub(crate) fn all<'a>(
    headers: &'a HeaderMap,
    name: &'a HeaderName,
) -> impl Iterator<Item = &'a HeaderValue> {
    headers
        .iter()
        .filter(move |(existing, _)| *existing == name)
        .map(|(_, value)| value)
}

/// The first value of a header.
pub(crate) fn first<'a>(headers: &'a HeaderMap, name: &'a HeaderName) -> Option<&'a HeaderValue> {
    all(headers, name).next()
}

/// Whether a header is always hop-by-hop, even if Connection does not name it.
pub(crate) fn is_hop_by_hop(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(name)
}

/// Whether a header may be a trailer. Headers that frame a message or name the client come too late
/// there.
pub(crate) fn may_trail(name: &HeaderName) -> bool {
    !NO_TRAILERS.contains(name) && !is_hop_by_hop(name) && !names_client(name.as_str())
}

/// Removes hop-by-hop headers.
pub(crate) fn strip(headers: &mut HeaderMap) {
    let hop = |name: &HeaderName| HOP_BY_HOP.iter().position(|hop| hop == name);
    // Scanning the few headers of a message is quicker than looking up nine names.
    let found = headers
        .keys()
        .filter_map(hop)
        .fold(0u16, |found, at| found | 1 << at);
    if found == 0 {
        return;
    }
    for name in named(headers) {
        headers.remove(name);
    }
    // The length of a chunked body is that of its chunks; Content-Length is ignored.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    for (at, name) in HOP_BY_HOP.iter().enumerate() {
        if found & 1 << at != 0 {
            headers.remove(name);
        }
    }
}

/// Headers that Connection makes hop-by-hop, too.
fn named(headers: &HeaderMap) -> SmallVec<[HeaderName; 4]> {
    connection_names(headers)
        .filter(|name| !is_usual(name))
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        // A client may not remove what the policies decided by.
        .filter(|name| *name != HOST && *name != CONTENT_LENGTH && !names_client(name.as_str()))
        .collect()
}

/// The names in Connection.
fn connection_names(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(CONNECTION).into_iter();
    values
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
}

/// Options of Connection that name no header to remove.
fn is_usual(name: &[u8]) -> bool {
    [&b"keep-alive"[..], b"close", b"upgrade", b"te"]
        .iter()
        .any(|usual| name.eq_ignore_ascii_case(usual))
}

/// The protocol that a request or a response switches to, if any. Never HTTP/2: requests over it
/// would bypass every limit.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let upgrade = first(headers, &UPGRADE)?;
    let is_http2 = |name: &[u8]| {
        name.trim_ascii()
            .get(..2)
            .is_some_and(|start| start.eq_ignore_ascii_case(b"h2"))
    };
    if headers
        .get_all(UPGRADE)
        .iter()
        .any(|value| value.as_bytes().split(|byte| *byte == b',').any(is_http2))
    {
        return None;
    }
    connection_names(headers)
        .any(|name| name.eq_ignore_ascii_case(b"upgrade"))
        .then(|| upgrade.clone())
}

/// Whether a header names the client, also if it is spelled with underscores, which many services
/// treat alike.
pub(crate) fn names_client(name: &str) -> bool {
    const PREFIX: &str = "x-forwarded-";
    let is = |name: &str, known: &str| {
        name.len() == known.len()
            && name
                .bytes()
                .zip(known.bytes())
                .all(|(byte, known)| byte == known || byte == b'_' && known == b'-')
    };
    match name.as_bytes().first() {
        Some(b'x') => {
            name.get(..PREFIX.len())
                .is_some_and(|start| is(start, PREFIX))
                || is(name, "x-real-ip")
        }
        Some(b'f') => is(name, "forwarded"),
        _ => false,
    }
}
