//! The body of a request, for whoever sends it on.

use super::socket::{SocketState, WeakClientSocket, broken};
use crate::gateway::body::BodyError;
use axum::body::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body of a request of HTTP/1, read from the connection as it is asked for. It ends with its
/// request, and does not hold the connection.
pub(crate) struct ClientBody {
    wire: WeakClientSocket,
    number: u64,
}

impl ClientBody {
    pub(super) fn new(wire: WeakClientSocket, number: u64) -> Self {
        Self { wire, number }
    }

    /// What `of` says of the connection; none if it has ended, or goes on with another request.
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
        polled.unwrap_or_else(|| Poll::Ready(Some(Err(broken("was answered before its end")))))
    }

    fn is_end_stream(&self) -> bool {
        self.with(|ends| !ends.is_coming()).unwrap_or(false)
    }

    fn size_hint(&self) -> SizeHint {
        self.with(|ends| ends.size_hint()).unwrap_or_default()
    }
}
