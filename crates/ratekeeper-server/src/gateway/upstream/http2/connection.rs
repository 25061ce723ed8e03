//! One HTTP/2 connection to an upstream: its settings, its task, and how its end is noticed.

use super::super::{Connector, UpstreamError};
use crate::config::Upstream;
use crate::net::stream::ReadBudget;
use axum::body::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep, timeout};

/// The most concurrent streams of one connection, if the upstream allows as many.
pub(super) const MAX_STREAMS: usize = 128;

/// Bytes of a response that an upstream may send before its client has taken any.
const STREAM_WINDOW: u32 = 256 * 1024;

/// The sum of the windows of all streams, so that a client that does not read its response does not
/// slow down others. Together with [`MAX_STREAMS`] it bounds the memory for the responses of one
/// connection: 32 MiB.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_STREAMS as u32;

/// Bytes of a request body that wait in h2 to be sent, per stream.
const MAX_SEND_BUFFER: usize = 64 * 1024;

/// The largest header list of a response, counted as HPACK does: 32 more for each header.
const MAX_HEADER_LIST: u32 = 256 * 1024;

/// Streams that are opened before the upstream has sent its maximum: none, so that it never has to
/// reject one.
const INITIAL_MAX_STREAMS: usize = 0;

/// How long an upstream may send nothing while requests are in flight before it is pinged, and how
/// long the pong may take.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// The interval to the next ping after two in a row found the upstream silent but alive. gRPC
/// servers close connections that are pinged more often than every five minutes while nothing is
/// sent.
const QUIET_PING_INTERVAL: Duration = Duration::from_secs(320);

/// An open connection.
pub(super) struct H2UpstreamConn {
    send: SendRequest<Bytes>,
    state: Arc<ConnectionState>,
}

/// The state shared between a connection's task and its streams.
#[derive(Default)]
struct ConnectionState {
    /// Streams in use.
    streams: AtomicUsize,
    /// Whether a stream was opened since the last check.
    used: AtomicBool,
    /// Whether any part of a response came since the last ping.
    mark_received: AtomicBool,
}

/// The right to one stream of a connection.
pub(crate) struct StreamPermit {
    pub(super) send: SendRequest<Bytes>,
    pub(super) guard: StreamGuard,
}

/// Counts a stream as in use until this is dropped.
pub(super) struct StreamGuard(Arc<ConnectionState>);

impl StreamGuard {
    /// Records that a part of the response has come.
    pub(super) fn mark_received(&self) {
        self.0.mark_received.store(true, Relaxed);
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Relaxed);
    }
}

impl H2UpstreamConn {
    /// Connects to an upstream and performs the HTTP/2 handshake, within `connect_timeout`.
    pub(super) async fn open(
        connector: &Connector,
        upstream: &Upstream,
    ) -> Result<Self, UpstreamError> {
        let stream = connector.connect(upstream).await?;
        match timeout(connector.connect_timeout, Self::handshake(stream)).await {
            Ok(opened) => opened,
            Err(_) => Err(UpstreamError::ConnectTimeout(connector.connect_timeout)),
        }
    }

    /// Performs the handshake, until the upstream has sent its settings.
    pub(super) async fn handshake<S>(stream: S) -> Result<Self, UpstreamError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let handshake = Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(MAX_SEND_BUFFER)
            .max_header_list_size(MAX_HEADER_LIST)
            .initial_max_send_streams(INITIAL_MAX_STREAMS)
            .enable_push(false)
            .handshake(ReadBudget::new(stream));
        let (send, mut connection) = handshake.await.map_err(UpstreamError::Http2)?;
        poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Err(UpstreamError::InvalidResponse(
                "closed a connection without any HTTP/2 settings",
            ))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(UpstreamError::Http2(error))),
            Poll::Pending if connection.max_concurrent_send_streams() > INITIAL_MAX_STREAMS => {
                Poll::Ready(Ok(()))
            }
            Poll::Pending => Poll::Pending,
        })
        .await?;
        let state = Arc::new(ConnectionState::default());
        tokio::spawn(drive(connection, Arc::clone(&state)));
        Ok(Self { send, state })
    }

    /// Whether it takes new requests: it is not broken, the upstream has not sent GOAWAY, and
    /// stream ids are left.
    pub(super) fn is_open(&mut self) -> bool {
        // A handle without a stream of its own never waits here.
        let ready = self
            .send
            .poll_ready(&mut Context::from_waker(Waker::noop()));
        !matches!(ready, Poll::Ready(Err(_)))
    }

    pub(super) fn has_free_stream(&self) -> bool {
        self.streams() < self.send.current_max_send_streams().min(MAX_STREAMS)
    }

    pub(super) fn streams(&self) -> usize {
        self.state.streams.load(Relaxed)
    }

    /// Whether it has streams, or had a new one since the last call.
    pub(super) fn was_used(&self) -> bool {
        self.state.used.swap(false, Relaxed) || self.streams() > 0
    }

    /// Takes a stream. Above the upstream's maximum it waits in h2.
    pub(super) fn stream(&self) -> StreamPermit {
        self.state.streams.fetch_add(1, Relaxed);
        self.state.used.store(true, Relaxed);
        StreamPermit {
            send: self.send.clone(),
            guard: StreamGuard(Arc::clone(&self.state)),
        }
    }
}

/// Runs a connection until it breaks, the upstream closes it, or its last handle is dropped.
async fn drive<S>(mut connection: Connection<S, Bytes>, state: Arc<ConnectionState>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut pinger = connection
        .ping_pong()
        .map(|pings| Pinger::new(pings, state));
    let mut connection = pin!(connection);
    poll_fn(|cx| {
        if pinger
            .as_mut()
            .is_some_and(|pinger| pinger.poll(cx).is_ready())
        {
            tracing::debug!(
                "an upstream did not answer a ping within {PING_INTERVAL:?}; closing its connection"
            );
            return Poll::Ready(());
        }
        connection.as_mut().poll(cx).map(|ended| {
            if let Err(error) = ended {
                tracing::debug!(%error, "connection to an upstream ended");
            }
        })
    })
    .await;
}

/// Pings an upstream that has been silent while requests are in flight.
struct Pinger {
    pings: PingPong,
    state: Arc<ConnectionState>,
    timer: Pin<Box<Sleep>>,
    /// Whether a ping is not answered yet.
    waits: bool,
    /// Pings in a row that found it silent.
    silent: u32,
}

impl Pinger {
    fn new(pings: PingPong, state: Arc<ConnectionState>) -> Self {
        Self {
            pings,
            state,
            timer: Box::pin(sleep(PING_INTERVAL)),
            waits: false,
            silent: 0,
        }
    }

    /// Ready when a ping was not answered in time.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_pong(cx);
        while self.timer.as_mut().poll(cx).is_ready() {
            self.timer.as_mut().reset(Instant::now() + PING_INTERVAL);
            if self.state.mark_received.swap(false, Relaxed) {
                self.silent = 0;
            } else if self.waits {
                return Poll::Ready(());
            } else if self.state.streams.load(Relaxed) > 0
                && self.pings.send_ping(Ping::opaque()).is_ok()
            {
                self.waits = true;
                self.silent += 1;
                // Registers the waker for the answer.
                self.poll_pong(cx);
            }
        }
        Poll::Pending
    }

    fn poll_pong(&mut self, cx: &mut Context<'_>) {
        if self.waits && self.pings.poll_pong(cx).is_ready() {
            self.waits = false;
            if self.silent >= 2 {
                self.timer
                    .as_mut()
                    .reset(Instant::now() + QUIET_PING_INTERVAL);
            }
        }
    }
}
