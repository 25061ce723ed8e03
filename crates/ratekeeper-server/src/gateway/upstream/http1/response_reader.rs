//! Takes the bytes of an answer apart, without a connection: whoever has one adds what it reads to
//! `read`. Fuzzed as a whole (fuzz/src/gateway/response.rs).

use super::H1Error;
use super::head::{self, Head, Length};
use crate::gateway::http1::{ChunkEvent, Chunks, empty_line_end, take};
use axum::body::Bytes;
use axum::http::Method;
use bytes::{Buf, BytesMut};
use http_body::{Frame, SizeHint};

/// How much of a body is read at once.
const BODY_ROOM: usize = 64 * 1024;

/// A body up to this size that came with its head is taken at once.
const WHOLE: u64 = 16 * 1024;

/// One answer at a time, over and over on one connection.
#[derive(Debug)]
pub(super) struct ResponseReader {
    /// What was read and not yet taken.
    pub(super) read: BytesMut,
    receiving: ReceiveState,
    /// What was asked last.
    method: Method,
    /// How long a piece of the body may be.
    piece: u64,
    /// How much of what was read was looked through for the end of a head, and how much was tried
    /// to be read as one.
    scanned: usize,
    pub(super) tried: usize,
}

/// What comes next.
#[derive(Debug)]
enum ReceiveState {
    Head,
    Known(u64),
    Chunked(Chunks),
    Close,
    Over,
}

/// The next piece of a body.
#[derive(Debug)]
pub(super) enum Next {
    Frame(Frame<Bytes>),
    /// More must be read, and so much is expected.
    More(usize),
    /// The answer has ended.
    Over,
}

impl Default for ResponseReader {
    fn default() -> Self {
        Self {
            read: BytesMut::new(),
            receiving: ReceiveState::Over,
            method: Method::GET,
            piece: u64::MAX,
            scanned: 0,
            tried: 0,
        }
    }
}

impl ResponseReader {
    /// An answer to that method is next; no piece of its body is longer than `piece`.
    pub(super) fn begin(&mut self, method: &Method, piece: u64) {
        self.method.clone_from(method);
        self.piece = piece;
        self.receiving = ReceiveState::Head;
        (self.scanned, self.tried) = (0, 0);
    }

    /// The head of the answer, or of one before it that only informs: then there will be another.
    /// None if more must be read.
    pub(super) fn head(&mut self) -> Result<Option<Head>, H1Error> {
        if !self.may_have_head() {
            return Ok(None);
        }
        let Some((length, head)) = head::read(&self.read, &self.method)? else {
            return Ok(None);
        };
        self.read.advance(length);
        (self.scanned, self.tried) = (0, 0);
        if !head.only_informs() {
            self.receiving = match head.length {
                Length::Known(0) => ReceiveState::Over,
                Length::Known(length) => ReceiveState::Known(length),
                Length::Chunked => ReceiveState::Chunked(Chunks::new()),
                Length::Close => ReceiveState::Close,
            };
        }
        Ok(Some(head))
    }

    /// Whether it is worth another try to read a head: its end has come, or so much more that what
    /// is no head is found early. So each byte is read a bounded number of times, however a head is
    /// cut.
    fn may_have_head(&mut self) -> bool {
        let from = std::mem::replace(&mut self.scanned, self.read.len());
        let has_line = || self.read[from..].contains(&b'\n');
        let is_due = empty_line_end(&self.read, from).is_some()
            || self.read.len() >= 2 * self.tried && has_line()
            || self.read.len() > head::MAX_HEAD_BYTES;
        if is_due {
            self.tried = self.read.len();
        }
        is_due
    }

    /// Whether anything of the answer has come.
    pub(super) fn has_begun(&self) -> bool {
        !self.read.is_empty() || !matches!(self.receiving, ReceiveState::Head)
    }

    /// The body, if all of it came with the head.
    pub(super) fn whole_body(&mut self) -> Option<Bytes> {
        match self.receiving {
            ReceiveState::Over => Some(Bytes::new()),
            ReceiveState::Known(length) if length <= WHOLE && self.read.len() as u64 >= length => {
                self.receiving = ReceiveState::Over;
                Some(take(&mut self.read, length))
            }
            _ => None,
        }
    }

    /// The next piece of the body.
    pub(super) fn next(&mut self) -> Result<Next, H1Error> {
        match &mut self.receiving {
            ReceiveState::Head | ReceiveState::Over => Ok(Next::Over),
            ReceiveState::Known(left) => {
                if self.read.is_empty() {
                    let room = usize::try_from(*left).unwrap_or(usize::MAX);
                    return Ok(Next::More(room.min(BODY_ROOM)));
                }
                let data = take(&mut self.read, self.piece.min(*left));
                *left -= data.len() as u64;
                if *left == 0 {
                    self.receiving = ReceiveState::Over;
                }
                Ok(Next::Frame(Frame::data(data)))
            }
            ReceiveState::Close => {
                if self.read.is_empty() {
                    return Ok(Next::More(BODY_ROOM));
                }
                Ok(Next::Frame(Frame::data(take(&mut self.read, self.piece))))
            }
            ReceiveState::Chunked(chunks) => {
                let piece = chunks
                    .next(&mut self.read, self.piece)
                    .map_err(|wrong| H1Error::Wrong(wrong.0))?;
                if chunks.is_over() {
                    self.receiving = ReceiveState::Over;
                }
                Ok(match piece {
                    ChunkEvent::Data(data) => Next::Frame(Frame::data(data)),
                    ChunkEvent::Trailers(trailers) => Next::Frame(Frame::trailers(trailers)),
                    ChunkEvent::Over => Next::Over,
                    ChunkEvent::More => Next::More(BODY_ROOM),
                })
            }
        }
    }

    /// The connection has ended: so has a body that ends with it, and everything else is cut off.
    pub(super) fn end(&mut self) -> Result<(), H1Error> {
        match self.receiving {
            ReceiveState::Close | ReceiveState::Over => {
                self.receiving = ReceiveState::Over;
                Ok(())
            }
            ReceiveState::Head | ReceiveState::Known(_) | ReceiveState::Chunked(_) => {
                Err(H1Error::Closed)
            }
        }
    }

    /// Whether all of the answer has come.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.receiving, ReceiveState::Over)
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self.receiving {
            ReceiveState::Known(left) => SizeHint::with_exact(left),
            ReceiveState::Over => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        }
    }
}
