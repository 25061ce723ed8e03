//! The body of a client's HTTP/1 request, for the task that forwards it.

use super::socket::{SocketState, WeakClientSocket, body_error};
use crate::gateway::body::BodyError;
use axum::body::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body of an HTTP/1 request, read from the connection as it is polled. It ends with its
/// request, and does not keep the connection open.
pub(crate) struct ClientBody {
    socket: WeakClientSocket,
    number: u64,
}

impl ClientBody {
    pub(super) fn new(socket: WeakClientSocket, number: u64) -> Self {
        Self { socket, number }
    }

    /// Calls `f` with the connection's state, or returns `None` if the connection has ended or
    /// serves another request.
    fn with<T>(&self, f: impl FnOnce(&mut SocketState) -> T) -> Option<T> {
        let socket = self.socket.upgrade()?;
        let mut state = socket.lock();
        (state.number == self.number).then(|| f(&mut state))
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        self.with(|state| state.discard_rest = true);
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = self.with(|state| state.poll_forwarded(cx));
        polled.unwrap_or_else(|| {
            Poll::Ready(Some(Err(body_error(
                "the request was answered before the body ended",
            ))))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.with(|state| !state.has_body_left()).unwrap_or(false)
    }

    fn size_hint(&self) -> SizeHint {
        self.with(|state| state.size_hint()).unwrap_or_default()
    }
}
