//! What comes from a client of HTTP/1, and is answered in between: heads, and bodies as somebody
//! asks for them.

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

/// How much is read at once: of a head, and of a body.
const HEAD_ROOM: usize = 8 * 1024;
const BODY_ROOM: usize = 64 * 1024;

/// So many bytes of answers that only inform may wait to be written.
const MOST_INTERIM: usize = 16 * 1024;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A connection of which one task reads heads, and the body of a request what belongs to it. That
/// may be polled by another task, and outlive its request, where the upstream speaks HTTP/2.
#[derive(Clone)]
pub(crate) struct ClientSocket(Arc<Mutex<SocketState>>);

/// The same for who does not hold the connection.
pub(super) struct WeakClientSocket(Weak<Mutex<SocketState>>);

impl WeakClientSocket {
    /// None if the connection has ended.
    pub(super) fn upgrade(&self) -> Option<ClientSocket> {
        self.0.upgrade().map(ClientSocket)
    }
}

pub(super) struct SocketState {
    pub(super) stream: Stream,
    client: Arc<Client>,
    guard: Guard,
    bounds: HeadLimits,
    /// What was read and not yet taken. The guard has let it pass, but for the last bytes of it, so
    /// many: they may be of another protocol.
    pub(super) read: BytesMut,
    unseen: usize,
    /// How much of that was tried to be read as a head.
    tried: usize,
    /// Whether there was room made for a body.
    is_large: bool,
    /// Why it lets nothing more pass.
    refused: Option<Refusal>,
    /// Whether the client says no more.
    ended: bool,
    /// Which request is at hand: a body may be asked for longer than anybody wants it.
    pub(super) number: u64,
    coming: NextHead,
    /// Whether nobody will ask for the rest of the body.
    pub(super) unwanted: bool,
    /// Who asked for the body last, and who waits for its end.
    asks: Option<Waker>,
    waits: Option<Waker>,
    /// Whether the client waits to be asked for the body.
    expects: bool,
    /// Whether what comes next may be of another protocol.
    upgrades: bool,
    /// What is written before the answer.
    interim: BytesMut,
}

/// What is still to come of a request.
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
    /// `first` was read from the stream already.
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

    /// A way to tell the client something before its answer.
    pub(crate) fn informed(&self) -> InformationalSender {
        InformationalSender(self.weak())
    }

    /// For who does not hold the connection.
    fn weak(&self) -> WeakClientSocket {
        WeakClientSocket(Arc::downgrade(&self.0))
    }

    /// The body of the request at hand, if it has one.
    pub(super) fn body(&self, length: Length) -> Option<ClientBody> {
        (length != Length::Known(0)).then(|| ClientBody::new(self.weak(), self.lock().number))
    }
}

impl SocketState {
    /// The next request; none if there is none.
    pub(super) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Head>, HeadError>> {
        loop {
            // Some clients send an empty line behind a body.
            while self.read.starts_with(b"\r\n") {
                self.read.advance(2);
                // Its CR may have come alone.
                self.tried = self.tried.saturating_sub(2);
            }
            // Another try is worth it when another line has come.
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
                // There may be many who have nothing to say for a long time.
                self.read = BytesMut::new();
            } else if self.tried == 0 {
                // To the front of the buffer again, which was used last and is near.
                let _ = self.read.try_reclaim(HEAD_ROOM);
            }
            if !ready!(self.poll_fill(HEAD_ROOM, cx)).map_err(HeadError::Io)? {
                return Poll::Ready(Ok(None));
            }
            // What was refused may have begun before.
            self.tried = self.tried.min(self.read.len());
        }
    }

    /// The request at hand is answered: what is still to come of it is nobody's.
    pub(super) fn end_request(&mut self, cx: &Context<'_>) {
        self.number += 1;
        self.unwanted = true;
        if let Some(asks) = self.asks.take().filter(|asks| !asks.will_wake(cx.waker())) {
            asks.wake();
        }
    }

    /// Reads as much as comes at once; false at the end.
    fn poll_fill(&mut self, room: usize, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.ended || self.refused.is_some() {
            return Poll::Ready(Ok(false));
        }
        let before = self.read.len();
        let more = ready!(fill(&mut self.stream, &mut self.read, room, cx))?;
        self.ended = !more;
        match more {
            // Who may change to another protocol speaks it next, or asks again if it may not.
            true if self.upgrades && !self.is_coming() => self.unseen += self.read.len() - before,
            true => self.look(before),
            false => {}
        }
        Poll::Ready(Ok(more))
    }

    /// Has the guard look at what was read from `before` on. What it refuses is not there.
    fn look(&mut self, before: usize) {
        match self.guard.feed(&self.read[before..]) {
            Ok(()) => self
                .client
                .heard(self.guard.is_in_head(), self.guard.is_at_end()),
            Err((at, refusal)) => {
                tracing::debug!(peer = ?self.client.peer, "refused {}", refusal.words());
                self.read.truncate(before + at);
                self.refused = Some(refusal);
                self.client.says_more();
            }
        }
    }

    /// Ready when the client has left while it waits for an answer. What it asks next is read on
    /// the way, as far as there is room.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_coming() {
            // Somebody else may read it.
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

    /// Whether more of the body is to come.
    pub(super) fn is_coming(&self) -> bool {
        !matches!(self.coming, NextHead::Nothing)
    }

    /// Whether nobody will ask for what is to come.
    pub(super) fn is_unwanted(&self) -> bool {
        self.unwanted && self.is_coming()
    }

    /// Whether all that came was understood, and belongs to a request that has ended or to another
    /// protocol.
    pub(super) fn can_switch(&self) -> bool {
        self.refused.is_none() && !self.is_coming()
    }

    /// Whether nothing of another request has come.
    pub(super) fn is_idle(&self) -> bool {
        self.refused.is_none() && self.read.is_empty()
    }

    /// What is known of its length.
    pub(super) fn size_hint(&self) -> SizeHint {
        match self.coming {
            NextHead::Nothing => SizeHint::with_exact(0),
            NextHead::Known(left) => SizeHint::with_exact(left),
            NextHead::Chunks(_) => SizeHint::default(),
        }
    }

    /// The next piece of a request's body, for who sends it on, and may do so in another task than
    /// the one that reads heads.
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

    /// The next piece of a request's body.
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

    /// Writes what is written before the answer, as far as it is taken.
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

    /// What of that was not taken: the answer stands behind it.
    pub(super) fn take_interim(&mut self, switches: bool) -> BytesMut {
        // Who has its answer is not asked for its body any more, and stays with HTTP unless that
        // says otherwise.
        (self.expects, self.upgrades) = (false, switches);
        let unseen = std::mem::take(&mut self.unseen);
        if unseen > 0 && !switches {
            self.look(self.read.len() - unseen);
        }
        std::mem::take(&mut self.interim)
    }

    /// Takes what comes of a body that nobody wants, so that the next request can be read; ready
    /// when that is all of it, with false if it is too much or broken.
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

    /// Takes whatever comes, and forgets it; ready at the end, or when there were more bytes than
    /// so many.
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

/// A client that can be told something before its answer.
pub(crate) struct InformationalSender(WeakClientSocket);

impl InformationalSender {
    /// Passes on an answer that only informs, if not too much of that kind waits already.
    pub(crate) fn tell(&self, status: StatusCode, headers: &HeaderMap, cx: &mut Context<'_>) {
        let Some(wire) = self.0.upgrade() else { return };
        let mut ends = wire.lock();
        let mut head = Vec::new();
        write_informational(&mut head, status, headers);
        if ends.interim.len() + head.len() <= MOST_INTERIM {
            ends.interim.extend_from_slice(&head);
        }
        // What goes wrong here goes wrong again with the answer.
        let _ = ends.poll_interim(cx);
    }
}

/// What a client is told whose request is refused.
fn told(refusal: Refusal) -> Problem {
    Problem::new(
        Code::BadRequest,
        format!(
            "the request has {}, which is not passed on",
            refusal.words()
        ),
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

/// Whoever asks for a body is not woken by a socket that is gone.
impl Drop for SocketState {
    fn drop(&mut self) {
        if let Some(asks) = self.asks.take() {
            asks.wake();
        }
    }
}

#[cfg(test)]
mod tests;
