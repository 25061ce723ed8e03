//! How many keys there are, and what became of others.

use super::{EMPTY, EntryView, NOBODY, SLOTS, Slot, Stripe, Table, WORDS};
use crate::clock::{Clock, Timestamp};
use crate::keyed::limit_version::LimitVersion;
use crate::keyed::registered_limit::RegisteredLimit;
use crate::sync::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::vec::Vec;

/// How many keys a table holds, and what became of others. What
/// [`Keyed::figures`](crate::Keyed::figures) returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct KeyedStats {
    /// Keys that it was made for.
    pub max_keys: u64,
    /// Keys in it, fresh ones that nobody has needed the room of among them.
    pub keys: u64,
    /// Keys in it that have used something which has not come back yet. Counting them reads the
    /// whole table.
    pub live: u64,
    /// Fresh keys that were forgotten, which changes no decision.
    pub evicted_fresh: u64,
    /// Live keys that were displaced into the floor of their limit.
    pub evicted_live: u64,
    /// Bytes it may use by now: the table, and states that do not fit it.
    pub bytes: u64,
}

/// What became of the keys of one limit. What [`Store::census`](crate::Store::census) returns for
/// each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LimitKeyStats {
    /// Keys that have used something which has not come back yet.
    pub live: u64,
    /// Fresh keys that were forgotten, which changes no decision.
    pub evicted_fresh: u64,
    /// Live keys that were displaced into the floor of the limit.
    pub evicted_live: u64,
}

impl<C: Clock> Table<C> {
    pub(crate) fn figures(&self, now: Timestamp) -> KeyedStats {
        let sum = |count: fn(&Stripe) -> &AtomicU64| -> u64 {
            self.stripes
                .iter()
                .map(|stripe| count(stripe).load(Ordering::Relaxed))
                .sum()
        };
        let mut figures = KeyedStats {
            max_keys: self.max_keys,
            evicted_fresh: sum(|stripe| &stripe.evicted_fresh),
            evicted_live: sum(|stripe| &stripe.evicted_live),
            bytes: (8 * self.words.len() + self.accounts.bytes()) as u64
                + self.wides.budget.taken(),
            ..KeyedStats::default()
        };
        self.each(|seen| {
            figures.keys += 1;
            figures.live += u64::from(self.is_live(seen, now));
        });
        figures
    }

    /// How many keys of a line are live.
    pub(crate) fn live(&self, line: &RegisteredLimit, now: Timestamp) -> u64 {
        let mut live = 0;
        self.each(|seen| {
            let of_line = self.terms(seen.terms()).registered.number == line.number;
            live += u64::from(of_line && self.is_live(seen, now));
        });
        live
    }

    /// What became of the keys of each of several lines, some of which may be of other tables: of
    /// those it knows nothing.
    pub(crate) fn census<'a>(
        &self,
        lines: impl Iterator<Item = &'a LimitVersion> + Clone,
        now: Timestamp,
    ) -> Vec<LimitKeyStats> {
        // By number, so that one pass is enough for however many lines.
        let own = lines.clone().filter(|terms| self.knows(terms));
        let mut live: BTreeMap<u64, u64> = own.map(|terms| (terms.registered.number, 0)).collect();
        if !live.is_empty() {
            self.each(|seen| {
                if let Some(live) = live.get_mut(&self.terms(seen.terms()).registered.number) {
                    *live += u64::from(self.is_live(seen, now));
                }
            });
        }
        let of = |terms: &LimitVersion| {
            let live = live
                .get(&terms.registered.number)
                .copied()
                .filter(|_| self.knows(terms))?;
            let (evicted_fresh, evicted_live) = terms.registered.evicted();
            Some(LimitKeyStats {
                live,
                evicted_fresh,
                evicted_live,
            })
        };
        lines.map(|terms| of(terms).unwrap_or_default()).collect()
    }

    fn is_live(&self, seen: &EntryView, now: Timestamp) -> bool {
        self.freshness(seen, now)
            .is_none_or(|freshness| !freshness.is_fresh())
    }

    /// Every entry, as it is when it is come by.
    fn each(&self, mut look: impl FnMut(&EntryView)) {
        for place in (0..self.lines as usize * WORDS).filter(|at| at % WORDS < SLOTS) {
            let place = Slot(self.offset + place);
            let tag = self.tag_at(place).load(Ordering::Acquire);
            if tag == EMPTY || tag == NOBODY {
                continue;
            }
            let stored = self.read(place);
            if self.tag_at(place).load(Ordering::Acquire) == tag {
                look(&EntryView { place, tag, stored });
            }
        }
    }
}
