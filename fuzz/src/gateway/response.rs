//! Bytes of an upstream, on their way through the gateway to a client: the head and the body are
//! taken apart, and written again.

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

/// However the bytes are cut, the same comes of them, and what is written is what came: as two
/// readers have it that share nothing with the gateway. No poll goes round in circles.
///
/// The first byte says how it is asked and how it is written; the rest is what the upstream sends
/// before it closes the connection.
pub fn response(data: &[u8]) {
    let Some((options, bytes)) = data.split_first() else {
        return;
    };
    let options = Options(*options);
    let whole = passed_on(options, bytes, bytes.len().max(1));
    for piece in [1, 2, 7, 1 + bytes.len() / 2] {
        let other = passed_on(options, bytes, piece);
        assert_eq!(whole.is_whole, other.is_whole, "in pieces of {piece}");
        assert_eq!(whole.heads, other.heads, "in pieces of {piece}");
        if whole.is_whole {
            assert_eq!(whole.body, other.body, "in pieces of {piece}");
            assert_eq!(whole.trailers, other.trailers, "in pieces of {piece}");
            assert_eq!(whole.rest, other.rest, "in pieces of {piece}");
        }
    }
}

/// How the client asks, and how its connection behaves.
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

    /// The longest piece of a body.
    fn piece(self) -> u64 {
        if self.0 & 8 != 0 { 5 } else { u64::MAX }
    }

    /// How much the connection of the client takes at once, and whether it pauses in between.
    fn socket(self) -> (usize, bool) {
        let most = if self.0 & 16 != 0 { 3 } else { usize::MAX };
        (most, self.0 & 32 != 0)
    }

    /// Whether pieces of the upstream come one by one, with a pause before each.
    fn trickles(self) -> bool {
        self.0 & 64 != 0
    }
}

/// Names and values of headers.
type Fields = Vec<(String, Vec<u8>)>;

/// What has become of the bytes of an upstream.
#[derive(Default)]
struct PassedOn {
    /// Whether all of an answer came, and was written.
    is_whole: bool,
    /// The statuses and headers of all heads, without a date of ours and what says how a body ends.
    heads: Vec<(u16, Fields)>,
    body: Vec<u8>,
    trailers: Fields,
    /// What the upstream sent behind the answer.
    rest: usize,
}

fn passed_on(options: Options, bytes: &[u8], piece: usize) -> PassedOn {
    let method = if options.is_head() {
        Method::HEAD
    } else {
        Method::GET
    };
    let mut upstream = Upstream {
        reader: Reader::new(&method, options.piece()),
        pieces: bytes.chunks(piece).collect(),
        next: 0,
        waits: options.trickles(),
        trickles: options.trickles(),
        longest: options.piece(),
        body: Vec::new(),
        trailers: HeaderMap::new(),
    };
    let mut out = Vec::new();
    let mut known = PassedOn::default();
    let head = loop {
        let Some(head) = upstream.head() else {
            // No answer: the client gets one of our own.
            return known;
        };
        known.heads.push(fields_of(&head));
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
        // Another protocol, or an error: nothing of it goes on as an answer.
        return known;
    }
    let informed = out.len();
    let before = bytes.len() - upstream.left();
    let expected = expected(&bytes[..before], &bytes[before..], &head, &method);
    let mut asked = RequestInfo {
        version: if options.is_http10() {
            Version::HTTP_10
        } else {
            Version::HTTP_11
        },
        is_head: options.is_head(),
        keep_alive: true,
        trailers: options.wants_trailers(),
    };
    let written = write(&mut upstream, head, &mut asked, options, &mut out);
    known.body = std::mem::take(&mut upstream.body);
    known.trailers = pairs(&upstream.trailers);
    known.rest = upstream.left();
    known.is_whole = written.is_ok();
    // What the gateway took out is what came.
    match &expected {
        Some((body, trailers, rest)) => {
            assert!(known.is_whole, "all of it came, and {written:?}");
            assert_eq!(&known.body, body);
            assert_eq!(&known.trailers, trailers);
            assert_eq!(known.rest, *rest);
        }
        None => assert!(!known.is_whole, "it was cut off, and nobody noticed"),
    }
    // What it wrote is what it took out.
    let Some(client) = decoded(&out[informed..], &asked) else {
        assert!(!known.is_whole, "the head is cut off");
        return known;
    };
    let has_body = !options.is_head() && !is_bodiless(client.status);
    assert_eq!(client.status, known.heads[known.heads.len() - 1].0);
    assert_eq!(client.headers, known.heads[known.heads.len() - 1].1);
    if known.is_whole {
        assert!(client.is_whole, "{}", out.escape_ascii());
        if has_body {
            assert_eq!(client.body, known.body);
        }
        if client.is_chunked && options.wants_trailers() {
            assert_eq!(client.trailers, known.trailers);
        } else {
            assert!(client.trailers.is_empty());
        }
    } else {
        // The connection ends with it: only a body without any end of its own may look whole.
        assert!(!client.is_whole || client.ends_with_connection);
        assert!(known.body.starts_with(&client.body));
    }
    known
}

/// An answer that is read as it is taken.
struct Upstream<'a> {
    reader: Reader,
    pieces: Vec<&'a [u8]>,
    next: usize,
    waits: bool,
    trickles: bool,
    longest: u64,
    /// All that was taken.
    body: Vec<u8>,
    trailers: HeaderMap,
}

impl Upstream<'_> {
    /// Reads more; false at the end of the connection.
    fn read(&mut self) -> bool {
        let piece = self.pieces.get(self.next);
        self.next += 1;
        self.waits = self.trickles;
        self.reader.add(piece.copied().unwrap_or_default());
        piece.is_some()
    }

    /// What was not taken of all that comes.
    fn left(&self) -> usize {
        let unread = self.pieces.get(self.next..).unwrap_or_default();
        self.reader.rest().len() + unread.iter().map(|piece| piece.len()).sum::<usize>()
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
                        assert!(!data.is_empty() && data.len() as u64 <= self.longest);
                        self.body.extend_from_slice(data);
                    }
                    if let Some(trailers) = frame.trailers_ref() {
                        self.trailers.clone_from(trailers);
                    }
                    return Poll::Ready(Some(Ok(frame)));
                }
                Ok(Next::Over) => return Poll::Ready(None),
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
        self.reader.is_over()
    }

    fn size_hint(&self) -> SizeHint {
        self.reader.size_hint()
    }
}

/// The connection of a client: it takes so many bytes at once, and may pause before each of them.
struct Socket<'a> {
    out: &'a mut Vec<u8>,
    most: usize,
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
        let length = bytes.len().min(this.most);
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
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// Writes the answer as the gateway does: what came whole with its head in one piece, and else as
/// it comes.
fn write(
    upstream: &mut Upstream<'_>,
    head: Head,
    asked: &mut RequestInfo,
    options: Options,
    out: &mut Vec<u8>,
) -> Result<(), WriteError<H1Error>> {
    let trailers = if options.wants_trailers() {
        Trailers::All
    } else {
        Trailers::None
    };
    // What comes is as long as it is; how much of it must have a limit.
    let most_polls = 16 * (upstream.left() + 64 * head.headers.len() + 4_096);
    match upstream.reader.whole_body() {
        Some(body) => {
            upstream.body.extend_from_slice(&body);
            let body = Whole(Some(body).filter(|body| !body.is_empty()));
            write_body(body, head, asked, (options, trailers, most_polls), out)
        }
        None => write_body(upstream, head, asked, (options, trailers, most_polls), out),
    }
}

/// A body that is there.
struct Whole(Option<Bytes>);

impl Body for Whole {
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
    asked: &mut RequestInfo,
    (options, trailers, most_polls): (Options, Trailers, usize),
    out: &mut Vec<u8>,
) -> Result<(), WriteError<H1Error>> {
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    let mut writer = MessageWriter::default();
    let framing = writer.begin(|head| write_head(head, &response, asked));
    writer.set_body(response.into_body(), framing, trailers);
    let (most, pauses) = options.socket();
    let mut socket = Socket {
        out,
        most,
        pauses,
        is_open: false,
    };
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let cx = &mut Context::from_waker(&waker);
    for _ in 0..most_polls {
        let polled = writer.poll(&mut socket, &mut PollBudget::new(), cx);
        if let Poll::Ready(written) = polled {
            assert!(written.is_err() || !writer.is_busy());
            return written;
        }
        assert!(
            woken.0.swap(false, Relaxed),
            "pending, and nothing wakes it"
        );
    }
    panic!("it is polled again and again, and does not come to an end");
}

/// Headers by name; those of one name stay in their order.
fn pairs(headers: &HeaderMap) -> Fields {
    let mut pairs: Vec<_> = headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .collect();
    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    pairs
}

/// Whether every writer of a head writes a header itself.
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

/// What a reader of its own makes of the bytes behind a head: the body, the trailers, and how much
/// is left over; none if it is malformed or cut off.
type Expected = Option<(Vec<u8>, Fields, usize)>;

fn expected(head: &[u8], bytes: &[u8], known: &Head, method: &Method) -> Expected {
    let (lengths, is_chunked) = framing(head);
    if *method == Method::HEAD || is_bodiless(known.status.as_u16()) {
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

/// The lengths that the last head of these bytes says, and whether it says that chunks come.
fn framing(heads: &[u8]) -> (Vec<u64>, bool) {
    let (mut lengths, mut is_chunked) = (Vec::new(), false);
    for line in heads.split(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(line).to_ascii_lowercase();
        if line.starts_with("http/") {
            // A head after one that only informs.
            (lengths, is_chunked) = (Vec::new(), false);
        }
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        match name {
            "content-length" => {
                let numbers = value.split(',').map(|number| number.trim().parse::<u64>());
                lengths.extend(numbers.map(|number| number.expect("a length that is none passed")));
            }
            "transfer-encoding" => {
                assert_eq!(value.trim(), "chunked", "another coding passed");
                is_chunked = true;
            }
            _ => {}
        }
    }
    assert!(
        lengths.windows(2).all(|pair| pair[0] == pair[1]),
        "two lengths passed"
    );
    (lengths, is_chunked)
}

/// A body in chunks: its data, its trailers, and how much is left over; none if it is malformed or
/// cut off. The gateway takes extensions and writes none.
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
    let mut room = [httparse::EMPTY_HEADER; 64];
    let Ok(httparse::Status::Complete((length, found))) = httparse::parse_headers(bytes, &mut room)
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

/// Whether a header may follow a body; written down once more, as the documentation has it.
fn may_trail(name: &str) -> bool {
    const NEVER: &str = "authorization cache-control content-encoding content-length content-range \
        content-type cookie host max-forwards set-cookie trailer connection http2-settings keep-alive \
        proxy-authenticate proxy-authorization proxy-connection te transfer-encoding upgrade";
    let with_hyphens = name.replace('_', "-");
    let tells_who = with_hyphens.starts_with("x-forwarded-")
        || ["x-real-ip", "forwarded"].contains(&&*with_hyphens);
    !tells_who && !NEVER.split_whitespace().any(|never| never == name)
}

/// The status of a head that only informs, and how long it is.
fn informational(bytes: &[u8]) -> (u16, usize) {
    let mut room = vec![httparse::EMPTY_HEADER; 1_100];
    let mut response = httparse::Response::new(&mut room);
    match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => (response.code.unwrap_or_default(), length),
        other => panic!("{other:?} of {}", bytes.escape_ascii()),
    }
}

/// An answer as a client reads it.
struct Decoded {
    status: u16,
    headers: Fields,
    is_whole: bool,
    is_chunked: bool,
    ends_with_connection: bool,
    body: Vec<u8>,
    trailers: Fields,
}

/// Reads what was written for a client, strictly: nothing may be left over. None if it is cut off
/// in its head.
fn decoded(out: &[u8], asked: &RequestInfo) -> Option<Decoded> {
    let mut room = vec![httparse::EMPTY_HEADER; 1_100];
    let mut response = httparse::Response::new(&mut room);
    let length = match response.parse(out) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return None,
        other => panic!("{other:?} of {}", out.escape_ascii()),
    };
    let status = response.code.unwrap_or_default();
    assert_eq!(
        response.version,
        Some(u8::from(asked.version == Version::HTTP_11))
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
    let mut decoded = Decoded {
        status,
        headers,
        is_whole: true,
        is_chunked: !codings.is_empty(),
        ends_with_connection: false,
        body: Vec::new(),
        trailers: Vec::new(),
    };
    if asked.is_head || is_bodiless(status) {
        assert!(bytes.is_empty(), "a body where there is none");
        return Some(decoded);
    }
    if decoded.is_chunked {
        assert_eq!(codings, [b"chunked"]);
        match chunks(bytes, false) {
            Some((body, trailers, rest)) => {
                assert_eq!(rest, 0);
                (decoded.body, decoded.trailers) = (body, trailers);
            }
            None => decoded.is_whole = false,
        }
        return Some(decoded);
    }
    decoded.body = bytes.to_vec();
    match lengths.first() {
        Some(length) => {
            let length: usize = String::from_utf8_lossy(length).parse().unwrap();
            assert!(bytes.len() <= length, "more than was announced");
            decoded.is_whole = bytes.len() == length;
        }
        None => {
            decoded.ends_with_connection = true;
            assert!(!asked.keep_alive, "nothing says where it ends");
        }
    }
    Some(decoded)
}
