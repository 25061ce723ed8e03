//! Writes the head of a response to an HTTP/1 client, and decides the framing of its body.

use super::request::RequestInfo;
use crate::gateway::http1::{Framing, put_header};
use axum::http::header::{CONNECTION, CONTENT_LENGTH, DATE};
use axum::http::{HeaderMap, Response, StatusCode, Version};
use http_body::Body;
use std::cell::RefCell;
use std::io::Write;
use std::time::SystemTime;

/// Writes the head of the response to a request. It decides whether the connection is reused.
pub(super) fn write_head<B: Body>(
    head: &mut Vec<u8>,
    response: &Response<B>,
    info: &mut RequestInfo,
) -> Framing {
    let (status, headers) = (response.status(), response.headers());
    let framing = framing(response, info);
    info.keep_alive &= framing != Framing::Close;
    head.extend_from_slice(if info.version == Version::HTTP_10 {
        b"HTTP/1.0 "
    } else {
        b"HTTP/1.1 "
    });
    match status {
        StatusCode::OK => head.extend_from_slice(b"200 OK\r\n"),
        status => {
            let reason = status.canonical_reason().unwrap_or_default();
            // Writing into memory cannot fail.
            drop(write!(head, "{} {reason}\r\n", status.as_u16()));
        }
    }
    // A response without a body may still have a Content-Length, except where it can never have a
    // body.
    let may_have_length =
        framing == Framing::Empty && status != StatusCode::NO_CONTENT && !status.is_informational();
    let ResponseFraming {
        mut date,
        mut connection,
        mut length,
    } = ResponseFraming::default();
    for (name, value) in headers {
        let value = value.as_bytes();
        if *name == CONTENT_LENGTH {
            if !may_have_length {
                continue;
            }
            length = true;
        } else if *name == CONNECTION {
            connection = true;
            info.keep_alive &= !value.eq_ignore_ascii_case(b"close");
        } else if *name == DATE {
            date = true;
        }
        put_header(head, name, value);
    }
    match framing {
        Framing::Known(bytes) => write_length(head, bytes),
        Framing::Chunked => head.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        Framing::Empty if info.is_head && may_have_length && !length => {
            response
                .body()
                .size_hint()
                .exact()
                .filter(|bytes| *bytes > 0)
                .into_iter()
                .for_each(|bytes| write_length(head, bytes));
        }
        Framing::Empty | Framing::Close => {}
    }
    if !connection {
        match (info.keep_alive, info.version) {
            (true, Version::HTTP_10) => head.extend_from_slice(b"connection: keep-alive\r\n"),
            (true, _) => {}
            (false, _) => head.extend_from_slice(b"connection: close\r\n"),
        }
    }
    if !date {
        write_date(head);
    }
    head.extend_from_slice(b"\r\n");
    framing
}

/// The framing headers that a head has already.
#[derive(Default)]
struct ResponseFraming {
    date: bool,
    connection: bool,
    length: bool,
}

/// The framing of a response body (RFC 9112, 6.3).
fn framing<B: Body>(response: &Response<B>, info: &RequestInfo) -> Framing {
    let status = response.status();
    if info.is_head
        || status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
    {
        return Framing::Empty;
    }
    match response.body().size_hint().exact() {
        Some(length) => Framing::Known(length),
        None if response.body().is_end_stream() => Framing::Known(0),
        None if info.version == Version::HTTP_10 => Framing::Close,
        None => Framing::Chunked,
    }
}

/// Writes an informational response, which is only a head.
pub(super) fn write_informational(head: &mut Vec<u8>, status: StatusCode, headers: &HeaderMap) {
    drop(write!(
        head,
        "HTTP/1.1 {} {}\r\n",
        status.as_u16(),
        status.canonical_reason().unwrap_or_default()
    ));
    // It has no body, so no length either.
    let sent = headers.iter().filter(|(name, _)| *name != CONTENT_LENGTH);
    sent.for_each(|(name, value)| put_header(head, name, value.as_bytes()));
    head.extend_from_slice(b"\r\n");
}

fn write_length(head: &mut Vec<u8>, length: u64) {
    head.extend_from_slice(b"content-length: ");
    let mut digits = [0; 20];
    let (mut at, mut rest) = (digits.len(), length);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    head.extend_from_slice(&digits[at..]);
    head.extend_from_slice(b"\r\n");
}

/// Rarely called: most responses have the date of the upstream.
#[cold]
fn write_date(head: &mut Vec<u8>) {
    thread_local!(static LAST: RefCell<(u64, Vec<u8>)> = const { RefCell::new((0, Vec::new())) });
    let now = SystemTime::now();
    let seconds = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    LAST.with_borrow_mut(|(second, line)| {
        if *second != seconds || line.is_empty() {
            line.clear();
            drop(write!(line, "date: {}\r\n", httpdate::fmt_http_date(now)));
            *second = seconds;
        }
        head.extend_from_slice(line);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Bytes;
    use axum::http::HeaderValue;
    use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
    use std::convert::Infallible;

    const INFO: RequestInfo = RequestInfo {
        version: Version::HTTP_11,
        is_head: false,
        keep_alive: true,
        trailers: false,
    };

    fn known(length: usize) -> BoxBody<Bytes, Infallible> {
        Full::new(Bytes::from(vec![b'x'; length])).boxed()
    }

    fn unknown() -> BoxBody<Bytes, Infallible> {
        StreamBody::new(futures_util::stream::empty()).boxed()
    }

    /// The lines after the first, except the date; the framing; whether the connection is kept
    /// alive.
    fn written(
        status: u16,
        headers: &[(&'static str, &'static str)],
        body: BoxBody<Bytes, Infallible>,
        mut info: RequestInfo,
    ) -> (String, Framing, bool) {
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        for (name, value) in headers {
            response
                .headers_mut()
                .append(*name, HeaderValue::from_static(value));
        }
        let mut head = Vec::new();
        let framing = write_head(&mut head, &response, &mut info);
        let text = String::from_utf8(head).unwrap();
        let (first, rest) = text.split_once("\r\n").unwrap();
        assert!(
            first.starts_with(&format!(
                "HTTP/1.{} {status}",
                u8::from(info.version == Version::HTTP_11)
            )),
            "{first}"
        );
        let lines: Vec<&str> = rest
            .strip_suffix("\r\n\r\n")
            .unwrap()
            .split("\r\n")
            .collect();
        assert_eq!(
            lines
                .iter()
                .filter(|line| line.starts_with("date: "))
                .count(),
            1,
            "{text}"
        );
        let lines: Vec<&str> = lines
            .into_iter()
            .filter(|line| !line.starts_with("date: "))
            .collect();
        (lines.join("|"), framing, info.keep_alive)
    }

    fn expected(text: &str, framing: Framing, keep_alive: bool) -> (String, Framing, bool) {
        (text.to_owned(), framing, keep_alive)
    }

    #[test]
    fn the_framing_follows_the_body() {
        assert_eq!(
            written(200, &[("a", "b")], known(5), INFO),
            expected("a: b|content-length: 5", Framing::Known(5), true)
        );
        assert_eq!(
            written(429, &[], known(0), INFO),
            expected("content-length: 0", Framing::Known(0), true)
        );
        assert_eq!(
            written(
                200,
                &[("content-length", "7"), ("date", "today")],
                known(1_234_567),
                INFO
            )
            .0,
            "content-length: 1234567"
        );
        assert_eq!(
            written(200, &[], unknown(), INFO),
            expected("transfer-encoding: chunked", Framing::Chunked, true)
        );
        let old = RequestInfo {
            version: Version::HTTP_10,
            ..INFO
        };
        assert_eq!(
            written(200, &[], unknown(), old),
            expected("connection: close", Framing::Close, false)
        );
        assert_eq!(
            written(200, &[], known(5), old),
            expected(
                "content-length: 5|connection: keep-alive",
                Framing::Known(5),
                true
            )
        );
    }

    #[test]
    fn responses_without_a_body_may_have_a_content_length() {
        let head = RequestInfo {
            is_head: true,
            ..INFO
        };
        assert_eq!(
            written(200, &[("content-length", "7")], known(0), head).0,
            "content-length: 7"
        );
        assert_eq!(
            written(429, &[], known(9), head),
            expected("content-length: 9", Framing::Empty, true)
        );
        assert_eq!(
            written(200, &[], unknown(), head),
            expected("", Framing::Empty, true)
        );
        assert_eq!(
            written(304, &[("content-length", "7")], known(0), INFO).0,
            "content-length: 7"
        );
        assert_eq!(
            written(204, &[("content-length", "0")], known(0), INFO),
            expected("", Framing::Empty, true)
        );
    }

    #[test]
    fn the_connection_header_is_written_once() {
        let last = RequestInfo {
            keep_alive: false,
            ..INFO
        };
        assert_eq!(written(204, &[], known(0), last).0, "connection: close");
        assert_eq!(
            written(204, &[("connection", "close")], known(0), last).0,
            "connection: close"
        );
        assert_eq!(
            written(204, &[("connection", "close")], known(0), INFO),
            expected("connection: close", Framing::Empty, false)
        );
        assert_eq!(
            written(101, &[("connection", "upgrade")], known(0), INFO),
            expected("connection: upgrade", Framing::Empty, true)
        );
    }
}
