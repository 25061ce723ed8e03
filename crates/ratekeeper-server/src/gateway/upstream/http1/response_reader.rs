//! A sans-I/O parser of HTTP/1.1 responses: the connection appends the bytes that it reads to
//! `read`. Fuzzed as a whole (fuzz/src/gateway/response.rs).

use super::H1Error;
use super::buffer::{empty_line_end, take};
use super::chunked_decoder::{ChunkEvent, ChunkedDecoder};
use super::head::{self, Head, ResponseBodyLength};
use axum::body::Bytes;
use axum::http::Method;
use bytes::{Buf, BytesMut};
use http_body::{Frame, SizeHint};

/// How much of a body is read at once.
const BODY_READ_BYTES: usize = 64 * 1024;

/// A body up to this size that came with its head is taken at once.
const MAX_WHOLE_BODY: u64 = 16 * 1024;

/// Parses the responses of one connection, one at a time.
#[derive(Debug)]
pub(super) struct ResponseReader {
    /// Bytes that were read and not yet consumed.
    pub(super) read: BytesMut,
    receiving: ReceiveState,
    /// The method of the last request.
    method: Method,
    /// The longest chunk of the body.
    max_chunk: u64,
    /// How many bytes in the buffer were scanned for the end of a head, and how many were tried to
    /// be parsed as one.
    scanned: usize,
    pub(super) parsed: usize,
}

/// The part of the response that comes next.
#[derive(Debug)]
enum ReceiveState {
    Head,
    Known(u64),
    Chunked(ChunkedDecoder),
    Close,
    Finished,
}

/// The next part of a body.
#[derive(Debug)]
pub(super) enum Next {
    Frame(Frame<Bytes>),
    /// More bytes must be read; about this many are expected.
    More(usize),
    /// The response has ended.
    Finished,
}

impl Default for ResponseReader {
    fn default() -> Self {
        Self {
            read: BytesMut::new(),
            receiving: ReceiveState::Finished,
            method: Method::GET,
            max_chunk: u64::MAX,
            scanned: 0,
            parsed: 0,
        }
    }
}

impl ResponseReader {
    /// Starts the response to a request with `method`, whose body is returned in chunks of at most
    /// `max_chunk` bytes.
    pub(super) fn begin(&mut self, method: &Method, max_chunk: u64) {
        self.method.clone_from(method);
        self.max_chunk = max_chunk;
        self.receiving = ReceiveState::Head;
        (self.scanned, self.parsed) = (0, 0);
    }

    /// The head of the response, or of an informational one before it: then another head follows.
    /// `None` if more bytes must be read.
    pub(super) fn head(&mut self) -> Result<Option<Head>, H1Error> {
        if !self.may_have_head() {
            return Ok(None);
        }
        let Some((length, head)) = head::read(&self.read, &self.method)? else {
            return Ok(None);
        };
        self.read.advance(length);
        (self.scanned, self.parsed) = (0, 0);
        if !head.is_informational() {
            self.receiving = match head.length {
                ResponseBodyLength::Known(0) => ReceiveState::Finished,
                ResponseBodyLength::Known(length) => ReceiveState::Known(length),
                ResponseBodyLength::Chunked => ReceiveState::Chunked(ChunkedDecoder::new()),
                ResponseBodyLength::Close => ReceiveState::Close,
            };
        }
        Ok(Some(head))
    }

    /// Whether parsing the head is worth another try: its end has come, or as many more bytes, so
    /// that an invalid head is found early. So each byte is parsed a bounded number of times,
    /// however a head is split.
    fn may_have_head(&mut self) -> bool {
        let from = std::mem::replace(&mut self.scanned, self.read.len());
        let has_line = || self.read[from..].contains(&b'\n');
        let is_due = empty_line_end(&self.read, from).is_some()
            || self.read.len() >= 2 * self.parsed && has_line()
            || self.read.len() > head::MAX_HEAD_BYTES;
        if is_due {
            self.parsed = self.read.len();
        }
        is_due
    }

    /// Whether any of the response has come.
    pub(super) fn has_begun(&self) -> bool {
        !self.read.is_empty() || !matches!(self.receiving, ReceiveState::Head)
    }

    /// The body, if all of it came with the head.
    pub(super) fn whole_body(&mut self) -> Option<Bytes> {
        match self.receiving {
            ReceiveState::Finished => Some(Bytes::new()),
            ReceiveState::Known(length)
                if length <= MAX_WHOLE_BODY && self.read.len() as u64 >= length =>
            {
                self.receiving = ReceiveState::Finished;
                Some(take(&mut self.read, length))
            }
            _ => None,
        }
    }

    /// Returns the next part of the body.
    pub(super) fn next(&mut self) -> Result<Next, H1Error> {
        match &mut self.receiving {
            ReceiveState::Head | ReceiveState::Finished => Ok(Next::Finished),
            ReceiveState::Known(left) => {
                if self.read.is_empty() {
                    let expected = usize::try_from(*left).unwrap_or(usize::MAX);
                    return Ok(Next::More(expected.min(BODY_READ_BYTES)));
                }
                let data = take(&mut self.read, self.max_chunk.min(*left));
                *left -= data.len() as u64;
                if *left == 0 {
                    self.receiving = ReceiveState::Finished;
                }
                Ok(Next::Frame(Frame::data(data)))
            }
            ReceiveState::Close => {
                if self.read.is_empty() {
                    return Ok(Next::More(BODY_READ_BYTES));
                }
                Ok(Next::Frame(Frame::data(take(
                    &mut self.read,
                    self.max_chunk,
                ))))
            }
            ReceiveState::Chunked(chunks) => {
                let event = chunks
                    .next(&mut self.read, self.max_chunk)
                    .map_err(|error| H1Error::InvalidResponse(error.0))?;
                if chunks.is_finished() {
                    self.receiving = ReceiveState::Finished;
                }
                Ok(match event {
                    ChunkEvent::Data(data) => Next::Frame(Frame::data(data)),
                    ChunkEvent::Trailers(trailers) => Next::Frame(Frame::trailers(trailers)),
                    ChunkEvent::Finished => Next::Finished,
                    ChunkEvent::More => Next::More(BODY_READ_BYTES),
                })
            }
        }
    }

    /// Handles the end of the connection: a close-delimited body is complete, anything else is cut
    /// off.
    pub(super) fn end(&mut self) -> Result<(), H1Error> {
        match self.receiving {
            ReceiveState::Close | ReceiveState::Finished => {
                self.receiving = ReceiveState::Finished;
                Ok(())
            }
            ReceiveState::Head | ReceiveState::Known(_) | ReceiveState::Chunked(_) => {
                Err(H1Error::Closed)
            }
        }
    }

    /// Whether the whole response has come.
    pub(super) fn is_finished(&self) -> bool {
        matches!(self.receiving, ReceiveState::Finished)
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self.receiving {
            ReceiveState::Known(left) => SizeHint::with_exact(left),
            ReceiveState::Finished => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        }
    }
}
