//! The body of an HTTP/2 response, on its way from an upstream.

use super::connection::StreamGuard;
use super::frame_buffer::FrameBuffer;
use super::upload::Upload;
use axum::body::Bytes;
use axum::http::HeaderMap;
use h2::{FlowControl, RecvStream};
use http_body::{Frame, SizeHint};
use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use tokio::task::AbortHandle;

/// The body of a response. Dropping it early resets its stream.
pub(crate) struct Http2Body {
    received: Arc<Mutex<ReceiveBuffer>>,
    flow: FlowControl,
    /// How many bytes are still to come, if the response has a Content-Length.
    left: Option<u64>,
    /// The task that receives what has not come with the head.
    task: Option<AbortHandle>,
}

/// Why a response is cut off: an [`h2::Error`], or the [`BodyError`] of its request.
type BodyFailure = Box<dyn Error + Send + Sync>;

/// Bytes and trailers that were received and not read yet.
#[derive(Default)]
struct ReceiveBuffer {
    buffer: FrameBuffer,
    trailers: Option<HeaderMap>,
    end: Option<Result<(), BodyFailure>>,
    /// The waker of the task that reads the body.
    reader: Option<Waker>,
}

impl Http2Body {
    /// Receives the available frames, and spawns a task for the rest of the response and of the
    /// request, if there is any.
    pub(super) fn start(
        mut stream: RecvStream,
        upload: Option<Upload>,
        guard: StreamGuard,
        length: Option<u64>,
        cx: &mut Context<'_>,
    ) -> Self {
        let received = Arc::new(Mutex::new(ReceiveBuffer::default()));
        let flow = stream.flow_control().clone();
        let mut transfer = Transfer {
            stream: Some(stream),
            upload,
            guard,
            received: Arc::clone(&received),
        };
        let task = match Pin::new(&mut transfer).poll(cx) {
            Poll::Ready(()) => None,
            Poll::Pending => Some(tokio::spawn(transfer).abort_handle()),
        };
        Self {
            received,
            flow,
            left: length,
            task,
        }
    }

    /// The whole body, if all of it is available, and it is short and without trailers.
    pub(crate) fn take_whole(&mut self) -> Option<Bytes> {
        if self.task.is_some() {
            return None;
        }
        let mut received = lock(&self.received);
        match (&received.end, &received.trailers) {
            (Some(Ok(())), None) => received.buffer.take_single(),
            _ => None,
        }
    }

    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFailure>>> {
        let mut received = lock(&self.received);
        if let Some(chunk) = received.buffer.pop() {
            drop(received);
            // A stream that has ended has no window.
            let _ = self.flow.release_capacity(chunk.len());
            self.left = self
                .left
                .map(|left| left.saturating_sub(chunk.len() as u64));
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        if let Some(trailers) = received.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        match &mut received.end {
            Some(end) => Poll::Ready(std::mem::replace(end, Ok(())).err().map(Err)),
            None => {
                received.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        let received = lock(&self.received);
        received.buffer.is_empty()
            && received.trailers.is_none()
            && matches!(received.end, Some(Ok(())))
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        match self.left {
            Some(left) => SizeHint::with_exact(left),
            None if self.is_end_stream() => SizeHint::with_exact(0),
            None => SizeHint::default(),
        }
    }
}

impl Drop for Http2Body {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

fn lock(received: &Mutex<ReceiveBuffer>) -> MutexGuard<'_, ReceiveBuffer> {
    received.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives a response and sends the rest of its request, until both have ended.
struct Transfer {
    /// `None` when the response has ended.
    stream: Option<RecvStream>,
    upload: Option<Upload>,
    guard: StreamGuard,
    received: Arc<Mutex<ReceiveBuffer>>,
}

impl Transfer {
    /// Ready when the response has ended.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(());
        };
        loop {
            let end = match ready!(stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    self.guard.mark_received();
                    let mut received = lock(&self.received);
                    received.buffer.push(data);
                    let reader = received.reader.take();
                    drop(received);
                    reader.into_iter().for_each(Waker::wake);
                    continue;
                }
                Some(Err(error)) => Err(error),
                None => ready!(stream.poll_trailers(cx)),
            };
            self.end(end.map_err(Into::into));
            return Poll::Ready(());
        }
    }

    /// Ends the response, with its trailers or an error.
    fn end(&mut self, end: Result<Option<HeaderMap>, BodyFailure>) {
        let mut received = lock(&self.received);
        let (trailers, end) = match end {
            Ok(trailers) => (trailers, Ok(())),
            Err(error) => (None, Err(error)),
        };
        (received.trailers, received.end) = (trailers, Some(end));
        let reader = received.reader.take();
        drop(received);
        self.stream = None;
        reader.into_iter().for_each(Waker::wake);
    }
}

impl Future for Transfer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if let Some(upload) = &mut this.upload
            && let Poll::Ready(sent) = upload.poll(cx)
        {
            this.upload = None;
            // The stream is reset, unless it has ended already.
            if let (Err(error), Some(_)) = (sent, &this.stream) {
                this.end(Err(error.into()));
            }
        }
        ready!(this.poll_receive(cx));
        match this.upload {
            Some(_) => Poll::Pending,
            None => Poll::Ready(()),
        }
    }
}
