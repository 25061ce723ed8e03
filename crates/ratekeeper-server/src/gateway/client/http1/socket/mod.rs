//! The socket of an HTTP/1 client: reads heads and bodies, and writes informational responses in
//! between.

use super::body::ClientBody;
use super::request::{self, Head, HeadLimits, Length};
use super::response::write_informational;
use crate::api::{Code, Problem};
use crate::gateway::body::BodyError;
use crate::gateway::client::state::Client;
use crate::gateway::guard::{Guard, Refusal};
use crate::gateway::http1::{ChunkEvent, Chunks, fill, take};
use crate::net::stream::Stream;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use bytes::{Buf, BytesMut};
use http_body::{Frame, SizeHint};
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};
use tokio::io::AsyncWrite;

/// How much is read at once, of a head and of a body.
const HEAD_ROOM: usize = 8 * 1024;
const BODY_ROOM: usize = 64 * 1024;

/// How many bytes of informational responses may wait to be written.
const MOST_INTERIM: usize = 16 * 1024;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A connection whose own task reads heads, while the body of a request reads what belongs to it.
/// With an HTTP/2 upstream, another task may poll the body, and it may outlive its request.
#[derive(Clone)]
pub(crate) struct ClientSocket(Arc<Mutex<SocketState>>);

/// The same without keeping the connection open.
pub(super) struct WeakClientSocket(Weak<Mutex<SocketState>>);

impl WeakClientSocket {
    /// `None` if the connection has ended.
    pub(super) fn upgrade(&self) -> Option<ClientSocket> {
        self.0.upgrade().map(ClientSocket)
    }
}

pub(super) struct SocketState {
    pub(super) stream: Stream,
    client: Arc<Client>,
    guard: Guard,
    bounds: HeadLimits,
    /// Bytes that were read and not consumed. The guard has accepted them, except the last `unseen`
    /// ones, which may be of another protocol.
    pub(super) read: BytesMut,
    unseen: usize,
    /// How much of that was tried to be parsed as a head.
    tried: usize,
    /// Whether the buffer was enlarged for a body.
    is_large: bool,
    /// Why the guard rejected the next byte.
    refused: Option<Refusal>,
    /// Whether the client has closed its side.
    ended: bool,
    /// The number of the current request: a body may be polled after its request has ended.
    pub(super) number: u64,
    coming: NextHead,
    /// Whether the rest of the body is no longer needed.
    pub(super) unwanted: bool,
    /// Wakers of the task that polled the body last, and of the task that waits for its end.
    asks: Option<Waker>,
    waits: Option<Waker>,
    /// Whether the client still waits for 100 Continue.
    expects: bool,
    /// Whether the next bytes may be of another protocol.
    upgrades: bool,
    /// Bytes to write before the response.
    interim: BytesMut,
}

/// The rest of the current request.
enum NextHead {
    Nothing,
    Known(u64),
    Chunks(Chunks),
}

/// Why there is no request.
pub(super) enum HeadError {
    Problem(Problem),
    Io(io::Error),
}

impl ClientSocket {
    /// `first` are bytes already read from the stream.
    pub(crate) fn new(
        stream: Stream,
        client: Arc<Client>,
        bounds: HeadLimits,
        first: &[u8],
    ) -> Self {
        let mut ends = SocketState {
            stream,
            client,
            guard: Guard::new(2 * bounds.bytes),
            bounds,
            read: BytesMut::new(),
            unseen: 0,
            tried: 0,
            is_large: false,
            refused: None,
            ended: false,
            number: 0,
            coming: NextHead::Nothing,
            unwanted: false,
            asks: None,
            waits: None,
            expects: false,
            upgrades: false,
            interim: BytesMut::new(),
        };
        if !first.is_empty() {
            ends.read.reserve(HEAD_ROOM);
            ends.read.extend_from_slice(first);
            ends.look(0);
        }
        Self(Arc::new(Mutex::new(ends)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SocketState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sender of informational responses.
    pub(crate) fn informed(&self) -> InformationalSender {
        InformationalSender(self.weak())
    }

    /// A weak handle.
    fn weak(&self) -> WeakClientSocket {
        WeakClientSocket(Arc::downgrade(&self.0))
    }

    /// The body of the current request, if it has one.
    pub(super) fn body(&self, length: Length) -> Option<ClientBody> {
        (length != Length::Known(0)).then(|| ClientBody::new(self.weak(), self.lock().number))
    }
}

impl SocketState {
    /// The next request, or `None` at the end of the connection.
    pub(super) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Head>, HeadError>> {
        loop {
            // Some clients send an empty line after a body.
            while self.read.starts_with(b"\r\n") {
                self.read.advance(2);
                // Its CR may have come alone.
                self.tried = self.tried.saturating_sub(2);
            }
            // Parsing again is worthwhile only after another line.
            let is_new =
                self.read[self.tried..].contains(&b'\n') || self.read.len() >= self.bounds.bytes;
            if is_new
                && let Some((length, head)) =
                    request::read(&self.read, self.bounds).map_err(HeadError::Problem)?
            {
                self.read.advance(length);
                self.tried = 0;
                self.number += 1;
                self.coming = match head.length {
                    Length::Known(0) => NextHead::Nothing,
                    Length::Known(length) => NextHead::Known(length),
                    Length::Chunked => NextHead::Chunks(Chunks::new()),
                };
                (self.unwanted, self.expects, self.upgrades) = (false, head.expects, head.upgrades);
                return Poll::Ready(Ok(Some(head)));
            }
            if let Some(refusal) = self.refused {
                return Poll::Ready(Err(HeadError::Problem(told(refusal))));
            }
            self.tried = self.read.len();
            if self.tried == 0 && std::mem::take(&mut self.is_large) {
                // There may be many connections that stay idle for long.
                self.read = BytesMut::new();
            } else if self.tried == 0 {
                // Reuses the front of the buffer, which is still in the cache.
                let _ = self.read.try_reclaim(HEAD_ROOM);
            }
            if !ready!(self.poll_fill(HEAD_ROOM, cx)).map_err(HeadError::Io)? {
                return Poll::Ready(Ok(None));
            }
            // The rejected part may have begun before.
            self.tried = self.tried.min(self.read.len());
        }
    }

    /// Ends the current request, which is answered: the rest of it will be discarded.
    pub(super) fn end_request(&mut self, cx: &Context<'_>) {
        self.number += 1;
        self.unwanted = true;
        if let Some(asks) = self.asks.take().filter(|asks| !asks.will_wake(cx.waker())) {
            asks.wake();
        }
    }

    /// Reads the available bytes; false at the end.
    fn poll_fill(&mut self, room: usize, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.ended || self.refused.is_some() {
            return Poll::Ready(Ok(false));
        }
        let before = self.read.len();
        let more = ready!(fill(&mut self.stream, &mut self.read, room, cx))?;
        self.ended = !more;
        match more {
            // A client that may switch protocols speaks the new one next, or sends another request
            // if the switch fails.
            true if self.upgrades && !self.is_coming() => self.unseen += self.read.len() - before,
            true => self.look(before),
            false => {}
        }
        Poll::Ready(Ok(more))
    }

    /// Feeds the bytes read from `before` on to the guard, and removes what it rejects.
    fn look(&mut self, before: usize) {
        match self.guard.feed(&self.read[before..]) {
            Ok(()) => self
                .client
                .heard(self.guard.is_in_head(), self.guard.is_at_end()),
            Err((at, refusal)) => {
                tracing::debug!(peer = ?self.client.peer, "request rejected: {}", refusal.words());
                self.read.truncate(before + at);
                self.refused = Some(refusal);
                self.client.says_more();
            }
        }
    }

    /// Ready when the client has left while it waits for a response. Its next request is read
    /// meanwhile, as far as there is room.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_coming() {
            // Another task may read it.
            match &mut self.waits {
                Some(waits) => waits.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
        }
        while !self.is_coming()
            && !self.ended
            && self.refused.is_none()
            && self.read.len() < HEAD_ROOM
        {
            let waits = self.client.only_waits();
            match ready!(self.poll_fill(HEAD_ROOM, cx)) {
                Ok(true) => {}
                Ok(false) if !waits => {}
                Ok(false) | Err(_) => return Poll::Ready(()),
            }
        }
        Poll::Pending
    }

    /// Whether the body has more bytes to come.
    pub(super) fn is_coming(&self) -> bool {
        !matches!(self.coming, NextHead::Nothing)
    }

    /// Whether the rest of the body is to be discarded.
    pub(super) fn is_unwanted(&self) -> bool {
        self.unwanted && self.is_coming()
    }

    /// Whether all bytes that came were accepted, and belong to a finished request or to another
    /// protocol.
    pub(super) fn can_switch(&self) -> bool {
        self.refused.is_none() && !self.is_coming()
    }

    /// Whether no byte of another request has come.
    pub(super) fn is_idle(&self) -> bool {
        self.refused.is_none() && self.read.is_empty()
    }

    /// The remaining length of the body, as far as it is known.
    pub(super) fn size_hint(&self) -> SizeHint {
        match self.coming {
            NextHead::Nothing => SizeHint::with_exact(0),
            NextHead::Known(left) => SizeHint::with_exact(left),
            NextHead::Chunks(_) => SizeHint::default(),
        }
    }

    /// Polls the body for the task that forwards it, which may be another one than the task that
    /// reads heads.
    pub(super) fn poll_asked(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = self.poll_body(cx);
        if !self.is_coming()
            && let Some(waits) = self.waits.take_if(|waits| !waits.will_wake(cx.waker()))
        {
            waits.wake();
        }
        match &mut self.asks {
            _ if polled.is_ready() => {}
            Some(asks) => asks.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        polled
    }

    /// The next frame of a request body.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            match &mut self.coming {
                NextHead::Nothing => return Poll::Ready(None),
                NextHead::Known(left) if !self.read.is_empty() => {
                    let data = take(&mut self.read, *left);
                    *left -= data.len() as u64;
                    if *left == 0 {
                        self.coming = NextHead::Nothing;
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                NextHead::Known(_) => {}
                NextHead::Chunks(chunks) => {
                    let piece = chunks
                        .next(&mut self.read, u64::MAX)
                        .map_err(|wrong| broken(wrong.0))?;
                    if chunks.is_over() {
                        self.coming = NextHead::Nothing;
                    }
                    match piece {
                        ChunkEvent::Data(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                        ChunkEvent::Trailers(trailers) => {
                            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                        }
                        ChunkEvent::Over => return Poll::Ready(None),
                        ChunkEvent::More => {}
                    }
                }
            }
            if std::mem::take(&mut self.expects) {
                self.interim.extend_from_slice(CONTINUE);
            }
            self.poll_interim(cx).map_err(BodyError::client)?;
            self.is_large = true;
            let filled = ready!(self.poll_fill(BODY_ROOM, cx)).map_err(BodyError::client)?;
            match self.refused {
                _ if filled => {}
                Some(refusal) => return Poll::Ready(Some(Err(broken(refusal.words())))),
                None => {
                    return Poll::Ready(Some(Err(BodyError::client(io::ErrorKind::UnexpectedEof))));
                }
            }
        }
    }

    /// Writes the informational responses, as far as the client takes them.
    fn poll_interim(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.interim.is_empty() {
            return Ok(());
        }
        while !self.interim.is_empty() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.interim)? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(written) => self.interim.advance(written),
                Poll::Pending => return Ok(()),
            }
        }
        let _ = Pin::new(&mut self.stream).poll_flush(cx)?;
        Ok(())
    }

    /// Takes the unwritten rest of the informational responses, which precedes the response.
    pub(super) fn take_interim(&mut self, switches: bool) -> BytesMut {
        // After its response a client is not asked for the body any more, and it stays with HTTP
        // unless the response switches protocols.
        (self.expects, self.upgrades) = (false, switches);
        let unseen = std::mem::take(&mut self.unseen);
        if unseen > 0 && !switches {
            self.look(self.read.len() - unseen);
        }
        std::mem::take(&mut self.interim)
    }

    /// Discards an unwanted body, so that the next request can be read. Ready with true at its end,
    /// with false if it is too long or malformed.
    pub(super) fn poll_discard(&mut self, left: &mut usize, cx: &mut Context<'_>) -> Poll<bool> {
        while self.is_coming() {
            match ready!(self.poll_body(cx)) {
                None => break,
                Some(Ok(frame)) => {
                    let length = frame.data_ref().map_or(0, Bytes::len);
                    let Some(rest) = left.checked_sub(length) else {
                        return Poll::Ready(false);
                    };
                    *left = rest;
                }
                Some(Err(_)) => return Poll::Ready(false),
            }
        }
        Poll::Ready(true)
    }

    /// Discards all bytes. Ready at the end of the stream, or when `left` is used up.
    pub(super) fn poll_forget(&mut self, left: &mut usize, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.read.clear();
            match ready!(fill(&mut self.stream, &mut self.read, BODY_ROOM, cx)) {
                Ok(true) if self.read.len() <= *left => *left -= self.read.len(),
                _ => return Poll::Ready(()),
            }
        }
    }
}

/// Sends informational responses to a client.
pub(crate) struct InformationalSender(WeakClientSocket);

impl InformationalSender {
    /// Queues an informational response, unless too many bytes wait already.
    pub(crate) fn tell(&self, status: StatusCode, headers: &HeaderMap, cx: &mut Context<'_>) {
        let Some(wire) = self.0.upgrade() else { return };
        let mut ends = wire.lock();
        let mut head = Vec::new();
        write_informational(&mut head, status, headers);
        if ends.interim.len() + head.len() <= MOST_INTERIM {
            ends.interim.extend_from_slice(&head);
        }
        // An error here recurs with the response.
        let _ = ends.poll_interim(cx);
    }
}

/// The problem that a client gets when the guard rejects its request.
fn told(refusal: Refusal) -> Problem {
    Problem::new(
        Code::BadRequest,
        format!("malformed HTTP/1.1 request: {}", refusal.words()),
    )
}

pub(super) fn broken(words: &'static str) -> BodyError {
    BodyError::Client(words.into())
}

impl BodyError {
    fn client(error: impl Into<io::Error>) -> Self {
        Self::Client(Box::<dyn Error + Send + Sync>::from(error.into()))
    }
}

/// Wakes the task that polls the body, as the socket is gone.
impl Drop for SocketState {
    fn drop(&mut self) {
        if let Some(asks) = self.asks.take() {
            asks.wake();
        }
    }
}

#[cfg(test)]
mod tests;
