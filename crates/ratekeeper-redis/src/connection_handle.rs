//! A handle to one connection, or to a Cluster, which has connections to each of its primaries.

use crate::batched_connection::BatchHandle;
use crate::cluster::{Cluster, Servers, slot};
use crate::script::amend::Amendment;
use crate::script::decide::{Answer, Questions};
use crate::store_error::StoreError;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone)]
pub(crate) enum ConnectionHandle {
    Single(BatchHandle),
    Cluster(Arc<Cluster>),
}

impl ConnectionHandle {
    pub(crate) async fn decide(
        &self,
        questions: Questions,
        timeout: Duration,
    ) -> Result<Answer, StoreError> {
        match self {
            Self::Single(handle) => handle
                .decide(questions, 0, timeout)?
                .await
                .unwrap_or(Err(StoreError::Broken)),
            Self::Cluster(cluster) => cluster.decide(questions, timeout).await,
        }
    }

    /// The handle of the single connection; `None` for a Cluster.
    pub(crate) fn single(&self) -> Option<&BatchHandle> {
        match self {
            Self::Single(handle) => Some(handle),
            Self::Cluster(_) => None,
        }
    }

    /// For each key, the number of the server whose failure made the request fall back; empty where
    /// there is only one server.
    pub(crate) fn failing_servers(
        &self,
        names: impl Iterator<Item = Option<Arc<[u8]>>>,
    ) -> Servers {
        match self {
            Self::Single(_) => Servers::new(),
            Self::Cluster(cluster) => {
                cluster.failing_servers(names.map(|name| name.map(|name| slot(&name))))
            }
        }
    }

    /// Whether the server decides again, or is no longer a primary.
    pub(crate) fn has_recovered(&self, server: u64) -> bool {
        match self {
            Self::Single(_) => true,
            Self::Cluster(cluster) => cluster.has_recovered(server),
        }
    }

    /// Queues amendments at once, before the future is polled; the future has the outcome of each.
    pub(crate) fn amend(
        &self,
        amendments: Vec<Amendment>,
        timeout: Duration,
    ) -> impl Future<Output = Result<Vec<Option<u64>>, StoreError>> + Send + use<> {
        enum AmendFuture<L, C> {
            Single(L),
            Cluster(C),
        }
        let queued = match self {
            Self::Single(handle) => AmendFuture::Single(handle.amend(amendments, 0, timeout)),
            Self::Cluster(cluster) => AmendFuture::Cluster(cluster.amend(amendments, timeout)),
        };
        async move {
            match queued {
                AmendFuture::Single(outcome) => outcome?.await.unwrap_or(Err(StoreError::Broken)),
                AmendFuture::Cluster(outcome) => outcome.await,
            }
        }
    }

    /// Queues amendments without waiting for their outcome.
    pub(crate) fn amend_later(
        &self,
        amendments: Vec<Amendment>,
        timeout: Duration,
    ) -> Result<(), StoreError> {
        match self {
            Self::Single(handle) => handle.amend(amendments, 0, timeout).map(drop),
            Self::Cluster(cluster) => cluster.amend_later(amendments, timeout),
        }
    }
}
