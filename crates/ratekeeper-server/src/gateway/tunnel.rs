//! Tunnels: connections that switched to another protocol, such as WebSocket. Bytes are copied both
//! ways until one side ends, or both are silent for too long.

use super::client::Client;
use super::upstream::{ActiveRequest, UpstreamStream};
use bytes::BytesMut;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};

const BUFFER: usize = 8 * 1024;

/// Runs a tunnel until it ends. `client` keeps its connection permit until then.
pub(super) async fn run(
    (upstream, first): (UpstreamStream, BytesMut),
    downstream: OnUpgrade,
    idle_timeout: Duration,
    client: Arc<Client>,
    active: ActiveRequest,
) {
    match downstream.await {
        Ok(downstream) => {
            let ended =
                copy_both_ways(upstream, &first, TokioIo::new(downstream), idle_timeout).await;
            tracing::debug!(peer = ?client.peer, "tunnel ended: {ended:?}");
        }
        Err(error) => tracing::debug!(peer = ?client.peer, %error, "no tunnel"),
    }
    drop(active);
}

/// Copies both ways. `first` are bytes already read from `upstream`.
async fn copy_both_ways<A, B>(
    upstream: A,
    first: &[u8],
    client: B,
    idle_timeout: Duration,
) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let (mut from_upstream, mut to_upstream) = split(upstream);
    let (mut from_client, mut to_client) = split(client);
    let progress = AtomicU64::new(0);
    let timed_out = async {
        let mut seen = u64::MAX;
        loop {
            let now = progress.load(Relaxed);
            if now == seen {
                return;
            }
            seen = now;
            tokio::time::sleep(idle_timeout).await;
        }
    };
    // One side may end while the other still sends.
    let forward = async {
        to_client.write_all(first).await?;
        to_client.flush().await?;
        copy(&mut from_upstream, &mut to_client, &progress).await
    };
    let both =
        async { tokio::try_join!(forward, copy(&mut from_client, &mut to_upstream, &progress)) };
    tokio::select! {
        ended = both => ended.map(drop),
        () = timed_out => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Copies until the end of `from`, reading no more than `to` takes.
async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    progress: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await?;
        progress.fetch_add(1, Relaxed);
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
        // TLS may accept bytes without sending them.
        to.flush().await?;
        progress.fetch_add(1, Relaxed);
    }
}
