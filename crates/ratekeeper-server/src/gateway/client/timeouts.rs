//! Runs a client connection until it ends or a timeout passes.

use super::io::Io;
use super::service::ClientService;
use super::state::{Client, ClientTimeouts, now};
use super::streams::StreamExecutor;
use crate::gateway::WorkerState;
use crate::gateway::drain::Stage;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// How long an idle connection is kept after its last request once the gateway stops: its next
/// request may be on its way.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// A connection that can be shut down gracefully.
pub(super) trait ServeConnection: Future<Output = Result<(), Self::Error>> {
    type Error: Into<Box<dyn Error + Send + Sync>>;

    /// Whether it may be shut down while requests are in flight.
    const SHUTDOWN_WHILE_BUSY: bool;

    /// Ends it once the requests in flight are answered.
    fn graceful_shutdown(self: Pin<&mut Self>);
}

impl ServeConnection for http1::UpgradeableConnection<TokioIo<Io>, ClientService> {
    type Error = hyper::Error;

    // Each response already announces that it is the last.
    const SHUTDOWN_WHILE_BUSY: bool = false;

    fn graceful_shutdown(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl ServeConnection for http2::Connection<TokioIo<Io>, ClientService, StreamExecutor> {
    type Error = hyper::Error;

    const SHUTDOWN_WHILE_BUSY: bool = true;

    fn graceful_shutdown(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Runs a connection, and cuts it off when a timeout passes.
pub(super) async fn run_with_timeouts<S: ServeConnection>(
    mut connection: Pin<&mut S>,
    worker: &WorkerState,
    client: &Client,
) -> io::Result<()> {
    let gateway = &worker.shared.gateway;
    let timeouts = ClientTimeouts {
        head: gateway.header_timeout,
        keep_alive: gateway.keep_alive,
        idle: gateway.idle_timeout,
    };
    let drain = &worker.shared.drain;
    let mut watchdog = Watchdog::new(timeouts.keep_alive);
    let mut changed = Box::pin(drain.changed());
    // The notification is polled once to register the waker, and again only after a change.
    let mut stage = None;
    let mut shutdown_at = None;
    poll_fn(|cx| {
        if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
            return Poll::Ready(ended.map_err(io::Error::other));
        }
        while stage != Some(drain.stage()) {
            stage = Some(drain.stage());
            changed.set(drain.changed());
            let _ = changed.as_mut().poll(cx);
        }
        let cut_off = client.deadline(&timeouts);
        let mut deadline = cut_off;
        if stage == Some(Stage::Stopping) && (shutdown_at.is_none() || S::SHUTDOWN_WHILE_BUSY) {
            let close_at = client.idle_since().max(shutdown_at.unwrap_or_default())
                + LINGER.as_millis() as u64;
            match shutdown_at {
                None if S::SHUTDOWN_WHILE_BUSY || client.is_idle() && close_at <= now() => {
                    shutdown_at = Some(now());
                    connection.as_mut().graceful_shutdown();
                    // The connection may have ended at once.
                    cx.waker().wake_by_ref();
                }
                // The client has had its time to close; one that does not read will not.
                Some(_) if client.is_idle() && close_at <= now() => {
                    return Poll::Ready(Ok(()));
                }
                _ if client.is_idle() => {
                    deadline = Some(deadline.map_or(close_at, |deadline| deadline.min(close_at)));
                }
                _ => {}
            }
        }
        match watchdog.poll(deadline, cx) {
            // That was only the time for the graceful shutdown.
            Poll::Ready(()) if cut_off.is_none_or(|cut_off| cut_off > now()) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            overdue => overdue.map(|()| Err(io::ErrorKind::TimedOut.into())),
        }
    })
    .await
}

/// A timer for a deadline that moves often. It is only reset if it would fire too late.
struct Watchdog {
    timer: Pin<Box<Sleep>>,
    /// When the timer fires, in milliseconds of [`now`].
    armed: u64,
}

/// Without a deadline the timer still fires at this interval.
const CHECK_INTERVAL_MS: u64 = 30_000;

impl Watchdog {
    fn new(first: Duration) -> Self {
        let first = u64::try_from(first.as_millis())
            .unwrap_or(u64::MAX)
            .min(CHECK_INTERVAL_MS);
        let timer = Box::pin(sleep_until(Instant::now() + Duration::from_millis(first)));
        // Treated as fired: it must be polled once.
        Self { timer, armed: 0 }
    }

    /// Ready when the deadline has passed.
    fn poll(&mut self, deadline: Option<u64>, cx: &mut Context<'_>) -> Poll<()> {
        if self.armed != 0
            && !self.timer.is_elapsed()
            && deadline.is_none_or(|deadline| deadline >= self.armed)
        {
            return Poll::Pending;
        }
        loop {
            let now = now();
            let next = deadline
                .unwrap_or(now + CHECK_INTERVAL_MS)
                .min(now + CHECK_INTERVAL_MS);
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Poll::Ready(());
            }
            self.timer
                .as_mut()
                .reset(Instant::now() + Duration::from_millis(next - now));
            self.armed = next;
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}
