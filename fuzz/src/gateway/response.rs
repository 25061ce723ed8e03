//! The fuzz target of upstream responses: the bytes of an upstream are parsed as in the gateway, by a
//! naive reader, and by hyper's client.

use super::upstream::{H1Error, Head, Next, Reader};
use axum::body::Bytes;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use http_body::{Body, Frame};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::pin::pin;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The result is the same for any split of the bytes, it is that of a naive reader that shares no
/// code with the gateway, and hyper's client finds the same in every response that is accepted.
///
/// The first byte sets the options of the request; the rest is sent by the upstream before it closes
/// the connection.
pub fn response(data: &[u8]) {
    let Some((options, bytes)) = data.split_first() else {
        return;
    };
    let options = Options(*options);
    let whole = read(options, bytes, bytes.len().max(1));
    for part in [1, 2, 7, 1 + bytes.len() / 2] {
        let other = read(options, bytes, part);
        assert_eq!(whole.is_whole, other.is_whole, "in parts of {part}");
        assert_eq!(whole.heads, other.heads, "in parts of {part}");
        if whole.is_whole {
            assert_eq!(whole.body, other.body, "in parts of {part}");
            assert_eq!(whole.trailers, other.trailers, "in parts of {part}");
            assert_eq!(whole.rest, other.rest, "in parts of {part}");
        }
    }
    if whole.is_whole {
        compare_with_hyper(options, bytes, &whole);
    }
}

/// The options of a request.
#[derive(Clone, Copy)]
struct Options(u8);

impl Options {
    fn method(self) -> Method {
        if self.0 & 1 != 0 {
            Method::HEAD
        } else {
            Method::GET
        }
    }

    /// The longest chunk of a body.
    fn max_chunk(self) -> u64 {
        if self.0 & 8 != 0 { 5 } else { u64::MAX }
    }
}

/// Names and values of headers.
type Fields = Vec<(String, Vec<u8>)>;

/// A response, as far as it was read.
#[derive(Default)]
struct ReadResponse {
    /// Whether a whole response came.
    is_whole: bool,
    /// The statuses and headers of all heads, without framing headers.
    heads: Vec<(u16, Fields)>,
    body: Vec<u8>,
    trailers: Fields,
    /// How many bytes the upstream sent after the response.
    rest: usize,
}

fn read(options: Options, bytes: &[u8], part: usize) -> ReadResponse {
    let method = options.method();
    let mut upstream = Upstream {
        reader: Reader::new(&method, options.max_chunk()),
        parts: bytes.chunks(part).collect(),
        next: 0,
    };
    let mut result = ReadResponse::default();
    let head = loop {
        let Some(head) = upstream.head() else {
            return result;
        };
        result.heads.push(fields_of(head.status, &head.headers));
        if !head.is_informational() {
            break head;
        }
    };
    if head.status.as_u16() == 101 {
        // Another protocol, or an error: it is not forwarded as a response.
        return result;
    }
    let before = bytes.len() - upstream.left();
    let expected = expected(&bytes[..before], &bytes[before..], &head, &method);
    let hint = upstream.reader.size_hint().exact();
    let ended = upstream.body(options, &mut result);
    result.rest = upstream.left();
    result.is_whole = ended.is_ok();
    match &expected {
        Some((body, trailers, rest)) => {
            assert!(result.is_whole, "a whole response, but {ended:?}");
            assert_eq!(&result.body, body);
            assert_eq!(&result.trailers, trailers);
            assert_eq!(result.rest, *rest);
            assert!(hint.is_none_or(|hint| hint == body.len() as u64));
        }
        None => assert!(!result.is_whole, "a cut-off response was accepted"),
    }
    result
}

/// Responses that come in parts.
struct Upstream<'a> {
    reader: Reader,
    parts: Vec<&'a [u8]>,
    next: usize,
}

impl Upstream<'_> {
    /// Reads more; false at the end of the connection.
    fn read(&mut self) -> bool {
        let part = self.parts.get(self.next);
        self.next += 1;
        self.reader.add(part.copied().unwrap_or_default());
        part.is_some()
    }

    /// How many bytes were not consumed.
    fn left(&self) -> usize {
        let unread = self.parts.get(self.next..).unwrap_or_default();
        self.reader.rest().len() + unread.iter().map(|part| part.len()).sum::<usize>()
    }

    fn head(&mut self) -> Option<Head> {
        loop {
            match self.reader.head() {
                Ok(Some(head)) => return Some(head),
                Ok(None) if self.read() => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Reads the body: at once, if it came with its head, or else as it comes.
    fn body(&mut self, options: Options, result: &mut ReadResponse) -> Result<(), H1Error> {
        if let Some(whole) = self.reader.whole_body() {
            result.body.extend_from_slice(&whole);
            return Ok(());
        }
        loop {
            match self.reader.next()? {
                Next::Frame(frame) => take(frame, options.max_chunk(), result),
                Next::Finished => {
                    assert!(self.reader.is_finished());
                    return Ok(());
                }
                Next::More if self.read() => {}
                Next::More => return self.reader.end(),
            }
        }
    }
}

fn take(frame: Frame<Bytes>, max_chunk: u64, result: &mut ReadResponse) {
    match frame.into_data() {
        Ok(data) => {
            assert!(!data.is_empty() && data.len() as u64 <= max_chunk);
            result.body.extend_from_slice(&data);
        }
        Err(frame) => result.trailers = pairs(&frame.into_trailers().unwrap_or_default()),
    }
}

/// hyper's client accepts what the gateway accepts, and finds the same in it. It accepts more: see
/// the table in the tests below.
fn compare_with_hyper(options: Options, bytes: &[u8], ours: &ReadResponse) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let (head, body, trailers) = runtime
        .block_on(by_hyper(options, bytes))
        .unwrap_or_else(|error| panic!("{error} in {}", bytes.escape_ascii()));
    let (status, headers) = &ours.heads[ours.heads.len() - 1];
    assert_eq!(head.0, *status);
    // hyper leaves hop-by-hop headers in.
    let names = head.1.iter().filter(|field| headers.contains(field));
    assert_eq!(names.count(), headers.len(), "{}", bytes.escape_ascii());
    assert_eq!(body, ours.body);
    let allowed = trailers.into_iter().filter(|(name, _)| may_trail(name));
    assert_eq!(allowed.collect::<Fields>(), ours.trailers);
}

/// Status and headers, body and trailers.
type HyperResponse = ((u16, Fields), Vec<u8>, Fields);

async fn by_hyper(options: Options, bytes: &[u8]) -> Result<HyperResponse, hyper::Error> {
    let (near, mut far) = tokio::io::duplex(bytes.len() + 1_024);
    let (mut sender, connection) = http1::Builder::new()
        .max_headers(1_000)
        .max_buf_size(1 << 20)
        .handshake(TokioIo::new(near))
        .await?;
    let request = Request::builder().method(options.method()).uri("/");
    let request = request.body(http_body_util::Empty::<Bytes>::new());
    let exchange = async move {
        let response = sender.send_request(request.expect("a request")).await?;
        let (head, body) = response.into_parts();
        let mut body = pin!(body);
        let (mut data, mut trailers) = (Vec::new(), Fields::new());
        while let Some(frame) = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            match frame?.into_data() {
                Ok(part) => data.extend_from_slice(&part),
                Err(frame) => trailers = pairs(&frame.into_trailers().unwrap_or_default()),
            }
        }
        Ok((fields_of(head.status, &head.headers), data, trailers))
    };
    let upstream = async {
        // Until the request has come: hyper expects nothing before.
        let _ = far.read(&mut [0; 1_024]).await;
        let _ = far.write_all(bytes).await;
        let _ = far.shutdown().await;
        std::future::pending::<()>().await;
    };
    let mut exchange = pin!(exchange);
    tokio::select! {
        biased;
        ended = &mut exchange => return ended,
        _ = async { tokio::join!(connection, upstream) } => {}
    }
    exchange.await
}

/// Headers sorted by name; those of one name stay in order.
fn pairs(headers: &HeaderMap) -> Fields {
    let mut pairs: Vec<_> = headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .collect();
    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    pairs
}

/// Whether a header frames the message, or is for one connection only.
fn is_framing(name: &str) -> bool {
    [
        "connection",
        "content-length",
        "keep-alive",
        "transfer-encoding",
    ]
    .contains(&name)
}

fn fields_of(status: StatusCode, headers: &HeaderMap) -> (u16, Fields) {
    let mut pairs = pairs(headers);
    pairs.retain(|(name, _)| !is_framing(name));
    (status.as_u16(), pairs)
}

fn is_bodiless(status: u16) -> bool {
    status < 200 || status == 204 || status == 304
}

/// The expected body and trailers, and how many bytes follow them; `None` if the body is malformed
/// or cut off.
type Expected = Option<(Vec<u8>, Fields, usize)>;

fn expected(head: &[u8], bytes: &[u8], head_fields: &Head, method: &Method) -> Expected {
    let (lengths, is_chunked) = framing(head);
    if *method == Method::HEAD || is_bodiless(head_fields.status.as_u16()) {
        return Some((Vec::new(), Vec::new(), bytes.len()));
    }
    if is_chunked {
        let (body, trailers, rest) = chunks(bytes)?;
        let trailers = trailers.into_iter().filter(|(name, _)| may_trail(name));
        return Some((body, trailers.collect(), rest));
    }
    match lengths.first() {
        Some(length) => {
            let length = usize::try_from(*length).ok()?;
            let body = bytes.get(..length)?.to_vec();
            Some((body, Vec::new(), bytes.len() - length))
        }
        None => Some((bytes.to_vec(), Vec::new(), 0)),
    }
}

/// The lengths in the last of these heads, and whether its body is chunked.
fn framing(heads: &[u8]) -> (Vec<u64>, bool) {
    let (mut lengths, mut is_chunked) = (Vec::new(), false);
    for line in heads.split(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(line).to_ascii_lowercase();
        if line.starts_with("http/") {
            // A head after an informational one.
            (lengths, is_chunked) = (Vec::new(), false);
        }
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        match name {
            "content-length" => {
                let numbers = value.split(',').map(|number| number.trim().parse::<u64>());
                lengths
                    .extend(numbers.map(|number| number.expect("an invalid length was accepted")));
            }
            "transfer-encoding" => {
                assert_eq!(value.trim(), "chunked", "another coding was accepted");
                is_chunked = true;
            }
            _ => {}
        }
    }
    assert!(
        lengths.windows(2).all(|pair| pair[0] == pair[1]),
        "two lengths were accepted"
    );
    (lengths, is_chunked)
}

/// Parses a chunked body.
fn chunks(mut bytes: &[u8]) -> Expected {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
        let line = std::str::from_utf8(&bytes[..end]);
        // Extensions may have any bytes but for line breaks.
        let line = match line {
            Ok(line) => line.to_owned(),
            Err(_) => String::from_utf8_lossy(&bytes[..end]).into_owned(),
        };
        if line.contains(['\n', '\r']) {
            return None;
        }
        let digits = line.find(|letter: char| !letter.is_ascii_hexdigit());
        let (digits, extension) = line.split_at(digits.unwrap_or(line.len()));
        let is_extension = extension.starts_with([';', ' ', '\t']);
        if digits.is_empty() || digits.len() > 16 || !extension.is_empty() && !is_extension {
            return None;
        }
        let size = usize::from_str_radix(digits, 16).ok()?;
        bytes = &bytes[end + 2..];
        if size == 0 {
            break;
        }
        body.extend_from_slice(bytes.get(..size)?);
        bytes = bytes[size..].strip_prefix(b"\r\n")?;
    }
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let Ok(httparse::Status::Complete((length, found))) =
        httparse::parse_headers(bytes, &mut headers)
    else {
        return None;
    };
    let lines = bytes[..length].split_inclusive(|byte| *byte == b'\n');
    if lines.into_iter().any(|line| !line.ends_with(b"\r\n")) {
        return None;
    }
    let mut trailers: Vec<_> = found
        .iter()
        .map(|header| (header.name.to_ascii_lowercase(), header.value.to_vec()))
        .collect();
    trailers.sort_by(|(a, _), (b, _)| a.cmp(b));
    Some((body, trailers, bytes.len() - length))
}

/// Whether a header may be a trailer: an independent copy of the documented rule.
fn may_trail(name: &str) -> bool {
    const NEVER: &str = "authorization cache-control content-encoding content-length content-range \
        content-type cookie host max-forwards set-cookie trailer connection http2-settings keep-alive \
        proxy-authenticate proxy-authorization proxy-connection te transfer-encoding upgrade";
    let with_hyphens = name.replace('_', "-");
    let names_client = with_hyphens.starts_with("x-forwarded-")
        || ["x-real-ip", "forwarded"].contains(&&*with_hyphens);
    !names_client && !NEVER.split_whitespace().any(|never| never == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the gateway is stricter than hyper's client, on purpose.
    #[test]
    fn hyper_accepts_more() {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let trailers = "x: 1\r\n".repeat(65);
        for (response, why) in [
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n".to_owned(),
                "only chunks are decoded",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nx".to_owned(),
                "the same, up to the end of the connection",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                    .to_owned(),
                "chunks within chunks",
            ),
            (
                format!("{chunked}00000000000000001\r\na\r\n0\r\n\r\n"),
                "a chunk size of more than 16 digits",
            ),
            (
                format!("{chunked}0\r\n{trailers}\r\n"),
                "more than 64 trailers",
            ),
        ] {
            let bytes = response.as_bytes();
            let ours = read(Options(0), bytes, bytes.len());
            assert!(!ours.is_whole, "the gateway accepts {why}");
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let hypers = runtime.unwrap().block_on(by_hyper(Options(0), bytes));
            assert!(hypers.is_ok(), "hyper rejects {why}: {hypers:?}");
        }
    }
}
