//! One HTTP/2 connection to an upstream, which all requests of a worker share.

use super::{Connector, Trouble};
use crate::proxy::body::Sent;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tollgate_policy::config::Upstream;

/// How often a connection is asked for a sign of life while requests are under way, and how long it may take.
const PING: Duration = Duration::from_secs(20);

#[derive(Default)]
pub(crate) struct Channel {
    send: Mutex<Option<SendRequest<Sent>>>,
}

impl Channel {
    /// The connection, and whether it was there before.
    pub(crate) async fn get(
        &self,
        connector: &Connector,
        upstream: &Upstream,
    ) -> Result<(SendRequest<Sent>, bool), Trouble> {
        let kept = self.kept().as_ref().filter(|send| !send.is_closed()).cloned();
        if let Some(send) = kept {
            return Ok((send, true));
        }
        let stream = connector.connect(upstream).await?;
        let (send, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .adaptive_window(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(Trouble::Broken)?;
        tokio::spawn(async {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to an upstream ended");
            }
        });
        *self.kept() = Some(send.clone());
        Ok((send, false))
    }

    /// The next request gets a new one.
    pub(crate) fn forget(&self) {
        *self.kept() = None;
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Option<SendRequest<Sent>>> {
        self.send.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
