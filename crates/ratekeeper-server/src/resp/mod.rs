//! RESP: `CL.THROTTLE` in place of redis-cell, and the policies by name, for anything that speaks
//! to Redis.
//!
//! A worker a core, each with a listener of its own. What a client sends at once is answered at
//! once: one look at the clock, one write.

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

/// Connections a worker has at once, as many as Redis has by default.
pub(crate) const MOST_CLIENTS: usize = 10_000;

/// What all connections share.
pub(crate) struct Shared<C: Clock> {
    pub(crate) app: Arc<App<C>>,
    /// By key, for `CL.THROTTLE`.
    pub(crate) arrivals: KeyedGcra<C>,
    /// Who may reset keys.
    operators: Options,
    /// The same for sessions.
    password: Option<Password>,
    last_id: AtomicI64,
}

impl<C: Clock> Shared<C> {
    pub(crate) fn new(app: Arc<App<C>>, arrivals: KeyedGcra<C>, operators: Options) -> Self {
        let password = operators.password();
        Self {
            app,
            arrivals,
            operators,
            password,
            last_id: AtomicI64::new(0),
        }
    }
}

/// Serves until `stop` changes, and then what clients have sent until then.
pub(crate) async fn serve<C: Clock>(
    listener: Listener,
    certificate: Option<Arc<ServerCertificate>>,
    most: usize,
    shared: Arc<Shared<C>>,
    mut stop: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(most));
    loop {
        let (stream, peer) = tokio::select! {
            biased;
            _ = stop.changed() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            // In Redis's words. Who cannot be told at once is not waited for.
            const FULL: &[u8] = b"-ERR max number of clients reached\r\n";
            let _ = match (&stream, &certificate) {
                (Stream::Unix(stream), _) => stream.try_write(FULL),
                (Stream::Plain(stream), None) => stream.try_write(FULL),
                _ => Ok(0),
            };
            continue;
        };
        let id = shared.last_id.fetch_add(1, Relaxed) + 1;
        let (shared, certificate, stop) = (Arc::clone(&shared), certificate.clone(), stop.clone());
        tokio::spawn(async move {
            let _place = place;
            let serving = async {
                let accept_tls = accept_tls(stream, certificate.as_deref(), stop.clone()).await?;
                let Some(stream) = accept_tls else {
                    return Ok(());
                };
                Connection::new(stream, peer, id, shared).serve(stop).await
            };
            if let Err(error) = serving.await {
                tracing::debug!(%error, "connection ended");
            }
        });
    }
    drop(listener);
    let all = u32::try_from(most).unwrap_or(u32::MAX);
    if tokio::time::timeout(SHUTDOWN_GRACE, room.acquire_many(all))
        .await
        .is_err()
    {
        tracing::warn!(
            "clients that did not take their answers within {SHUTDOWN_GRACE:?} were cut off"
        );
    }
}
