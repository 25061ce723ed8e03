//! One HTTP/2 request to an upstream, and the head of its response.

use super::connection::{StreamGuard, StreamPermit};
use super::download::Http2Body;
use super::upload::Upload;
use crate::config::Upstream;
use crate::gateway::body::{BodyError, RequestBody};
use crate::gateway::forward;
use crate::gateway::headers;
use crate::gateway::upstream::UpstreamError;
use crate::gateway::upstream::conn::{ExchangeError, UpstreamRequest};
use crate::gateway::upstream::target::RequestTarget;
use axum::http::header::{CONTENT_LENGTH, HOST};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use h2::Reason;
use h2::client::ResponseFuture;
use http_body::Body;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// A request that was sent, until its response begins.
pub(crate) struct Http2Exchange {
    response: ResponseFuture,
    /// `None` once the whole request is sent.
    upload: Option<Upload>,
    /// Whether the request had a body, which may be used up by now.
    had_body: bool,
    /// `None` once the response has begun.
    guard: Option<StreamGuard>,
}

/// What an upstream sends before the body of its response, without hop-by-hop headers.
pub(crate) enum ResponseEvent {
    Informational(StatusCode, HeaderMap),
    Response(Response<()>),
}

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum Http2Error {
    /// The upstream did not process the request: it may be sent again, whatever its method.
    Unprocessed(h2::Error),
    /// The stream or its connection failed.
    Broken(h2::Error),
    /// The request body of the client failed.
    Body(BodyError),
}

impl Http2Error {
    fn new(error: h2::Error) -> Self {
        // GOAWAY of the upstream ends only the streams above its last stream id, which were not
        // processed.
        let refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
        if error.is_remote() && (refused || error.is_go_away()) {
            Self::Unprocessed(error)
        } else {
            Self::Broken(error)
        }
    }
}

impl Http2Exchange {
    /// Sends a request on a stream, and takes its body. On an error nothing was sent and the body
    /// is untouched.
    pub(crate) fn send(
        permit: StreamPermit,
        request: &mut UpstreamRequest<'_>,
        upstream: &Upstream,
    ) -> Result<Self, ExchangeError> {
        let UpstreamRequest {
            request, rewriter, ..
        } = request;
        let StreamPermit { mut send, guard } = permit;
        let mut head = Request::new(());
        head.method_mut().clone_from(request.method());
        *head.version_mut() = Version::HTTP_2;
        *head.uri_mut() = RequestTarget::new(request, upstream)
            .uri(upstream)
            .ok_or_else(|| ExchangeError::Request(forward::bad_target()))?;
        rewriter.for_each(request.headers(), |name, value| {
            // The host is in the target. Header values stay valid.
            if let (true, Ok(value)) = (name != HOST, HeaderValue::from_bytes(value)) {
                head.headers_mut().append(name, value);
            }
        });
        let body = request.body_mut();
        let has_body = !body.is_end_stream();
        let expected = matches!(*head.method(), Method::POST | Method::PUT | Method::PATCH);
        if let Some(length) = body.size_hint().exact().filter(|_| has_body || expected) {
            head.headers_mut()
                .insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        let (response, stream) = send
            .send_request(head, !has_body)
            .map_err(|error| ExchangeError::NotSent(UpstreamError::Http2(error)))?;
        let body = std::mem::replace(body, RequestBody::empty());
        let trusted_header = rewriter.trusted_header.clone();
        let upload = has_body.then(|| Upload::new(stream, body, trusted_header));
        Ok(Self {
            response,
            upload,
            had_body: has_body,
            guard: Some(guard),
        })
    }

    /// Whether the exchange waits for the client to send more of the body.
    pub(crate) fn waits_for_client(&self) -> bool {
        self.upload.as_ref().is_some_and(Upload::waits_for_client)
    }

    /// The body from its beginning, to send it again, or `None` if too much of it was sent already.
    pub(crate) fn into_body(self) -> Option<RequestBody> {
        match self.upload {
            Some(upload) => upload.into_body(),
            None => (!self.had_body).then(RequestBody::empty),
        }
    }

    /// Sends the request, and receives what precedes the body of the response. Must not be called
    /// after the response.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(ResponseEvent, Option<Http2Body>), Http2Error>> {
        if let Some(upload) = &mut self.upload
            && let Poll::Ready(Err(error)) = upload.poll(cx)
        {
            return Poll::Ready(Err(Http2Error::Body(error)));
        }
        if let Poll::Ready(Some(informational)) = self.response.poll_informational(cx) {
            let (mut head, ()) = informational.map_err(Http2Error::new)?.into_parts();
            headers::strip(&mut head.headers);
            let event = ResponseEvent::Informational(head.status, head.headers);
            return Poll::Ready(Ok((event, None)));
        }
        let (mut head, stream) = ready!(Pin::new(&mut self.response).poll(cx))
            .map_err(Http2Error::new)?
            .into_parts();
        let Some(guard) = self.guard.take() else {
            return Poll::Pending;
        };
        guard.mark_received();
        let mut upload = self.upload.take();
        upload.iter_mut().for_each(Upload::forget_replay);
        let length = head
            .headers
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        // A length without a body is that of the response to a GET.
        let length = length.filter(|_| !stream.is_end_stream());
        headers::strip(&mut head.headers);
        let body = Http2Body::start(stream, upload, guard, length, cx);
        let event = ResponseEvent::Response(Response::from_parts(head, ()));
        Poll::Ready(Ok((event, Some(body))))
    }
}
