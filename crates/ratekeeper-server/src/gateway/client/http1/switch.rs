//! Hands a connection that switches to another protocol over to the tunnel.

use super::socket::{ClientSocket, SocketState};
use bytes::Buf;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

/// Response extension that hands over the connection once the response is written.
#[derive(Clone)]
pub(crate) struct ProtocolSwitch(Arc<Mutex<Option<oneshot::Sender<UpgradedSocket>>>>);

impl ProtocolSwitch {
    pub(crate) fn new() -> (Self, oneshot::Receiver<UpgradedSocket>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Arc::new(Mutex::new(Some(sender)))), receiver)
    }

    pub(super) fn hand_over(&self, connection: UpgradedSocket) {
        if let Some(sender) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // The receiver is gone if the tunnel has ended already.
            drop(sender.send(connection));
        }
    }
}

/// A client connection after the switch to another protocol.
pub(crate) struct UpgradedSocket(ClientSocket);

impl UpgradedSocket {
    pub(super) fn new(socket: ClientSocket) -> Self {
        Self(socket)
    }
}

impl AsyncRead for UpgradedSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let SocketState { stream, read, .. } = &mut *self.0.lock();
        if read.is_empty() {
            return Pin::new(stream).poll_read(cx, buf);
        }
        // Bytes that were read already.
        let length = read.len().min(buf.remaining());
        buf.put_slice(&read[..length]);
        read.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for UpgradedSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0.lock().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_shutdown(cx)
    }
}
