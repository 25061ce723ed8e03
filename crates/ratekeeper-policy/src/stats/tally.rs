//! Decision counters of one policy, and the cost it allowed in its last window.

use super::stripes::Striped;
use ratekeeper::Timestamp;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::Duration;

/// An outcome of a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// Allowed at once.
    Allowed,
    /// Denied.
    Denied,
    /// Would have been denied, were the policy not in shadow mode.
    ShadowDenied,
    /// Allowed after a delay.
    Delayed,
    /// The store could not be reached.
    Error,
}

const EVENTS: usize = 5;

/// Counts of each outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DecisionStats {
    /// Allowed at once.
    pub allowed: u64,
    /// Denied.
    pub denied: u64,
    /// Would have been denied, were the policy not in shadow mode.
    pub shadow_denied: u64,
    /// Allowed after a delay.
    pub delayed: u64,
    /// The store could not be reached.
    pub errors: u64,
}

/// The counters of one policy. Counting takes one write to a cache line that the thread shares with
/// few or no others.
#[derive(Debug)]
pub(crate) struct Tally {
    /// In nanoseconds; 0 for no window.
    window: AtomicU64,
    stripes: Striped<Stripe>,
}

/// One cache line: the outcomes, and the last two windows with allowed cost.
#[derive(Debug, Default)]
struct Stripe {
    events: [AtomicU64; EVENTS],
    /// The number of the latest window on the grid that starts at the Unix epoch.
    latest: AtomicU64,
    /// The cost allowed in the latest even and in the latest odd window. Each word is tagged with
    /// its window, so that threads which start a new window at once lose nothing: the low bits of
    /// the window number, then the cost.
    windows: [AtomicU64; 2],
}

const COST_BITS: u32 = 48;
/// The cost of a window saturates here, at 281 TB if the cost is in bytes.
const MAX_COST: u64 = (1 << COST_BITS) - 1;

impl Tally {
    /// Creates empty counters. With a zero `window` allowed cost is not tracked.
    pub(crate) fn new(window: Duration) -> Self {
        Self {
            window: AtomicU64::new(nanos(window)),
            stripes: Striped::default(),
        }
    }

    /// Counts an outcome.
    #[inline]
    pub(crate) fn add(&self, event: Event) {
        self.stripes.current().events[event as usize].fetch_add(1, Relaxed);
    }

    /// Adds allowed cost to the window of `now`.
    ///
    /// Cost that comes one window late is counted where it belongs. Cost that comes two windows
    /// late, or early, restarts the thread's share of the sum: a clock that jumps cannot leave it
    /// stuck.
    #[inline]
    pub(crate) fn add_cost(&self, cost: u64, now: Timestamp) {
        let window = self.window.load(Relaxed);
        if window > 0 {
            self.stripes
                .current()
                .add_cost(cost, now.as_unix_nanos(), window);
        }
    }

    /// The counts so far.
    pub(crate) fn read(&self) -> DecisionStats {
        let count = |event: Event| {
            let each = self
                .stripes
                .iter()
                .map(|stripe| stripe.events[event as usize].load(Relaxed));
            each.fold(0, u64::wrapping_add)
        };
        DecisionStats {
            allowed: count(Event::Allowed),
            denied: count(Event::Denied),
            shadow_denied: count(Event::ShadowDenied),
            delayed: count(Event::Delayed),
            errors: count(Event::Error),
        }
    }

    /// The allowed cost of the window that ends now, as the sliding counter estimates it: all of
    /// the current window on the grid and, of the one before, the share that is still inside,
    /// rounded up.
    pub(crate) fn in_window(&self, now: Timestamp) -> u64 {
        let window = self.window.load(Relaxed);
        if window == 0 {
            return 0;
        }
        let now = now.as_unix_nanos();
        let number = now / window;
        let inside = window - now % window;
        let mut current = 0;
        let mut before = 0;
        for stripe in self.stripes.iter() {
            // A thread may have entered the next window since the caller read its clock. Other
            // windows are stale.
            if stripe
                .latest
                .load(Acquire)
                .wrapping_sub(number)
                .wrapping_add(1)
                <= 2
            {
                current += stripe.cost_in(number) + stripe.cost_in(number.wrapping_add(1));
                before += stripe.cost_in(number.wrapping_sub(1));
            }
        }
        // Eight stripes of 48 bits, and a share of as much: no overflow.
        current + (u128::from(before) * u128::from(inside)).div_ceil(u128::from(window)) as u64
    }

    /// Sets another window; zero for no window. The allowed cost so far is dropped, since it lies
    /// on another grid.
    pub(crate) fn set_window(&self, window: Duration) {
        let window = nanos(window);
        if self.window.swap(window, Relaxed) == window {
            return;
        }
        // A thread that has read the old window may still write after this; the next event sets it
        // right.
        for stripe in self.stripes.iter() {
            stripe
                .windows
                .iter()
                .for_each(|word| word.store(0, Relaxed));
            stripe.latest.store(0, Release);
        }
    }
}

impl Stripe {
    #[inline]
    fn add_cost(&self, cost: u64, now: u64, window: u64) {
        let latest = self.latest.load(Acquire);
        // Usually the same window as before: a multiplication costs less than the division.
        let same = now.wrapping_sub(latest.wrapping_mul(window)) < window;
        let number = if same { latest } else { now / window };
        let late = latest.wrapping_sub(number) == 1;
        if !same && !late {
            self.roll(latest, number);
        }
        let fresh = number << COST_BITS;
        let word = &self.windows[(number & 1) as usize];
        let _ = word.fetch_update(Relaxed, Relaxed, |value| {
            let before = if value & !MAX_COST == fresh {
                value & MAX_COST
            } else {
                0
            };
            Some(fresh | before.saturating_add(cost).min(MAX_COST))
        });
    }

    /// Moves on to the window `to`. One step leaves both words valid; after a longer pause they are
    /// cleared, since the few bits of a window number in a word repeat.
    #[cold]
    fn roll(&self, from: u64, to: u64) {
        let value = [self.windows[0].load(Relaxed), self.windows[1].load(Relaxed)];
        if self
            .latest
            .compare_exchange(from, to, Release, Relaxed)
            .is_ok()
            && to.wrapping_sub(from) != 1
        {
            for (word, value) in self.windows.iter().zip(value) {
                // It fails if another thread, which saw the new number, has counted since: then it
                // is current.
                let _ = word.compare_exchange(value, 0, Relaxed, Relaxed);
            }
        }
    }

    fn cost_in(&self, number: u64) -> u64 {
        let value = self.windows[(number & 1) as usize].load(Relaxed);
        if value & !MAX_COST == number << COST_BITS {
            value & MAX_COST
        } else {
            0
        }
    }
}

/// Clipped to 584 years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::sync::Barrier;

    const SECOND: u64 = 1_000_000_000;

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_unix_nanos(nanos)
    }

    /// Of one second, and well after the epoch, at the start of a window.
    fn tally() -> (Tally, u64) {
        (Tally::new(Duration::from_secs(1)), 1_700_000_000 * SECOND)
    }

    #[test]
    fn each_event_has_its_count() {
        let tally = Tally::new(Duration::ZERO);
        let events = [
            Event::Allowed,
            Event::Denied,
            Event::ShadowDenied,
            Event::Delayed,
            Event::Error,
        ];
        for (times, event) in (1..).zip(events) {
            (0..times).for_each(|_| tally.add(event));
        }
        assert_eq!(
            tally.read(),
            DecisionStats {
                allowed: 1,
                denied: 2,
                shadow_denied: 3,
                delayed: 4,
                errors: 5
            }
        );
    }

    #[test]
    fn a_stripe_is_one_cache_line() {
        assert_eq!(size_of::<Stripe>(), 64);
    }

    #[test]
    fn the_previous_window_counts_by_its_remaining_share() {
        let (tally, start) = tally();
        tally.add_cost(100, at(start));
        assert_eq!(tally.in_window(at(start)), 100);
        assert_eq!(tally.in_window(at(start + SECOND - 1)), 100);
        assert_eq!(tally.in_window(at(start + SECOND)), 100);
        assert_eq!(tally.in_window(at(start + SECOND + SECOND / 4)), 75);
        tally.add_cost(7, at(start + SECOND + SECOND / 4));
        assert_eq!(tally.in_window(at(start + SECOND + SECOND / 2)), 57);
        assert_eq!(
            tally.in_window(at(start + SECOND + SECOND / 2 + 1)),
            57,
            "rounded up"
        );
        assert_eq!(tally.in_window(at(start + 2 * SECOND)), 7);
        assert_eq!(tally.in_window(at(start + 3 * SECOND)), 0);
    }

    #[test]
    fn old_windows_stay_cleared_when_the_number_wraps() {
        const ROUND: u64 = 1 << 16;
        let (tally, start) = tally();
        tally.add_cost(100, at(start));
        for later in [ROUND - 1, ROUND, ROUND + 1, 2 * ROUND] {
            assert_eq!(tally.in_window(at(start + later * SECOND)), 0);
        }
        tally.add_cost(1, at(start + ROUND * SECOND));
        assert_eq!(tally.in_window(at(start + ROUND * SECOND)), 1);
    }

    #[test]
    fn the_epoch_is_a_valid_window() {
        let (tally, _) = tally();
        assert_eq!(tally.in_window(at(0)), 0);
        tally.add_cost(3, at(0));
        assert_eq!(tally.in_window(at(0)), 3);
        tally.add_cost(2, at(u64::MAX));
        assert_eq!(tally.in_window(at(u64::MAX)), 2);
    }

    #[test]
    fn late_cost_counts_where_it_belongs() {
        let (tally, start) = tally();
        tally.add_cost(10, at(start + SECOND));
        tally.add_cost(4, at(start));
        assert_eq!(tally.in_window(at(start + SECOND + SECOND / 2)), 12);
        // A reader whose clock is a little behind sees all of what is there.
        assert_eq!(tally.in_window(at(start + SECOND - 1)), 14);
    }

    #[test]
    fn a_clock_that_jumped_ahead_and_back_does_not_block() {
        let (tally, start) = tally();
        tally.add_cost(5, at(start + 1_000 * SECOND));
        tally.add_cost(1, at(start));
        assert_eq!(tally.in_window(at(start)), 1);
        tally.add_cost(1, at(start + SECOND));
        assert_eq!(tally.in_window(at(start + SECOND)), 2);
    }

    #[test]
    fn a_window_can_be_changed() {
        let (tally, start) = tally();
        tally.add_cost(5, at(start));
        tally.set_window(Duration::from_secs(1));
        assert_eq!(
            tally.in_window(at(start)),
            5,
            "the same window: nothing is forgotten"
        );
        for seconds in [3_600, 1, 60] {
            tally.set_window(Duration::from_secs(seconds));
            assert_eq!(tally.in_window(at(start)), 0);
            tally.add_cost(7, at(start));
            assert_eq!(tally.in_window(at(start)), 7);
        }
        tally.set_window(Duration::ZERO);
        tally.add_cost(7, at(start));
        assert_eq!(tally.in_window(at(start)), 0);
    }

    #[test]
    fn a_huge_cost_saturates() {
        let (tally, start) = tally();
        tally.add_cost(u64::MAX, at(start));
        tally.add_cost(u64::MAX, at(start));
        assert_eq!(tally.in_window(at(start)), MAX_COST);
        assert_eq!(tally.in_window(at(start + SECOND)), MAX_COST);
        assert_eq!(tally.in_window(at(start + 2 * SECOND)), 0);
    }

    #[test]
    fn threads_that_share_a_stripe_lose_nothing() {
        const THREADS: u64 = 24;
        const EACH: u64 = 50;
        let (tally, start) = tally();
        let barrier = Barrier::new(THREADS as usize);
        // Steps of one window, and longer ones after which the words are emptied.
        let windows = [0, 1, 2, 3, 7, 8, 20, 21, 65_557, 65_558];
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for window in windows {
                        let now = at(start + window * SECOND);
                        barrier.wait();
                        for _ in 0..EACH {
                            tally.add_cost(1, now);
                            tally.add(Event::Allowed);
                        }
                        barrier.wait();
                        let before = if windows.contains(&window.wrapping_sub(1)) {
                            THREADS * EACH
                        } else {
                            0
                        };
                        assert_eq!(tally.in_window(now), before + THREADS * EACH);
                    }
                });
            }
        });
        assert_eq!(tally.read().allowed, THREADS * EACH * windows.len() as u64);
    }

    proptest! {
        #[test]
        fn one_thread_agrees_with_the_formula(
            window in 1u64..1_000,
            events in prop::collection::vec((0u64..3_000, 0u64..1_000), 1..60),
        ) {
            let tally = Tally::new(Duration::from_nanos(window));
            let mut exact = BTreeMap::<u64, u64>::new();
            let mut now = 1_000_000;
            for (later, cost) in events {
                now += later;
                let of = |exact: &BTreeMap<u64, u64>, number| exact.get(&number).copied().unwrap_or(0);
                let number = now / window;
                let share = of(&exact, number - 1) * (window - now % window);
                prop_assert_eq!(tally.in_window(at(now)), of(&exact, number) + share.div_ceil(window));
                tally.add_cost(cost, at(now));
                *exact.entry(number).or_default() += cost;
                prop_assert_eq!(tally.in_window(at(now)), of(&exact, number) + share.div_ceil(window));
            }
        }
    }
}
