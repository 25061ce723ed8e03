//! One callsite's state, and the table that finds it without a lock.

use crate::rules::{LEVELS, Rules, Sampling, index};
use ratekeeper::{Clock, Limiter, Sometimes};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use tracing_core::{Level, Metadata};

/// What is known of one callsite.
pub(crate) struct Site<C: Clock> {
    key: u64,
    /// Decided when the event is there, not when it is announced.
    pub(crate) late: bool,
    shown: AtomicU64,
    /// How many of the suppressed ones were told.
    told: AtomicU64,
    /// What its reports look like; made for the first one.
    pub(crate) report: OnceLock<&'static Metadata<'static>>,
    busy: Busy<C>,
}

/// What every event writes to, on a cache line of its own, so that a search does not wait for it.
#[repr(align(64))]
struct Busy<C: Clock> {
    gate: Gate<C>,
    suppressed: AtomicU64,
}

enum Gate<C: Clock> {
    Open,
    Sometimes(Sometimes<C>),
    Limiter(Limiter<C>),
}

impl<C: Clock> Site<C> {
    pub(crate) fn new(key: u64, late: bool, sampling: &Sampling, clock: &C) -> Self {
        let gate = match sampling {
            Sampling::All => Gate::Open,
            Sampling::Sometimes {
                first,
                every,
                interval,
            } => Gate::Sometimes(
                Sometimes::with_clock(clock.clone())
                    .first(*first)
                    .every(*every)
                    .interval(*interval),
            ),
            Sampling::Limit(limit) => Gate::Limiter(Limiter::with_clock(*limit, clock.clone())),
        };
        let [shown, told, suppressed] = [(); 3].map(|()| AtomicU64::new(0));
        Self {
            key,
            late,
            shown,
            told,
            report: OnceLock::new(),
            busy: Busy { gate, suppressed },
        }
    }

    /// Decides on one event, and counts it.
    #[inline]
    pub(crate) fn shows(&self) -> bool {
        let shows = match &self.busy.gate {
            Gate::Open => true,
            Gate::Sometimes(sometimes) => sometimes.run(|| ()).is_some(),
            Gate::Limiter(limiter) => limiter.check().is_allowed(),
        };
        let count = if shows {
            &self.shown
        } else {
            &self.busy.suppressed
        };
        count.fetch_add(1, Relaxed);
        shows
    }

    /// How many were suppressed that nobody was told of yet.
    pub(crate) fn take_untold(&self) -> u64 {
        let suppressed = self.busy.suppressed.load(Relaxed);
        // Threads that come here at once share the number between them.
        suppressed.saturating_sub(self.told.fetch_max(suppressed, Relaxed))
    }
}

/// A power of two, four times the callsites of a large program.
const SLOTS: usize = 4096;
/// Beyond this, searches would become long.
pub(crate) const MOST_SITES: usize = SLOTS / 4 * 3;

/// The callsites that were met. Entries are only added: a search reads until it finds its key or an
/// empty slot.
pub(crate) struct Sites<C: Clock> {
    slots: Box<[OnceLock<Box<Site<C>>>]>,
    used: Mutex<usize>,
    /// What callsites that found no room share, by level.
    shared: [Site<C>; 5],
}

impl<C: Clock> Sites<C> {
    pub(crate) fn new(rules: &Rules, clock: &C) -> Self {
        Self {
            slots: (0..SLOTS).map(|_| OnceLock::new()).collect(),
            used: Mutex::new(0),
            shared: LEVELS.map(|level| Site::new(0, true, rules.sampling_of_level(level), clock)),
        }
    }

    #[inline]
    pub(crate) fn find(&self, key: u64) -> Option<&Site<C>> {
        self.slots_of(key)
            .map_while(OnceLock::get)
            .map(|site| &**site)
            .find(|site| site.key == key)
    }

    /// The site with this key, made if there is none; none if there is no room.
    pub(crate) fn find_or_make(
        &self,
        key: u64,
        make: impl FnOnce() -> Site<C>,
    ) -> Option<&Site<C>> {
        if let Some(site) = self.find(key) {
            return Some(site);
        }
        // Rules may run code of the user's, which must not meet the lock.
        let made = Box::new(make());
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = self
            .slots_of(key)
            .find(|slot| slot.get().is_none_or(|site| site.key == key))?;
        if slot.get().is_none() {
            if *used == MOST_SITES {
                return None;
            }
            *used += 1;
        }
        Some(slot.get_or_init(|| made))
    }

    pub(crate) fn shared(&self, level: Level) -> &Site<C> {
        &self.shared[index(level)]
    }

    pub(crate) fn is_shared(&self, site: &Site<C>) -> bool {
        self.shared.iter().any(|shared| std::ptr::eq(shared, site))
    }

    /// All events so far, and how many of them were shown.
    pub(crate) fn total_and_shown(&self) -> (u64, u64) {
        let own = self
            .slots
            .iter()
            .filter_map(OnceLock::get)
            .map(|site| &**site);
        own.chain(&self.shared)
            .fold((0, 0), |(total, shown), site| {
                let shown_here = site.shown.load(Relaxed);
                (
                    total + shown_here + site.busy.suppressed.load(Relaxed),
                    shown + shown_here,
                )
            })
    }

    /// The slots in which a key may be, in the order of the search.
    #[inline]
    fn slots_of(&self, key: u64) -> impl Iterator<Item = &OnceLock<Box<Site<C>>>> {
        // Addresses differ in their middle bits; a multiplication carries those to the top.
        let start = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SLOTS.ilog2())) as usize;
        let (wrapped, first) = self.slots.split_at(start);
        first.iter().chain(wrapped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper::ManualClock;

    #[test]
    fn keys_that_fall_on_the_same_slots_are_found_until_the_table_is_full() {
        let (rules, clock) = (Rules::new(), ManualClock::new());
        let sites = Sites::new(&rules, &clock);
        let insert = |key| {
            let made = || Site::new(key, false, &Sampling::All, &clock);
            sites.find_or_make(key, made).map(|site| site.key)
        };
        // Small keys all begin their search in a few slots at either end.
        let keys = || (0..MOST_SITES as u64 / 2).flat_map(|n| [n, u64::MAX - n]);
        for key in keys() {
            assert!(sites.find(key).is_none());
            assert_eq!(insert(key), Some(key));
        }
        for key in keys() {
            assert_eq!(insert(key), Some(key));
            assert_eq!(sites.find(key).unwrap().key, key);
        }
        assert_eq!(insert(1 << 40), None);
        assert!(sites.find(1 << 40).is_none());
    }

    #[test]
    fn threads_that_meet_a_callsite_at_once_share_it() {
        let (rules, clock) = (Rules::new(), ManualClock::new());
        let sites = Sites::new(&rules, &clock);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for key in 0..500 {
                        let site = sites
                            .find_or_make(key, || Site::new(key, false, &Sampling::All, &clock));
                        assert!(site.unwrap().shows());
                    }
                });
            }
        });
        assert_eq!(sites.total_and_shown(), (2000, 2000));
        assert_eq!(*sites.used.lock().unwrap(), 500);
    }
}
