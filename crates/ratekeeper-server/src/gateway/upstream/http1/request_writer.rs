//! Writes a request to an upstream over HTTP/1.1.

use super::message_encoder::{Framing, Trailers};
use super::message_writer::{MessageWriter, WriteError};
use super::{H1Error, UpstreamStream};
use crate::config::Upstream;
use crate::gateway::body::{BodyError, RequestBody};
use crate::gateway::headers::{self, RequestHeaderRewriter, put_header};
use crate::gateway::upstream::target::RequestTarget;
use axum::http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, TRAILER, TRANSFER_ENCODING};
use axum::http::{Method, Request};
use http_body::Body;
use std::io::Write;
use std::task::{Context, Poll, ready};

/// The request that is being sent over an HTTP/1.1 connection.
#[derive(Default)]
pub(super) struct RequestWriter {
    writer: MessageWriter<RequestBody>,
}

impl RequestWriter {
    /// Begins a request: writes its head and takes its body.
    pub(super) fn begin(
        &mut self,
        request: &mut Request<RequestBody>,
        upstream: &Upstream,
        rewriter: &RequestHeaderRewriter<'_>,
    ) {
        let body = std::mem::replace(request.body_mut(), RequestBody::empty());
        let has_body = !body.is_end_stream();
        // The framing follows the body, not the header.
        let framing = match body.size_hint().exact() {
            _ if !has_body => Framing::Empty,
            Some(length) => Framing::Known(length),
            None => Framing::Chunked,
        };
        let mut trailers = Trailers::None;
        self.writer.begin(|first| {
            let headers = request.headers();
            first.extend_from_slice(request.method().as_str().as_bytes());
            first.push(b' ');
            let target = RequestTarget::new(request, upstream);
            first.extend_from_slice(target.path.as_bytes());
            first.extend_from_slice(b" HTTP/1.1\r\n");
            // HTTP/1.0 needs no Host, HTTP/1.1 does.
            if let Some(host) = target.default_host(upstream) {
                put_header(first, &HOST, host.as_bytes());
            }
            rewriter.write(headers, first);
            match framing {
                // Writing into memory cannot fail.
                Framing::Known(length) => drop(write!(first, "content-length: {length}\r\n")),
                Framing::Chunked => {
                    put_header(first, &TRANSFER_ENCODING, b"chunked");
                    trailers = announced_trailers(headers, rewriter.trusted_header);
                }
                Framing::Empty => {
                    let expected = matches!(
                        *request.method(),
                        Method::POST | Method::PUT | Method::PATCH
                    );
                    if expected || headers::first(headers, &CONTENT_LENGTH).is_some() {
                        put_header(first, &CONTENT_LENGTH, b"0");
                    }
                }
            }
            first.extend_from_slice(b"\r\n");
        });
        if has_body {
            self.writer.set_body(body, framing, trailers);
        }
    }

    /// Whether there is more to send.
    pub(super) fn is_busy(&self) -> bool {
        self.writer.is_busy()
    }

    /// Whether any of it was sent.
    pub(super) fn has_begun(&self) -> bool {
        self.writer.has_begun()
    }

    /// Whether the request waits for the client to send more of the body.
    pub(super) fn waits_for_client(&self) -> bool {
        self.writer.waits_for_body()
    }

    /// Stops sending. Returns the body, if nothing of the request was sent yet.
    pub(super) fn stop(&mut self) -> Option<RequestBody> {
        let body = self.writer.stop();
        (!self.has_begun()).then(|| body.unwrap_or_else(RequestBody::empty))
    }

    /// Sends as much as the upstream takes; ready when everything is sent.
    pub(super) fn poll(
        &mut self,
        stream: &mut UpstreamStream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), H1Error>> {
        ready!(self.writer.poll_begun(stream, cx)).map_err(H1Error::Io)?;
        self.writer.poll(stream, cx).map_err(|error| match error {
            WriteError::Io(error) => H1Error::Io(error),
            WriteError::Body(error) => H1Error::Body(error),
            WriteError::Length => H1Error::Body(BodyError::LengthMismatch),
        })
    }
}

/// The trailers that the header Trailer announces and that may be sent.
fn announced_trailers(headers: &HeaderMap, trusted_header: &HeaderName) -> Trailers {
    let values = headers.get_all(TRAILER).into_iter();
    let names = values
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(|name| headers::may_trail(name) && name != trusted_header);
    Trailers::Named(names.collect())
}
