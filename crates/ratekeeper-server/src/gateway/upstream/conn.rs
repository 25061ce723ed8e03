//! Connections to upstreams, the same for HTTP/1.1 and HTTP/2: a request is sent, informational
//! responses and the response come, then its body. Timeouts and the classes of errors are decided
//! here.

use super::http1::{H1Error, H1UpstreamConn, Http1Pool, UpstreamStream};
use super::http2::{Http2Body, Http2Error, Http2Exchange, Http2Pool, ResponseEvent};
use super::timer::{Timeouts, Timer};
use super::{ActiveRequest, Connector, TimeoutError, UpstreamError};
use crate::api::Problem;
use crate::config::Upstream;
use crate::gateway::body::{BodyError, RequestBody};
use crate::gateway::headers::RequestHeaderRewriter;
use axum::body::Bytes;
use axum::http::{Request, Response};
use bytes::BytesMut;
use http_body::{Body, Frame, SizeHint};
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::time::Instant;

/// The connections of one worker to one upstream.
pub(crate) enum UpstreamPool {
    Http1(Http1Pool),
    Http2(Http2Pool),
}

impl UpstreamPool {
    pub(crate) fn new(http2: bool) -> Self {
        if http2 {
            Self::Http2(Http2Pool::default())
        } else {
            Self::Http1(Http1Pool::default())
        }
    }

    /// Begins a request on a free connection, and takes its body; the flag says whether the
    /// connection was open before. With `new` it is a new one, if there may be another.
    pub(crate) async fn begin(
        &self,
        connector: &Connector,
        upstream: &Upstream,
        request: &mut UpstreamRequest<'_>,
        new: bool,
    ) -> Result<(UpstreamConn, bool), ExchangeError> {
        let timeouts = request.timeouts.clone();
        match self {
            Self::Http1(pool) => {
                let pooled = if new { None } else { pool.take().await };
                let was_open = pooled.is_some();
                let mut conn = match pooled {
                    Some(mut conn) => {
                        conn.timer.begin(timeouts);
                        conn
                    }
                    None => {
                        let stream = Box::pin(connector.connect(upstream)).await;
                        let stream = stream.map_err(ExchangeError::Unreachable)?;
                        H1UpstreamConn::new(stream, timeouts)
                    }
                };
                conn.begin(request, upstream);
                Ok((UpstreamConn::Http1(conn), was_open))
            }
            // Boxed, as few requests need it: the futures of all others are cheaper to move.
            Self::Http2(pool) => {
                let opened = Box::pin(pool.stream(connector, upstream, new)).await;
                let (stream, was_open) = opened.map_err(ExchangeError::Unreachable)?;
                let exchange = Http2Exchange::send(stream, request, upstream)?;
                let stream = Http2Stream {
                    exchange: Some(exchange),
                    body: None,
                    timer: Timer::new(timeouts),
                };
                Ok((UpstreamConn::Http2(Box::new(stream)), was_open))
            }
        }
    }

    /// Returns a connection after its exchange, if it can take another request.
    pub(crate) fn put(&self, conn: UpstreamConn) {
        if let (Self::Http1(pool), UpstreamConn::Http1(conn)) = (self, conn) {
            pool.put(conn);
        }
    }

    /// Closes connections that were idle for too long. Call it once per interval.
    pub(crate) fn clear_expired(&self, now: Instant) {
        match self {
            Self::Http1(pool) => pool.clear_expired(),
            Self::Http2(pool) => pool.clear_expired(now),
        }
    }
}

/// A request on its way to an upstream.
pub(crate) struct UpstreamRequest<'a> {
    pub(crate) request: &'a mut Request<RequestBody>,
    pub(crate) rewriter: RequestHeaderRewriter<'a>,
    pub(crate) timeouts: Timeouts,
}

impl UpstreamRequest<'_> {
    /// Whether it may be sent again after an upstream may have processed it: its method is safe,
    /// and no body was consumed.
    pub(crate) fn is_retryable(&self) -> bool {
        self.request.method().is_safe() && self.timeouts.sent.is_none()
    }
}

/// The connection of one exchange.
pub(crate) enum UpstreamConn {
    /// A connection of its own.
    Http1(Box<H1UpstreamConn>),
    /// A stream of a shared connection.
    Http2(Box<Http2Stream>),
}

/// A stream of an HTTP/2 connection.
pub(crate) struct Http2Stream {
    /// `None` once the response has begun.
    exchange: Option<Http2Exchange>,
    /// `None` until then.
    body: Option<Http2Body>,
    timer: Timer,
}

/// Why an exchange has no response.
pub(crate) enum ExchangeError {
    /// There is no connection.
    Unreachable(UpstreamError),
    /// The connection ended before any of the request was sent.
    NotSent(UpstreamError),
    /// The upstream says that it did not process the request.
    Unprocessed(UpstreamError),
    /// The connection ended before any of the response came.
    Broken(UpstreamError),
    Failed(UpstreamError),
    /// The client is to blame: its request cannot be sent.
    Request(Problem),
    /// The same: its body failed.
    Body(BodyError),
}

impl UpstreamConn {
    /// Sends the request, and receives what precedes the body of the response. Must not be called
    /// after the response.
    pub(crate) fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ResponseEvent, ExchangeError>> {
        let (event, timer) = match self {
            Self::Http1(conn) => (conn.poll_response(cx), &mut conn.timer),
            Self::Http2(stream) => (stream.poll_response(cx), &mut stream.timer),
        };
        if event.is_ready() {
            return event;
        }
        timer.poll(cx).map(|kind| {
            let waits_for_client = match self {
                Self::Http1(conn) => conn.waits_for_client(),
                Self::Http2(stream) => {
                    let exchange = stream.exchange.as_ref();
                    exchange.is_some_and(Http2Exchange::waits_for_client)
                }
            };
            // A client that sends nothing is not the upstream's fault.
            Err(if waits_for_client {
                ExchangeError::Body(BodyError::TooSlow)
            } else {
                ExchangeError::Failed(UpstreamError::Timeout(kind))
            })
        })
    }

    /// The body of a request that the upstream has not processed, to send it again, or `None` if it
    /// is used up.
    pub(crate) fn into_request_body(self) -> Option<RequestBody> {
        match self {
            Self::Http1(mut conn) => conn.unsent(),
            Self::Http2(stream) => stream.exchange?.into_body(),
        }
    }

    /// The body, if all of it came with the head, and it is short and without trailers. Then the
    /// exchange has ended.
    pub(crate) fn take_whole_body(&mut self) -> Option<Bytes> {
        match self {
            Self::Http1(conn) => conn.whole_body(),
            Self::Http2(stream) => stream.body.as_mut()?.take_whole(),
        }
    }

    /// The stream, for another protocol, and the bytes already read from it; `None` over HTTP/2.
    pub(crate) fn into_stream(self) -> Option<(UpstreamStream, BytesMut)> {
        match self {
            Self::Http1(conn) => Some(conn.into_stream()),
            Self::Http2(_) => None,
        }
    }

    /// The next frame of the body.
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFailure>>> {
        let (frame, timer) = match self {
            Self::Http1(conn) => (conn.poll_frame(cx).map_err(Into::into), &mut conn.timer),
            Self::Http2(stream) => match &mut stream.body {
                Some(body) => (body.poll_frame(cx), &mut stream.timer),
                None => return Poll::Ready(None),
            },
        };
        if frame.is_ready() {
            timer.moved();
            return frame;
        }
        timer
            .poll(cx)
            .map(|kind| Some(Err(TimeoutError(kind).into())))
    }

    /// Whether all of the response has come.
    fn is_finished(&self) -> bool {
        match self {
            Self::Http1(conn) => conn.is_finished(),
            Self::Http2(stream) => stream.body.as_ref().is_none_or(Http2Body::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(conn) => conn.size_hint(),
            Self::Http2(stream) => {
                let hint = stream.body.as_ref().map(Http2Body::size_hint);
                hint.unwrap_or_default()
            }
        }
    }

    fn timer(&mut self) -> &mut Timer {
        match self {
            Self::Http1(conn) => &mut conn.timer,
            Self::Http2(stream) => &mut stream.timer,
        }
    }
}

impl From<Http2Error> for ExchangeError {
    fn from(error: Http2Error) -> Self {
        match error {
            Http2Error::Unprocessed(error) => Self::Unprocessed(UpstreamError::Unprocessed(error)),
            Http2Error::Broken(error) if error.is_reset() => {
                Self::Failed(UpstreamError::Http2(error))
            }
            Http2Error::Broken(error) => Self::Broken(UpstreamError::Http2(error)),
            Http2Error::Body(error) => Self::Body(error),
        }
    }
}

impl Http2Stream {
    fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ResponseEvent, ExchangeError>> {
        let Some(exchange) = &mut self.exchange else {
            return Poll::Pending;
        };
        let (event, body) = ready!(exchange.poll(cx))?;
        if body.is_some() {
            (self.exchange, self.body) = (None, body);
        }
        Poll::Ready(Ok(event))
    }
}

impl H1UpstreamConn {
    fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ResponseEvent, ExchangeError>> {
        let head = match self.poll_head(cx) {
            Poll::Ready(Ok(head)) => head,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(self.classify(error))),
            Poll::Pending => return Poll::Pending,
        };
        Poll::Ready(Ok(if head.is_informational() {
            ResponseEvent::Informational(head.status, head.headers)
        } else {
            let mut response = Response::new(());
            *response.status_mut() = head.status;
            *response.version_mut() = head.version;
            *response.headers_mut() = head.headers;
            ResponseEvent::Response(response)
        }))
    }

    fn classify(&self, error: H1Error) -> ExchangeError {
        match error {
            H1Error::Body(error) => ExchangeError::Body(error),
            H1Error::Io(_) | H1Error::Closed if !self.has_request_bytes() => {
                ExchangeError::NotSent(UpstreamError::Http1(error))
            }
            H1Error::Io(_) | H1Error::Closed if !self.has_response_bytes() => {
                ExchangeError::Broken(UpstreamError::Http1(error))
            }
            error => ExchangeError::Failed(UpstreamError::Http1(error)),
        }
    }
}

/// Why the body of a response is cut off.
type BodyFailure = Box<dyn Error + Send + Sync>;

/// The body of an upstream's response. At its end a connection goes back to the pool.
pub(crate) struct UpstreamBody {
    /// `None` once the body has ended.
    conn: Option<UpstreamConn>,
    pool: Arc<UpstreamPool>,
    /// Counts the request as active at the upstream until the body ends.
    _active: ActiveRequest,
}

impl UpstreamBody {
    pub(crate) fn new(
        mut conn: UpstreamConn,
        pool: Arc<UpstreamPool>,
        active: ActiveRequest,
    ) -> Self {
        conn.timer().moved();
        Self {
            conn: Some(conn),
            pool,
            _active: active,
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BodyFailure;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let Some(conn) = &mut this.conn else {
            return Poll::Ready(None);
        };
        let frame = conn.poll_frame(cx);
        match &frame {
            Poll::Ready(Some(Err(error))) if error.is::<TimeoutError>() => this.conn = None,
            Poll::Ready(_) if conn.is_finished() => {
                this.conn
                    .take()
                    .into_iter()
                    .for_each(|conn| this.pool.put(conn));
            }
            _ => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.conn.as_ref().is_none_or(UpstreamConn::is_finished)
    }

    fn size_hint(&self) -> SizeHint {
        let ended = SizeHint::with_exact(0);
        self.conn.as_ref().map_or(ended, UpstreamConn::size_hint)
    }
}
