//! RESP: `CL.THROTTLE` as in redis-cell, and policies by name, for Redis clients.
//!
//! One worker per core, each with its own listener. Pipelined commands share one reading of the
//! clock and one write.

mod connection;
mod operator;
mod policy;
mod session;
#[cfg(test)]
mod tests;

pub(crate) use operator::Options;
pub(crate) use session::Totals;

use crate::app::App;
use crate::net::listen::Listener;
use crate::net::stream::Stream;
use crate::net::tls::ServerCertificate;
use crate::net::worker::{SHUTDOWN_GRACE, accept_tls};
use connection::Connection;
use ratekeeper::{Clock, keyed::KeyedGcra};
use session::Password;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use tokio::sync::{Semaphore, watch};

/// Number of connections of a worker, the default of Redis.
pub(crate) const MAX_CLIENTS: usize = 10_000;

/// State that all connections share.
pub(crate) struct RespServer<C: Clock> {
    pub(crate) app: Arc<App<C>>,
    /// The keys of `CL.THROTTLE`.
    pub(crate) gcra: KeyedGcra<C>,
    /// Options of `RATEKEEPER.RESET`.
    operators: Options,
    /// The check of `AUTH`, for sessions.
    password: Option<Password>,
    last_id: AtomicI64,
}

impl<C: Clock> RespServer<C> {
    pub(crate) fn new(app: Arc<App<C>>, gcra: KeyedGcra<C>, operators: Options) -> Self {
        let password = operators.password();
        Self {
            app,
            gcra,
            operators,
            password,
            last_id: AtomicI64::new(0),
        }
    }
}

/// Serves until `stop` changes, and then commands received until then.
pub(crate) async fn serve<C: Clock>(
    listener: Listener,
    certificate: Option<Arc<ServerCertificate>>,
    max_clients: usize,
    server: Arc<RespServer<C>>,
    mut stop: watch::Receiver<bool>,
) {
    let permits = Arc::new(Semaphore::new(max_clients));
    loop {
        let (stream, peer) = tokio::select! {
            biased;
            _ = stop.changed() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            // The error of Redis. A write that would block is skipped.
            const FULL: &[u8] = b"-ERR max number of clients reached\r\n";
            let _ = match (&stream, &certificate) {
                (Stream::Unix(stream), _) => stream.try_write(FULL),
                (Stream::Plain(stream), None) => stream.try_write(FULL),
                _ => Ok(0),
            };
            continue;
        };
        let id = server.last_id.fetch_add(1, Relaxed) + 1;
        let server = Arc::clone(&server);
        let certificate = certificate.clone();
        let stop = stop.clone();
        tokio::spawn(async move {
            let _permit = permit;
            let serving = async {
                let accept_tls = accept_tls(stream, certificate.as_deref(), stop.clone()).await?;
                let Some(stream) = accept_tls else {
                    return Ok(());
                };
                Connection::new(stream, peer, id, server).serve(stop).await
            };
            if let Err(error) = serving.await {
                tracing::debug!(%error, "connection ended");
            }
        });
    }
    drop(listener);
    let all = u32::try_from(max_clients).unwrap_or(u32::MAX);
    if tokio::time::timeout(SHUTDOWN_GRACE, permits.acquire_many(all))
        .await
        .is_err()
    {
        tracing::warn!(
            "clients that did not read their replies within {SHUTDOWN_GRACE:?} were disconnected"
        );
    }
}
