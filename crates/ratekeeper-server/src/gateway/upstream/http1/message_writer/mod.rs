//! Writes an HTTP/1 message: the head, then the body as it comes. It knows neither sockets nor
//! tasks, so that tests drive it with any sequence of frames, short writes and pauses.

use super::poll_budget::PollBudget;
use super::write_buffer::WriteBuffer;
use crate::net::stream::yield_to_others;
use axum::body::Bytes;
use axum::http::HeaderName;
use http_body::{Body, Frame};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

/// How the end of a body is marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Framing {
    /// There is no body.
    Empty,
    /// By Content-Length, with this many bytes still to come.
    Known(u64),
    Chunked,
}

/// Which trailers of a chunked body are written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Trailers {
    None,
    Named(Vec<HeaderName>),
}

impl Trailers {
    fn contains(&self, name: &HeaderName) -> bool {
        match self {
            Self::None => false,
            Self::Named(names) => names.contains(name),
        }
    }
}

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
    out: WriteBuffer,
    /// `None` once all of it was taken.
    body: Option<B>,
    framing: Framing,
    trailers: Trailers,
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
            out: WriteBuffer::default(),
            body: None,
            framing: Framing::Empty,
            trailers: Trailers::None,
        }
    }
}

impl<B> MessageWriter<B> {
    /// Begins a message with the head that `head` writes.
    pub(crate) fn begin<T>(&mut self, head: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        (self.body, self.framing, self.trailers) = (None, Framing::Empty, Trailers::None);
        self.out.begin(head)
    }

    /// Adds the body.
    pub(crate) fn set_body(&mut self, body: B, framing: Framing, trailers: Trailers) {
        (self.body, self.framing, self.trailers) = (Some(body), framing, trailers);
    }

    /// Stops writing the message. Returns the body, if it was not used up.
    pub(crate) fn stop(&mut self) -> Option<B> {
        self.out.stop();
        self.body.take()
    }

    /// Whether there is more to write.
    pub(crate) fn is_busy(&self) -> bool {
        self.body.is_some() || !self.out.is_flushed() || self.out.has_bytes()
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
            self.out.poll_write(stream, cx)
        }
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
            let mut sent = self.out.poll_write(stream, cx);
            if matches!(sent, Poll::Ready(Ok(()))) && !matches!(taken, Ok(FrameTaken::Some)) {
                sent = self.out.poll_flush(stream, cx);
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
            let Some(body) = self
                .body
                .as_mut()
                .filter(|_| self.framing != Framing::Empty)
            else {
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
            self.add(frame)?;
        }
        Ok(FrameTaken::Some)
    }

    /// Adds a frame of the body, or its end.
    fn add(&mut self, frame: Option<Frame<Bytes>>) -> Result<(), WriteError<B::Error>> {
        let trailers = match frame.map(Frame::into_data) {
            Some(Ok(data)) => {
                if let Framing::Known(left) = &mut self.framing {
                    *left = left
                        .checked_sub(data.len() as u64)
                        .ok_or(WriteError::Length)?;
                }
                self.out.add(data, self.framing == Framing::Chunked);
                return Ok(());
            }
            Some(Err(frame)) => frame.into_trailers().ok(),
            None => None,
        };
        match self.framing {
            Framing::Known(1..) => return Err(WriteError::Length),
            Framing::Chunked => {
                let trailers = trailers.unwrap_or_default();
                self.out.end_chunks(
                    trailers
                        .iter()
                        .filter(|(name, _)| self.trailers.contains(name)),
                );
            }
            Framing::Known(0) | Framing::Empty => {}
        }
        self.body = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
