//! Write timeouts of HTTP/2 streams. If a client takes nothing of one response, its stream is
//! ended, and the connection goes on.

use super::state::Client;
use hyper::rt::Executor;
use pin_project_lite::pin_project;
use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// The executor of a connection's streams.
#[derive(Clone)]
pub(crate) struct StreamExecutor {
    /// `None` where a blocked connection is ended as a whole.
    pub(crate) client: Option<Arc<Client>>,
    /// How long a client may take nothing of a response.
    pub(crate) idle_timeout: Duration,
}

/// Every future that is executed is a request with its response: CONNECT, whose streams have no
/// response body, is rejected.
impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        tokio::spawn(StreamFuture {
            stream,
            executor: self.clone(),
            timer: None,
        });
    }
}

/// The progress of a stream in one poll.
#[derive(Clone, Copy)]
pub(crate) enum StreamProgress {
    /// No progress: it waits until the client opens its window.
    Blocked,
    /// The response body was polled, and gave a frame.
    Moved,
    /// The response or its body was polled and is pending: other timeouts apply to that.
    Waiting,
}

thread_local! {
    static PROGRESS: Cell<StreamProgress> = const { Cell::new(StreamProgress::Blocked) };
}

impl StreamProgress {
    /// Records the progress; called by responses and their bodies while they are polled.
    pub(crate) fn record(self) {
        PROGRESS.set(self);
    }
}

pin_project! {
    struct StreamFuture<F> {
        #[pin]
        stream: F,
        executor: StreamExecutor,
        // Fires when the client has taken nothing for too long.
        timer: Option<Pin<Box<Sleep>>>,
    }
}

impl<F: Future<Output = ()>> Future for StreamFuture<F> {
    type Output = ();

    /// Completing drops the stream, which resets it if it is incomplete.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        StreamProgress::Blocked.record();
        if this.stream.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        match PROGRESS.get() {
            StreamProgress::Blocked => {}
            StreamProgress::Moved => *this.timer = None,
            StreamProgress::Waiting => {
                *this.timer = None;
                return Poll::Pending;
            }
        }
        loop {
            let timer = this
                .timer
                .get_or_insert_with(|| Box::pin(sleep(this.executor.idle_timeout)));
            ready!(timer.as_mut().poll(cx));
            // While the whole connection is blocked, no single stream is at fault.
            let client = this.executor.client.as_deref();
            if !client.is_some_and(Client::is_blocked) {
                tracing::debug!(peer = ?client.and_then(|client| client.peer), "stream reset: its client did not read the response in time");
                return Poll::Ready(());
            }
            *this.timer = None;
        }
    }
}
