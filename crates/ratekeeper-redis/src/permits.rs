//! Concurrency permits that verdicts of this node hold: renewed while they do, released when they
//! are dropped.

use crate::script::PermitName;
use crate::script::amend::{Amend, Amendment};
use ratekeeper::store::backend::MicrosLimit;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The permits of one node.
pub(crate) struct Permits {
    node: u64,
    next: AtomicU64,
    permits: Mutex<PermitsByKey>,
    /// Releases to send again, because the server failed when they were sent.
    pending_releases: Mutex<Vec<Amendment>>,
}

/// Releases that are remembered; permits beyond that expire.
const MAX_PENDING_RELEASES: usize = 4_096;

/// The permits, by their key.
type PermitsByKey = HashMap<Arc<[u8]>, (MicrosLimit, Vec<PermitName>), foldhash::fast::RandomState>;

impl Permits {
    pub(crate) fn new(node: u64) -> Self {
        Self {
            node,
            next: AtomicU64::new(0),
            permits: Mutex::default(),
            pending_releases: Mutex::default(),
        }
    }

    /// A unique permit name: the node's number and a counter.
    pub(crate) fn name(&self) -> PermitName {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&self.node.to_be_bytes());
        name[8..].copy_from_slice(&self.next.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        name
    }

    pub(crate) fn insert(&self, key: &Arc<[u8]>, limit: MicrosLimit, names: &[PermitName]) {
        let mut permits = self.lock();
        permits
            .entry(Arc::clone(key))
            .or_insert_with(|| (limit, Vec::new()))
            .1
            .extend_from_slice(names);
    }

    /// Forgets the permits and returns the amendment that releases them.
    pub(crate) fn release(
        &self,
        key: &Arc<[u8]>,
        limit: MicrosLimit,
        names: Vec<PermitName>,
    ) -> Amendment {
        self.forget(key, &names);
        Amendment {
            key: Arc::clone(key),
            limit,
            change: Amend::RenewPermits { ttl: 0, names },
        }
    }

    /// Stops renewing the permits and returns the amendment that keeps them for `ttl` microseconds.
    pub(crate) fn detach(
        &self,
        key: &Arc<[u8]>,
        limit: MicrosLimit,
        names: Vec<PermitName>,
        ttl: u64,
    ) -> Amendment {
        self.forget(key, &names);
        Amendment {
            key: Arc::clone(key),
            limit,
            change: Amend::DetachPermits { ttl, names },
        }
    }

    fn forget(&self, key: &Arc<[u8]>, names: &[PermitName]) {
        let mut permits = self.lock();
        if let Some((_, known)) = permits.get_mut(key) {
            known.retain(|name| !names.contains(name));
            if known.is_empty() {
                permits.remove(key);
            }
        }
    }

    /// Sends the release again when the server is healthy: the first may have been lost, or may
    /// have arrived on a faster connection before the permits were given.
    pub(crate) fn release_later(&self, amendment: Amendment) {
        let mut pending_releases = self
            .pending_releases
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if pending_releases.len() < MAX_PENDING_RELEASES {
            pending_releases.push(amendment);
        }
    }

    /// The amendments that renew all permits in use, and those that release the pending ones.
    pub(crate) fn renewals(&self, ttl: u64) -> Vec<Amendment> {
        let renewal =
            |(key, (limit, names)): (&Arc<[u8]>, &(MicrosLimit, Vec<PermitName>))| Amendment {
                key: Arc::clone(key),
                limit: *limit,
                change: Amend::RenewPermits {
                    ttl,
                    names: names.clone(),
                },
            };
        let mut all: Vec<Amendment> = self.lock().iter().map(renewal).collect();
        all.append(
            &mut self
                .pending_releases
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        all
    }

    fn lock(&self) -> MutexGuard<'_, PermitsByKey> {
        self.permits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
