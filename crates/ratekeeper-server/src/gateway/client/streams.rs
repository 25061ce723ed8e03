//! The requests that share a connection of HTTP/2. Each may be blocked by its client alone: one of
//! whose answer nothing is taken is ended, and the connection goes on.

use super::state::Client;
use hyper::rt::Executor;
use pin_project_lite::pin_project;
use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// Runs the streams of a connection.
#[derive(Clone)]
pub(crate) struct Streams {
    /// None where a connection of which nothing is taken is ended as a whole.
    pub(crate) client: Option<Arc<Client>>,
    /// How long a client may take nothing of an answer.
    pub(crate) idle: Duration,
}

/// All that is run are requests and their answers: CONNECT, whose streams have no answer to tell
/// of, is refused.
impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        tokio::spawn(WatchedFuture {
            stream,
            of: self.clone(),
            timer: None,
        });
    }
}

/// What came of polling a stream.
#[derive(Clone, Copy)]
pub(crate) enum StreamProgress {
    /// Nothing: it waits for room that the client has to give.
    Blocked,
    /// The answer was asked for a piece, and gave it.
    Moved,
    /// The answer was asked for a piece and has none yet: how long that may take is measured
    /// elsewhere.
    Waits,
}

thread_local! {
    static TURN: Cell<StreamProgress> = const { Cell::new(StreamProgress::Blocked) };
}

impl StreamProgress {
    /// Told by answers and their bodies while they are polled.
    pub(crate) fn tell(self) {
        TURN.set(self);
    }
}

pin_project! {
    struct WatchedFuture<F> {
        #[pin]
        stream: F,
        of: Streams,
        // Goes off when the client has taken nothing for too long.
        timer: Option<Pin<Box<Sleep>>>,
    }
}

impl<F: Future<Output = ()>> Future for WatchedFuture<F> {
    type Output = ();

    /// To end is to be dropped: what is not complete is reset then.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        StreamProgress::Blocked.tell();
        if this.stream.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        match TURN.get() {
            StreamProgress::Blocked => {}
            StreamProgress::Moved => *this.timer = None,
            StreamProgress::Waits => {
                *this.timer = None;
                return Poll::Pending;
            }
        }
        loop {
            let timer = this
                .timer
                .get_or_insert_with(|| Box::pin(sleep(this.of.idle)));
            ready!(timer.as_mut().poll(cx));
            // While the whole connection is stuck, that is not the fault of one stream.
            let client = this.of.client.as_deref();
            if !client.is_some_and(Client::is_blocked) {
                tracing::debug!(peer = ?client.and_then(|client| client.peer), "nothing of an answer was taken for too long");
                return Poll::Ready(());
            }
            *this.timer = None;
        }
    }
}
