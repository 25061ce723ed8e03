//! Parses the head of an upstream's response, and how its body is framed.

use super::H1Error;
use crate::gateway::headers;
use axum::body::Bytes;
use axum::http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use axum::http::{Method, StatusCode, Version};
use std::mem::MaybeUninit;
use std::ops::Range;

/// The largest head of a response, in bytes.
pub(super) const MAX_HEAD_BYTES: usize = 400 * 1024;

/// The most headers of a response.
pub(crate) const MAX_HEADERS: usize = 1_000;

/// Up to this many headers are parsed without allocating.
const USUAL_HEADERS: usize = 100;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// A parsed response head.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    /// Without hop-by-hop headers, except in a 101.
    pub(crate) headers: HeaderMap,
    pub(crate) version: Version,
    pub(super) length: ResponseBodyLength,
    /// Whether the connection may be reused.
    pub(super) keep_alive: bool,
}

impl Head {
    /// Whether the final response is still to come.
    pub(crate) fn is_informational(&self) -> bool {
        self.status.is_informational() && self.status != StatusCode::SWITCHING_PROTOCOLS
    }
}

/// The framing of a response body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ResponseBodyLength {
    /// A body of this many bytes.
    Known(u64),
    Chunked,
    /// Until the connection ends.
    Close,
}

/// Parses a head, and returns its length with it, or `None` if more must be read.
pub(super) fn read(bytes: &[u8], method: &Method) -> Result<Option<(usize, Head)>, H1Error> {
    let config = httparse::ParserConfig::default();
    let (mut usual, mut more) = ([const { MaybeUninit::uninit() }; USUAL_HEADERS], Vec::new());
    let mut response = httparse::Response::new(&mut []);
    let mut parsed = config.parse_response_with_uninit_headers(&mut response, bytes, &mut usual);
    if parsed == Err(httparse::Error::TooManyHeaders) {
        more.resize_with(MAX_HEADERS, MaybeUninit::uninit);
        response = httparse::Response::new(&mut []);
        parsed = config.parse_response_with_uninit_headers(&mut response, bytes, &mut more);
    }
    let end = match parsed {
        Ok(httparse::Status::Complete(end)) if end <= MAX_HEAD_BYTES => end,
        Ok(httparse::Status::Partial) if bytes.len() <= MAX_HEAD_BYTES => return Ok(None),
        Ok(_) => {
            return Err(H1Error::InvalidResponse(
                "response head is larger than 400 KiB",
            ));
        }
        Err(httparse::Error::TooManyHeaders) => {
            return Err(H1Error::InvalidResponse(
                "response has more than 1,000 headers",
            ));
        }
        Err(_) => return Err(H1Error::InvalidResponse("response is not HTTP/1")),
    };
    let status = response
        .code
        .and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or(H1Error::InvalidResponse("response has an invalid status"))?;
    let is_http10 = response.version == Some(0);
    let version = if is_http10 {
        Version::HTTP_10
    } else {
        Version::HTTP_11
    };
    // All values are slices of one copy.
    let copy = Bytes::copy_from_slice(&bytes[..end]);
    let mut found = ResponseConnectionHeaders {
        keep_alive: !is_http10,
        ..ResponseConnectionHeaders::default()
    };
    let mut map = HeaderMap::with_capacity(response.headers.len() + 4);
    for header in &*response.headers {
        let invalid = || H1Error::InvalidResponse("response has an invalid header");
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| invalid())?;
        if found.is_forwarded(&name, header.value)? {
            let value = copy.slice(range_of(bytes, header.value));
            map.append(
                name,
                HeaderValue::from_maybe_shared(value).map_err(|_| invalid())?,
            );
        }
    }
    let length = found.length(status, method, is_http10)?;
    match found.length_header {
        _ if found.drops_length => drop(map.remove(CONTENT_LENGTH)),
        // A repeated or unusually written length is forwarded once, in plain form.
        Some(length_header) if found.is_irregular_length => {
            drop(map.insert(CONTENT_LENGTH, length_header.into()));
        }
        _ => {}
    }
    if found.has_other_hop_by_hop && status != StatusCode::SWITCHING_PROTOCOLS {
        headers::strip(&mut map);
    }
    let keep_alive = found.keep_alive && !found.close && length != ResponseBodyLength::Close;
    Ok(Some((
        end,
        Head {
            status,
            headers: map,
            version,
            length,
            keep_alive,
        },
    )))
}

/// The range of a part in the bytes.
fn range_of(bytes: &[u8], part: &[u8]) -> Range<usize> {
    let at = part.as_ptr().addr() - bytes.as_ptr().addr();
    at..at + part.len()
}

/// The headers of a response that concern the connection and the body.
#[derive(Default)]
struct ResponseConnectionHeaders {
    keep_alive: bool,
    close: bool,
    length_header: Option<u64>,
    chunked: bool,
    /// Whether there are more hop-by-hop headers than the fixed ones.
    has_other_hop_by_hop: bool,
    drops_length: bool,
    is_irregular_length: bool,
}

impl ResponseConnectionHeaders {
    /// Whether a header is forwarded to the client.
    fn is_forwarded(&mut self, name: &HeaderName, value: &[u8]) -> Result<bool, H1Error> {
        if *name == CONTENT_LENGTH {
            // The same number may be repeated, in two headers or in a list.
            let is_plain =
                value == b"0" || !value.starts_with(b"0") && value.iter().all(u8::is_ascii_digit);
            self.is_irregular_length |= self.length_header.is_some() || !is_plain;
            for number in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                let number = parse_number(number).ok_or(H1Error::InvalidResponse(
                    "response has an invalid Content-Length",
                ))?;
                if self
                    .length_header
                    .replace(number)
                    .is_some_and(|length_header| length_header != number)
                {
                    return Err(H1Error::InvalidResponse(
                        "response has two different Content-Length values",
                    ));
                }
            }
        } else if *name == CONNECTION {
            for number in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                match number {
                    _ if number.eq_ignore_ascii_case(b"close") => self.close = true,
                    _ if number.eq_ignore_ascii_case(b"keep-alive") => self.keep_alive = true,
                    _ => self.has_other_hop_by_hop = true,
                }
            }
            return Ok(self.has_other_hop_by_hop);
        } else if *name == TRANSFER_ENCODING {
            // Chunks are decoded and encoded again; other codings are not.
            if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(H1Error::InvalidResponse(
                    "response has a Transfer-Encoding other than chunked",
                ));
            }
            self.chunked = true;
            return Ok(false);
        } else if *name == KEEP_ALIVE {
            return Ok(false);
        } else if headers::is_hop_by_hop(name) {
            self.has_other_hop_by_hop = true;
        }
        Ok(true)
    }

    /// The framing of the body (RFC 9112, 6.3).
    fn length(
        &mut self,
        status: StatusCode,
        method: &Method,
        is_http10: bool,
    ) -> Result<ResponseBodyLength, H1Error> {
        if self.chunked {
            if is_http10 {
                return Err(H1Error::InvalidResponse("HTTP/1.0 response is chunked"));
            }
            // Chunks take precedence over Content-Length. An upstream that sends both may be
            // confused later, so the connection is not reused.
            if self.length_header.is_some() {
                (self.drops_length, self.close) = (true, true);
            }
        }
        let is_empty = method == Method::HEAD
            || status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        Ok(match self.length_header {
            _ if is_empty => ResponseBodyLength::Known(0),
            _ if self.chunked => ResponseBodyLength::Chunked,
            Some(length) => ResponseBodyLength::Known(length),
            None => ResponseBodyLength::Close,
        })
    }
}

/// Parses digits and nothing else.
fn parse_number(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text)
        .ok()
        .filter(|_| digits)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(
            head in "(HTTP/1.[01] [0-9]{3} ?\\PC{0,4}\r\n)?((Content-Length|Connection|Transfer-Encoding|x): ?\\PC{0,8}\r\n){0,4}(\r\n)?",
            bytes in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let _ = read(head.as_bytes(), &Method::GET);
            let _ = read(&bytes, &Method::HEAD);
        }
    }

    fn head(text: &str) -> Result<Head, H1Error> {
        let (end, head) = read(text.as_bytes(), &Method::GET)?.expect("a whole head");
        assert_eq!(end, text.len());
        Ok(head)
    }

    fn length(headers: &str) -> Option<(ResponseBodyLength, bool)> {
        head(&format!("HTTP/1.1 200 OK\r\n{headers}\r\n"))
            .ok()
            .map(|head| (head.length, head.keep_alive))
    }

    #[test]
    fn hop_by_hop_headers_are_removed_from_responses() {
        let head = head(
            "HTTP/1.1 404 Not Found\r\nServer: x\r\nConnection: keep-alive, X-Private\r\nKeep-Alive: timeout=5\r\n\
             X-Private: 1\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d\r\nContent-Length: 3\r\nUpgrade: h2c\r\n\r\n",
        )
        .unwrap();
        assert_eq!(
            (head.status.as_u16(), head.length, head.keep_alive),
            (404, ResponseBodyLength::Known(3), true)
        );
        let mut names: Vec<_> = head.headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-length", "server", "set-cookie"]);
        assert_eq!(
            head.headers
                .get_all("set-cookie")
                .iter()
                .collect::<Vec<_>>(),
            ["a=b", "c=d"]
        );
    }

    #[test]
    fn a_switching_protocols_head_keeps_its_headers() {
        let head =
            head("HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").unwrap();
        assert_eq!(headers::upgrade(&head.headers).unwrap(), "websocket");
    }

    #[test]
    fn the_framing_of_response_bodies() {
        assert_eq!(
            length("Content-Length: 5\r\n"),
            Some((ResponseBodyLength::Known(5), true))
        );
        assert_eq!(
            length("Content-Length: 5\r\nConnection: close\r\n"),
            Some((ResponseBodyLength::Known(5), false))
        );
        assert_eq!(
            length("Connection: close, keep-alive\r\nContent-Length: 5\r\n"),
            Some((ResponseBodyLength::Known(5), false))
        );
        assert_eq!(
            length("Content-Length: 5, 5\r\nContent-Length: 5\r\n"),
            Some((ResponseBodyLength::Known(5), true))
        );
        assert_eq!(
            length("Transfer-Encoding: Chunked\r\n"),
            Some((ResponseBodyLength::Chunked, true))
        );
        assert_eq!(
            length("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
            Some((ResponseBodyLength::Chunked, false))
        );
        assert_eq!(
            length("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
            Some((ResponseBodyLength::Chunked, false))
        );
        assert_eq!(length(""), Some((ResponseBodyLength::Close, false)));
        for invalid in [
            "Content-Length: 5\r\nContent-Length: 6\r\n",
            "Content-Length: 5, 6\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: \r\n",
            "Content-Length: 0x5\r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Transfer-Encoding: gzip\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "A : 1\r\n",
            " folded: 1\r\n",
            "a: 1\r\n folded\r\n",
        ] {
            assert_eq!(length(invalid), None, "{invalid}");
        }
        let twice = head("HTTP/1.1 200 OK\r\nContent-Length: 05, 5\r\n\r\n").unwrap();
        assert_eq!(
            twice
                .headers
                .get_all("content-length")
                .iter()
                .collect::<Vec<_>>(),
            ["5"]
        );
        let http10 = head("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n").unwrap();
        assert!(http10.version == Version::HTTP_10 && !http10.keep_alive);
        assert!(
            head("HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: Keep-Alive\r\n\r\n")
                .unwrap()
                .keep_alive
        );
        assert!(head("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
        assert!(head("HTTP/1.1 099 x\r\n\r\n").is_err());
        assert!(head("HTTP/2 200\r\n\r\n").is_err());
    }

    #[test]
    fn some_responses_never_have_a_body() {
        let length =
            |text: &str, method: Method| read(text.as_bytes(), &method).unwrap().unwrap().1.length;
        assert_eq!(
            length("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Method::HEAD),
            ResponseBodyLength::Known(0)
        );
        assert_eq!(
            length(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                Method::HEAD
            ),
            ResponseBodyLength::Known(0)
        );
        assert_eq!(
            length("HTTP/1.1 304 x\r\nContent-Length: 5\r\n\r\n", Method::GET),
            ResponseBodyLength::Known(0)
        );
        assert_eq!(
            length("HTTP/1.1 204 x\r\n\r\n", Method::GET),
            ResponseBodyLength::Known(0)
        );
    }

    #[test]
    fn an_incomplete_head_needs_more_bytes() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        for end in 0..text.len() {
            assert!(read(&text[..end], &Method::GET).unwrap().is_none(), "{end}");
        }
    }

    /// The same whether its end has come or not.
    #[test]
    fn response_heads_are_bounded() {
        let of_bytes = |length: usize, end: &str| {
            let start = "HTTP/1.1 200 OK\r\na: ";
            let text = format!(
                "{start}{}{end}",
                "x".repeat(length - start.len() - end.len())
            );
            read(text.as_bytes(), &Method::GET).map(|read| read.map(|(end, _)| end))
        };
        assert_eq!(
            of_bytes(MAX_HEAD_BYTES, "\r\n\r\n").unwrap(),
            Some(MAX_HEAD_BYTES)
        );
        assert_eq!(of_bytes(MAX_HEAD_BYTES, "").unwrap(), None);
        assert!(of_bytes(MAX_HEAD_BYTES + 1, "\r\n\r\n").is_err());
        assert!(of_bytes(MAX_HEAD_BYTES + 1, "").is_err());
        let of_headers = |more: usize| {
            let text = format!(
                "HTTP/1.1 200 OK\r\n{}\r\n",
                "set-cookie: a=b\r\n".repeat(more)
            );
            read(text.as_bytes(), &Method::GET).map(|read| read.unwrap().1.headers.len())
        };
        for more in [USUAL_HEADERS, USUAL_HEADERS + 1, MAX_HEADERS] {
            assert_eq!(of_headers(more).unwrap(), more);
        }
        assert!(of_headers(MAX_HEADERS + 1).is_err());
    }
}
