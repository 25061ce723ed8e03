//! [`CallsiteState`] and [`CallsiteTable`]: the state of a callsite, and the table that finds it
//! without a lock.

use crate::rules::{LEVELS, Rules, Sampling, index};
use ratekeeper::{Clock, Limiter, Sometimes};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use tracing_core::{Level, Metadata};

/// The state of one callsite.
pub(crate) struct CallsiteState<C: Clock> {
    key: u64,
    /// Its events are decided with their fields, not by their callsite alone.
    pub(crate) decide_on_event: bool,
    shown: AtomicU64,
    /// How many suppressed events were reported.
    reported: AtomicU64,
    /// The metadata of its reports; created for the first one.
    pub(crate) report: OnceLock<&'static Metadata<'static>>,
    hot: HotState<C>,
}

/// The part that every event writes to, on a cache line of its own, so that a search does not wait
/// for it.
#[repr(align(64))]
struct HotState<C: Clock> {
    filter: EventFilter<C>,
    suppressed: AtomicU64,
}

enum EventFilter<C: Clock> {
    All,
    Sometimes(Sometimes<C>),
    Limiter(Limiter<C>),
}

impl<C: Clock> CallsiteState<C> {
    pub(crate) fn new(key: u64, decide_on_event: bool, sampling: &Sampling, clock: &C) -> Self {
        let filter = match sampling {
            Sampling::All => EventFilter::All,
            Sampling::Sometimes {
                first,
                every,
                interval,
            } => EventFilter::Sometimes(
                Sometimes::with_clock(clock.clone())
                    .first(*first)
                    .every(*every)
                    .interval(*interval),
            ),
            Sampling::Limit(limit) => {
                EventFilter::Limiter(Limiter::with_clock(*limit, clock.clone()))
            }
        };
        let [shown, reported, suppressed] = [(); 3].map(|()| AtomicU64::new(0));
        Self {
            key,
            decide_on_event,
            shown,
            reported,
            report: OnceLock::new(),
            hot: HotState { filter, suppressed },
        }
    }

    /// Decides on one event, and counts it.
    #[inline]
    pub(crate) fn sample(&self) -> bool {
        let is_shown = match &self.hot.filter {
            EventFilter::All => true,
            EventFilter::Sometimes(sometimes) => sometimes.run(|| ()).is_some(),
            EventFilter::Limiter(limiter) => limiter.check().is_allowed(),
        };
        let count = if is_shown {
            &self.shown
        } else {
            &self.hot.suppressed
        };
        count.fetch_add(1, Relaxed);
        is_shown
    }

    /// Takes the number of suppressed events that were not reported yet.
    pub(crate) fn take_unreported(&self) -> u64 {
        let suppressed = self.hot.suppressed.load(Relaxed);
        // Concurrent threads share the number between them.
        suppressed.saturating_sub(self.reported.fetch_max(suppressed, Relaxed))
    }
}

/// A power of two, four times the callsites of a large program.
const SLOTS: usize = 4096;
/// The most entries: beyond this, searches would become long.
pub(crate) const MAX_CALLSITES: usize = SLOTS / 4 * 3;

/// The registered callsites. Entries are only added: a search reads until it finds its key or an
/// empty slot.
pub(crate) struct CallsiteTable<C: Clock> {
    slots: Box<[OnceLock<Box<CallsiteState<C>>>]>,
    used: Mutex<usize>,
    /// Shared states for callsites beyond the capacity, by level.
    shared: [CallsiteState<C>; 5],
}

impl<C: Clock> CallsiteTable<C> {
    pub(crate) fn new(rules: &Rules, clock: &C) -> Self {
        Self {
            slots: (0..SLOTS).map(|_| OnceLock::new()).collect(),
            used: Mutex::new(0),
            shared: LEVELS
                .map(|level| CallsiteState::new(0, true, rules.sampling_of_level(level), clock)),
        }
    }

    #[inline]
    pub(crate) fn find(&self, key: u64) -> Option<&CallsiteState<C>> {
        self.slots_of(key)
            .map_while(OnceLock::get)
            .map(|site| &**site)
            .find(|site| site.key == key)
    }

    /// The state with this key, inserted if missing; `None` if the table is full.
    pub(crate) fn find_or_insert(
        &self,
        key: u64,
        make: impl FnOnce() -> CallsiteState<C>,
    ) -> Option<&CallsiteState<C>> {
        if let Some(site) = self.find(key) {
            return Some(site);
        }
        // Rules may run user code, which must not run under the lock.
        let new_site = Box::new(make());
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = self
            .slots_of(key)
            .find(|slot| slot.get().is_none_or(|site| site.key == key))?;
        if slot.get().is_none() {
            if *used == MAX_CALLSITES {
                return None;
            }
            *used += 1;
        }
        Some(slot.get_or_init(|| new_site))
    }

    pub(crate) fn shared(&self, level: Level) -> &CallsiteState<C> {
        &self.shared[index(level)]
    }

    pub(crate) fn is_shared(&self, site: &CallsiteState<C>) -> bool {
        self.shared.iter().any(|shared| std::ptr::eq(shared, site))
    }

    /// The number of all events so far, and of those shown.
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
                    total + shown_here + site.hot.suppressed.load(Relaxed),
                    shown + shown_here,
                )
            })
    }

    /// The slots in which a key may be, in the order of the search.
    #[inline]
    fn slots_of(&self, key: u64) -> impl Iterator<Item = &OnceLock<Box<CallsiteState<C>>>> {
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
    fn colliding_keys_are_found_until_the_table_is_full() {
        let (rules, clock) = (Rules::new(), ManualClock::new());
        let sites = CallsiteTable::new(&rules, &clock);
        let insert = |key| {
            let new_site = || CallsiteState::new(key, false, &Sampling::All, &clock);
            sites.find_or_insert(key, new_site).map(|site| site.key)
        };
        // Small keys all begin their search in a few slots at either end.
        let keys = || (0..MAX_CALLSITES as u64 / 2).flat_map(|n| [n, u64::MAX - n]);
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
    fn threads_that_register_a_callsite_at_once_share_it() {
        let (rules, clock) = (Rules::new(), ManualClock::new());
        let sites = CallsiteTable::new(&rules, &clock);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for key in 0..500 {
                        let site = sites.find_or_insert(key, || {
                            CallsiteState::new(key, false, &Sampling::All, &clock)
                        });
                        assert!(site.unwrap().sample());
                    }
                });
            }
        });
        assert_eq!(sites.total_and_shown(), (2000, 2000));
        assert_eq!(*sites.used.lock().unwrap(), 500);
    }
}
