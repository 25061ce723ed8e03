//! A connection to a client or an upstream: TCP, TLS or a Unix socket.

mod batched;
mod read_budget;

pub(crate) use batched::{BatchedStream, write_batches};
pub(crate) use read_budget::{
    MAX_FRAMES_PER_POLL, MAX_HTTP1_BYTES_PER_POLL, MAX_HTTP2_BYTES_PER_POLL, ReadBudget,
    yield_to_others,
};

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;

/// A connection, by its transport.
pub(crate) enum Stream {
    Plain(TcpStream),
    /// A TCP connection whose small writes are batched.
    Batched(BatchedStream),
    Tls(Box<TlsStream<BatchedStream>>),
    Unix(UnixStream),
}

impl Stream {
    /// Ready when there is something to read, or to decrypt.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.readable().await,
            Self::Batched(stream) => stream.readable().await,
            Self::Tls(stream) => stream.get_ref().0.readable().await,
            Self::Unix(stream) => stream.readable().await,
        }
    }
}

impl Stream {
    /// Reads available bytes without consuming them; 0 bytes at the end. Only for a connection just
    /// accepted.
    pub(crate) async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.peek(buffer).await,
            Self::Unix(stream) => {
                let peek =
                    || Ok(rustix::net::recv(stream, &mut *buffer, rustix::net::RecvFlags::PEEK)?.0);
                stream.async_io(Interest::READABLE, peek).await
            }
            Self::Batched(_) | Self::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Batched(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Batched(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Batched(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Batched(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Batched(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Batched(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
