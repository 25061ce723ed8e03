//! The byte budget of a table: how many bytes its large states may take, and take.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many bytes large states may take, and take now.
pub(crate) struct ByteBudget {
    max: u64,
    used: AtomicU64,
    /// Bytes that the floors of logs may grow to, of all limits together.
    floors: AtomicU64,
}

impl ByteBudget {
    pub(super) fn new(max: u64) -> Self {
        Self {
            max,
            used: AtomicU64::new(0),
            floors: AtomicU64::new(0),
        }
    }

    /// Creates a budget for a state outside the table.
    pub(super) fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// Creates a budget for a state that is not in the table yet: it may take a quarter of all
    /// bytes, so that the states it evicts do not take more.
    pub(super) fn for_new_state(&self) -> Self {
        Self::new(self.max / 4)
    }

    /// Reserves bytes for the floors of one limit; returns for how many parts of `bytes` each, up
    /// to `wanted`. It reserves half of what earlier limits have left of a quarter of all bytes, so
    /// that there is some for the next.
    pub(super) fn reserve_floors(&self, bytes: u64, wanted: u64) -> u64 {
        let all = self.max / 3;
        let parts = |reserved: u64| {
            let left = all.saturating_sub(reserved);
            (left / 2 / bytes).max(u64::from(bytes <= left)).min(wanted)
        };
        let more = |reserved: u64| Some(reserved + parts(reserved) * bytes);
        self.floors
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_or(0, parts)
    }

    pub(super) fn take(&self, bytes: u64) -> bool {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.max);
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .is_ok()
    }

    /// Counts a state that grew or shrank without reserving bytes first.
    pub(super) fn count(&self, before: u64, after: u64) {
        self.used.fetch_add(after, Ordering::Relaxed);
        self.used.fetch_sub(before, Ordering::Relaxed);
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Grows a log to `needed` times in all; `false`, and nothing changes, if the budget does not
    /// allow it.
    pub(super) fn grow(&self, times: &mut VecDeque<u64>, needed: u64) -> bool {
        let capacity = times.capacity() as u64;
        if needed <= capacity {
            return true;
        }
        // By half, so that growing stays cheap and little is left unused.
        let wanted = needed.max(capacity + capacity / 2).max(4);
        let Some(wanted) = [wanted, needed]
            .into_iter()
            .find(|wanted| self.take((wanted - capacity) * 8))
        else {
            return false;
        };
        times.reserve_exact((wanted as usize).saturating_sub(times.len()));
        true
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(ratekeeper_loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Each limit gets half of what is left, so that there is some for the next; and never more
    /// than a third of what states have.
    #[test]
    fn floors_share_the_byte_budget() {
        let budget = ByteBudget::new(3_000);
        let parts: Vec<u64> = (0..8).map(|_| budget.reserve_floors(100, 64)).collect();
        assert_eq!(parts, [5, 2, 1, 1, 1, 0, 0, 0]);
        assert_eq!(ByteBudget::new(3_000_000).reserve_floors(100, 64), 64);
        assert_eq!(ByteBudget::new(3_000).reserve_floors(1_001, 64), 0);
    }
}
