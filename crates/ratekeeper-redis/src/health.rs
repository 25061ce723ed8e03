//! The health of a server: its circuit breaker, and counters.

use crate::store_error::StoreError;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Consecutive failures that open the breaker. It stays open until a probe succeeds.
const MAX_FAILURES: u32 = 3;

/// The health of one server, shared by all connections to it; that of a Cluster is healthy if each
/// of its primaries is.
#[derive(Default)]
pub(crate) struct Health {
    open: AtomicBool,
    failures: AtomicU32,
    /// Counts how often the breaker opened. Connections of an earlier generation are not used
    /// again.
    generation: AtomicU64,
    /// When calls began to fail, and the last error.
    error: Mutex<Option<(Instant, StoreError)>>,
    opened: Arc<tokio::sync::Notify>,
    /// In a Cluster: the health of each primary.
    primaries: Mutex<Vec<Arc<Health>>>,
    pub(crate) counts: Arc<Counters>,
}

/// Counters since the start.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) decisions: AtomicU64,
    pub(crate) round_trips: AtomicU64,
    pub(crate) fallbacks: AtomicU64,
    pub(crate) errors: [AtomicU64; 8],
    pub(crate) not_returned: AtomicU64,
    pub(crate) debited: AtomicU64,
}

/// The names of all errors, as [`StoreError::name`] returns them.
pub(crate) const ERROR_NAMES: [&str; 8] = [
    "timeout",
    "queue_full",
    "unreachable",
    "refused",
    "protocol",
    "bad_key",
    "broken",
    "no_secret",
];

impl Health {
    /// Whether the breaker is open, so that Redis must not be asked.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// Creates the health of one primary of a Cluster. It shares the counters, and wakes waiters of
    /// this one.
    pub(crate) fn for_primary(&self) -> Arc<Self> {
        let primary = Arc::new(Self {
            opened: Arc::clone(&self.opened),
            counts: Arc::clone(&self.counts),
            ..Self::default()
        });
        self.primaries().push(Arc::clone(&primary));
        primary
    }

    /// Removes the health of primaries that are not in `known`.
    pub(crate) fn retain_primaries(&self, known: &[&Arc<Self>]) {
        self.primaries()
            .retain(|primary| known.iter().any(|known| Arc::ptr_eq(primary, known)));
    }

    /// Whether no error is recorded, not counting the primaries of a Cluster.
    pub(crate) fn is_own_state_healthy(&self) -> bool {
        self.lock().is_none()
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.is_own_state_healthy() && self.primaries().iter().all(|primary| primary.is_healthy())
    }

    /// The error and when it began; of several primaries the one that has failed longest.
    pub(crate) fn error(&self) -> Option<(Instant, StoreError)> {
        let own = self.lock().clone();
        let of_parts = self
            .primaries()
            .iter()
            .filter_map(|primary| primary.error())
            .min_by_key(|(since, _)| *since);
        own.or(of_parts)
    }

    /// Wakes the task that waits for the breaker to open.
    pub(crate) fn wake(&self) {
        self.opened.notify_one();
    }

    /// Retires all connections: they may lead to a server that is no longer the primary.
    pub(crate) fn new_generation(&self) {
        self.generation.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_error(&self, error: &StoreError) {
        let at = ERROR_NAMES
            .iter()
            .position(|name| *name == error.name())
            .unwrap_or(0);
        self.counts.errors[at].fetch_add(1, Relaxed);
    }

    /// Records a failed call. Opens the breaker after [`MAX_FAILURES`].
    pub(crate) fn record_failure(&self, error: &StoreError) {
        let mut known = self.lock();
        let first = known.is_none();
        let since = known
            .as_ref()
            .map_or_else(Instant::now, |(since, _)| *since);
        *known = Some((since, error.clone()));
        drop(known);
        if first {
            tracing::warn!(target: "ratekeeper::redis", "{error}; decisions fall back until it answers");
        }
        if self.failures.fetch_add(1, Relaxed) + 1 >= MAX_FAILURES && !self.open.swap(true, Relaxed)
        {
            self.new_generation();
            self.wake();
        }
    }

    /// Opens the breaker, because probes failed repeatedly.
    pub(crate) fn open_breaker(&self, error: &StoreError) {
        for _ in 0..MAX_FAILURES {
            self.record_failure(error);
        }
    }

    /// Records a call that was answered.
    pub(crate) fn record_success(&self) {
        if self.failures.load(Relaxed) != 0 && !self.is_open() {
            self.record_recovery();
        }
    }

    /// Closes the breaker, after [probes](crate::probe) were answered in time, or a call was before
    /// the breaker opened.
    pub(crate) fn record_recovery(&self) {
        self.failures.store(0, Relaxed);
        self.open.store(false, Relaxed);
        if let Some((since, _)) = self.lock().take() {
            tracing::info!(target: "ratekeeper::redis", "Redis answers again, after {:.1?}", since.elapsed());
        }
    }

    /// Completes when the breaker opens.
    pub(crate) async fn opened(&self) {
        self.opened.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, StoreError)>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn primaries(&self) -> MutexGuard<'_, Vec<Arc<Self>>> {
        self.primaries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
