//! Whether the store can be reached: the breaker, and what happened.

use crate::trouble::Trouble;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

/// So many calls in a row that fail, and nobody asks until a probe finds it well.
const FAILURES: u32 = 3;

/// Shared by all lanes: they speak to one server.
#[derive(Default)]
pub(crate) struct Health {
    open: AtomicBool,
    failed: AtomicU32,
    /// Counts how often the breaker opened: connections of before are not used again.
    era: AtomicU64,
    /// Since when something fails, and what it was last.
    trouble: Mutex<Option<(Instant, Trouble)>>,
    opened: tokio::sync::Notify,
    pub(crate) counts: Counters,
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

pub(crate) const TROUBLES: [&str; 8] =
    ["timeout", "queue_full", "unreachable", "refused", "protocol", "bad_key", "broken", "no_secret"];

impl Health {
    /// Whether nobody is to ask.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    pub(crate) fn era(&self) -> u64 {
        self.era.load(Relaxed)
    }

    pub(crate) fn is_well(&self) -> bool {
        self.lock().is_none()
    }

    /// Since when it fails, and why.
    pub(crate) fn trouble(&self) -> Option<(Instant, Trouble)> {
        self.lock().clone()
    }

    pub(crate) fn count(&self, trouble: &Trouble) {
        let at = TROUBLES.iter().position(|name| *name == trouble.name()).unwrap_or(0);
        self.counts.troubles[at].fetch_add(1, Relaxed);
    }

    /// A call failed.
    pub(crate) fn failed(&self, trouble: &Trouble) {
        let mut known = self.lock();
        let first = known.is_none();
        let since = known.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        *known = Some((since, trouble.clone()));
        drop(known);
        if first {
            tracing::warn!(target: "tollgate::redis", "{trouble}; decisions fall back until it answers");
        }
        if self.failed.fetch_add(1, Relaxed) + 1 >= FAILURES && !self.open.swap(true, Relaxed) {
            self.era.fetch_add(1, Relaxed);
            self.opened.notify_one();
        }
    }

    /// A call came back.
    pub(crate) fn worked(&self) {
        if self.failed.load(Relaxed) != 0 && !self.is_open() {
            self.well_again();
        }
    }

    /// A probe came back, or a call did before the breaker opened.
    pub(crate) fn well_again(&self) {
        self.failed.store(0, Relaxed);
        self.open.store(false, Relaxed);
        if let Some((since, _)) = self.lock().take() {
            tracing::info!(target: "tollgate::redis", "Redis answers again, after {:.1?}", since.elapsed());
        }
    }

    /// Ready when the breaker opens.
    pub(crate) async fn opened(&self) {
        self.opened.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, Trouble)>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
