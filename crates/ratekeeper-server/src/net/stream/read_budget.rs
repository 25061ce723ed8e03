//! A stream with a read budget per poll, so that one busy connection does not delay the others of
//! its worker. HTTP/2 parses all frames that one poll can read before other tasks run, so a burst of
//! small frames would pile up even if every reader is quick.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are read of HTTP/2 before other tasks run.
pub(crate) const MAX_HTTP2_BYTES_PER_POLL: usize = 32 * 1024;

/// At most this many frames of one byte, each with a header of nine.
pub(crate) const MAX_FRAMES_PER_POLL: usize = MAX_HTTP2_BYTES_PER_POLL / 10;

/// The same for HTTP/1, whose readers take bytes as they need them. Tokio's own budget is 128 reads
/// of any size.
pub(crate) const MAX_HTTP1_BYTES_PER_POLL: usize = 256 * 1024;

/// A stream that yields to other tasks after `max_bytes` bytes were read from it.
pub(crate) struct ReadBudget<S> {
    stream: S,
    max_bytes: usize,
    /// Bytes read since it last yielded.
    read: usize,
}

impl<S> ReadBudget<S> {
    pub(crate) fn new(stream: S, max_bytes: usize) -> Self {
        Self {
            stream,
            max_bytes,
            read: 0,
        }
    }

    /// The stream without the budget.
    pub(crate) fn get_mut(&mut self) -> &mut S {
        &mut self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadBudget<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.read >= this.max_bytes {
            this.read = 0;
            // Woken at once, this task might be polled several times before a task that yields,
            // too, forwards the bytes read.
            return yield_to_others(cx);
        }
        let before = buf.filled().len();
        let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(cx, buf) else {
            this.read = 0;
            return Poll::Pending;
        };
        this.read += buf.filled().len() - before;
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadBudget<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// Ends this poll of a task that could go on. It is polled again after the other ready tasks, and
/// after the runtime has polled for events.
pub(crate) fn yield_to_others<T>(cx: &mut Context<'_>) -> Poll<T> {
    let _ = pin!(tokio::task::yield_now()).poll(cx);
    Poll::Pending
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper_testkit::poll::noop_context;

    #[test]
    fn a_long_burst_is_read_in_several_polls() {
        let burst = vec![0; 3 * MAX_HTTP2_BYTES_PER_POLL];
        let mut stream = ReadBudget::new(&burst[..], MAX_HTTP2_BYTES_PER_POLL);
        let mut cx = noop_context();
        let (mut buffer, mut polls) = (vec![0; 1024], vec![0]);
        loop {
            let mut buf = ReadBuf::new(&mut buffer);
            match Pin::new(&mut stream).poll_read(&mut cx, &mut buf) {
                Poll::Ready(read) => {
                    read.unwrap();
                    if buf.filled().is_empty() {
                        break;
                    }
                    *polls.last_mut().unwrap() += buf.filled().len();
                }
                Poll::Pending => polls.push(0),
            }
        }
        assert_eq!(
            polls,
            [
                MAX_HTTP2_BYTES_PER_POLL,
                MAX_HTTP2_BYTES_PER_POLL,
                MAX_HTTP2_BYTES_PER_POLL,
                0
            ]
        );
    }
}
