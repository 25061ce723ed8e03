//! The fuzz target of upstream responses: bytes of an upstream are parsed and written to a client
//! as in the gateway.

use super::client::{RequestInfo, write_head, write_informational};
use super::http1::{MessageWriter, PollBudget, Trailers, WriteError};
use super::upstream::{H1Error, Head, Next, Reader};
use axum::body::Bytes;
use axum::http::{HeaderMap, Method, Response, Version};
use http_body::{Body, Frame, SizeHint};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use tokio::io::AsyncWrite;

/// The result is the same for any split of the bytes, and the output matches the input, by two
/// readers that share no code with the gateway. Every poll makes progress.
///
/// The first byte sets the options of the request and of the client; the rest is sent by the
/// upstream before it closes the connection.
pub fn response(data: &[u8]) {
    let Some((options, bytes)) = data.split_first() else {
        return;
    };
    let options = Options(*options);
    let whole = forward(options, bytes, bytes.len().max(1));
    for part in [1, 2, 7, 1 + bytes.len() / 2] {
        let other = forward(options, bytes, part);
        assert_eq!(whole.is_whole, other.is_whole, "in parts of {part}");
        assert_eq!(whole.heads, other.heads, "in parts of {part}");
        if whole.is_whole {
            assert_eq!(whole.body, other.body, "in parts of {part}");
            assert_eq!(whole.trailers, other.trailers, "in parts of {part}");
            assert_eq!(whole.rest, other.rest, "in parts of {part}");
        }
    }
}

/// The options of a run: the request, and the behaviour of the connections.
#[derive(Clone, Copy)]
struct Options(u8);

impl Options {
    fn is_head(self) -> bool {
        self.0 & 1 != 0
    }

    fn is_http10(self) -> bool {
        self.0 & 2 != 0
    }

    fn wants_trailers(self) -> bool {
        self.0 & 4 != 0
    }

    /// The max_chunk chunk of a body.
    fn max_chunk(self) -> u64 {
        if self.0 & 8 != 0 { 5 } else { u64::MAX }
    }

    /// How many bytes the client takes at once, and whether it pauses in between.
    fn socket(self) -> (usize, bool) {
        let max = if self.0 & 16 != 0 { 3 } else { usize::MAX };
        (max, self.0 & 32 != 0)
    }

    /// Whether the upstream pauses before each part.
    fn pauses_between_parts(self) -> bool {
        self.0 & 64 != 0
    }
}

/// Names and values of headers.
type Fields = Vec<(String, Vec<u8>)>;

/// The result of forwarding the bytes of an upstream.
#[derive(Default)]
struct ForwardResult {
    /// Whether a whole response came and was written.
    is_whole: bool,
    /// The statuses and headers of all heads, without dates and framing headers.
    heads: Vec<(u16, Fields)>,
    body: Vec<u8>,
    trailers: Fields,
    /// How many bytes the upstream sent after the response.
    rest: usize,
}

fn forward(options: Options, bytes: &[u8], part: usize) -> ForwardResult {
    let method = if options.is_head() {
        Method::HEAD
    } else {
        Method::GET
    };
    let mut upstream = Upstream {
        reader: Reader::new(&method, options.max_chunk()),
        parts: bytes.chunks(part).collect(),
        next: 0,
        waits: options.pauses_between_parts(),
        pauses_between_parts: options.pauses_between_parts(),
        max_chunk: options.max_chunk(),
        body: Vec::new(),
        trailers: HeaderMap::new(),
    };
    let mut out = Vec::new();
    let mut result = ForwardResult::default();
    let head = loop {
        let Some(head) = upstream.head() else {
            // No response: the client gets one of the gateway's own.
            return result;
        };
        result.heads.push(fields_of(&head));
        if !head.is_informational() {
            break head;
        }
        if !options.is_http10() {
            let at = out.len();
            write_informational(&mut out, head.status, &head.headers);
            assert_eq!(
                informational(&out[at..]),
                (head.status.as_u16(), out.len() - at)
            );
        }
    };
    if head.status.as_u16() == 101 {
        // Another protocol, or an error: it is not forwarded as a response.
        return result;
    }
    let informational_end = out.len();
    let before = bytes.len() - upstream.left();
    let expected = expected(&bytes[..before], &bytes[before..], &head, &method);
    let mut request = RequestInfo {
        version: if options.is_http10() {
            Version::HTTP_10
        } else {
            Version::HTTP_11
        },
        is_head: options.is_head(),
        keep_alive: true,
        trailers: options.wants_trailers(),
    };
    let written = write(&mut upstream, head, &mut request, options, &mut out);
    result.body = std::mem::take(&mut upstream.body);
    result.trailers = pairs(&upstream.trailers);
    result.rest = upstream.left();
    result.is_whole = written.is_ok();
    // The parsed response is the sent one.
    match &expected {
        Some((body, trailers, rest)) => {
            assert!(result.is_whole, "a whole response, but {written:?}");
            assert_eq!(&result.body, body);
            assert_eq!(&result.trailers, trailers);
            assert_eq!(result.rest, *rest);
        }
        None => assert!(!result.is_whole, "a cut-off response was accepted"),
    }
    // The written response is the parsed one.
    let Some(client) = parsed(&out[informational_end..], &request) else {
        assert!(!result.is_whole, "the head is cut off");
        return result;
    };
    let has_body = !options.is_head() && !is_bodiless(client.status);
    assert_eq!(client.status, result.heads[result.heads.len() - 1].0);
    assert_eq!(client.headers, result.heads[result.heads.len() - 1].1);
    if result.is_whole {
        assert!(client.is_whole, "{}", out.escape_ascii());
        if has_body {
            assert_eq!(client.body, result.body);
        }
        if client.is_chunked && options.wants_trailers() {
            assert_eq!(client.trailers, result.trailers);
        } else {
            assert!(client.trailers.is_empty());
        }
    } else {
        // The connection ends: only a close-delimited body may look whole.
        assert!(!client.is_whole || client.ends_with_connection);
        assert!(result.body.starts_with(&client.body));
    }
    result
}

/// A response that is read from the upstream when it is polled.
struct Upstream<'a> {
    reader: Reader,
    parts: Vec<&'a [u8]>,
    next: usize,
    waits: bool,
    pauses_between_parts: bool,
    max_chunk: u64,
    /// The polled data.
    body: Vec<u8>,
    trailers: HeaderMap,
}

impl Upstream<'_> {
    /// Reads more; false at the end of the connection.
    fn read(&mut self) -> bool {
        let part = self.parts.get(self.next);
        self.next += 1;
        self.waits = self.pauses_between_parts;
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
}

impl Body for &mut Upstream<'_> {
    type Data = Bytes;
    type Error = H1Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, H1Error>>> {
        loop {
            match self.reader.next() {
                Ok(Next::Frame(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        assert!(!data.is_empty() && data.len() as u64 <= self.max_chunk);
                        self.body.extend_from_slice(data);
                    }
                    if let Some(trailers) = frame.trailers_ref() {
                        self.trailers.clone_from(trailers);
                    }
                    return Poll::Ready(Some(Ok(frame)));
                }
                Ok(Next::Finished) => return Poll::Ready(None),
                Err(fault) => return Poll::Ready(Some(Err(fault))),
                Ok(Next::More) => {}
            }
            if std::mem::take(&mut self.waits) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if !self.read() {
                return Poll::Ready(self.reader.end().err().map(Err));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.reader.is_finished()
    }

    fn size_hint(&self) -> SizeHint {
        self.reader.size_hint()
    }
}

/// The connection of a client: it takes a number of bytes at once, and may pause before each write.
struct Socket<'a> {
    out: &'a mut Vec<u8>,
    max: usize,
    pauses: bool,
    is_open: bool,
}

impl AsyncWrite for Socket<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.is_open = this.pauses && !this.is_open;
        if this.is_open {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let length = bytes.len().min(this.max);
        this.out.extend_from_slice(&bytes[..length]);
        Poll::Ready(Ok(length))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.poll_write(cx, &all)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[derive(Default)]
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// Writes the response as the gateway does: a body that came with its head at once, any other as it
/// comes.
fn write(
    upstream: &mut Upstream<'_>,
    head: Head,
    request: &mut RequestInfo,
    options: Options,
    out: &mut Vec<u8>,
) -> Result<(), WriteError<H1Error>> {
    let trailers = if options.wants_trailers() {
        Trailers::All
    } else {
        Trailers::None
    };
    // The number of polls must be bounded by the size of the input.
    let max_polls = 16 * (upstream.left() + 64 * head.headers.len() + 4_096);
    match upstream.reader.whole_body() {
        Some(body) => {
            upstream.body.extend_from_slice(&body);
            let body = WholeBody(Some(body).filter(|body| !body.is_empty()));
            write_body(body, head, request, (options, trailers, max_polls), out)
        }
        None => write_body(upstream, head, request, (options, trailers, max_polls), out),
    }
}

/// A complete body.
struct WholeBody(Option<Bytes>);

impl Body for WholeBody {
    type Data = Bytes;
    type Error = H1Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, H1Error>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

fn write_body<B: Body<Data = Bytes, Error = H1Error> + Unpin>(
    body: B,
    head: Head,
    request: &mut RequestInfo,
    (options, trailers, max_polls): (Options, Trailers, usize),
    out: &mut Vec<u8>,
) -> Result<(), WriteError<H1Error>> {
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    let mut writer = MessageWriter::default();
    let framing = writer.begin(|head| write_head(head, &response, request));
    writer.set_body(response.into_body(), framing, trailers);
    let (max, pauses) = options.socket();
    let mut socket = Socket {
        out,
        max,
        pauses,
        is_open: false,
    };
    let wake_flag = Arc::new(WakeFlag::default());
    let waker = Waker::from(Arc::clone(&wake_flag));
    let cx = &mut Context::from_waker(&waker);
    for _ in 0..max_polls {
        let polled = writer.poll(&mut socket, &mut PollBudget::new(), cx);
        if let Poll::Ready(written) = polled {
            assert!(written.is_err() || !writer.is_busy());
            return written;
        }
        assert!(
            wake_flag.0.swap(false, Relaxed),
            "pending without a waker call"
        );
    }
    panic!("the writer does not end");
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

/// Whether a header is written anew with every head.
fn is_framing(name: &str) -> bool {
    ["date", "connection", "content-length", "transfer-encoding"].contains(&name)
}

fn fields_of(head: &Head) -> (u16, Fields) {
    let mut pairs = pairs(&head.headers);
    pairs.retain(|(name, _)| !is_framing(name));
    (head.status.as_u16(), pairs)
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
        let (body, trailers, rest) = chunks(bytes, true)?;
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

/// Parses a chunked body. The gateway accepts extensions and writes none.
fn chunks(mut bytes: &[u8], extended: bool) -> Expected {
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
        let is_extension = extended && extension.starts_with([';', ' ', '\t']);
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

/// The status of an informational head, and its length.
fn informational(bytes: &[u8]) -> (u16, usize) {
    let mut storage = vec![httparse::EMPTY_HEADER; 1_100];
    let mut response = httparse::Response::new(&mut storage);
    match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => (response.code.unwrap_or_default(), length),
        other => panic!("{other:?} of {}", bytes.escape_ascii()),
    }
}

/// A response as a client parses it.
struct ParsedResponse {
    status: u16,
    headers: Fields,
    is_whole: bool,
    is_chunked: bool,
    ends_with_connection: bool,
    body: Vec<u8>,
    trailers: Fields,
}

/// Parses the bytes written to a client, strictly: no bytes may follow. `None` if the head is cut
/// off.
fn parsed(out: &[u8], request: &RequestInfo) -> Option<ParsedResponse> {
    let mut storage = vec![httparse::EMPTY_HEADER; 1_100];
    let mut response = httparse::Response::new(&mut storage);
    let length = match response.parse(out) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return None,
        other => panic!("{other:?} of {}", out.escape_ascii()),
    };
    let status = response.code.unwrap_or_default();
    assert_eq!(
        response.version,
        Some(u8::from(request.version == Version::HTTP_11))
    );
    let all: Fields = response
        .headers
        .iter()
        .map(|header| (header.name.to_ascii_lowercase(), header.value.to_vec()))
        .collect();
    let of = |name: &str| -> Vec<&[u8]> {
        let same = all.iter().filter(|(known, _)| known == name);
        same.map(|(_, value)| &**value).collect()
    };
    let (lengths, codings) = (of("content-length"), of("transfer-encoding"));
    assert!(
        lengths.len() + codings.len() <= 1,
        "two lengths: {}",
        out.escape_ascii()
    );
    let mut headers: Vec<_> = all
        .iter()
        .filter(|(name, _)| !is_framing(name))
        .cloned()
        .collect();
    headers.sort_by(|(a, _), (b, _)| a.cmp(b));
    let bytes = &out[length..];
    let mut parsed = ParsedResponse {
        status,
        headers,
        is_whole: true,
        is_chunked: !codings.is_empty(),
        ends_with_connection: false,
        body: Vec::new(),
        trailers: Vec::new(),
    };
    if request.is_head || is_bodiless(status) {
        assert!(bytes.is_empty(), "a body where none is allowed");
        return Some(parsed);
    }
    if parsed.is_chunked {
        assert_eq!(codings, [b"chunked"]);
        match chunks(bytes, false) {
            Some((body, trailers, rest)) => {
                assert_eq!(rest, 0);
                (parsed.body, parsed.trailers) = (body, trailers);
            }
            None => parsed.is_whole = false,
        }
        return Some(parsed);
    }
    parsed.body = bytes.to_vec();
    match lengths.first() {
        Some(length) => {
            let length: usize = String::from_utf8_lossy(length).parse().unwrap();
            assert!(bytes.len() <= length, "more bytes than announced");
            parsed.is_whole = bytes.len() == length;
        }
        None => {
            parsed.ends_with_connection = true;
            assert!(!request.keep_alive, "a body without an end");
        }
    }
    Some(parsed)
}
