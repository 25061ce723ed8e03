//! One HTTP/1.1 connection to an upstream.
//!
//! It has no task of its own: the request that uses it drives it, and then the body of the response
//! does. So a request goes to the upstream and back without waking another task. Heads are written
//! from what the client sent and read into what the client gets, with nothing in between. The
//! bytes are parsed by the [`ResponseReader`], which does no I/O.

mod buffer;
mod chunked_decoder;
mod head;
mod message_encoder;
mod message_writer;
mod poll_budget;
mod pool;
mod request_writer;
mod response_reader;

pub(crate) use head::{Head, MAX_HEADERS};
pub(crate) use pool::{CLEANUP_INTERVAL, Http1Pool};

use super::conn::UpstreamRequest;
use super::timer::{Timeouts, Timer};
use crate::config::Upstream;
use crate::gateway::body::{BodyError, RequestBody};
use crate::net::stream::{MAX_HTTP1_BYTES_PER_POLL, ReadBudget, Stream};
use axum::body::Bytes;
use axum::http::Version;
use buffer::fill;
use bytes::BytesMut;
use http_body::{Frame, SizeHint};
use request_writer::RequestWriter;
use response_reader::{Next, ResponseReader};
use std::fmt;
use std::io;
use std::task::{Context, Poll, ready};

/// How much of a head is read at once.
const HEAD_ROOM: usize = 8 * 1024;

/// The longest chunk of a body for an HTTP/2 client: how soon the next one is polled shows whether
/// the client takes data.
const MAX_HTTP2_CHUNK: u64 = 16 * 1024;

/// The stream of a connection.
pub(crate) type UpstreamStream = ReadBudget<Stream>;

pub(crate) struct H1UpstreamConn {
    stream: UpstreamStream,
    sending: RequestWriter,
    reader: ResponseReader,
    /// Whether the connection may be reused after this response.
    keep_alive: bool,
    /// Whether it was just polled: nothing had come, and the waker is registered.
    is_watched: bool,
    pub(crate) timer: Timer,
}

/// Why the exchange failed.
#[derive(Debug)]
pub(crate) enum H1Error {
    Io(io::Error),
    /// The connection was closed too early.
    Closed,
    /// The response was invalid; the phrase describes it.
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
            stream: ReadBudget::new(stream, MAX_HTTP1_BYTES_PER_POLL),
            sending: RequestWriter::default(),
            reader: ResponseReader::default(),
            keep_alive: true,
            is_watched: false,
            timer: Timer::new(timeouts),
        })
    }

    /// Whether another request can be sent.
    pub(crate) fn is_free(&self) -> bool {
        self.keep_alive
            && self.reader.is_finished()
            && self.reader.read.is_empty()
            && !self.sending.is_busy()
    }

    /// Whether the connection is still open: it may have been closed while it was idle. Call it in
    /// the task that then sends a request.
    pub(crate) fn is_alive(&mut self, cx: &mut Context<'_>) -> bool {
        // Reuses the front of the buffer, which is still in the cache.
        let read = &mut self.reader.read;
        let _ = read.try_reclaim(HEAD_ROOM);
        // Unexpected bytes make the connection unusable.
        self.is_watched = fill(self.stream.get_mut(), read, HEAD_ROOM, cx).is_pending();
        self.is_watched
    }

    /// Begins a request, and takes its body.
    pub(crate) fn begin(&mut self, request: &mut UpstreamRequest<'_>, upstream: &Upstream) {
        let max_chunk = if request.rewriter.version == Version::HTTP_2 {
            MAX_HTTP2_CHUNK
        } else {
            u64::MAX
        };
        self.reader.begin(request.request.method(), max_chunk);
        self.sending
            .begin(request.request, upstream, &request.rewriter);
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
            if let Some(head) = self.reader.head()? {
                if !head.is_informational() {
                    self.keep_alive &= head.keep_alive;
                }
                return Poll::Ready(Ok(head));
            }
            match ready!(fill(&mut self.stream, &mut self.reader.read, HEAD_ROOM, cx)) {
                Ok(true) => {}
                Ok(false) => return Poll::Ready(Err(broken.unwrap_or(H1Error::Closed))),
                Err(error) => return Poll::Ready(Err(broken.unwrap_or(H1Error::Io(error)))),
            }
        }
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

    /// Whether any of the request was sent.
    pub(crate) fn has_request_bytes(&self) -> bool {
        self.sending.has_begun()
    }

    /// Whether any of the response has come.
    pub(crate) fn has_response_bytes(&self) -> bool {
        self.reader.has_begun()
    }

    /// The body, if all of it came with the head.
    pub(crate) fn whole_body(&mut self) -> Option<Bytes> {
        self.reader.whole_body()
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
            let expected = match self.reader.next() {
                Ok(Next::Frame(frame)) => return Poll::Ready(Some(Ok(frame))),
                Ok(Next::Finished) => return Poll::Ready(None),
                Ok(Next::More(expected)) => expected,
                Err(fault) => return Poll::Ready(Some(Err(fault))),
            };
            match ready!(fill(&mut self.stream, &mut self.reader.read, expected, cx)) {
                Ok(true) => {}
                Ok(false) => match self.reader.end() {
                    Ok(()) => return Poll::Ready(None),
                    Err(fault) => return Poll::Ready(Some(Err(fault))),
                },
                Err(error) => return Poll::Ready(Some(Err(H1Error::Io(error)))),
            }
        }
    }

    /// Whether all of the answer has come.
    pub(crate) fn is_finished(&self) -> bool {
        self.reader.is_finished()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.reader.size_hint()
    }

    /// The stream, for another protocol, and the bytes already read from it.
    pub(crate) fn into_stream(self) -> (UpstreamStream, BytesMut) {
        (self.stream, self.reader.read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Method;
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
        conn.reader.begin(&Method::GET, u64::MAX);
        let (mut tries, mut tried) = (0, 0);
        far.write_all(b"HTTP/1.1 204 No Content\r\n").await.unwrap();
        for _ in 0..900 {
            far.write_all(b"set-cookie: a=b\r\n").await.unwrap();
            assert!(
                poll_fn(|cx| Poll::Ready(conn.poll_head(cx)))
                    .await
                    .is_pending()
            );
            tries += usize::from(
                std::mem::replace(&mut tried, conn.reader.parsed) != conn.reader.parsed,
            );
        }
        assert!(tries <= 12, "{tries} tries of a head of 14 KB");
        far.write_all(b"\r\n").await.unwrap();
        let head = poll_fn(|cx| conn.poll_head(cx)).await.unwrap();
        assert_eq!(head.headers.len(), 900);
    }
}
