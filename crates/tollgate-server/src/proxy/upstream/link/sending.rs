//! A request on its way to an upstream.

use super::Fault;
use crate::proxy::body::{BodyError, Sent};
use crate::proxy::headers::{self, Onward, put};
use crate::proxy::http1::Outgoing;
use crate::proxy::upstream::authority;
use crate::stream::Stream;
use axum::body::Bytes;
use axum::http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, TRAILER, TRANSFER_ENCODING};
use axum::http::{Method, Request};
use http_body::{Body, Frame};
use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tollgate_policy::config::Upstream;

#[derive(Default)]
pub(super) struct Sending {
    out: Outgoing,
    /// None once all of it was taken.
    body: Option<Sent>,
    /// How many bytes of the body are still to come; none if nobody knows, then it goes in chunks.
    left: Option<u64>,
    /// Trailers that were announced.
    announced: Vec<HeaderName>,
}

impl Sending {
    /// Takes a request on: writes its head down, and keeps its body.
    pub(super) fn begin(&mut self, request: &mut Request<Sent>, upstream: &Upstream, onward: &Onward<'_>) {
        let body = std::mem::replace(request.body_mut(), Sent::empty());
        let Self { out, body: kept, left, announced } = self;
        let has_body = !body.is_end_stream();
        *left = body.size_hint().exact().filter(|_| has_body);
        announced.clear();
        out.begin(|first| {
            let headers = request.headers();
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
            match *left {
                _ if !has_body => {
                    let expected = matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH);
                    if expected || headers::first(headers, &CONTENT_LENGTH).is_some() {
                        put(first, &CONTENT_LENGTH, b"0");
                    }
                }
                // To write into memory cannot fail.
                Some(length) => drop(write!(first, "content-length: {length}\r\n")),
                None => {
                    put(first, &TRANSFER_ENCODING, b"chunked");
                    announce(announced, headers, onward.believed);
                }
            }
            first.extend_from_slice(b"\r\n");
        });
        *kept = has_body.then_some(body);
    }

    /// Whether there is more to send.
    pub(super) fn is_busy(&self) -> bool {
        self.body.is_some() || !self.out.is_flushed() || self.out.has_bytes()
    }

    /// Whether the upstream has any of it.
    pub(super) fn has_begun(&self) -> bool {
        self.out.has_begun()
    }

    /// Whether it is the client that is waited for, of whose body the next piece has not come.
    pub(super) fn waits_for_client(&self) -> bool {
        self.body.is_some() && !self.out.has_bytes()
    }

    /// Sends nothing more. The body, if the upstream has nothing of the request yet.
    pub(super) fn stop(&mut self) -> Option<Sent> {
        let body = self.body.take();
        self.out.stop();
        (!self.has_begun()).then(|| body.unwrap_or_else(Sent::empty))
    }

    /// Sends as much as is taken; ready when that is all.
    pub(super) fn poll(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        loop {
            ready!(self.out.poll_write(stream, cx)).map_err(Fault::Io)?;
            let Some(body) = &mut self.body else {
                return self.out.poll_flush(stream, cx).map_err(Fault::Io);
            };
            match Pin::new(body).poll_frame(cx) {
                Poll::Ready(Some(frame)) => self.take(frame.map_err(Fault::Body)?)?,
                Poll::Ready(None) => self.end(None)?,
                Poll::Pending => {
                    // What is there already need not wait for the rest.
                    let _ = self.out.poll_flush(stream, cx).map_err(Fault::Io)?;
                    return Poll::Pending;
                }
            }
        }
    }

    /// The next piece of the body.
    fn take(&mut self, frame: Frame<Bytes>) -> Result<(), Fault> {
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => return self.end(frame.into_trailers().ok()),
        };
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(data.len() as u64).ok_or(Fault::Body(BodyError::Length))?;
        }
        self.out.add(data, self.left.is_none());
        Ok(())
    }

    /// There is no more of the body.
    fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), Fault> {
        self.body = None;
        match self.left {
            Some(0) => Ok(()),
            Some(_) => Err(Fault::Body(BodyError::Length)),
            None => {
                let trailers = trailers.unwrap_or_default();
                self.out.end_chunks(trailers.iter().filter(|(name, _)| self.announced.contains(name)));
                Ok(())
            }
        }
    }
}

/// Adds what Trailer names, as far as it may come then.
fn announce(announced: &mut Vec<HeaderName>, headers: &HeaderMap, believed: &HeaderName) {
    let values = headers.get_all(TRAILER).into_iter();
    let names = values
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(|name| headers::may_trail(name) && name != believed);
    announced.extend(names);
}
