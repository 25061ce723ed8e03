//! Client connections: accepts them, and serves each from its first byte to its last.

use super::http1::serve_http1;
use super::io::Io;
use super::service::ClientService;
use super::state::{Admission, Client};
use super::streams::StreamExecutor;
use super::timeouts::{LINGER, run_with_timeouts};
use crate::gateway::drain::Stage;
use crate::gateway::proxy_protocol::{self, ParsedHeader};
use crate::gateway::upstream::CLEANUP_INTERVAL;
use crate::gateway::{GatewayState, WorkerState};
use crate::net::listen::Listener;
use crate::net::stream::{BatchedStream, Stream, write_batches};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// The connection preface of HTTP/2.
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

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

/// How long connections that are already being established may take to be accepted when the gateway
/// stops.
const ACCEPT_GRACE: Duration = Duration::from_millis(100);

/// Serves the listener of a worker until the gateway stops, then finishes the requests in flight.
pub(crate) async fn serve(listener: Listener, shared: Arc<GatewayState>, number: usize) {
    let max_connections = shared
        .gateway
        .max_connections
        .div_ceil(shared.workers)
        .max(1);
    let (drain, grace) = (Arc::clone(&shared.drain), shared.gateway.drain_timeout);
    let worker = Arc::new(WorkerState { shared, number });
    let cleaned = Arc::clone(&worker);
    tokio::spawn(async move {
        let mut ticks = interval(CLEANUP_INTERVAL);
        // Ticks are the pools' clock, so missed ticks are not made up for.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = ticks.tick().await;
            for peer in cleaned.shared.routes.load().peers() {
                peer.pools[number].clear_expired(now);
            }
        }
    });
    tokio::spawn(write_batches());
    let permits = Arc::new(Semaphore::new(max_connections));
    loop {
        let changed = drain.changed();
        if drain.stage() == Stage::Stopping {
            break;
        }
        let permit = Arc::clone(&permits).acquire_owned();
        tokio::select! {
            biased;
            () = changed => {}
            (permit, (stream, peer)) = async { (permit.await, listener.accept().await) } => {
                // The semaphore is never closed.
                let Ok(permit) = permit else { break };
                tokio::spawn(serve_connection(Arc::clone(&worker), stream, peer, permit));
            }
        }
    }
    // Connections that were established before, or are being established now, are still served.
    if let Err(error) = listener.refuse_new_connections() {
        tracing::debug!(%error, "connections that come now may be reset");
    }
    let rest = async {
        loop {
            let (stream, peer) = listener.accept().await;
            let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
                return;
            };
            tokio::spawn(serve_connection(Arc::clone(&worker), stream, peer, permit));
        }
    };
    let _ = timeout(ACCEPT_GRACE, rest).await;
    drop(listener);
    // All permits are free once no connection is left.
    let all = u32::try_from(max_connections).unwrap_or(u32::MAX);
    if timeout(grace, permits.acquire_many(all)).await.is_err() {
        tracing::warn!("requests still in flight after {grace:?} were cut off");
    }
}

/// Serves a connection until it ends.
async fn serve_connection(
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

#[cfg(test)]
mod tests;
