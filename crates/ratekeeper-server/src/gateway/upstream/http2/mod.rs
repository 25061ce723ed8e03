//! Pool of HTTP/2 connections to an upstream, which the requests of a worker share.
//!
//! It uses h2 and not hyper's client, because a gateway needs what hyper hides: whether the
//! upstream processed a request that failed, informational responses, which side is waited for, and
//! flow control. A response is read as it comes, and its window is released as the client takes it,
//! so that frames never wait unread in h2, however small they are.

mod connection;
mod download;
mod exchange;
mod frame_buffer;
mod upload;

pub(crate) use download::Http2Body;
pub(crate) use exchange::{Http2Error, Http2Exchange, ResponseEvent};

use super::{Connector, UpstreamError};
use crate::config::Upstream;
use connection::{H2UpstreamConn, StreamPermit};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The most connections of one worker to one upstream. Another one is opened when all streams of
/// the existing ones are in use.
const MAX_CONNECTIONS: usize = 8;

/// How long a connection without requests is kept open.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The HTTP/2 connections of one worker to one upstream.
#[derive(Default)]
pub(crate) struct Http2Pool {
    /// The first one with a free stream is used, so that the later ones become idle when there is
    /// less to do.
    connections: Mutex<Vec<PooledConnection>>,
    /// Locked while a connection is opened: requests that come meanwhile wait for that one.
    connecting: tokio::sync::Mutex<()>,
}

/// A connection of the pool, with the start of its idle time.
struct PooledConnection {
    connection: H2UpstreamConn,
    /// When it was first found without requests, or `None` if it had some at the last check.
    idle_since: Option<Instant>,
}

impl Http2Pool {
    /// Takes a free stream; the flag says whether its connection was open before. With `new` it is
    /// the first stream of a new connection, if there may be one.
    pub(crate) async fn stream(
        &self,
        connector: &Connector,
        upstream: &Upstream,
        new: bool,
    ) -> Result<(StreamPermit, bool), UpstreamError> {
        let free_stream = || if new { None } else { self.free_stream() };
        if let Some(stream) = free_stream() {
            return Ok((stream, true));
        }
        let connecting = timeout(connector.connect_timeout, self.connecting.lock()).await;
        let _connecting =
            connecting.map_err(|_| UpstreamError::ConnectTimeout(connector.connect_timeout))?;
        // Another request may have opened one, or ended.
        if let Some(stream) = free_stream().or_else(|| self.queued_stream()) {
            return Ok((stream, true));
        }
        let connection = H2UpstreamConn::open(connector, upstream).await?;
        let stream = connection.stream();
        self.lock().push(PooledConnection {
            connection,
            idle_since: None,
        });
        Ok((stream, false))
    }

    /// A stream of the first connection that has a free one.
    fn free_stream(&self) -> Option<StreamPermit> {
        let mut connections = self.lock();
        connections.retain_mut(|pooled| pooled.connection.is_open());
        connections
            .iter()
            .find(|pooled| pooled.connection.has_free_stream())
            .map(|pooled| pooled.connection.stream())
    }

    /// A stream that waits until another one of its connection ends, if there may be no more
    /// connections.
    fn queued_stream(&self) -> Option<StreamPermit> {
        let mut connections = self.lock();
        connections.retain_mut(|pooled| pooled.connection.is_open());
        if connections.len() < MAX_CONNECTIONS {
            return None;
        }
        let least = connections
            .iter()
            .min_by_key(|pooled| pooled.connection.streams());
        least.map(|pooled| pooled.connection.stream())
    }

    /// Closes connections that had no request for [`IDLE_TIMEOUT`]. Call it regularly.
    pub(crate) fn clear_expired(&self, now: Instant) {
        self.lock().retain_mut(|pooled| {
            if !pooled.connection.is_open() {
                return false;
            }
            if pooled.connection.was_used() {
                pooled.idle_since = None;
                return true;
            }
            let since = *pooled.idle_since.get_or_insert(now);
            now.saturating_duration_since(since) < IDLE_TIMEOUT
        });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PooledConnection>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
