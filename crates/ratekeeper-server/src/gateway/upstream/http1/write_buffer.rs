//! The write buffer of an HTTP/1 message: the head and small chunks of the body in one buffer,
//! large chunks in their own memory.

use crate::gateway::headers::put_header;
use axum::body::Bytes;
use axum::http::{HeaderName, HeaderValue};
use bytes::Buf;
use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

/// Body data up to this size is copied into the buffer.
const SMALL: usize = 4 * 1024;

/// Above this many waiting bytes nothing more is added; memory up to this size is reused.
const MAX_BUFFERED: usize = 16 * 1024;

/// The bytes of a message that wait to be written.
#[derive(Default)]
pub(crate) struct WriteBuffer {
    /// The head, chunk sizes and small chunks; and how much of it is written.
    first: Vec<u8>,
    written: usize,
    /// A large chunk of the body, and what ends it.
    chunk: Bytes,
    last: &'static [u8],
    /// Whether any of the message was sent.
    begun: bool,
    unflushed: bool,
}

impl WriteBuffer {
    /// Begins a message with its head.
    pub(crate) fn begin<T>(&mut self, head: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let first = std::mem::take(&mut self.first);
        *self = Self {
            first: if first.capacity() > MAX_BUFFERED {
                Vec::new()
            } else {
                first
            },
            ..Self::default()
        };
        self.first.clear();
        head(&mut self.first)
    }

    /// Discards what is not written yet.
    pub(crate) fn stop(&mut self) {
        *self = Self {
            begun: self.begun,
            ..Self::default()
        };
    }

    /// Whether any of the message was sent.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    /// How many bytes wait to be written.
    pub(crate) fn left(&self) -> usize {
        self.first.len() - self.written + self.chunk.len() + self.last.len()
    }

    pub(crate) fn has_bytes(&self) -> bool {
        self.left() > 0
    }

    pub(crate) fn is_flushed(&self) -> bool {
        !self.unflushed
    }

    /// Whether more data may be added: always when everything is written.
    pub(crate) fn has_capacity(&self) -> bool {
        self.chunk.is_empty()
            && self.last.is_empty()
            && self.first.len() - self.written < MAX_BUFFERED
    }

    /// Adds body data, as a chunk if `chunked`.
    pub(crate) fn add(&mut self, data: Bytes, chunked: bool) {
        // An empty chunk would end the body.
        if data.is_empty() {
            return;
        }
        self.forget_written();
        let last: &[u8] = if chunked { b"\r\n" } else { b"" };
        if chunked {
            // Writing into memory cannot fail.
            drop(write!(self.first, "{:x}\r\n", data.len()));
        }
        if data.len() <= SMALL {
            self.first.extend_from_slice(&data);
            self.first.extend_from_slice(last);
        } else {
            (self.chunk, self.last) = (data, last);
        }
    }

    /// Adds the end of a chunked body.
    pub(crate) fn end_chunks<'a>(
        &mut self,
        trailers: impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)>,
    ) {
        self.forget_written();
        self.first.extend_from_slice(b"0\r\n");
        trailers.for_each(|(name, value)| put_header(&mut self.first, name, value.as_bytes()));
        self.first.extend_from_slice(b"\r\n");
    }

    /// Removes written bytes from the front, but only when they are at least half of it: so moving
    /// costs no more than writing.
    fn forget_written(&mut self) {
        if self.written >= self.first.len() - self.written {
            self.first.drain(..self.written);
            self.written = 0;
        }
    }

    /// Writes everything in the buffer.
    pub(crate) fn poll_write<S>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>>
    where
        S: AsyncWrite + Unpin,
    {
        while self.has_bytes() {
            let stream = Pin::new(&mut *stream);
            let written = if self.chunk.is_empty() && self.last.is_empty() {
                ready!(stream.poll_write(cx, &self.first[self.written..]))?
            } else {
                let slices =
                    [&self.first[self.written..], &self.chunk, self.last].map(IoSlice::new);
                ready!(stream.poll_write_vectored(cx, &slices))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            (self.begun, self.unflushed) = (true, true);
            let of_first = written.min(self.first.len() - self.written);
            self.written += of_first;
            if self.written == self.first.len() {
                self.first.clear();
                self.written = 0;
            }
            let of_chunk = (written - of_first).min(self.chunk.len());
            self.chunk.advance(of_chunk);
            self.last = &self.last[written - of_first - of_chunk..];
        }
        Poll::Ready(Ok(()))
    }

    pub(crate) fn poll_flush<S>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>>
    where
        S: AsyncWrite + Unpin,
    {
        if self.unflushed {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}
