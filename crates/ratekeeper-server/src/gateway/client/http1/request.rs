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
    pub(super) length: RequestBodyLength,
    /// Whether the client expects 100 Continue.
    pub(super) expects_continue: bool,
    /// Whether it may switch to another protocol.
    pub(super) may_upgrade: bool,
    pub(super) info: RequestInfo,
}

/// The framing of a request body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestBodyLength {
    /// A body of this many bytes.
    Known(u64),
    Chunked,
}

/// The properties of a request that its response depends on.
#[derive(Clone, Copy)]
pub(super) struct RequestInfo {
    pub(super) version: Version,
    /// Whether the method is HEAD, whose responses have no body.
    pub(super) is_head: bool,
    /// Whether the connection may be reused.
    pub(super) keep_alive: bool,
    /// Whether trailers are accepted.
    pub(super) trailers: bool,
}

/// Parses a head, and returns its length with it, or `None` if more must be read.
pub(super) fn read(bytes: &[u8], limits: HeadLimits) -> Result<Option<(usize, Head)>, Problem> {
    if limits.headers > USUAL_HEADERS {
        return read_into(
            bytes,
            limits,
            &mut vec![MaybeUninit::uninit(); limits.headers],
        );
    }
    let mut buffer = [const { MaybeUninit::uninit() }; USUAL_HEADERS];
    read_into(bytes, limits, &mut buffer[..limits.headers])
}

/// The problem of a request with more headers than `max_headers`.
pub(crate) fn too_many_headers() -> Problem {
    Problem::new(
        Code::HeadTooLarge,
        "the request has more headers than this gateway allows",
    )
}

#[inline]
fn read_into<'a>(
    bytes: &'a [u8],
    limits: HeadLimits,
    buffer: &mut [MaybeUninit<httparse::Header<'a>>],
) -> Result<Option<(usize, Head)>, Problem> {
    let mut parsed = httparse::Request::new(&mut []);
    let end = match parsed.parse_with_uninit_headers(bytes, buffer) {
        Ok(httparse::Status::Complete(end)) if end <= limits.bytes => end,
        Ok(httparse::Status::Partial) if bytes.len() < limits.bytes => return Ok(None),
        Ok(_) => {
            return Err(Problem::new(
                Code::HeadTooLarge,
                "the request head is larger than this gateway allows",
            ));
        }
        Err(httparse::Error::TooManyHeaders) => {
            return Err(too_many_headers());
        }
        Err(httparse::Error::Version) if is_http_request_line(bytes) => {
            return Err(Problem::new(
                Code::UnknownVersion,
                "unsupported HTTP version; this gateway supports HTTP/1.0, 1.1 and 2",
            ));
        }
        Err(_) => return Err(malformed()),
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
        .ok_or_else(malformed)?;
    let path = parsed.path.ok_or_else(malformed)?;
    if path.len() > MAX_TARGET_BYTES {
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
    let mut info = RequestInfo {
        version,
        is_head: method == Method::HEAD,
        keep_alive: false,
        trailers: false,
    };
    let mut found = RequestConnectionHeaders::default();
    let mut map = HeaderMap::with_capacity(parsed.headers.len());
    for header in &*parsed.headers {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| malformed())?;
        found.record(&name, header.value)?;
        map.append(
            name,
            HeaderValue::from_maybe_shared(part(header.value)).map_err(|_| malformed())?,
        );
    }
    info.keep_alive = !found.close && (version == Version::HTTP_11 || found.keep_alive);
    info.trailers = found.trailers;
    let mut request = Request::new(());
    (
        *request.method_mut(),
        *request.uri_mut(),
        *request.version_mut(),
    ) = (method, uri, version);
    *request.headers_mut() = map;
    let is_http11 = version == Version::HTTP_11;
    let may_upgrade =
        found.may_upgrade && is_http11 && headers::upgrade(request.headers()).is_some();
    Ok(Some((
        end,
        Head {
            request,
            length: found.length,
            expects_continue: found.expects_continue && is_http11,
            may_upgrade,
            info,
        },
    )))
}

/// Whether the first line ends like a request line.
fn is_http_request_line(bytes: &[u8]) -> bool {
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
const MAX_TARGET_BYTES: usize = u16::MAX as usize - 1;

/// The problem of a request that is not valid HTTP/1.1.
pub(super) fn malformed() -> Problem {
    Problem::new(
        Code::BadRequest,
        "malformed HTTP/1.1 request; the first line must be like GET /path HTTP/1.1",
    )
}

/// The headers of a request that concern the connection and the body.
struct RequestConnectionHeaders {
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
    may_upgrade: bool,
    trailers: bool,
    length: RequestBodyLength,
}

impl Default for RequestConnectionHeaders {
    fn default() -> Self {
        let length = RequestBodyLength::Known(0);
        Self {
            close: false,
            keep_alive: false,
            expects_continue: false,
            may_upgrade: false,
            trailers: false,
            length,
        }
    }
}

impl RequestConnectionHeaders {
    fn record(&mut self, name: &HeaderName, value: &[u8]) -> Result<(), Problem> {
        if *name == CONNECTION {
            for word in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                self.close |= word.eq_ignore_ascii_case(b"close");
                self.keep_alive |= word.eq_ignore_ascii_case(b"keep-alive");
            }
        } else if *name == CONTENT_LENGTH {
            // The guard has checked that it is one number.
            let length = str::from_utf8(value)
                .ok()
                .and_then(|length| length.parse().ok())
                .ok_or_else(malformed)?;
            self.length = RequestBodyLength::Known(length);
        } else if *name == TRANSFER_ENCODING {
            self.length = RequestBodyLength::Chunked;
            // Other codings are rejected later; another reader may find another end of that body.
            self.close |= !value.eq_ignore_ascii_case(b"chunked");
        } else if *name == EXPECT {
            self.expects_continue = value.eq_ignore_ascii_case(b"100-continue");
        } else if *name == UPGRADE {
            self.may_upgrade = true;
        } else if *name == TE {
            self.trailers |= headers::accepts_trailers(value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: HeadLimits = HeadLimits {
        bytes: 1_024,
        headers: 8,
    };

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(
            head in "((GET|\\PC{0,3}) \\PC{0,6} HTTP/1.[01]\r\n)?((Content-Length|Connection|TE|x): ?\\PC{0,8}\r\n){0,4}(\r\n)?",
            bytes in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let _ = read(head.as_bytes(), LIMITS);
            let _ = read(&bytes, HeadLimits { headers: 200, ..LIMITS });
        }
    }

    fn head(text: &str) -> Head {
        let (end, head) = read(text.as_bytes(), LIMITS)
            .unwrap()
            .expect("a whole head");
        assert_eq!(end, text.len());
        head
    }

    fn status_of(text: &str) -> u16 {
        read(text.as_bytes(), LIMITS)
            .err()
            .map_or(200, |problem| problem.status().as_u16())
    }

    #[test]
    fn a_request_is_parsed_as_written() {
        let Head {
            request, length, ..
        } = head(
            "\r\nPOST /a?b=c HTTP/1.1\r\nHost: x\r\nCookie: a=b\r\nCOOKIE: c=d\r\nContent-Length: 12\r\n\r\n",
        );
        assert_eq!(
            (request.method(), request.uri().to_string(), length),
            (&Method::POST, "/a?b=c".into(), RequestBodyLength::Known(12))
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
            RequestBodyLength::Chunked
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
    fn keep_alive_by_version_and_connection_header() {
        let keeps = |version: &str, found: &str| {
            head(&format!(
                "GET / HTTP/{version}\r\nConnection: {found}\r\n\r\n"
            ))
            .info
            .keep_alive
        };
        assert!(keeps("1.1", "x") && keeps("1.1", "keep-alive") && keeps("1.0", "te, Keep-Alive"));
        assert!(
            !keeps("1.0", "x") && !keeps("1.1", "TE, Close") && !keeps("1.0", "close, keep-alive")
        );
    }

    #[test]
    fn expect_te_and_upgrade() {
        let head = head(
            "PUT / HTTP/1.1\r\nExpect: 100-Continue\r\nTE: gzip;q=0.5, Trailers\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
        );
        assert!(head.expects_continue && head.info.trailers && head.may_upgrade);
        assert!(
            !self::head("GET / HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n")
                .may_upgrade
        );
        assert!(!self::head("GET / HTTP/1.1\r\nUpgrade: x\r\n\r\n").may_upgrade);
        assert!(
            !self::head("PUT / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n").expects_continue,
            "it does not know that"
        );
    }

    #[test]
    fn malformed_and_oversized_heads_are_rejected() {
        let text = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        for end in 0..text.len() {
            assert!(
                read(&text.as_bytes()[..end], LIMITS).unwrap().is_none(),
                "{end}"
            );
        }
        assert_eq!(status_of("GET / HTTP/1.2\r\n\r\n"), 505);
        assert_eq!(status_of("GET  / HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(status_of("hello\r\n\r\n"), 400);
        assert_eq!(status_of("PROXY TCP4 192.0.2.1 192.0.2.2 4711 80\r\n"), 400);
        assert_eq!(
            status_of(&format!(
                "GET / HTTP/1.1\r\nX: {}",
                "x".repeat(LIMITS.bytes)
            )),
            431
        );
        assert_eq!(
            status_of(&format!(
                "GET / HTTP/1.1\r\nX: {}\r\n\r\n",
                "x".repeat(LIMITS.bytes)
            )),
            431
        );
        assert_eq!(
            status_of(&format!(
                "GET / HTTP/1.1\r\n{}\r\n",
                "x: 1\r\n".repeat(LIMITS.headers + 1)
            )),
            431
        );
    }
}
