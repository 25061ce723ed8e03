//! Where a store hands in what it asks: a lane, or a Cluster, which has lanes to each of its primaries.

use crate::cluster::Cluster;
use crate::lane::Door;
use crate::script::amend::Amendment;
use crate::script::decide::{Answer, Questions};
use crate::trouble::Trouble;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone)]
pub(crate) enum Entrance {
    Lane(Door),
    Cluster(Arc<Cluster>),
}

impl Entrance {
    pub(crate) async fn decide(&self, questions: Questions, timeout: Duration) -> Result<Answer, Trouble> {
        match self {
            Self::Lane(door) => door.decide(questions, 0, timeout)?.await.unwrap_or(Err(Trouble::Broken)),
            Self::Cluster(cluster) => cluster.decide(questions, timeout).await,
        }
    }

    /// What came of each.
    pub(crate) async fn amend(
        &self,
        amendments: Vec<Amendment>,
        timeout: Duration,
    ) -> Result<Vec<Option<u64>>, Trouble> {
        match self {
            Self::Lane(door) => door.amend(amendments, 0, timeout)?.await.unwrap_or(Err(Trouble::Broken)),
            Self::Cluster(cluster) => cluster.amend(amendments, timeout).await,
        }
    }

    /// Hands it in; nobody waits for what comes of it.
    pub(crate) fn amend_later(&self, amendments: Vec<Amendment>, timeout: Duration) -> Result<(), Trouble> {
        match self {
            Self::Lane(door) => door.amend(amendments, 0, timeout).map(drop),
            Self::Cluster(cluster) => cluster.amend_later(amendments, timeout),
        }
    }
}
