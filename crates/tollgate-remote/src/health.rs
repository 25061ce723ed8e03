//! Whether the service can be reached: the breaker, and what happened.

use crate::trouble::Trouble;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tollgate::Sometimes;

/// So many calls in a row that fail, and nobody asks until a probe finds it well.
const FAILURES: u32 = 3;

/// Shared by all lanes: they speak to one service.
pub(crate) struct Health {
    open: AtomicBool,
    failed: AtomicU32,
    /// Counts how often the breaker opened: connections of before are not used again.
    era: AtomicU64,
    /// Since when something fails, and what it was last.
    trouble: Mutex<Option<(Instant, Trouble)>>,
    opened: tokio::sync::Notify,
    /// Whether the service has declined to decide since it was last looked at.
    declined: AtomicBool,
    /// When to tell of what concerns one request.
    tell: Sometimes,
    pub(crate) counts: Counters,
}

/// What happened since the start.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) decisions: AtomicU64,
    pub(crate) round_trips: AtomicU64,
    pub(crate) fallbacks: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) debited: AtomicU64,
    pub(crate) troubles: [AtomicU64; 8],
}

pub(crate) const TROUBLES: [&str; 8] =
    ["timeout", "queue_full", "unreachable", "refused", "protocol", "declined", "too_large", "broken"];

impl Default for Health {
    fn default() -> Self {
        Self {
            open: AtomicBool::new(false),
            failed: AtomicU32::new(0),
            era: AtomicU64::new(0),
            trouble: Mutex::default(),
            opened: tokio::sync::Notify::new(),
            declined: AtomicBool::new(false),
            tell: Sometimes::new().first(1).interval(Duration::from_secs(60)),
            counts: Counters::default(),
        }
    }
}

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

    /// A request is decided without the service.
    pub(crate) fn count(&self, trouble: &Trouble) {
        let at = TROUBLES.iter().position(|name| *name == trouble.name()).unwrap_or(0);
        self.counts.troubles[at].fetch_add(1, Relaxed);
        if trouble.is_of_one_request() {
            self.declined.store(true, Relaxed);
            self.tell.run(|| tracing::warn!(target: "tollgate::remote", "{trouble}"));
        }
    }

    /// A call failed.
    pub(crate) fn failed(&self, trouble: &Trouble) {
        let mut known = self.lock();
        let first = known.is_none();
        let since = known.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        *known = Some((since, trouble.clone()));
        drop(known);
        if first {
            tracing::warn!(target: "tollgate::remote", "{trouble}; decisions fall back until it answers");
        }
        if self.failed.fetch_add(1, Relaxed) + 1 >= FAILURES && !self.open.swap(true, Relaxed) {
            self.era.fetch_add(1, Relaxed);
            self.opened.notify_one();
        }
    }

    /// Whether requests were declined since this was last asked: shares go on, though the service is there.
    pub(crate) fn was_declined(&self) -> bool {
        self.declined.swap(false, Relaxed)
    }

    /// What a look at the start found: nobody needs to find out again.
    pub(crate) fn began_badly(&self, trouble: &Trouble) {
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

    /// A probe came back, or a call did before the breaker opened.
    pub(crate) fn well_again(&self) {
        self.failed.store(0, Relaxed);
        self.open.store(false, Relaxed);
        if let Some((since, _)) = self.lock().take() {
            tracing::info!(target: "tollgate::remote", "tollgate answers again, after {:.1?}", since.elapsed());
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
