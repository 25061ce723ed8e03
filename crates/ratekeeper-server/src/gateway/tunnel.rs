//! Tunnels: connections that switched to another protocol, such as WebSocket. Bytes are copied both
//! ways until one side ends, or both are silent for too long.

use super::client::{Client, UpgradedSocket};
use super::upstream::{Active, H1UpstreamConn};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::sync::oneshot;

const BUFFER: usize = 8 * 1024;

/// Runs a tunnel until it ends. `client` keeps its connection permit until then.
pub(super) async fn run(
    link: Box<H1UpstreamConn>,
    downstream: oneshot::Receiver<UpgradedSocket>,
    idle: Duration,
    client: Arc<Client>,
    active: Active,
) {
    match downstream.await {
        Ok(downstream) => {
            let (upstream, first) = link.into_stream();
            let ended = both_ways(upstream, &first, downstream, idle).await;
            tracing::debug!(peer = ?client.peer, "tunnel ended: {ended:?}");
        }
        Err(error) => tracing::debug!(peer = ?client.peer, %error, "no tunnel"),
    }
    drop(active);
}

/// Copies both ways. `first` are bytes already read from `one`.
async fn both_ways<A, B>(one: A, first: &[u8], other: B, idle: Duration) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let (mut from_one, mut to_one) = split(one);
    let (mut from_other, mut to_other) = split(other);
    let moved = AtomicU64::new(0);
    let silent = async {
        let mut seen = u64::MAX;
        loop {
            let now = moved.load(Relaxed);
            if now == seen {
                return;
            }
            seen = now;
            tokio::time::sleep(idle).await;
        }
    };
    // One side may end while the other still sends.
    let onward = async {
        to_other.write_all(first).await?;
        to_other.flush().await?;
        copy(&mut from_one, &mut to_other, &moved).await
    };
    let both = async { tokio::try_join!(onward, copy(&mut from_other, &mut to_one, &moved)) };
    tokio::select! {
        ended = both => ended.map(drop),
        () = silent => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Copies until the end of `from`, reading no more than `to` takes.
async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    moved: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await?;
        moved.fetch_add(1, Relaxed);
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
        // TLS may accept bytes without sending them.
        to.flush().await?;
        moved.fetch_add(1, Relaxed);
    }
}
