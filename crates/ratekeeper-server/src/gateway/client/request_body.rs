//! The body of an HTTP/1 request. What its reader leaves of it is discarded, if it has come, so
//! that the connection can be reused; otherwise the response announces the end of the connection.

use crate::gateway::body::BodyError;
use axum::body::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use tokio::runtime::Handle;

/// How much of an unwanted body is discarded.
const MAX_DISCARDED: usize = 64 * 1024;

/// What was left of a body while its response was awaited.
#[derive(Default)]
pub(super) enum UnreadBody {
    #[default]
    Nothing,
    /// The body was dropped before its end.
    Rest(Incoming),
    /// The body was malformed, or the client is gone.
    Failed,
}

/// The place of an unread body, for as long as its response is awaited.
#[derive(Default)]
pub(super) struct UnreadBodySlot(Mutex<UnreadBody>);

impl UnreadBodySlot {
    pub(super) fn take(&self) -> UnreadBody {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, unread: UnreadBody) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = unread;
    }
}

/// The body of an HTTP/1 request.
pub(crate) struct Http1Body {
    /// `None` once it has ended.
    body: Option<Incoming>,
    unread: Weak<UnreadBodySlot>,
}

impl Http1Body {
    pub(super) fn new(body: Incoming) -> (Self, Arc<UnreadBodySlot>) {
        let unread = Arc::new(UnreadBodySlot::default());
        let body = Self {
            body: Some(body),
            unread: Arc::downgrade(&unread),
        };
        (body, unread)
    }
}

impl Drop for Http1Body {
    fn drop(&mut self) {
        let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) else {
            return;
        };
        if let Some(unread) = self.unread.upgrade() {
            unread.put(UnreadBody::Rest(body));
        } else if let Ok(runtime) = Handle::try_current() {
            // The response has begun, and cannot announce the end of the connection any more.
            runtime.spawn(discard(body));
        }
    }
}

/// Discards the rest of a body as it comes, unless there is too much of it. hyper closes the
/// connection if a body is dropped before its end.
async fn discard(mut body: Incoming) {
    let mut left = MAX_DISCARDED;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

impl Body for Http1Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            this.body = None;
        }
        if let (Some(Err(_)), Some(unread)) = (&frame, this.unread.upgrade()) {
            unread.put(UnreadBody::Failed);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(|error| BodyError::Client(error.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let ended = SizeHint::with_exact(0);
        self.body.as_ref().map_or(ended, Body::size_hint)
    }
}

/// Discards the available part of an unwanted body.
pub(super) struct DiscardBody {
    body: Incoming,
    left: usize,
    /// Whether hyper could read more since it was asked to.
    is_asked: bool,
}

impl DiscardBody {
    pub(super) fn new(body: Incoming) -> Self {
        Self {
            body,
            left: MAX_DISCARDED,
            is_asked: false,
        }
    }

    /// Ready with whether all of the body is discarded.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(None) => return Poll::Ready(true),
                Poll::Ready(Some(Ok(frame))) => {
                    let length = frame.data_ref().map_or(0, Bytes::len);
                    let Some(left) = self.left.checked_sub(length) else {
                        return Poll::Ready(false);
                    };
                    (self.left, self.is_asked) = (left, false);
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(false),
                Poll::Pending if self.is_asked => return Poll::Ready(false),
                Poll::Pending => {
                    // hyper reads before it polls the response again.
                    self.is_asked = true;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    }
}
