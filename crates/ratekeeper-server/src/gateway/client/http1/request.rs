//! Parses the head of a client's request, and how its body is framed. The smuggling guard has
//! checked the bytes before.

use crate::api::{Code, Problem};
use crate::gateway::{forward, headers};
use axum::body::Bytes;
use axum::http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HeaderMap, HeaderName, HeaderValue, TE,
};
use axum::http::header::{TRANSFER_ENCODING, UPGRADE};
use axum::http::{Method, Request, Uri, Version};
use std::mem::MaybeUninit;

/// The limits of a head.
#[derive(Clone, Copy)]
pub(crate) struct HeadLimits {
    pub(crate) bytes: usize,
    pub(crate) headers: usize,
}

/// Up to this many headers are parsed without allocating.
const USUAL_HEADERS: usize = 100;

/// A parsed head: the request without its body.
pub(super) struct Head {
    pub(super) request: Request<()>,
    pub(super) length: Length,
    /// Whether the client expects 100 Continue.
    pub(super) expects: bool,
    /// Whether it may switch to another protocol.
    pub(super) upgrades: bool,
    pub(super) asked: ParsedRequest,
}

/// The framing of a request body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Length {
    /// A body of this many bytes.
    Known(u64),
    Chunked,
}

/// What writing the response needs to know of the request.
#[derive(Clone, Copy)]
pub(super) struct ParsedRequest {
    pub(super) version: Version,
    /// Whether the method is HEAD, whose responses have no body.
    pub(super) is_head: bool,
    /// Whether the connection may be reused.
    pub(super) keep: bool,
    /// Whether trailers are accepted.
    pub(super) trailers: bool,
}

/// Parses a head, and returns its length with it, or `None` if more must be read.
pub(super) fn read(bytes: &[u8], bounds: HeadLimits) -> Result<Option<(usize, Head)>, Problem> {
    if bounds.headers > USUAL_HEADERS {
        return read_into(
            bytes,
            bounds,
            &mut vec![MaybeUninit::uninit(); bounds.headers],
        );
    }
    let mut room = [const { MaybeUninit::uninit() }; USUAL_HEADERS];
    read_into(bytes, bounds, &mut room[..bounds.headers])
}

pub(crate) fn too_many_headers() -> Problem {
    Problem::new(
        Code::HeadTooLarge,
        "the request has more headers than this gateway allows",
    )
}

#[inline]
fn read_into<'a>(
    bytes: &'a [u8],
    bounds: HeadLimits,
    room: &mut [MaybeUninit<httparse::Header<'a>>],
) -> Result<Option<(usize, Head)>, Problem> {
    let mut parsed = httparse::Request::new(&mut []);
    let end = match parsed.parse_with_uninit_headers(bytes, room) {
        Ok(httparse::Status::Complete(end)) if end <= bounds.bytes => end,
        Ok(httparse::Status::Partial) if bytes.len() < bounds.bytes => return Ok(None),
        Ok(_) => {
            return Err(Problem::new(
                Code::HeadTooLarge,
                "the request head is larger than this gateway allows",
            ));
        }
        Err(httparse::Error::TooManyHeaders) => {
            return Err(too_many_headers());
        }
        Err(httparse::Error::Version) if names_http(bytes) => {
            return Err(Problem::new(
                Code::UnknownVersion,
                "unsupported HTTP version; this gateway supports HTTP/1.0, 1.1 and 2",
            ));
        }
        Err(_) => return Err(no_http()),
    };
    // All parts are slices of one copy.
    let copy = Bytes::copy_from_slice(&bytes[..end]);
    let part = |part: &[u8]| {
        let at = part.as_ptr().addr() - bytes.as_ptr().addr();
        copy.slice(at..at + part.len())
    };
    let method = parsed
        .method
        .and_then(|method| Method::from_bytes(method.as_bytes()).ok())
        .ok_or_else(no_http)?;
    let path = parsed.path.ok_or_else(no_http)?;
    if path.len() > LONGEST_TARGET {
        return Err(Problem::new(
            Code::TargetTooLong,
            "the request target is longer than this gateway allows",
        ));
    }
    let uri = Uri::from_maybe_shared(part(path.as_bytes())).map_err(|_| forward::bad_target())?;
    let version = if parsed.version == Some(0) {
        Version::HTTP_10
    } else {
        Version::HTTP_11
    };
    let mut asked = ParsedRequest {
        version,
        is_head: method == Method::HEAD,
        keep: false,
        trailers: false,
    };
    let mut said = ConnectionHeaders::default();
    let mut map = HeaderMap::with_capacity(parsed.headers.len());
    for header in &*parsed.headers {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| no_http())?;
        said.hear(&name, header.value)?;
        map.append(
            name,
            HeaderValue::from_maybe_shared(part(header.value)).map_err(|_| no_http())?,
        );
    }
    asked.keep = !said.closes && (version == Version::HTTP_11 || said.keeps);
    asked.trailers = said.trailers;
    let mut request = Request::new(());
    (
        *request.method_mut(),
        *request.uri_mut(),
        *request.version_mut(),
    ) = (method, uri, version);
    *request.headers_mut() = map;
    let is_new = version == Version::HTTP_11;
    let upgrades = said.upgrades && is_new && headers::upgrade(request.headers()).is_some();
    Ok(Some((
        end,
        Head {
            request,
            length: said.length,
            expects: said.expects && is_new,
            upgrades,
            asked,
        },
    )))
}

/// Whether the first line ends like a request line.
fn names_http(bytes: &[u8]) -> bool {
    let line = bytes
        .trim_ascii_start()
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    line.rsplit(|byte| *byte == b' ')
        .next()
        .is_some_and(|version| version.starts_with(b"HTTP/"))
}

/// The maximum of the http crate.
const LONGEST_TARGET: usize = u16::MAX as usize - 1;

pub(super) fn no_http() -> Problem {
    Problem::new(
        Code::BadRequest,
        "malformed HTTP/1.1 request; the first line must be like GET /path HTTP/1.1",
    )
}

/// What the headers say about the connection and the body.
struct ConnectionHeaders {
    closes: bool,
    keeps: bool,
    expects: bool,
    upgrades: bool,
    trailers: bool,
    length: Length,
}

impl Default for ConnectionHeaders {
    fn default() -> Self {
        let length = Length::Known(0);
        Self {
            closes: false,
            keeps: false,
            expects: false,
            upgrades: false,
            trailers: false,
            length,
        }
    }
}

impl ConnectionHeaders {
    fn hear(&mut self, name: &HeaderName, value: &[u8]) -> Result<(), Problem> {
        if *name == CONNECTION {
            for word in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                self.closes |= word.eq_ignore_ascii_case(b"close");
                self.keeps |= word.eq_ignore_ascii_case(b"keep-alive");
            }
        } else if *name == CONTENT_LENGTH {
            // The guard has checked that it is one number.
            let length = str::from_utf8(value)
                .ok()
                .and_then(|length| length.parse().ok())
                .ok_or_else(no_http)?;
            self.length = Length::Known(length);
        } else if *name == TRANSFER_ENCODING {
            self.length = Length::Chunked;
            // Other codings are rejected later; and another reader may find another end of such a
            // body.
            self.closes |= !value.eq_ignore_ascii_case(b"chunked");
        } else if *name == EXPECT {
            self.expects = value.eq_ignore_ascii_case(b"100-continue");
        } else if *name == UPGRADE {
            self.upgrades = true;
        } else if *name == TE {
            self.trailers |= headers::welcomes_trailers(value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUNDS: HeadLimits = HeadLimits {
        bytes: 1_024,
        headers: 8,
    };

    proptest! {
        #[test]
        fn whatever_comes_is_read_without_a_panic(
            head in "((GET|\\PC{0,3}) \\PC{0,6} HTTP/1.[01]\r\n)?((Content-Length|Connection|TE|x): ?\\PC{0,8}\r\n){0,4}(\r\n)?",
            bytes in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let _ = read(head.as_bytes(), BOUNDS);
            let _ = read(&bytes, HeadLimits { headers: 200, ..BOUNDS });
        }
    }

    fn head(text: &str) -> Head {
        let (end, head) = read(text.as_bytes(), BOUNDS)
            .unwrap()
            .expect("a whole head");
        assert_eq!(end, text.len());
        head
    }

    fn refused(text: &str) -> u16 {
        read(text.as_bytes(), BOUNDS)
            .err()
            .map_or(200, |problem| problem.status().as_u16())
    }

    #[test]
    fn a_request_is_as_it_was_written() {
        let Head {
            request, length, ..
        } = head(
            "\r\nPOST /a?b=c HTTP/1.1\r\nHost: x\r\nCookie: a=b\r\nCOOKIE: c=d\r\nContent-Length: 12\r\n\r\n",
        );
        assert_eq!(
            (request.method(), request.uri().to_string(), length),
            (&Method::POST, "/a?b=c".into(), Length::Known(12))
        );
        assert_eq!(
            request
                .headers()
                .get_all("cookie")
                .iter()
                .collect::<Vec<_>>(),
            ["a=b", "c=d"]
        );
        assert_eq!(
            head("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n").length,
            Length::Chunked
        );
        assert_eq!(
            head("GET http://a.b/c HTTP/1.1\r\n\r\n")
                .request
                .uri()
                .host(),
            Some("a.b")
        );
        assert_eq!(head("OPTIONS * HTTP/1.1\r\n\r\n").request.uri().path(), "*");
    }

    #[test]
    fn whether_a_connection_is_kept() {
        let keeps = |version: &str, said: &str| {
            head(&format!(
                "GET / HTTP/{version}\r\nConnection: {said}\r\n\r\n"
            ))
            .asked
            .keep
        };
        assert!(keeps("1.1", "x") && keeps("1.1", "keep-alive") && keeps("1.0", "te, Keep-Alive"));
        assert!(
            !keeps("1.0", "x") && !keeps("1.1", "TE, Close") && !keeps("1.0", "close, keep-alive")
        );
    }

    #[test]
    fn what_a_client_waits_for() {
        let head = head(
            "PUT / HTTP/1.1\r\nExpect: 100-Continue\r\nTE: gzip;q=0.5, Trailers\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
        );
        assert!(head.expects && head.asked.trailers && head.upgrades);
        assert!(
            !self::head("GET / HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n").upgrades
        );
        assert!(!self::head("GET / HTTP/1.1\r\nUpgrade: x\r\n\r\n").upgrades);
        assert!(
            !self::head("PUT / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n").expects,
            "it does not know that"
        );
    }

    #[test]
    fn what_is_no_head_or_too_large_is_told_so() {
        let text = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        for end in 0..text.len() {
            assert!(
                read(&text.as_bytes()[..end], BOUNDS).unwrap().is_none(),
                "{end}"
            );
        }
        assert_eq!(refused("GET / HTTP/1.2\r\n\r\n"), 505);
        assert_eq!(refused("GET  / HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(refused("hello\r\n\r\n"), 400);
        assert_eq!(refused("PROXY TCP4 192.0.2.1 192.0.2.2 4711 80\r\n"), 400);
        assert_eq!(
            refused(&format!(
                "GET / HTTP/1.1\r\nX: {}",
                "x".repeat(BOUNDS.bytes)
            )),
            431
        );
        assert_eq!(
            refused(&format!(
                "GET / HTTP/1.1\r\nX: {}\r\n\r\n",
                "x".repeat(BOUNDS.bytes)
            )),
            431
        );
        assert_eq!(
            refused(&format!(
                "GET / HTTP/1.1\r\n{}\r\n",
                "x: 1\r\n".repeat(BOUNDS.headers + 1)
            )),
            431
        );
    }
}
