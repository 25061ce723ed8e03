//! The sans-I/O encoder of HTTP/1 messages: the head and frames of the body in, bytes out. The head
//! and small chunks are in one buffer, large chunks in their own memory.

use crate::gateway::headers::put_header;
use axum::body::Bytes;
use axum::http::HeaderName;
use bytes::Buf;
use http_body::Frame;
use std::io::Write;

/// Body data up to this size is copied into the buffer.
const SMALL: usize = 4 * 1024;

/// Above this many waiting bytes nothing more is added; memory up to this size is reused.
const MAX_BUFFERED: usize = 16 * 1024;

/// How the end of a body is marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Framing {
    /// There is no body.
    #[default]
    Empty,
    /// By Content-Length, with this many bytes still to come.
    Known(u64),
    Chunked,
}

/// Which trailers of a chunked body are written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Trailers {
    #[default]
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

/// The body was longer or shorter than its Content-Length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LengthError;

/// A message of which bytes wait to be written.
#[derive(Default)]
pub(crate) struct MessageEncoder {
    /// The head, chunk sizes and small chunks; and how much of it is written.
    first: Vec<u8>,
    written: usize,
    /// A large chunk of the body, and what ends it.
    chunk: Bytes,
    last: &'static [u8],
    /// Whether any of the message was sent.
    begun: bool,
    framing: Framing,
    trailers: Trailers,
}

impl MessageEncoder {
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

    /// Announces how the body is framed, and which trailers it may have.
    pub(crate) fn set_framing(&mut self, framing: Framing, trailers: Trailers) {
        (self.framing, self.trailers) = (framing, trailers);
    }

    pub(crate) fn has_body(&self) -> bool {
        self.framing != Framing::Empty
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

    /// Whether more data may be added: always when everything is written.
    pub(crate) fn has_capacity(&self) -> bool {
        self.chunk.is_empty()
            && self.last.is_empty()
            && self.first.len() - self.written < MAX_BUFFERED
    }

    /// Adds a frame of the body, or with `None` its end. Returns whether the message has ended.
    pub(crate) fn add(&mut self, frame: Option<Frame<Bytes>>) -> Result<bool, LengthError> {
        let trailers = match frame.map(Frame::into_data) {
            Some(Ok(data)) => {
                if let Framing::Known(left) = &mut self.framing {
                    *left = left.checked_sub(data.len() as u64).ok_or(LengthError)?;
                }
                self.add_data(data);
                return Ok(false);
            }
            Some(Err(frame)) => frame.into_trailers().ok(),
            None => None,
        };
        match self.framing {
            Framing::Known(1..) => return Err(LengthError),
            Framing::Chunked => {
                self.forget_written();
                self.first.extend_from_slice(b"0\r\n");
                let trailers = trailers.unwrap_or_default();
                for (name, value) in &trailers {
                    if self.trailers.contains(name) {
                        put_header(&mut self.first, name, value.as_bytes());
                    }
                }
                self.first.extend_from_slice(b"\r\n");
            }
            Framing::Known(0) | Framing::Empty => {}
        }
        Ok(true)
    }

    fn add_data(&mut self, data: Bytes) {
        // An empty chunk would end the body.
        if data.is_empty() {
            return;
        }
        self.forget_written();
        let mut last: &[u8] = b"";
        if self.framing == Framing::Chunked {
            // Writing into memory cannot fail.
            drop(write!(self.first, "{:x}\r\n", data.len()));
            last = b"\r\n";
        }
        if data.len() <= SMALL {
            self.first.extend_from_slice(&data);
            self.first.extend_from_slice(last);
        } else {
            (self.chunk, self.last) = (data, last);
        }
    }

    /// Removes written bytes from the front, but only when they are at least half of it: so moving
    /// costs no more than writing.
    fn forget_written(&mut self) {
        if self.written >= self.first.len() - self.written {
            self.first.drain(..self.written);
            self.written = 0;
        }
    }

    /// The bytes that wait to be written, in order.
    pub(crate) fn slices(&self) -> [&[u8]; 3] {
        [&self.first[self.written..], &self.chunk, self.last]
    }

    /// Removes written bytes from the front.
    pub(crate) fn advance(&mut self, written: usize) {
        self.begun = true;
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
}
