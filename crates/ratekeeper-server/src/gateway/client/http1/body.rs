//! The body of a client's HTTP/1 request, for the task that forwards it.

use super::socket::{SocketState, WeakClientSocket, broken};
use crate::gateway::body::BodyError;
use axum::body::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body of an HTTP/1 request, read from the connection as it is polled. It ends with its
/// request, and does not keep the connection open.
pub(crate) struct ClientBody {
    wire: WeakClientSocket,
    number: u64,
}

impl ClientBody {
    pub(super) fn new(wire: WeakClientSocket, number: u64) -> Self {
        Self { wire, number }
    }

    /// Calls `of` with the connection's state, or returns `None` if the connection has ended or
    /// serves another request.
    fn with<T>(&self, of: impl FnOnce(&mut SocketState) -> T) -> Option<T> {
        let wire = self.wire.upgrade()?;
        let mut ends = wire.lock();
        (ends.number == self.number).then(|| of(&mut ends))
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        self.with(|ends| ends.unwanted = true);
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = self.with(|ends| ends.poll_asked(cx));
        polled.unwrap_or_else(|| {
            Poll::Ready(Some(Err(broken(
                "the request was answered before the body ended",
            ))))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.with(|ends| !ends.is_coming()).unwrap_or(false)
    }

    fn size_hint(&self) -> SizeHint {
        self.with(|ends| ends.size_hint()).unwrap_or_default()
    }
}
