//! One client connection, from its first byte to its last.

use super::io::Io;
use super::service::ClientService;
use super::state::{Admission, Client, ClientTimeouts, now};
use super::streams::StreamExecutor;
use crate::api::{Code, Problem};
use crate::gateway::WorkerState;
use crate::gateway::drain::Stage;
use crate::gateway::headers::put_header;
use crate::gateway::proxy_protocol::{self, ParsedHeader};
use crate::net::stream::{BatchedStream, Stream};
use axum::http::StatusCode;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

/// The connection preface of HTTP/2.
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long an idle connection is kept after its last request once the gateway stops: its next
/// request may be on its way.
const LINGER: Duration = Duration::from_secs(1);

/// For how long, and for how many bytes, a client is read after its last response before its
/// connection is closed.
const LINGER_AFTER_RESPONSE: Duration = Duration::from_secs(2);
const MAX_LINGER_BYTES: usize = 16 << 20;

/// The most bytes of an HTTP/1 connection that hyper reads at once, and that it gathers to write;
/// more only if a head may be larger.
const MAX_HTTP1_BUFFER: usize = 64 * 1024;

/// Up to this many headers hyper parses without allocating.
const USUAL_HEADERS: usize = 100;

/// The most concurrent streams of an HTTP/2 connection.
const MAX_STREAMS: u32 = 128;

/// How many bytes of a request body an HTTP/2 client may send before the upstream has taken any.
const STREAM_WINDOW: u32 = 256 * 1024;

/// The window of all streams of a connection together. It also bounds queued frames: for each, h2
/// counts the bytes that it is short of 256, and closes the connection at half of this window. So a
/// connection takes 12 MiB at most, and 16,000 frames of one byte may wait.
const CONNECTION_WINDOW: u32 = 32 * STREAM_WINDOW;

/// How often an HTTP/2 connection is pinged, and how long the pong may take.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Serves a connection until it ends.
pub(in crate::gateway) async fn serve(
    worker: Arc<WorkerState>,
    stream: Stream,
    peer: Option<SocketAddr>,
    permit: OwnedSemaphorePermit,
) {
    if let Err(error) = connection(worker, stream, peer, permit).await {
        tracing::debug!(?peer, %error, "connection ended");
    }
}

async fn connection(
    worker: Arc<WorkerState>,
    mut stream: Stream,
    mut peer: Option<SocketAddr>,
    permit: OwnedSemaphorePermit,
) -> io::Result<()> {
    let shared = &worker.shared;
    let gateway = &shared.gateway;
    let trusts = |peer: Option<SocketAddr>| match peer {
        Some(peer) => shared.identity.trusts(peer.ip()),
        None => shared.identity.trusts_unix(),
    };
    let mut trusted = trusts(peer);
    if trusted && gateway.proxy_protocol {
        let source = timeout(gateway.header_timeout, read_proxy_header(&mut stream)).await??;
        if let Some(source) = source {
            peer = Some(source);
            trusted = trusts(peer);
        }
    }
    let address = match (peer, &shared.address_limit) {
        (Some(peer), Some(limit)) if !trusted => {
            // Closed without a response, which an attacker could request repeatedly.
            let Some(slot) = limit.admit(peer.ip()) else {
                return Ok(());
            };
            Some(slot)
        }
        _ => None,
    };
    let mut first = Vec::new();
    let (stream, tls, http2) = match (stream, &shared.certificate) {
        (Stream::Plain(stream), Some(certificate)) => {
            let stream = certificate
                .handshake(stream, gateway.header_timeout)
                .await?;
            let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            (Stream::Tls(Box::new(stream)), true, http2)
        }
        (mut stream, _) => {
            // The first byte may take as long as the next request on a kept connection.
            let started = timeout(gateway.keep_alive, stream.readable());
            tokio::select! {
                started = started => started??,
                () = stopping(&worker) => {
                    // Bytes that have come already are served.
                    if timeout(LINGER, stream.readable()).await.is_err() {
                        return Ok(());
                    }
                }
            }
            let http2 =
                timeout(gateway.header_timeout, is_http2(&mut stream, &mut first)).await??;
            let stream = match stream {
                Stream::Plain(stream) => Stream::Batched(BatchedStream::new(stream)),
                stream => stream,
            };
            (stream, false, http2)
        }
    };
    let admission = Admission {
        _permit: permit,
        _address: address,
        drain: Arc::clone(&shared.drain),
    };
    let client = Client::new(peer, trusted, tls, Some(admission));
    let client = Arc::new(client.abandoned_timeout(gateway.abandoned_timeout));
    let service = ClientService::new(&worker, &client);
    if !http2 {
        let io = Io::http1(stream, Arc::clone(&client), first);
        return serve_http1(io, service, &worker, &client).await;
    }
    client.is_shared.store(true, Relaxed);
    let streams = StreamExecutor {
        client: Some(Arc::clone(&client)),
        idle_timeout: gateway.idle_timeout,
    };
    let io = TokioIo::new(Io::http2(stream, Arc::clone(&client), first));
    let connection = http2::Builder::new(streams)
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(u32::try_from(gateway.max_head).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .serve_connection(io, service);
    run_with_timeouts(Box::pin(connection).as_mut(), &worker, &client).await
}

/// Serves HTTP/1. hyper answers a malformed head without a reason, so that response is replaced.
async fn serve_http1(
    io: Io,
    service: ClientService,
    worker: &WorkerState,
    client: &Client,
) -> io::Result<()> {
    let gateway = &worker.shared.gateway;
    let mut builder = http1::Builder::new();
    builder
        .max_header_size(gateway.max_head)
        .max_buf_size(gateway.max_head.max(MAX_HTTP1_BUFFER));
    // With any other number hyper allocates for each head.
    if gateway.max_headers != USUAL_HEADERS {
        builder.max_headers(gateway.max_headers);
    }
    let connection = builder.serve_connection(TokioIo::new(io), service);
    let mut connection = Box::pin(connection.with_upgrades());
    let ended = run_with_timeouts(connection.as_mut(), worker, client).await;
    let Some(parts) = Pin::into_inner(connection).into_parts() else {
        return ended;
    };
    let io = parts.io.into_inner();
    let problem = match (io.rejection(), &ended) {
        (Some(status), Err(error)) => Some(malformed(status, error)),
        (_, Err(_)) => return ended,
        (_, Ok(())) => None,
    };
    // A client that does not read the response will not close its side either.
    let _ = timeout(LINGER_AFTER_RESPONSE, close(io, problem)).await;
    ended
}

/// The problem of a malformed head.
fn malformed(status: StatusCode, error: &io::Error) -> Problem {
    match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Problem::new(
            Code::HeadTooLarge,
            "the request head is larger, or has more headers, than this gateway allows",
        ),
        StatusCode::URI_TOO_LONG => Problem::new(
            Code::TargetTooLong,
            "the request target is longer than this gateway allows",
        ),
        _ => Problem::new(
            Code::BadRequest,
            format!("malformed HTTP/1.1 request: {error}"),
        ),
    }
}

/// Closes a connection after its last response, which is `problem` if there is one. To close it
/// with unread bytes is to reset it, and a reset can overtake the response: so it is read until the
/// client closes its side.
async fn close(io: Io, problem: Option<Problem>) -> io::Result<()> {
    let is_closed = io.is_closed();
    let mut stream = io.into_stream();
    if let Some(problem) = problem {
        let response = problem.plain();
        let mut bytes = format!("HTTP/1.1 {}\r\n", response.status()).into_bytes();
        for (name, value) in response.headers() {
            put_header(&mut bytes, name, value.as_bytes());
        }
        let length = response.body().len();
        let date = httpdate::fmt_http_date(SystemTime::now());
        let rest = format!("content-length: {length}\r\nconnection: close\r\ndate: {date}\r\n\r\n");
        bytes.extend_from_slice(rest.as_bytes());
        bytes.extend_from_slice(response.body());
        stream.write_all(&bytes).await?;
    }
    stream.shutdown().await?;
    let (mut buffer, mut left) = (vec![0; 8 * 1024], MAX_LINGER_BYTES);
    while !is_closed && left > 0 {
        match stream.read(&mut buffer).await? {
            0 => break,
            read => left = left.saturating_sub(read),
        }
    }
    Ok(())
}

/// Reads the client's address from the PROXY protocol of a trusted proxy. Consumes only that head:
/// the bytes after it belong to TLS or HTTP.
async fn read_proxy_header(stream: &mut Stream) -> io::Result<Option<SocketAddr>> {
    let mut head = Vec::new();
    loop {
        let before = head.len();
        head.resize(proxy_protocol::MAX_BYTES, 0);
        let peeked = stream.peek(&mut head[before..]).await?;
        head.truncate(before + peeked);
        if peeked == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (length, source) = match proxy_protocol::parse(&head) {
            ParsedHeader::Complete(length, source) => (length, Some(source)),
            ParsedHeader::Partial => (head.len(), None),
            ParsedHeader::Invalid => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a trusted proxy did not send a PROXY protocol header",
                ));
            }
        };
        stream.read_exact(&mut head[before..length]).await?;
        if let Some(source) = source {
            return Ok(source);
        }
    }
}

/// Whether the client begins with the HTTP/2 preface. The bytes read are in `first`.
async fn is_http2(stream: &mut Stream, first: &mut Vec<u8>) -> io::Result<bool> {
    while first.len() < PREFACE.len() {
        let mut buffer = [0; PREFACE.len()];
        let free = PREFACE.len() - first.len();
        let read = stream.read(&mut buffer[..free]).await?;
        first.extend_from_slice(&buffer[..read]);
        if read == 0 || !PREFACE.starts_with(first) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Ready when the gateway stops.
async fn stopping(worker: &WorkerState) {
    let drain = &worker.shared.drain;
    loop {
        let changed = drain.changed();
        if drain.stage() == Stage::Stopping {
            return;
        }
        changed.await;
    }
}

/// A connection that can be shut down gracefully.
trait ServeConnection: Future<Output = Result<(), Self::Error>> {
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
async fn run_with_timeouts<S: ServeConnection>(
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

#[cfg(test)]
mod tests;
