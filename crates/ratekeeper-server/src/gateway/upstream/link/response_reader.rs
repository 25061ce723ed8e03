//! Takes the bytes of an answer apart, without a connection: whoever has one adds what it reads to
//! `read`. Fuzzed as a whole (fuzz/src/gateway/response.rs).

use super::Fault;
use super::head::{self, Head, Length};
use crate::gateway::http1::{Chunks, Piece, empty_line_end, take};
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
    receiving: Receiving,
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
enum Receiving {
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
            receiving: Receiving::Over,
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
        self.receiving = Receiving::Head;
        (self.scanned, self.tried) = (0, 0);
    }

    /// The head of the answer, or of one before it that only informs: then there will be another.
    /// None if more must be read.
    pub(super) fn head(&mut self) -> Result<Option<Head>, Fault> {
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
                Length::Known(0) => Receiving::Over,
                Length::Known(length) => Receiving::Known(length),
                Length::Chunked => Receiving::Chunked(Chunks::new()),
                Length::Close => Receiving::Close,
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
        !self.read.is_empty() || !matches!(self.receiving, Receiving::Head)
    }

    /// The body, if all of it came with the head.
    pub(super) fn whole_body(&mut self) -> Option<Bytes> {
        match self.receiving {
            Receiving::Over => Some(Bytes::new()),
            Receiving::Known(length) if length <= WHOLE && self.read.len() as u64 >= length => {
                self.receiving = Receiving::Over;
                Some(take(&mut self.read, length))
            }
            _ => None,
        }
    }

    /// The next piece of the body.
    pub(super) fn next(&mut self) -> Result<Next, Fault> {
        match &mut self.receiving {
            Receiving::Head | Receiving::Over => Ok(Next::Over),
            Receiving::Known(left) => {
                if self.read.is_empty() {
                    let room = usize::try_from(*left).unwrap_or(usize::MAX);
                    return Ok(Next::More(room.min(BODY_ROOM)));
                }
                let data = take(&mut self.read, self.piece.min(*left));
                *left -= data.len() as u64;
                if *left == 0 {
                    self.receiving = Receiving::Over;
                }
                Ok(Next::Frame(Frame::data(data)))
            }
            Receiving::Close => {
                if self.read.is_empty() {
                    return Ok(Next::More(BODY_ROOM));
                }
                Ok(Next::Frame(Frame::data(take(&mut self.read, self.piece))))
            }
            Receiving::Chunked(chunks) => {
                let piece = chunks
                    .next(&mut self.read, self.piece)
                    .map_err(|wrong| Fault::Wrong(wrong.0))?;
                if chunks.is_over() {
                    self.receiving = Receiving::Over;
                }
                Ok(match piece {
                    Piece::Data(data) => Next::Frame(Frame::data(data)),
                    Piece::Trailers(trailers) => Next::Frame(Frame::trailers(trailers)),
                    Piece::Over => Next::Over,
                    Piece::More => Next::More(BODY_ROOM),
                })
            }
        }
    }

    /// The connection has ended: so has a body that ends with it, and everything else is cut off.
    pub(super) fn end(&mut self) -> Result<(), Fault> {
        match self.receiving {
            Receiving::Close | Receiving::Over => {
                self.receiving = Receiving::Over;
                Ok(())
            }
            Receiving::Head | Receiving::Known(_) | Receiving::Chunked(_) => Err(Fault::Closed),
        }
    }

    /// Whether all of the answer has come.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.receiving, Receiving::Over)
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self.receiving {
            Receiving::Known(left) => SizeHint::with_exact(left),
            Receiving::Over => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        }
    }
}
