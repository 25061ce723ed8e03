//! One HTTP/1.1 connection to an upstream.
//!
//! It has no task of its own: the request that uses it drives it, and then the body of the answer does. So a request goes
//! to the upstream and back without waking another task.

use super::timer::{Timer, Times};
use crate::proxy::body::Sent;
use crate::stream::Stream;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// Its type has no name outside of hyper.
type Connection = dyn Future<Output = hyper::Result<()>> + Send;

pub(crate) struct Link {
    send: SendRequest<Sent>,
    connection: Pin<Box<Connection>>,
    pub(crate) timer: Timer,
    /// Whether the connection has ended.
    over: bool,
}

impl Link {
    pub(crate) async fn new(stream: Stream, times: Times) -> hyper::Result<Box<Self>> {
        let (send, connection) = http1::Builder::new().handshake(TokioIo::new(stream)).await?;
        let connection = Box::pin(connection.with_upgrades());
        Ok(Box::new(Self { send, connection, timer: Timer::new(times), over: false }))
    }

    /// Lets it read and write.
    pub(crate) fn drive(&mut self, cx: &mut Context<'_>) {
        // Whoever waits for something of it is told the error.
        if !self.over && self.connection.as_mut().poll(cx).is_ready() {
            self.over = true;
        }
    }

    /// Whether another request can be sent.
    pub(crate) fn is_free(&self) -> bool {
        !self.over && self.send.is_ready()
    }

    pub(crate) fn send(
        &mut self,
        request: Request<Sent>,
    ) -> impl Future<Output = Result<Response<Incoming>, NotAnswered>> + use<> {
        let answer = self.send.try_send_request(request);
        async move { answer.await.map_err(NotAnswered::from) }
    }

    /// Until it has ended: an upgraded connection is handed out then.
    pub(crate) async fn ended(mut self: Box<Self>) {
        poll_fn(|cx| {
            self.drive(cx);
            if self.over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Why there is no answer.
pub(crate) struct NotAnswered {
    /// The request, if nothing of it was sent.
    pub(crate) request: Option<Request<Sent>>,
    pub(crate) error: hyper::Error,
}

impl From<TrySendError<Request<Sent>>> for NotAnswered {
    fn from(mut error: TrySendError<Request<Sent>>) -> Self {
        let request = error.take_message();
        Self { request, error: error.into_error() }
    }
}

/// Each stays in its place while it moves between here and the bodies that come over it.
#[allow(clippy::vec_box, reason = "to move it is to move a pointer")]
type Idle = Vec<Box<Link>>;

/// The connections of one worker to one upstream that nobody uses.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<Idle>,
}

/// So many are kept.
const MOST_IDLE: usize = 512;

/// So long.
const LONGEST_IDLE: Duration = Duration::from_secs(30);

impl Pool {
    /// The one that was used last, if it still is one.
    pub(crate) async fn take(&self) -> Option<Box<Link>> {
        loop {
            let mut link = self.idle().pop()?;
            // It may have ended meanwhile: nobody looked.
            poll_fn(|cx| {
                link.drive(cx);
                Poll::Ready(())
            })
            .await;
            if link.is_free() {
                return Some(link);
            }
        }
    }

    pub(crate) fn give(&self, link: Box<Link>) {
        let mut idle = self.idle();
        if idle.len() < MOST_IDLE {
            idle.push(link);
        }
    }

    /// Closes those whose last request is too long ago.
    pub(crate) fn tidy(&self, now: Instant) {
        let is_fresh = |link: &mut Box<Link>| now.saturating_duration_since(link.timer.begun()) < LONGEST_IDLE;
        self.idle().retain_mut(is_fresh);
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
