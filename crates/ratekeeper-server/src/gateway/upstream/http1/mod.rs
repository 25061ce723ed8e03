//! One HTTP/1.1 connection to an upstream.
//!
//! It has no task of its own: the request that uses it drives it, and then the body of the response
//! does. So a request goes to the upstream and back without waking another task. Heads are written
//! straight from the client's request and parsed straight into the client's response.

mod head;
mod request_writer;

pub(crate) use head::{Head, MAX_HEADERS};

use super::timer::{Timeouts, Timer};
use crate::gateway::body::{BodyError, RequestBody};
use crate::gateway::headers::RequestHeaderRewriter;
use crate::gateway::http1::{ChunkEvent, ChunkedDecoder, empty_line_end, fill, take};
use crate::net::stream::Stream;
use axum::body::Bytes;
use axum::http::{Method, Request, Version};
use bytes::{Buf, BytesMut};
use head::BodyLength;
use http_body::{Frame, SizeHint};
use ratekeeper_policy::config::Upstream;
use request_writer::RequestWriter;
use std::fmt;
use std::io;
use std::task::{Context, Poll, ready};

/// How much is read at once, of a head and of a body.
const HEAD_ROOM: usize = 8 * 1024;
const BODY_ROOM: usize = 64 * 1024;

/// The longest piece of a body for an HTTP/2 client: how soon the next one is asked for shows
/// whether the client takes any.
const HTTP2_PIECE: u64 = 16 * 1024;

/// A body up to this size that came with its head is taken at once.
const MAX_WHOLE_BODY: u64 = 16 * 1024;

/// An HTTP/1.1 connection to an upstream, with the request and the response in progress.
pub(crate) struct H1UpstreamConn {
    stream: Stream,
    read: BytesMut,
    sending: RequestWriter,
    receiving: ReceiveState,
    /// The method of the last request.
    method: Method,
    /// The longest piece of the body.
    piece: u64,
    /// How many bytes in the buffer were scanned for the end of a head, and how many were tried to
    /// be parsed as one.
    scanned: usize,
    parsed: usize,
    /// Whether the connection may be reused after this response.
    keep_alive: bool,
    /// Whether it was just polled: nothing had come, and the waker is registered.
    is_watched: bool,
    pub(crate) timer: Timer,
}

/// The next part of the response.
#[derive(Debug)]
enum ReceiveState {
    Head,
    Known(u64),
    Chunked(ChunkedDecoder),
    Close,
    Finished,
}

/// Why the exchange failed.
#[derive(Debug)]
pub(crate) enum H1Error {
    Io(io::Error),
    /// The connection was closed too early.
    Closed,
    /// The response was invalid; the phrase says what it had.
    InvalidResponse(&'static str),
    /// The request body of the client failed.
    Body(BodyError),
}

impl fmt::Display for H1Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "connection failed: {error}"),
            Self::Closed => f.write_str("it closed the connection before the end of the response"),
            Self::InvalidResponse(what) => f.write_str(what),
            Self::Body(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for H1Error {}

impl H1UpstreamConn {
    pub(crate) fn new(stream: Stream, timeouts: Timeouts) -> Box<Self> {
        Box::new(Self {
            stream,
            read: BytesMut::new(),
            sending: RequestWriter::default(),
            receiving: ReceiveState::Finished,
            method: Method::GET,
            piece: u64::MAX,
            scanned: 0,
            parsed: 0,
            keep_alive: true,
            is_watched: false,
            timer: Timer::new(timeouts),
        })
    }

    /// Whether another request can be sent.
    pub(crate) fn is_free(&self) -> bool {
        self.keep_alive
            && matches!(self.receiving, ReceiveState::Finished)
            && self.read.is_empty()
            && !self.sending.is_busy()
    }

    /// Whether the connection is still open: it may have been closed while it was idle. Call it in
    /// the task that then sends a request.
    pub(crate) fn is_alive(&mut self, cx: &mut Context<'_>) -> bool {
        // Reuses the front of the buffer, which is still in the cache.
        let _ = self.read.try_reclaim(HEAD_ROOM);
        // Unexpected bytes make the connection unusable.
        self.is_watched = fill(&mut self.stream, &mut self.read, HEAD_ROOM, cx).is_pending();
        self.is_watched
    }

    /// Begins a request, and takes its body.
    pub(crate) fn begin(
        &mut self,
        request: &mut Request<RequestBody>,
        upstream: &Upstream,
        rewriter: &RequestHeaderRewriter<'_>,
    ) {
        self.method.clone_from(request.method());
        self.piece = if rewriter.version == Version::HTTP_2 {
            HTTP2_PIECE
        } else {
            u64::MAX
        };
        self.receiving = ReceiveState::Head;
        (self.scanned, self.parsed) = (0, 0);
        self.sending.begin(request, upstream, rewriter);
    }

    /// Takes back the body of a request of which nothing was sent yet.
    pub(crate) fn unsent(&mut self) -> Option<RequestBody> {
        self.sending.stop()
    }

    /// The head of the response, or of an informational one: then there will be another.
    pub(crate) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Head, H1Error>> {
        let mut broken = None;
        if self.sending.is_busy()
            && let Poll::Ready(Err(error)) = self.sending.poll(&mut self.stream, cx)
        {
            // An upstream that stops reading may have answered already.
            match error {
                H1Error::Io(_) if self.sending.has_begun() => {
                    self.stop_sending();
                    broken = Some(error);
                }
                error => return Poll::Ready(Err(error)),
            }
        }
        if std::mem::take(&mut self.is_watched) && broken.is_none() {
            return Poll::Pending;
        }
        loop {
            if self.may_have_head()
                && let Some((length, head)) = head::read(&self.read, &self.method)?
            {
                self.read.advance(length);
                (self.scanned, self.parsed) = (0, 0);
                if !head.is_informational() {
                    self.keep_alive &= head.keep_alive;
                    self.receiving = match head.length {
                        BodyLength::Known(0) => ReceiveState::Finished,
                        BodyLength::Known(length) => ReceiveState::Known(length),
                        BodyLength::Chunked => ReceiveState::Chunked(ChunkedDecoder::new()),
                        BodyLength::Close => ReceiveState::Close,
                    };
                }
                return Poll::Ready(Ok(head));
            }
            match ready!(fill(&mut self.stream, &mut self.read, HEAD_ROOM, cx)) {
                Ok(true) => {}
                Ok(false) => return Poll::Ready(Err(broken.unwrap_or(H1Error::Closed))),
                Err(error) => return Poll::Ready(Err(broken.unwrap_or(H1Error::Io(error)))),
            }
        }
    }

    /// Whether parsing the head is worth another try: its end has come, or so many more bytes that
    /// an invalid one is found early. So each byte is parsed a bounded number of times, however a
    /// head is split.
    fn may_have_head(&mut self) -> bool {
        let from = std::mem::replace(&mut self.scanned, self.read.len());
        let has_line = || self.read[from..].contains(&b'\n');
        let is_due = empty_line_end(&self.read, from).is_some()
            || self.read.len() >= 2 * self.parsed && has_line()
            || self.read.len() > head::MAX_HEAD_BYTES;
        if is_due {
            self.parsed = self.read.len();
        }
        is_due
    }

    /// Stops sending the request, and prevents reuse of the connection.
    fn stop_sending(&mut self) {
        self.sending.stop();
        self.keep_alive = false;
    }

    /// Whether the exchange waits for the client to send more of the body.
    pub(crate) fn waits_for_client(&self) -> bool {
        self.sending.waits_for_client()
    }

    /// Whether any of the response has come.
    pub(crate) fn has_response_bytes(&self) -> bool {
        !self.read.is_empty() || !matches!(self.receiving, ReceiveState::Head)
    }

    /// The body, if all of it came with the head.
    pub(crate) fn whole_body(&mut self) -> Option<Bytes> {
        match self.receiving {
            ReceiveState::Finished => Some(Bytes::new()),
            ReceiveState::Known(length)
                if length <= MAX_WHOLE_BODY && self.read.len() as u64 >= length =>
            {
                self.receiving = ReceiveState::Finished;
                Some(take(&mut self.read, length))
            }
            _ => None,
        }
    }

    /// The next frame of the body.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, H1Error>>> {
        if self.sending.is_busy()
            && let Poll::Ready(Err(_)) = self.sending.poll(&mut self.stream, cx)
        {
            // The response has begun already.
            self.stop_sending();
        }
        loop {
            let room = match &mut self.receiving {
                ReceiveState::Head | ReceiveState::Finished => return Poll::Ready(None),
                ReceiveState::Known(left) => {
                    if !self.read.is_empty() {
                        let data = take(&mut self.read, self.piece.min(*left));
                        *left -= data.len() as u64;
                        if *left == 0 {
                            self.receiving = ReceiveState::Finished;
                        }
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                    usize::try_from(*left).unwrap_or(usize::MAX).min(BODY_ROOM)
                }
                ReceiveState::Close => {
                    if !self.read.is_empty() {
                        let data = take(&mut self.read, self.piece);
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                    BODY_ROOM
                }
                ReceiveState::Chunked(decoder) => {
                    let piece = decoder
                        .next(&mut self.read, self.piece)
                        .map_err(|wrong| H1Error::InvalidResponse(wrong.0))?;
                    if decoder.is_finished() {
                        self.receiving = ReceiveState::Finished;
                    }
                    match piece {
                        ChunkEvent::Data(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                        ChunkEvent::Trailers(trailers) => {
                            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                        }
                        ChunkEvent::Finished => return Poll::Ready(None),
                        ChunkEvent::More => BODY_ROOM,
                    }
                }
            };
            match ready!(fill(&mut self.stream, &mut self.read, room, cx)) {
                Ok(true) => {}
                Ok(false) if matches!(self.receiving, ReceiveState::Close) => {
                    self.receiving = ReceiveState::Finished;
                }
                Ok(false) => return Poll::Ready(Some(Err(H1Error::Closed))),
                Err(error) => return Poll::Ready(Some(Err(H1Error::Io(error)))),
            }
        }
    }

    /// Whether the whole response has come.
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.receiving, ReceiveState::Finished)
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        match self.receiving {
            ReceiveState::Known(left) => SizeHint::with_exact(left),
            ReceiveState::Finished => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        }
    }

    /// The stream, for another protocol, and the bytes already read from it.
    pub(crate) fn into_stream(self) -> (Stream, BytesMut) {
        (self.stream, self.read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::time::Duration;
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;
    use tokio::time::Instant;

    /// A head of many lines that come one by one is not parsed from its start for each of them.
    #[tokio::test]
    async fn a_head_that_comes_line_by_line_is_parsed_a_few_times() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let timeouts = Timeouts {
            started: Instant::now(),
            idle: Duration::from_secs(60),
            total: None,
            sent: None,
        };
        let mut conn = H1UpstreamConn::new(Stream::Unix(near), timeouts);
        conn.receiving = ReceiveState::Head;
        let (mut tries, mut parsed) = (0, 0);
        far.write_all(b"HTTP/1.1 204 No Content\r\n").await.unwrap();
        for _ in 0..900 {
            far.write_all(b"set-cookie: a=b\r\n").await.unwrap();
            assert!(
                poll_fn(|cx| Poll::Ready(conn.poll_head(cx)))
                    .await
                    .is_pending()
            );
            tries += usize::from(std::mem::replace(&mut parsed, conn.parsed) != conn.parsed);
        }
        assert!(tries <= 12, "{tries} tries of a head of 14 KB");
        far.write_all(b"\r\n").await.unwrap();
        let head = poll_fn(|cx| conn.poll_head(cx)).await.unwrap();
        assert_eq!(head.headers.len(), 900);
    }
}
