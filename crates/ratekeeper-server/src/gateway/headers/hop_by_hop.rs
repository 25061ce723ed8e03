//! Headers that are of one connection only, and those that may not come after a body.

use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, MAX_FORWARDS, SET_COOKIE, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use smallvec::SmallVec;

/// Headers that are of one connection, beside those that Connection names.
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

/// What may not come after the body, beside those.
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

/// What a header says, each time. To look at the few headers of a message is quicker than to look
/// for one by its hash.
pub(crate) fn all<'a>(
    headers: &'a HeaderMap,
    name: &'a HeaderName,
) -> impl Iterator<Item = &'a HeaderValue> {
    headers
        .iter()
        .filter(move |(said, _)| *said == name)
        .map(|(_, value)| value)
}

/// What it says first.
pub(crate) fn first<'a>(headers: &'a HeaderMap, name: &'a HeaderName) -> Option<&'a HeaderValue> {
    all(headers, name).next()
}

/// Whether a header is of one connection, whatever Connection says.
pub(crate) fn is_hop_by_hop(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(name)
}

/// Whether a header may come after the body: what says how to read a message, or who asked, comes
/// too late there.
pub(crate) fn may_trail(name: &HeaderName) -> bool {
    !NO_TRAILERS.contains(name) && !is_hop_by_hop(name) && !tells_who(name.as_str())
}

/// Takes out what is of one connection only.
pub(crate) fn strip(headers: &mut HeaderMap) {
    let hop = |name: &HeaderName| HOP_BY_HOP.iter().position(|hop| hop == name);
    // To look at the few headers of a message is quicker than to look for nine.
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
    // A body in chunks has the length that they have, whatever else is said.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    for (at, name) in HOP_BY_HOP.iter().enumerate() {
        if found & 1 << at != 0 {
            headers.remove(name);
        }
    }
}

/// Headers that Connection makes those of one connection, too.
fn named(headers: &HeaderMap) -> SmallVec<[HeaderName; 4]> {
    connection_names(headers)
        .filter(|name| !is_usual(name))
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        // A client may not talk us out of what the policies went by.
        .filter(|name| *name != HOST && *name != CONTENT_LENGTH && !tells_who(name.as_str()))
        .collect()
}

/// What Connection names.
fn connection_names(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(CONNECTION).into_iter();
    values
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
}

/// What it says without naming a header that needs to be taken out for it.
fn is_usual(name: &[u8]) -> bool {
    [&b"keep-alive"[..], b"close", b"upgrade", b"te"]
        .iter()
        .any(|usual| name.eq_ignore_ascii_case(usual))
}

/// The protocol that a request or a response changes to, if it does. Never to HTTP/2: requests over
/// it would pass every limit.
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

/// Whether a header tells who asked, also if it is spelled with underscores: to many services that
/// is the same.
pub(crate) fn tells_who(name: &str) -> bool {
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
