//! Bodies in flight: request bodies, bounded and counted; response bodies.

use super::body_rate::{BodyRate, BodyTimer};
use super::client::Http1Body;
use super::upstream::{Progress, UpstreamBody};
use crate::api::user_header::UserHeader;
use axum::body::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

/// The body of a request as it comes from a client.
pub(crate) enum IncomingBody {
    None,
    Http1(Http1Body),
    Http2(Incoming),
}

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::None => Poll::Ready(None),
            Self::Http1(body) => Pin::new(body).poll_frame(cx),
            Self::Http2(body) => match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                Some(frame) => {
                    Poll::Ready(Some(frame.map_err(|error| BodyError::Client(error.into()))))
                }
                // An HTTP/2 stream that was reset without an error looks like one that has ended.
                None => {
                    Poll::Ready((!body.is_end_stream()).then_some(Err(BodyError::LengthMismatch)))
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::None => true,
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::None => SizeHint::with_exact(0),
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
        }
    }
}

/// A request body as it is sent to an upstream: bounded in size and rate, and counted.
pub(crate) struct RequestBody {
    /// Frames to send first: they were already read for an upstream that rejected the request
    /// unprocessed.
    replay: VecDeque<Frame<Bytes>>,
    body: IncomingBody,
    /// How many bytes may still come.
    remaining: u64,
    progress: Option<Progress>,
    /// Limits how long the gateway waits for more of the body.
    timer: Option<BodyTimer>,
    /// The user header, which is removed from the trailers.
    user: Option<Arc<UserHeader>>,
}

impl RequestBody {
    pub(crate) fn empty() -> Self {
        Self {
            replay: VecDeque::new(),
            body: IncomingBody::None,
            remaining: 0,
            progress: None,
            timer: None,
            user: None,
        }
    }

    /// Wraps a body, with at most `max_bytes` bytes, at least this rate, and the user header
    /// removed from the trailers.
    pub(crate) fn new(
        body: IncomingBody,
        max_bytes: Option<u64>,
        rate: Option<BodyRate>,
        user: Option<Arc<UserHeader>>,
    ) -> Self {
        if body.is_end_stream() {
            return Self::empty();
        }
        Self {
            replay: VecDeque::new(),
            body,
            remaining: max_bytes.unwrap_or(u64::MAX),
            progress: Some(Progress::default()),
            timer: rate.map(BodyTimer::new),
            user,
        }
    }

    /// The same body from its beginning, starting with `frames`, which were read already.
    pub(crate) fn replayed(self, frames: VecDeque<Frame<Bytes>>) -> Self {
        Self {
            replay: frames,
            ..self
        }
    }

    /// The counter of what was sent of the body, or `None` if there is nothing to send.
    pub(crate) fn progress(&self) -> Option<Progress> {
        self.progress.clone()
    }
}

/// Why the body of a request ended early.
#[derive(Debug)]
pub(crate) enum BodyError {
    TooLarge,
    /// The client's connection failed, or the body was malformed.
    Client(Box<dyn Error + Send + Sync>),
    /// The body was longer or shorter than announced.
    LengthMismatch,
    /// The body came too slowly.
    TooSlow,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => f.write_str("the body is too large"),
            Self::Client(error) => write!(f, "cannot read the request body: {error}"),
            Self::LengthMismatch => f.write_str("the body is longer or shorter than announced"),
            Self::TooSlow => f.write_str("the client sent the body too slowly"),
        }
    }
}

impl Error for BodyError {}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let Some(frame) = this.replay.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        if polled.is_pending()
            && let (Some(timer), Some(progress)) = (&mut this.timer, &this.progress)
            && !progress.answered.load(Relaxed)
        {
            return timer.poll(cx).map(|()| Some(Err(BodyError::TooSlow)));
        }
        polled.map(|frame| {
            if let Some(progress) = &this.progress {
                progress.sent.fetch_add(1, Relaxed);
            }
            let mut frame = match frame? {
                Ok(frame) => frame,
                Err(error) => return Some(Err(error)),
            };
            if let (Some(user), Some(trailers)) = (&this.user, frame.trailers_mut()) {
                user.strip_trailers(trailers);
            }
            let length = frame.data_ref().map_or(0, |data| data.len() as u64);
            if let Some(timer) = &mut this.timer {
                timer.received(length);
            }
            Some(match this.remaining.checked_sub(length) {
                Some(remaining) => {
                    this.remaining = remaining;
                    Ok(frame)
                }
                None => Err(BodyError::TooLarge),
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.replay.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.body.size_hint();
        let replayed: u64 = self
            .replay
            .iter()
            .filter_map(Frame::data_ref)
            .map(|data| data.len() as u64)
            .sum();
        match (replayed, rest.exact()) {
            (0, _) => rest,
            (_, Some(length)) => SizeHint::with_exact(replayed + length),
            (_, None) => SizeHint::default(),
        }
    }
}

/// The body of a response: the upstream's, or one of the gateway's own.
pub(crate) enum ProxyBody {
    Own(Option<Bytes>),
    Upstream(UpstreamBody),
}

impl ProxyBody {
    pub(crate) fn empty() -> Self {
        Self::Own(None)
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Own(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Upstream(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(bytes) => bytes.is_none(),
            Self::Upstream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Upstream(body) => body.size_hint(),
        }
    }
}
