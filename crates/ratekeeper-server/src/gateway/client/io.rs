//! A client's stream as hyper reads and writes it: it records the activity of the client, and does
//! what hyper's HTTP/1 server does not, informational responses and reasons for a 400.

use super::frame_reader::FrameReader;
use super::state::Client;
use crate::net::stream::{MAX_HTTP1_BYTES_PER_POLL, MAX_HTTP2_BYTES_PER_POLL, ReadBudget, Stream};
use axum::http::StatusCode;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The stream of a client.
pub(super) struct Io {
    stream: ReadBudget<Stream>,
    client: Arc<Client>,
    /// Bytes that were read to detect the protocol.
    first: Vec<u8>,
    protocol: Protocol,
}

enum Protocol {
    Http1(Http1),
    Http2(FrameReader),
}

/// The state of an HTTP/1 stream.
#[derive(Default)]
struct Http1 {
    /// Informational responses that are being written.
    informational: Vec<u8>,
    /// The status of hyper's response to a malformed head, which is not written.
    rejection: Option<StatusCode>,
    /// How many requests had begun before the last read.
    requests: u64,
    is_closed: bool,
}

impl Io {
    pub(super) fn http1(stream: Stream, client: Arc<Client>, first: Vec<u8>) -> Self {
        Self::new(stream, client, first, Protocol::Http1(Http1::default()))
    }

    pub(super) fn http2(stream: Stream, client: Arc<Client>, first: Vec<u8>) -> Self {
        // The preface is subject to the head timeout.
        client.on_read(true);
        Self::new(stream, client, first, Protocol::Http2(FrameReader::new()))
    }

    fn new(stream: Stream, client: Arc<Client>, first: Vec<u8>, protocol: Protocol) -> Self {
        let max_bytes = match protocol {
            Protocol::Http1(_) => MAX_HTTP1_BYTES_PER_POLL,
            Protocol::Http2(_) => MAX_HTTP2_BYTES_PER_POLL,
        };
        Self {
            stream: ReadBudget::new(stream, max_bytes),
            client,
            first,
            protocol,
        }
    }

    /// The status of the response to a malformed HTTP/1 head, which is still to be written.
    pub(super) fn rejection(&self) -> Option<StatusCode> {
        match &self.protocol {
            Protocol::Http1(http1) => http1.rejection,
            Protocol::Http2(_) => None,
        }
    }

    /// Whether the client has closed its side.
    pub(super) fn is_closed(&self) -> bool {
        matches!(&self.protocol, Protocol::Http1(http1) if http1.is_closed)
    }

    pub(super) fn into_stream(self) -> ReadBudget<Stream> {
        self.stream
    }
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        if this.first.is_empty() {
            ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        } else {
            let taken = this.first.len().min(buf.remaining());
            buf.put_slice(&this.first[..taken]);
            this.first = this.first.split_off(taken);
        }
        let read = &buf.filled()[before..];
        match &mut this.protocol {
            Protocol::Http2(frames) => {
                frames.feed(read);
                this.client.on_read(frames.is_in_head());
            }
            Protocol::Http1(http1) if read.is_empty() => {
                http1.is_closed = true;
                // To hyper this means that the client has left, and its request is dropped. But a
                // client that sent several requests and then closed its side waits for responses.
                let requests = this.client.requests.load(Relaxed);
                if this.client.is_in_flight() && requests > http1.requests + 1 {
                    return Poll::Pending;
                }
            }
            Protocol::Http1(http1) => {
                http1.requests = this.client.requests.load(Relaxed);
                if !this.client.is_in_flight() {
                    this.client.on_read(true);
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Protocol::Http1(http1) = &mut this.protocol {
            if http1.rejection.is_none() && !this.client.informational.is_in_message() {
                http1.rejection = bufs.first().and_then(|head| automatic_response(head));
            }
            if http1.rejection.is_some() {
                return Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()));
            }
            ready!(http1.poll_informational(&mut this.stream, &this.client, cx))?;
            this.client.informational.set_in_message(true);
        }
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.client.on_write(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Protocol::Http1(http1) = &mut this.protocol {
            // hyper flushes when it has nothing left to write.
            this.client.informational.set_in_message(false);
            ready!(http1.poll_informational(&mut this.stream, &this.client, cx))?;
        }
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        this.client.on_write(flushed.is_ready());
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.rejection().is_some() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

impl Http1 {
    /// Writes informational responses, but not within another message.
    fn poll_informational(
        &mut self,
        stream: &mut ReadBudget<Stream>,
        client: &Client,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if client.informational.is_in_message() {
            return Poll::Ready(Ok(()));
        }
        if self.informational.is_empty() {
            self.informational = client.informational.take();
        }
        while !self.informational.is_empty() {
            let written = Pin::new(&mut *stream).poll_write(cx, &self.informational);
            client.on_write(written.is_ready());
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => drop(self.informational.drain(..written)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The status of a response that hyper makes by itself, to a malformed head. Every other response
/// has other headers before the first of these.
fn automatic_response(head: &[u8]) -> Option<StatusCode> {
    const HEADERS: &[u8] = b"connection: close\r\ncontent-length: 0\r\ndate: ";
    let status = head.strip_prefix(b"HTTP/1.1 4")?;
    let line = status.iter().position(|byte| *byte == b'\n')?;
    status[line + 1..].starts_with(HEADERS).then_some(())?;
    StatusCode::from_bytes(head.get(9..12)?).ok()
}
