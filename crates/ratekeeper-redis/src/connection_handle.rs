//! Where a store hands in what it asks: a lane, or a Cluster, which has lanes to each of its
//! primaries.

use crate::batched_connection::BatchHandle;
use crate::cluster::{Cluster, Servers, slot};
use crate::script::amend::Amendment;
use crate::script::decide::{Answer, Questions};
use crate::store_error::StoreError;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone)]
pub(crate) enum ConnectionHandle {
    Lane(BatchHandle),
    Cluster(Arc<Cluster>),
}

impl ConnectionHandle {
    pub(crate) async fn decide(
        &self,
        questions: Questions,
        timeout: Duration,
    ) -> Result<Answer, StoreError> {
        match self {
            Self::Lane(door) => door
                .decide(questions, 0, timeout)?
                .await
                .unwrap_or(Err(StoreError::Broken)),
            Self::Cluster(cluster) => cluster.decide(questions, timeout).await,
        }
    }

    /// The lane to the one server there is; none in a Cluster.
    pub(crate) fn lane(&self) -> Option<&BatchHandle> {
        match self {
            Self::Lane(door) => Some(door),
            Self::Cluster(_) => None,
        }
    }

    /// Which server each of these keys is decided without, where there is more than one.
    pub(crate) fn missing(&self, names: impl Iterator<Item = Option<Arc<[u8]>>>) -> Servers {
        match self {
            Self::Lane(_) => Servers::new(),
            Self::Cluster(cluster) => {
                cluster.missing(names.map(|name| name.map(|name| slot(&name))))
            }
        }
    }

    /// Whether a server decides again, or is none of those that do.
    pub(crate) fn is_over(&self, server: u64) -> bool {
        match self {
            Self::Lane(_) => true,
            Self::Cluster(cluster) => cluster.is_over(server),
        }
    }

    /// Queues amendments at once, before the future is polled; the future has the outcome of each.
    pub(crate) fn amend(
        &self,
        amendments: Vec<Amendment>,
        timeout: Duration,
    ) -> impl Future<Output = Result<Vec<Option<u64>>, StoreError>> + Send + use<> {
        enum Queued<L, C> {
            Lane(L),
            Cluster(C),
        }
        let queued = match self {
            Self::Lane(door) => Queued::Lane(door.amend(amendments, 0, timeout)),
            Self::Cluster(cluster) => Queued::Cluster(cluster.amend(amendments, timeout)),
        };
        async move {
            match queued {
                Queued::Lane(outcome) => outcome?.await.unwrap_or(Err(StoreError::Broken)),
                Queued::Cluster(outcome) => outcome.await,
            }
        }
    }

    /// Hands it in; nobody waits for what comes of it.
    pub(crate) fn amend_later(
        &self,
        amendments: Vec<Amendment>,
        timeout: Duration,
    ) -> Result<(), StoreError> {
        match self {
            Self::Lane(door) => door.amend(amendments, 0, timeout).map(drop),
            Self::Cluster(cluster) => cluster.amend_later(amendments, timeout),
        }
    }
}
