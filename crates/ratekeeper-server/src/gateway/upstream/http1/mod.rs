//! One HTTP/1.1 connection to an upstream.
//!
//! It has no task of its own: the request that uses it drives it, and then the body of the answer
//! does. So a request goes to the upstream and back without waking another task. Heads are written
//! from what the client sent and read into what the client gets, with nothing in between. What
//! comes is taken apart by the [`ResponseReader`], which knows no connection.

mod head;
mod request_body;
mod response_reader;

pub(crate) use head::{Head, MAX_HEADERS};

use super::timer::{Timeouts, Timer};
use crate::gateway::body::{BodyError, BodyProgressReport};
use crate::gateway::headers::RequestHeaderRewriter;
use crate::gateway::http1::fill;
use crate::net::stream::Stream;
use axum::body::Bytes;
use axum::http::{Request, Version};
use bytes::BytesMut;
use http_body::{Frame, SizeHint};
use ratekeeper_policy::config::Upstream;
use request_body::RequestWriter;
use response_reader::{Next, ResponseReader};
use std::fmt;
use std::io;
use std::task::{Context, Poll, ready};

/// How much of a head is read at once.
const HEAD_ROOM: usize = 8 * 1024;

/// Of a body for a client of HTTP/2 no piece is longer: how soon the next one is asked for tells
/// whether the client takes any.
const HTTP2_PIECE: u64 = 16 * 1024;

pub(crate) struct H1UpstreamConn {
    stream: Stream,
    sending: RequestWriter,
    reader: ResponseReader,
    /// Whether it may be used again after this answer.
    keep: bool,
    /// Whether it was just looked at: nothing had come, and who looked is woken when something
    /// does.
    listening: bool,
    pub(crate) timer: Timer,
}

/// Why there is no answer, or no more of it.
#[derive(Debug)]
pub(crate) enum H1Error {
    Io(io::Error),
    /// It was closed too early.
    Closed,
    /// It is not as it should be; what the upstream did, in words.
    Wrong(&'static str),
    /// It is the client's own body.
    Body(BodyError),
}

impl fmt::Display for H1Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "broke off: {error}"),
            Self::Closed => {
                f.write_str("broke off: it closed the connection before the end of its answer")
            }
            Self::Wrong(what) => f.write_str(what),
            Self::Body(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for H1Error {}

impl H1UpstreamConn {
    pub(crate) fn new(stream: Stream, times: Timeouts) -> Box<Self> {
        Box::new(Self {
            stream,
            sending: RequestWriter::default(),
            reader: ResponseReader::default(),
            keep: true,
            listening: false,
            timer: Timer::new(times),
        })
    }

    /// Whether another request can be sent.
    pub(crate) fn is_free(&self) -> bool {
        self.keep && self.reader.is_over() && self.reader.read.is_empty() && !self.sending.is_busy()
    }

    /// Whether it is still there. Nobody looked while nobody used it: it may have ended. To be
    /// polled by the task that then sends a request.
    pub(crate) fn is_alive(&mut self, cx: &mut Context<'_>) -> bool {
        // To the front of the buffer again, which was used last and is near.
        let read = &mut self.reader.read;
        let _ = read.try_reclaim(HEAD_ROOM);
        // Whatever comes unasked is nothing to go on with.
        self.listening = fill(&mut self.stream, read, HEAD_ROOM, cx).is_pending();
        self.listening
    }

    /// Takes a request on. Its body goes with it.
    pub(crate) fn begin(
        &mut self,
        request: &mut Request<BodyProgressReport>,
        upstream: &Upstream,
        onward: &RequestHeaderRewriter<'_>,
    ) {
        let piece = if onward.version == Version::HTTP_2 {
            HTTP2_PIECE
        } else {
            u64::MAX
        };
        self.reader.begin(request.method(), piece);
        self.sending.begin(request, upstream, onward);
    }

    /// The body of a request of which the upstream has nothing yet.
    pub(crate) fn unsent(&mut self) -> Option<BodyProgressReport> {
        self.sending.stop()
    }

    /// The head of the answer, or of one before it that only informs: then there will be another.
    pub(crate) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Head, H1Error>> {
        let mut broken = None;
        if self.sending.is_busy()
            && let Poll::Ready(Err(fault)) = self.sending.poll(&mut self.stream, cx)
        {
            // Who does not read on may have answered already.
            match fault {
                H1Error::Io(_) if self.sending.has_begun() => {
                    self.cease();
                    broken = Some(fault);
                }
                fault => return Poll::Ready(Err(fault)),
            }
        }
        if std::mem::take(&mut self.listening) && broken.is_none() {
            return Poll::Pending;
        }
        loop {
            if let Some(head) = self.reader.head()? {
                if !head.only_informs() {
                    self.keep &= head.keep;
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

    /// Sends nothing more of a request, and is not used again.
    fn cease(&mut self) {
        self.sending.stop();
        self.keep = false;
    }

    /// Whether it is the client that is waited for, of whose body the next piece has not come.
    pub(crate) fn waits_for_client(&self) -> bool {
        self.sending.waits_for_client()
    }

    /// Whether anything of the answer has come.
    pub(crate) fn has_heard(&self) -> bool {
        self.reader.has_begun()
    }

    /// The body, if all of it came with the head.
    pub(crate) fn whole_body(&mut self) -> Option<Bytes> {
        self.reader.whole_body()
    }

    /// The next piece of the body.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, H1Error>>> {
        if self.sending.is_busy()
            && let Poll::Ready(Err(_)) = self.sending.poll(&mut self.stream, cx)
        {
            // It has its answer already.
            self.cease();
        }
        loop {
            let room = match self.reader.next() {
                Ok(Next::Frame(frame)) => return Poll::Ready(Some(Ok(frame))),
                Ok(Next::Over) => return Poll::Ready(None),
                Ok(Next::More(room)) => room,
                Err(fault) => return Poll::Ready(Some(Err(fault))),
            };
            match ready!(fill(&mut self.stream, &mut self.reader.read, room, cx)) {
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
    pub(crate) fn is_over(&self) -> bool {
        self.reader.is_over()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.reader.size_hint()
    }

    /// The connection itself, for another protocol, and what has come over it already.
    pub(crate) fn into_stream(self) -> (Stream, BytesMut) {
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

    /// A head of many lines that come one by one is not read from its start for each of them.
    #[tokio::test]
    async fn a_head_that_comes_line_by_line_is_tried_a_few_times() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let times = Timeouts {
            begun: Instant::now(),
            idle: Duration::from_secs(60),
            total: None,
            sent: None,
        };
        let mut link = H1UpstreamConn::new(Stream::Unix(near), times);
        link.reader.begin(&Method::GET, u64::MAX);
        let (mut tries, mut tried) = (0, 0);
        far.write_all(b"HTTP/1.1 204 No Content\r\n").await.unwrap();
        for _ in 0..900 {
            far.write_all(b"set-cookie: a=b\r\n").await.unwrap();
            assert!(
                poll_fn(|cx| Poll::Ready(link.poll_head(cx)))
                    .await
                    .is_pending()
            );
            tries +=
                usize::from(std::mem::replace(&mut tried, link.reader.tried) != link.reader.tried);
        }
        assert!(tries <= 12, "{tries} tries of a head of 14 KB");
        far.write_all(b"\r\n").await.unwrap();
        let head = poll_fn(|cx| link.poll_head(cx)).await.unwrap();
        assert_eq!(head.headers.len(), 900);
    }
}
