//! A client's stream as hyper reads and writes HTTP/2 over it. The framing of HTTP/2 is
//! unambiguous, so it needs no smuggling guard.

use super::frame_reader::FrameReader;
use super::state::Client;
use crate::net::stream::{ReadBudget, Stream};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The stream of an HTTP/2 client, which records its activity.
pub(super) struct Io {
    stream: ReadBudget<Stream>,
    client: Arc<Client>,
    /// Bytes that were read to detect the protocol.
    first: Vec<u8>,
    frames: FrameReader,
}

impl Io {
    pub(super) fn new(stream: Stream, client: Arc<Client>, first: Vec<u8>) -> Self {
        // The preface is subject to the head timeout.
        client.on_read(true, false);
        Self {
            stream: ReadBudget::new(stream),
            client,
            first,
            frames: FrameReader::new(),
        }
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
            this.first.drain(..taken);
        }
        this.frames.feed(&buf.filled()[before..]);
        this.client.on_read(this.frames.is_in_head(), false);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.client.on_write(written.is_ready());
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.client.on_write(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        this.client.on_write(flushed.is_ready());
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
