//! One HTTP/2 request to an upstream, and the head of its response.

use super::connection::{StreamGuard, StreamPermit};
use super::download::Http2Body;
use super::upload::Upload;
use crate::gateway::body::{BodyError, RequestBody};
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, response};
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

/// What an upstream sends before the body of its response.
pub(crate) enum ResponseEvent {
    Informational(StatusCode, HeaderMap),
    Response(response::Parts, Http2Body),
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
    /// is untouched. `trusted_header` is the header in which trusted proxies name the client.
    pub(crate) fn send(
        permit: StreamPermit,
        mut head: Request<()>,
        body: &mut RequestBody,
        trusted_header: &HeaderName,
    ) -> Result<Self, h2::Error> {
        let StreamPermit { mut send, guard } = permit;
        let has_body = !body.is_end_stream();
        let expected = matches!(*head.method(), Method::POST | Method::PUT | Method::PATCH);
        if let Some(length) = body.size_hint().exact().filter(|_| has_body || expected) {
            head.headers_mut()
                .insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        let (response, stream) = send.send_request(head, !has_body)?;
        let body = std::mem::replace(body, RequestBody::empty());
        let upload = has_body.then(|| Upload::new(stream, body, trusted_header.clone()));
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
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<ResponseEvent, Http2Error>> {
        if let Some(upload) = &mut self.upload
            && let Poll::Ready(Err(error)) = upload.poll(cx)
        {
            return Poll::Ready(Err(Http2Error::Body(error)));
        }
        if let Poll::Ready(Some(informational)) = self.response.poll_informational(cx) {
            let (head, ()) = informational.map_err(Http2Error::new)?.into_parts();
            return Poll::Ready(Ok(ResponseEvent::Informational(head.status, head.headers)));
        }
        let (head, stream) = ready!(Pin::new(&mut self.response).poll(cx))
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
        Poll::Ready(Ok(ResponseEvent::Response(
            head,
            Http2Body::start(stream, upload, guard, length, cx),
        )))
    }
}
