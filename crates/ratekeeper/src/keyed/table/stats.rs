//! Table statistics: live keys and evicted keys.

use super::{EMPTY, EntryView, SLOTS, Slot, Stripe, Table, VACANT, WORDS};
use crate::clock::{Clock, Timestamp};
use crate::keyed::limit_version::LimitVersion;
use crate::keyed::registered_limit::RegisteredLimit;
use crate::sync::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::vec::Vec;

/// Statistics of a table of keys; see [`Keyed::stats`](crate::Keyed::stats).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct KeyedStats {
    /// How many keys the table was made for.
    pub max_keys: u64,
    /// Keys in the table, including fresh ones whose slot has not been needed yet.
    pub keys: u64,
    /// Keys in the table that have used something which has not been refilled yet. Counting them
    /// reads the whole table.
    pub live: u64,
    /// Fresh keys that were evicted, which changes no decision.
    pub evicted_fresh: u64,
    /// Live keys that were evicted into the floor of their limit.
    pub evicted_live: u64,
    /// Bytes in use at most: the table, and states that do not fit it.
    pub bytes: u64,
}

/// Statistics of the keys of one limit; see [`Store::key_stats`](crate::Store::key_stats).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LimitKeyStats {
    /// Keys that have used something which has not been refilled yet.
    pub live: u64,
    /// Fresh keys that were evicted, which changes no decision.
    pub evicted_fresh: u64,
    /// Live keys that were evicted into the floor of the limit.
    pub evicted_live: u64,
}

impl<C: Clock> Table<C> {
    pub(crate) fn stats(&self, now: Timestamp) -> KeyedStats {
        let sum = |count: fn(&Stripe) -> &AtomicU64| -> u64 {
            self.stripes
                .iter()
                .map(|stripe| count(stripe).load(Ordering::Relaxed))
                .sum()
        };
        let mut stats = KeyedStats {
            max_keys: self.max_keys,
            evicted_fresh: sum(|stripe| &stripe.evicted_fresh),
            evicted_live: sum(|stripe| &stripe.evicted_live),
            bytes: (8 * self.words.len() + self.refund_counters.bytes()) as u64
                + self.large_states.budget.used(),
            ..KeyedStats::default()
        };
        self.for_each_entry(|entry| {
            stats.keys += 1;
            stats.live += u64::from(self.is_live(entry, now));
        });
        stats
    }

    /// Returns how many keys of a limit are live.
    pub(crate) fn live_keys(&self, registered: &RegisteredLimit, now: Timestamp) -> u64 {
        let mut live = 0;
        self.for_each_entry(|entry| {
            let is_of_limit = self.version(entry.version()).registered.number == registered.number;
            live += u64::from(is_of_limit && self.is_live(entry, now));
        });
        live
    }

    /// Returns statistics of the keys of each of several limits; zeros for a limit of another
    /// table.
    pub(crate) fn limit_stats<'a>(
        &self,
        versions: impl Iterator<Item = &'a LimitVersion> + Clone,
        now: Timestamp,
    ) -> Vec<LimitKeyStats> {
        // By number, so that one pass is enough for any number of limits.
        let own = versions.clone().filter(|version| self.owns(version));
        let mut live: BTreeMap<u64, u64> =
            own.map(|version| (version.registered.number, 0)).collect();
        if !live.is_empty() {
            self.for_each_entry(|entry| {
                if let Some(live) = live.get_mut(&self.version(entry.version()).registered.number) {
                    *live += u64::from(self.is_live(entry, now));
                }
            });
        }
        let of = |version: &LimitVersion| {
            let live = live
                .get(&version.registered.number)
                .copied()
                .filter(|_| self.owns(version))?;
            let (evicted_fresh, evicted_live) = version.registered.evicted();
            Some(LimitKeyStats {
                live,
                evicted_fresh,
                evicted_live,
            })
        };
        versions
            .map(|version| of(version).unwrap_or_default())
            .collect()
    }

    fn is_live(&self, entry: &EntryView, now: Timestamp) -> bool {
        self.freshness(entry, now)
            .is_none_or(|freshness| !freshness.is_fresh())
    }

    /// Visits every entry, each as it is at that moment.
    fn for_each_entry(&self, mut visit: impl FnMut(&EntryView)) {
        for word in (0..self.cache_lines as usize * WORDS).filter(|at| at % WORDS < SLOTS) {
            let slot = Slot(self.offset + word);
            let tag = self.tag_at(slot).load(Ordering::Acquire);
            if tag == EMPTY || tag == VACANT {
                continue;
            }
            let stored = self.read(slot);
            if self.tag_at(slot).load(Ordering::Acquire) == tag {
                visit(&EntryView { slot, tag, stored });
            }
        }
    }
}
