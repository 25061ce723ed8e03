//! A request on its way to an upstream.

use super::Fault;
use crate::proxy::body::{BodyError, Sent};
use crate::proxy::headers::{self, Onward, put};
use crate::proxy::upstream::authority;
use crate::stream::Stream;
use axum::body::Bytes;
use axum::http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, TRAILER, TRANSFER_ENCODING};
use axum::http::{Method, Request};
use bytes::Buf;
use http_body::{Body, Frame};
use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;
use tollgate_policy::config::Upstream;

/// Pieces of a body up to this size are written together with what stands beside them.
const SMALL: usize = 4 * 1024;

/// Room for what is written first is kept up to this size.
const ROOM: usize = 16 * 1024;

#[derive(Default)]
pub(super) struct Sending {
    /// The head, the size of a chunk, small pieces; and how much of it is written.
    first: Vec<u8>,
    written: usize,
    /// Then this piece of the body, and what ends it.
    piece: Bytes,
    last: &'static [u8],
    /// None once all of it was taken.
    body: Option<Sent>,
    /// How many bytes of the body are still to come; none if nobody knows, then it goes in chunks.
    left: Option<u64>,
    /// Trailers that were announced.
    announced: Vec<HeaderName>,
    /// Whether the upstream has any of it.
    begun: bool,
    unflushed: bool,
}

impl Sending {
    /// Takes a request on: writes its head down, and keeps its body.
    pub(super) fn begin(&mut self, request: &mut Request<Sent>, upstream: &Upstream, onward: &Onward<'_>) {
        let body = std::mem::replace(request.body_mut(), Sent::empty());
        *self = Self { first: std::mem::take(&mut self.first), ..Self::default() };
        if self.first.capacity() > ROOM {
            self.first = Vec::new();
        }
        self.first.clear();
        let (first, headers) = (&mut self.first, request.headers());
        first.extend_from_slice(request.method().as_str().as_bytes());
        first.push(b' ');
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        // All of the service, of `OPTIONS *`, is under no path.
        if path != "*" {
            first.extend_from_slice(upstream.prefix().as_bytes());
        }
        // A target may have a query and no path.
        if path.starts_with('?') {
            first.push(b'/');
        }
        first.extend_from_slice(path.as_bytes());
        first.extend_from_slice(b" HTTP/1.1\r\n");
        if headers::first(headers, &HOST).is_none() {
            // HTTP/1.0 needs none, HTTP/1.1 does.
            put(first, &HOST, authority(upstream).as_bytes());
        }
        onward.write(headers, first);
        // How long it is goes by what comes, not by what is said.
        if body.is_end_stream() {
            let expected = matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH);
            if expected || headers::first(headers, &CONTENT_LENGTH).is_some() {
                put(first, &CONTENT_LENGTH, b"0");
            }
        } else {
            self.left = body.size_hint().exact();
            match self.left {
                // To write into memory cannot fail.
                Some(length) => drop(write!(first, "content-length: {length}\r\n")),
                None => {
                    put(first, &TRANSFER_ENCODING, b"chunked");
                    self.announced = announced(headers, onward.believed);
                }
            }
            self.body = Some(body);
        }
        first.extend_from_slice(b"\r\n");
    }

    /// Whether there is more to send.
    pub(super) fn is_busy(&self) -> bool {
        self.body.is_some() || self.unflushed || self.has_bytes()
    }

    /// Whether the upstream has any of it.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Whether it is the client that is waited for, of whose body the next piece has not come.
    pub(super) fn waits_for_client(&self) -> bool {
        self.body.is_some() && !self.has_bytes()
    }

    fn has_bytes(&self) -> bool {
        self.written < self.first.len() || !self.piece.is_empty() || !self.last.is_empty()
    }

    /// Sends nothing more. The body, if the upstream has nothing of the request yet.
    pub(super) fn stop(&mut self) -> Option<Sent> {
        let body = (!self.begun).then(|| self.body.take().unwrap_or_else(Sent::empty));
        *self = Self { begun: self.begun, ..Self::default() };
        body
    }

    /// Sends as much as is taken; ready when that is all.
    pub(super) fn poll(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        loop {
            while self.has_bytes() {
                ready!(self.write(stream, cx)).map_err(Fault::Io)?;
            }
            let Some(body) = &mut self.body else {
                ready!(self.flush(stream, cx)).map_err(Fault::Io)?;
                return Poll::Ready(Ok(()));
            };
            match Pin::new(body).poll_frame(cx) {
                Poll::Ready(Some(frame)) => self.take(frame.map_err(Fault::Body)?)?,
                Poll::Ready(None) => self.end(None)?,
                Poll::Pending => {
                    // What is there already need not wait for the rest.
                    let _ = self.flush(stream, cx).map_err(Fault::Io)?;
                    return Poll::Pending;
                }
            }
        }
    }

    fn write(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = Pin::new(stream);
        let written = if self.piece.is_empty() && self.last.is_empty() {
            ready!(stream.poll_write(cx, &self.first[self.written..]))?
        } else {
            let slices = [&self.first[self.written..], &self.piece, self.last].map(IoSlice::new);
            ready!(stream.poll_write_vectored(cx, &slices))?
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        (self.begun, self.unflushed) = (true, true);
        let of_first = written.min(self.first.len() - self.written);
        self.written += of_first;
        let of_piece = (written - of_first).min(self.piece.len());
        self.piece.advance(of_piece);
        self.last = &self.last[written - of_first - of_piece..];
        Poll::Ready(Ok(()))
    }

    fn flush(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.unflushed {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// The next piece of the body.
    fn take(&mut self, frame: Frame<Bytes>) -> Result<(), Fault> {
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => return self.end(frame.into_trailers().ok()),
        };
        (self.written, self.last) = (0, b"");
        self.first.clear();
        match &mut self.left {
            Some(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(Fault::Body(BodyError::Length))?;
            }
            // An empty chunk would be the end.
            None if data.is_empty() => return Ok(()),
            None => {
                drop(write!(self.first, "{:x}\r\n", data.len()));
                self.last = b"\r\n";
            }
        }
        if data.len() <= SMALL {
            self.first.extend_from_slice(&data);
            self.first.extend_from_slice(std::mem::take(&mut self.last));
        } else {
            self.piece = data;
        }
        Ok(())
    }

    /// There is no more of the body.
    fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), Fault> {
        self.body = None;
        match self.left {
            Some(0) => Ok(()),
            Some(_) => Err(Fault::Body(BodyError::Length)),
            None => {
                self.written = 0;
                self.first.clear();
                self.first.extend_from_slice(b"0\r\n");
                for (name, value) in &trailers.unwrap_or_default() {
                    if self.announced.contains(name) {
                        put(&mut self.first, name, value.as_bytes());
                    }
                }
                self.first.extend_from_slice(b"\r\n");
                Ok(())
            }
        }
    }
}

/// What Trailer names, as far as it may come then.
fn announced(headers: &HeaderMap, believed: &HeaderName) -> Vec<HeaderName> {
    let values = headers.get_all(TRAILER).into_iter();
    values
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(|name| headers::may_trail(name) && name != believed)
        .collect()
}
