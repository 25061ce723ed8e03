//! Pool of idle HTTP/1.1 connections of one worker to one upstream.

use super::H1UpstreamConn;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;
use tokio::task::unconstrained;

/// Boxed, so that moving a connection between the pool and a body moves a pointer.
#[allow(clippy::vec_box, reason = "to move it is to move a pointer")]
type Idle = Vec<(Box<H1UpstreamConn>, u64)>;

/// The idle HTTP/1.1 connections of one worker to one upstream.
#[derive(Default)]
pub(crate) struct Http1Pool {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Each with the tick at which it became idle.
    idle: Idle,
    /// The number of cleanups of the pool: its clock, so that no request has to read one.
    tick: u64,
}

/// The most idle connections that are kept.
const MAX_IDLE: usize = 512;

/// How often idle connections are checked.
pub(crate) const CLEANUP_INTERVAL: Duration = Duration::from_secs(5);

/// The minimum time that an idle connection is kept; the maximum is one interval longer.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

impl Http1Pool {
    /// Takes the connection used last that is still alive.
    pub(crate) async fn take(&self) -> Option<Box<H1UpstreamConn>> {
        loop {
            let (mut conn, _) = self.state().idle.pop()?;
            // Polled outside of the task's budget: with an exhausted budget every connection would
            // look alive.
            if unconstrained(poll_fn(|cx| Poll::Ready(conn.is_alive(cx)))).await {
                return Some(conn);
            }
        }
    }

    /// Returns a connection to the pool, if it can take another request.
    pub(crate) fn put(&self, conn: Box<H1UpstreamConn>) {
        let State { idle, tick } = &mut *self.state();
        if conn.is_free() && idle.len() < MAX_IDLE {
            idle.push((conn, *tick));
        }
    }

    /// Closes connections that were idle for too long. Call it once per interval.
    pub(crate) fn clear_expired(&self) {
        const MAX_TICKS: u64 = IDLE_TIMEOUT.as_secs() / CLEANUP_INTERVAL.as_secs();
        let State { idle, tick } = &mut *self.state();
        *tick += 1;
        idle.retain(|(_, since)| *tick - *since <= MAX_TICKS);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::upstream::Timeouts;
    use crate::net::stream::Stream;
    use tokio::net::UnixStream;
    use tokio::time::{Instant, sleep};

    /// Even after a long request: its duration does not count as idle.
    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_pooled_for_half_a_minute() {
        for request in [Duration::ZERO, 2 * IDLE_TIMEOUT] {
            let (near, _far) = UnixStream::pair().unwrap();
            let pool = Http1Pool::default();
            let started = Instant::now();
            let timeouts = Timeouts {
                started,
                idle: 3 * IDLE_TIMEOUT,
                total: None,
                sent: None,
            };
            let conn = H1UpstreamConn::new(Stream::Unix(near), timeouts);
            while started.elapsed() < request {
                sleep(CLEANUP_INTERVAL).await;
                pool.clear_expired();
            }
            pool.put(conn);
            let idle_since = Instant::now();
            while !pool.state().idle.is_empty() {
                sleep(CLEANUP_INTERVAL).await;
                pool.clear_expired();
            }
            assert_eq!(
                idle_since.elapsed().as_secs(),
                35,
                "after a request of {request:?}"
            );
        }
    }
}
