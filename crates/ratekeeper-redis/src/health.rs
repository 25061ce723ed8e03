//! Whether the store can be reached: the breaker, and what happened.

use crate::store_error::StoreError;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// So many calls in a row that fail, and nobody asks until a probe finds it well.
const FAILURES: u32 = 3;

/// Shared by all lanes that speak to one server. That of a Cluster is well if each of its primaries
/// is.
#[derive(Default)]
pub(crate) struct Health {
    open: AtomicBool,
    failed: AtomicU32,
    /// Counts how often the breaker opened: connections of before are not used again.
    era: AtomicU64,
    /// Since when something fails, and what it was last.
    trouble: Mutex<Option<(Instant, StoreError)>>,
    opened: Arc<tokio::sync::Notify>,
    /// One for each primary of a Cluster.
    parts: Mutex<Vec<Arc<Health>>>,
    pub(crate) counts: Arc<Counters>,
}

/// What happened since the start.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) decisions: AtomicU64,
    pub(crate) round_trips: AtomicU64,
    pub(crate) fallbacks: AtomicU64,
    pub(crate) troubles: [AtomicU64; 8],
    pub(crate) not_returned: AtomicU64,
    pub(crate) debited: AtomicU64,
}

pub(crate) const TROUBLES: [&str; 8] = [
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
    /// Whether nobody is to ask.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    pub(crate) fn era(&self) -> u64 {
        self.era.load(Relaxed)
    }

    /// The health of one primary of many: it counts here, and wakes who waits for this one.
    pub(crate) fn part(&self) -> Arc<Self> {
        let part = Arc::new(Self {
            opened: Arc::clone(&self.opened),
            counts: Arc::clone(&self.counts),
            ..Self::default()
        });
        self.parts().push(Arc::clone(&part));
        part
    }

    /// These are the primaries there are.
    pub(crate) fn keep(&self, known: &[&Arc<Self>]) {
        self.parts()
            .retain(|part| known.iter().any(|known| Arc::ptr_eq(part, known)));
    }

    /// Whether nothing fails, of the Cluster as a whole where it is that of one.
    pub(crate) fn is_well_itself(&self) -> bool {
        self.lock().is_none()
    }

    pub(crate) fn is_well(&self) -> bool {
        self.is_well_itself() && self.parts().iter().all(|part| part.is_well())
    }

    /// Since when it fails, and why: of several what fails for longest.
    pub(crate) fn trouble(&self) -> Option<(Instant, StoreError)> {
        let own = self.lock().clone();
        let of_parts = self
            .parts()
            .iter()
            .filter_map(|part| part.trouble())
            .min_by_key(|(since, _)| *since);
        own.or(of_parts)
    }

    /// Wakes who waits for the breaker to open.
    pub(crate) fn wake(&self) {
        self.opened.notify_one();
    }

    /// Connections of before are not used again: they may lead to who is no primary any more.
    pub(crate) fn new_era(&self) {
        self.era.fetch_add(1, Relaxed);
    }

    pub(crate) fn count(&self, trouble: &StoreError) {
        let at = TROUBLES
            .iter()
            .position(|name| *name == trouble.name())
            .unwrap_or(0);
        self.counts.troubles[at].fetch_add(1, Relaxed);
    }

    /// A call failed.
    pub(crate) fn failed(&self, trouble: &StoreError) {
        let mut known = self.lock();
        let first = known.is_none();
        let since = known
            .as_ref()
            .map_or_else(Instant::now, |(since, _)| *since);
        *known = Some((since, trouble.clone()));
        drop(known);
        if first {
            tracing::warn!(target: "ratekeeper::redis", "{trouble}; decisions fall back until it answers");
        }
        if self.failed.fetch_add(1, Relaxed) + 1 >= FAILURES && !self.open.swap(true, Relaxed) {
            self.new_era();
            self.wake();
        }
    }

    /// Probes failed, again and again: nobody is to ask.
    pub(crate) fn broke(&self, trouble: &StoreError) {
        for _ in 0..FAILURES {
            self.failed(trouble);
        }
    }

    /// A call came back.
    pub(crate) fn worked(&self) {
        if self.failed.load(Relaxed) != 0 && !self.is_open() {
            self.well_again();
        }
    }

    /// [Probes](crate::probe) came back in time, or a call did before the breaker opened.
    pub(crate) fn well_again(&self) {
        self.failed.store(0, Relaxed);
        self.open.store(false, Relaxed);
        if let Some((since, _)) = self.lock().take() {
            tracing::info!(target: "ratekeeper::redis", "Redis answers again, after {:.1?}", since.elapsed());
        }
    }

    /// Ready when the breaker opens.
    pub(crate) async fn opened(&self) {
        self.opened.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, StoreError)>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parts(&self) -> MutexGuard<'_, Vec<Arc<Self>>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
