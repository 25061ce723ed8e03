//! The socket of an HTTP/1 client: reads heads and bodies, and writes informational responses in
//! between.

use super::body::ClientBody;
use super::request::{self, Head, HeadLimits, RequestBodyLength};
use super::response::write_informational;
use crate::api::{Code, Problem};
use crate::gateway::body::BodyError;
use crate::gateway::client::state::Client;
use crate::gateway::http1::{ChunkEvent, ChunkedDecoder, fill, take};
use crate::gateway::smuggling_guard::{RejectReason, SmugglingGuard};
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
const MAX_INTERIM_BYTES: usize = 16 * 1024;

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

/// The state behind a client socket: its stream, buffers, and the current request.
pub(super) struct SocketState {
    pub(super) stream: Stream,
    client: Arc<Client>,
    guard: SmugglingGuard,
    limits: HeadLimits,
    /// Bytes that were read and not consumed. The guard has accepted them, except the last `unchecked`
    /// ones, which may be of another protocol.
    pub(super) read: BytesMut,
    unchecked: usize,
    /// How many of these bytes were already parsed as an incomplete head.
    parsed: usize,
    /// Whether the buffer was enlarged for a body.
    is_large: bool,
    /// Why the guard rejected the next byte.
    rejected: Option<RejectReason>,
    /// Whether the client has closed its side.
    is_closed: bool,
    /// The number of the current request: a body may be polled after its request has ended.
    pub(super) number: u64,
    body: RemainingBody,
    /// Whether the rest of the body is no longer needed.
    pub(super) discard_rest: bool,
    /// Wakers of the task that polled the body last, and of the task that waits for its end.
    body_waker: Option<Waker>,
    end_waker: Option<Waker>,
    /// Whether the client still waits for 100 Continue.
    expects_continue: bool,
    /// Whether the next bytes may be of another protocol.
    may_upgrade: bool,
    /// Bytes to write before the response.
    interim: BytesMut,
}

/// The rest of the current request.
enum RemainingBody {
    Nothing,
    Known(u64),
    Chunked(ChunkedDecoder),
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
        limits: HeadLimits,
        first: &[u8],
    ) -> Self {
        let mut state = SocketState {
            stream,
            client,
            guard: SmugglingGuard::new(2 * limits.bytes),
            limits,
            read: BytesMut::new(),
            unchecked: 0,
            parsed: 0,
            is_large: false,
            rejected: None,
            is_closed: false,
            number: 0,
            body: RemainingBody::Nothing,
            discard_rest: false,
            body_waker: None,
            end_waker: None,
            expects_continue: false,
            may_upgrade: false,
            interim: BytesMut::new(),
        };
        if !first.is_empty() {
            state.read.reserve(HEAD_ROOM);
            state.read.extend_from_slice(first);
            state.check_new_bytes(0);
        }
        Self(Arc::new(Mutex::new(state)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SocketState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sender of informational responses.
    pub(crate) fn informational(&self) -> InformationalSender {
        InformationalSender(self.weak())
    }

    /// A weak handle.
    fn weak(&self) -> WeakClientSocket {
        WeakClientSocket(Arc::downgrade(&self.0))
    }

    /// The body of the current request, if it has one.
    pub(super) fn body(&self, length: RequestBodyLength) -> Option<ClientBody> {
        (length != RequestBodyLength::Known(0))
            .then(|| ClientBody::new(self.weak(), self.lock().number))
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
                self.parsed = self.parsed.saturating_sub(2);
            }
            // Parsing again is worthwhile only after another line.
            let is_new =
                self.read[self.parsed..].contains(&b'\n') || self.read.len() >= self.limits.bytes;
            if is_new
                && let Some((length, head)) =
                    request::read(&self.read, self.limits).map_err(HeadError::Problem)?
            {
                self.read.advance(length);
                self.parsed = 0;
                self.number += 1;
                self.body = match head.length {
                    RequestBodyLength::Known(0) => RemainingBody::Nothing,
                    RequestBodyLength::Known(length) => RemainingBody::Known(length),
                    RequestBodyLength::Chunked => RemainingBody::Chunked(ChunkedDecoder::new()),
                };
                (self.discard_rest, self.expects_continue, self.may_upgrade) =
                    (false, head.expects_continue, head.may_upgrade);
                return Poll::Ready(Ok(Some(head)));
            }
            if let Some(reason) = self.rejected {
                return Poll::Ready(Err(HeadError::Problem(bad_request(reason))));
            }
            self.parsed = self.read.len();
            if self.parsed == 0 && std::mem::take(&mut self.is_large) {
                // There may be many connections that stay idle for long.
                self.read = BytesMut::new();
            } else if self.parsed == 0 {
                // Reuses the front of the buffer, which is still in the cache.
                let _ = self.read.try_reclaim(HEAD_ROOM);
            }
            if !ready!(self.poll_fill(HEAD_ROOM, cx)).map_err(HeadError::Io)? {
                return Poll::Ready(Ok(None));
            }
            // The rejected part may have begun before.
            self.parsed = self.parsed.min(self.read.len());
        }
    }

    /// Ends the current request, which is answered: the rest of it will be discarded.
    pub(super) fn end_request(&mut self, cx: &Context<'_>) {
        self.number += 1;
        self.discard_rest = true;
        if let Some(body_waker) = self
            .body_waker
            .take()
            .filter(|body_waker| !body_waker.will_wake(cx.waker()))
        {
            body_waker.wake();
        }
    }

    /// Reads the available bytes. Ready with false at the end of the stream.
    fn poll_fill(&mut self, capacity: usize, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.is_closed || self.rejected.is_some() {
            return Poll::Ready(Ok(false));
        }
        let before = self.read.len();
        let more = ready!(fill(&mut self.stream, &mut self.read, capacity, cx))?;
        self.is_closed = !more;
        // A client that may switch protocols uses the new one next, or sends another request if the
        // switch fails.
        if self.may_upgrade && !self.has_body_left() {
            self.unchecked += self.read.len() - before;
        } else if more {
            self.check_new_bytes(before);
        }
        Poll::Ready(Ok(more))
    }

    /// Feeds the bytes read from `before` on to the guard, and removes what it rejects.
    fn check_new_bytes(&mut self, before: usize) {
        match self.guard.feed(&self.read[before..]) {
            Ok(()) => self
                .client
                .on_read(self.guard.is_in_head(), self.guard.is_at_end()),
            Err((at, reason)) => {
                tracing::debug!(peer = ?self.client.peer, "request rejected: {}", reason.as_str());
                self.read.truncate(before + at);
                self.rejected = Some(reason);
                self.client.mark_unread();
            }
        }
    }

    /// Ready when the client has left while it waits for a response. Its next request is read
    /// meanwhile, as far as the buffer has capacity.
    pub(super) fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_body_left() {
            // Another task may read it.
            match &mut self.end_waker {
                Some(end_waker) => end_waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
        }
        while !self.has_body_left()
            && !self.is_closed
            && self.rejected.is_none()
            && self.read.len() < HEAD_ROOM
        {
            let is_waiting = self.client.is_waiting_for_response();
            match ready!(self.poll_fill(HEAD_ROOM, cx)) {
                Ok(true) => {}
                Ok(false) if !is_waiting => {}
                Ok(false) | Err(_) => return Poll::Ready(()),
            }
        }
        Poll::Pending
    }

    /// Whether the body has more bytes to come.
    pub(super) fn has_body_left(&self) -> bool {
        !matches!(self.body, RemainingBody::Nothing)
    }

    /// Whether the rest of the body is to be discarded.
    pub(super) fn is_unwanted(&self) -> bool {
        self.discard_rest && self.has_body_left()
    }

    /// Whether all bytes that came were accepted, and belong to a finished request or to another
    /// protocol.
    pub(super) fn can_switch(&self) -> bool {
        self.rejected.is_none() && !self.has_body_left()
    }

    /// Whether no byte of another request has come.
    pub(super) fn is_idle(&self) -> bool {
        self.rejected.is_none() && self.read.is_empty()
    }

    /// The remaining length of the body, if it is known.
    pub(super) fn size_hint(&self) -> SizeHint {
        match self.body {
            RemainingBody::Nothing => SizeHint::with_exact(0),
            RemainingBody::Known(left) => SizeHint::with_exact(left),
            RemainingBody::Chunked(_) => SizeHint::default(),
        }
    }

    /// Polls the body for the task that forwards it, which may be another one than the task that
    /// reads heads.
    pub(super) fn poll_forwarded(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = self.poll_body(cx);
        if !self.has_body_left()
            && let Some(end_waker) = self
                .end_waker
                .take_if(|end_waker| !end_waker.will_wake(cx.waker()))
        {
            end_waker.wake();
        }
        match &mut self.body_waker {
            _ if polled.is_ready() => {}
            Some(body_waker) => body_waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        polled
    }

    /// The next frame of a request body.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            match &mut self.body {
                RemainingBody::Nothing => return Poll::Ready(None),
                RemainingBody::Known(left) if !self.read.is_empty() => {
                    let data = take(&mut self.read, *left);
                    *left -= data.len() as u64;
                    if *left == 0 {
                        self.body = RemainingBody::Nothing;
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                RemainingBody::Known(_) => {}
                RemainingBody::Chunked(decoder) => {
                    let event = decoder
                        .next(&mut self.read, u64::MAX)
                        .map_err(|error| body_error(error.0))?;
                    if decoder.is_finished() {
                        self.body = RemainingBody::Nothing;
                    }
                    match event {
                        ChunkEvent::Data(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                        ChunkEvent::Trailers(trailers) => {
                            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                        }
                        ChunkEvent::Finished => return Poll::Ready(None),
                        ChunkEvent::More => {}
                    }
                }
            }
            if std::mem::take(&mut self.expects_continue) {
                self.interim.extend_from_slice(CONTINUE);
            }
            self.poll_interim(cx).map_err(BodyError::client)?;
            self.is_large = true;
            let filled = ready!(self.poll_fill(BODY_ROOM, cx)).map_err(BodyError::client)?;
            match self.rejected {
                _ if filled => {}
                Some(reason) => return Poll::Ready(Some(Err(body_error(reason.as_str())))),
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
        (self.expects_continue, self.may_upgrade) = (false, switches);
        let unchecked = std::mem::take(&mut self.unchecked);
        if unchecked > 0 && !switches {
            self.check_new_bytes(self.read.len() - unchecked);
        }
        std::mem::take(&mut self.interim)
    }

    /// Discards an unwanted body, so that the next request can be read. Ready with true at its end,
    /// with false if it is too long or malformed.
    pub(super) fn poll_discard(&mut self, left: &mut usize, cx: &mut Context<'_>) -> Poll<bool> {
        while self.has_body_left() {
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
    pub(super) fn poll_discard_all(&mut self, left: &mut usize, cx: &mut Context<'_>) -> Poll<()> {
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
    pub(crate) fn send(&self, status: StatusCode, headers: &HeaderMap, cx: &mut Context<'_>) {
        let Some(socket) = self.0.upgrade() else {
            return;
        };
        let mut state = socket.lock();
        let mut head = Vec::new();
        write_informational(&mut head, status, headers);
        if state.interim.len() + head.len() <= MAX_INTERIM_BYTES {
            state.interim.extend_from_slice(&head);
        }
        // An error here recurs with the response.
        let _ = state.poll_interim(cx);
    }
}

/// The problem that a client gets when the guard rejects its request.
fn bad_request(reason: RejectReason) -> Problem {
    Problem::new(
        Code::BadRequest,
        format!("malformed HTTP/1.1 request: {}", reason.as_str()),
    )
}

pub(super) fn body_error(message: &'static str) -> BodyError {
    BodyError::Client(message.into())
}

impl BodyError {
    fn client(error: impl Into<io::Error>) -> Self {
        Self::Client(Box::<dyn Error + Send + Sync>::from(error.into()))
    }
}

/// Wakes the task that polls the body, as the socket is gone.
impl Drop for SocketState {
    fn drop(&mut self) {
        if let Some(body_waker) = self.body_waker.take() {
            body_waker.wake();
        }
    }
}

#[cfg(test)]
mod tests;
