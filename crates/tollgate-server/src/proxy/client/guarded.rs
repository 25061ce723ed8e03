//! A client's stream as the HTTP parser reads it: what the guard refuses never gets there.

use super::state::Client;
use crate::proxy::guard::Guard;
use crate::stream::Stream;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What the parser reads in place of what was refused. It refuses that wherever it stands, answers 400 in turn, and closes. An
/// empty line is in it because the parser does not look at half a head again before it sees one.
const POISON: &[u8] = b"\0\n\n";

pub(super) struct Guarded {
    stream: Stream,
    client: Arc<Client>,
    /// None for HTTP/2, whose frames leave nothing to be understood differently.
    guard: Option<Guard>,
    /// What was read before it was known what it is.
    first: Vec<u8>,
    refused: bool,
}

impl Guarded {
    pub(super) fn new(stream: Stream, client: Arc<Client>, guard: Option<Guard>, first: Vec<u8>) -> Self {
        Self { stream, client, guard, first, refused: false }
    }

    /// Looks at what was read from `before` on.
    fn look(&mut self, buf: &mut ReadBuf<'_>, before: usize) {
        let Some(guard) = self.guard.as_mut().filter(|_| !self.client.tunnel.load(Relaxed)) else { return };
        match guard.feed(&buf.filled()[before..]) {
            Ok(()) => self.client.heard(guard.is_in_head(), guard.is_at_end()),
            Err((at, refusal)) => {
                tracing::debug!(peer = ?self.client.peer, "refused {}", refusal.words());
                self.refused = true;
                self.client.says_more();
                buf.set_filled(before + at);
                self.poison(buf);
            }
        }
    }

    fn poison(&self, buf: &mut ReadBuf<'_>) {
        let room = buf.remaining().min(POISON.len());
        buf.put_slice(&POISON[..room]);
    }
}

impl AsyncRead for Guarded {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.refused {
            this.poison(buf);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        if this.first.is_empty() {
            ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        } else {
            let taken = this.first.len().min(buf.remaining());
            buf.put_slice(&this.first[..taken]);
            this.first.drain(..taken);
        }
        this.look(buf, before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.client.took(written.is_ready());
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.client.took(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        this.client.took(flushed.is_ready());
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
