//! Writes an HTTP/1 message to a connection: the head, then the body as it comes, both encoded by
//! [`MessageEncoder`]. Tests drive it with any sequence of frames, short writes and pauses.

use super::message_encoder::{Framing, LengthError, MessageEncoder, Trailers};
use super::poll_budget::PollBudget;
use crate::net::stream::yield_to_others;
use axum::body::Bytes;
use http_body::{Body, Frame};
use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

/// Why a message could not be written to its end.
#[derive(Debug)]
pub(crate) enum WriteError<E> {
    Io(io::Error),
    Body(E),
    /// The body was longer or shorter than its Content-Length.
    Length,
}

impl<E: fmt::Display> fmt::Display for WriteError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Body(error) => error.fmt(f),
            Self::Length => f.write_str("the body is longer or shorter than its Content-Length"),
        }
    }
}

/// Writes the messages of one connection, one at a time.
pub(crate) struct MessageWriter<B> {
    out: MessageEncoder,
    /// `None` once all of it was taken.
    body: Option<B>,
    unflushed: bool,
}

/// The result of polling the body for a frame.
enum FrameTaken {
    /// There may be more at once.
    Some,
    /// The next frame has not come yet.
    Pending,
    All,
}

impl<B> Default for MessageWriter<B> {
    fn default() -> Self {
        Self {
            out: MessageEncoder::default(),
            body: None,
            unflushed: false,
        }
    }
}

impl<B> MessageWriter<B> {
    /// Begins a message with the head that `head` writes.
    pub(crate) fn begin<T>(&mut self, head: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        (self.body, self.unflushed) = (None, false);
        self.out.begin(head)
    }

    /// Adds the body.
    pub(crate) fn set_body(&mut self, body: B, framing: Framing, trailers: Trailers) {
        self.body = Some(body);
        self.out.set_framing(framing, trailers);
    }

    /// Stops writing the message. Returns the body, if it was not used up.
    pub(crate) fn stop(&mut self) -> Option<B> {
        self.out.stop();
        self.unflushed = false;
        self.body.take()
    }

    /// Whether there is more to write.
    pub(crate) fn is_busy(&self) -> bool {
        self.body.is_some() || self.unflushed || self.out.has_bytes()
    }

    /// Whether any of the message is written.
    pub(crate) fn has_begun(&self) -> bool {
        self.out.has_begun()
    }

    /// Whether everything that came is written, and the rest of the body has not come.
    pub(crate) fn waits_for_body(&self) -> bool {
        self.body.is_some() && !self.out.has_bytes()
    }

    /// Writes the head, if none of it is written yet, before the body is touched: until then the
    /// message can be sent elsewhere.
    pub(crate) fn poll_begun(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.has_begun() {
            Poll::Ready(Ok(()))
        } else {
            self.poll_write(stream, cx)
        }
    }

    /// Writes everything that is encoded.
    fn poll_write(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.out.has_bytes() {
            let stream = Pin::new(&mut *stream);
            let written = match self.out.slices() {
                [first, [], []] => ready!(stream.poll_write(cx, first))?,
                slices => ready!(stream.poll_write_vectored(cx, &slices.map(IoSlice::new)))?,
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unflushed = true;
            self.out.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_flush(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unflushed {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl<B: Body<Data = Bytes> + Unpin> MessageWriter<B> {
    /// Writes the message as the body comes and the connection takes it; ready when everything is
    /// written and flushed.
    ///
    /// Available frames are gathered and written together. Each poll ends; if it is pending, the
    /// task will be woken by the body, by the connection, or because the poll has done much.
    pub(crate) fn poll(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), WriteError<B::Error>>> {
        let mut budget = PollBudget::new();
        loop {
            // Even a round without progress has a cost, so that a bug delays one connection and not
            // its worker.
            budget.spend(0);
            let taken = self.fill(&mut budget, cx);
            let mut sent = self.poll_write(stream, cx);
            if matches!(sent, Poll::Ready(Ok(()))) && !matches!(taken, Ok(FrameTaken::Some)) {
                sent = self.poll_flush(stream, cx);
            }
            // An error is returned at once: a failed body may look like an ended one when it is
            // polled again.
            match taken? {
                FrameTaken::All => return sent.map_err(WriteError::Io),
                FrameTaken::Pending => {
                    if let Poll::Ready(Err(error)) = sent {
                        return Poll::Ready(Err(WriteError::Io(error)));
                    }
                    return Poll::Pending;
                }
                FrameTaken::Some => ready!(sent).map_err(WriteError::Io)?,
            }
            if budget.is_spent() {
                return yield_to_others(cx);
            }
        }
    }

    /// Takes the available frames of the body, as far as the buffer has capacity.
    fn fill(
        &mut self,
        budget: &mut PollBudget,
        cx: &mut Context<'_>,
    ) -> Result<FrameTaken, WriteError<B::Error>> {
        while self.out.has_capacity() && !budget.is_spent() {
            let has_body = self.out.has_body();
            let Some(body) = self.body.as_mut().filter(|_| has_body) else {
                self.body = None;
                return Ok(FrameTaken::All);
            };
            let polled = if body.is_end_stream() {
                Poll::Ready(None)
            } else {
                Pin::new(body).poll_frame(cx)
            };
            let Poll::Ready(frame) = polled else {
                return Ok(FrameTaken::Pending);
            };
            let frame = frame.transpose().map_err(WriteError::Body)?;
            budget.spend(
                frame
                    .as_ref()
                    .and_then(Frame::data_ref)
                    .map_or(0, Bytes::len),
            );
            if self
                .out
                .add(frame)
                .map_err(|LengthError| WriteError::Length)?
            {
                self.body = None;
            }
        }
        Ok(FrameTaken::Some)
    }
}

#[cfg(test)]
mod tests;
