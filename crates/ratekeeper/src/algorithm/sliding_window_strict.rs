//! The strict sliding window: it never allows more than N in any window. It counts in small steps,
//! of which the oldest counts in full.
//!
//! It has S steps of W/S and one more counter. The price is that a call counts for up to W·(1 +
//! 1/S).

use super::{DecisionInfo, Refund, StateMachine, StepResult, WindowLimit, is_windowed};
use crate::decision::Decision;
use crate::limit::TickLimit;

/// Maximum number of steps per window. The number of steps must divide the window.
const MAX_STEPS: u64 = 10;
const COUNTERS: usize = MAX_STEPS as usize + 1;

/// The number of the newest step, and the counts of it and of the steps before, indexed by step
/// number modulo S + 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SlidingWindowStrict {
    newest: u64,
    counts: [u64; COUNTERS],
}

/// The largest number of steps that divides the window. A window of whole microseconds has steps of
/// whole microseconds, so that a store that counts in microseconds uses the same steps.
fn steps_of(limit: &WindowLimit) -> u64 {
    let micros = limit.window.is_multiple_of(1_000);
    steps(if micros {
        limit.window / 1_000
    } else {
        limit.window
    })
}

pub(crate) fn steps(window: u64) -> u64 {
    (1..=MAX_STEPS)
        .rev()
        .find(|steps| window.is_multiple_of(*steps))
        .unwrap_or(1)
}

impl SlidingWindowStrict {
    fn roll(mut self, limit: &WindowLimit, now: u64) -> (Self, u64, u64) {
        let steps = steps_of(limit);
        let length = limit.window / steps;
        let step = (now / length).max(self.newest);
        for passed in (1..=step - self.newest).take(steps as usize + 1) {
            self.counts[((self.newest + passed) % (steps + 1)) as usize] = 0;
        }
        if step - self.newest > steps {
            self.counts = [0; COUNTERS];
        }
        self.newest = step;
        (self, steps, length)
    }

    fn total(&self) -> u64 {
        self.counts
            .iter()
            .fold(0, |total, count| total.saturating_add(*count))
    }

    /// The age and count of each step, oldest first.
    fn oldest_first(&self, steps: u64) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        // Steps with a number below zero have counted nothing.
        (0..=steps).map(move |age| {
            let number = (self.newest % (steps + 1) + age + 1) % (steps + 1);
            (age, self.counts[number as usize])
        })
    }

    fn info(&self, limit: &WindowLimit, steps: u64, length: u64) -> DecisionInfo {
        let newest = self.oldest_first(steps).rev().find(|(_, count)| *count > 0);
        let reset_at = newest.map_or(0, |(age, _)| {
            self.newest.saturating_add(age + 1).saturating_mul(length)
        });
        DecisionInfo {
            remaining: limit.max.saturating_sub(self.total()),
            reset_at,
        }
    }
}

impl StateMachine for SlidingWindowStrict {
    is_windowed!();

    fn from_words(word: impl Fn(usize) -> u64) -> Self {
        Self {
            newest: word(0),
            counts: core::array::from_fn(|at| word(at + 1)),
        }
    }

    fn to_words(self, mut word: impl FnMut(usize, u64)) {
        word(0, self.newest);
        for (at, count) in self.counts.into_iter().enumerate() {
            word(at + 1, count);
        }
    }

    // A strict window is never packed (its limits have no shift): these are not called.
    fn pack(self, _: &WindowLimit) -> u64 {
        0
    }

    fn clip(self, _: &WindowLimit) -> Self {
        self
    }

    fn unpack(_: &WindowLimit, _: u64) -> Self {
        Self::default()
    }

    fn step(self, limit: &WindowLimit, now: u64, cost: u64) -> StepResult<Self> {
        let (mut state, steps, length) = self.roll(limit, now);
        if cost > limit.max {
            return StepResult::Never(state.info(limit, steps, length));
        }
        // The sum may exceed a word; more than `u64::MAX` over the limit makes no difference.
        let wanted = u128::from(state.total()) + u128::from(cost);
        let mut over =
            u64::try_from(wanted.saturating_sub(u128::from(limit.max))).unwrap_or(u64::MAX);
        if over > 0 {
            let mut dropped = 0;
            for (age, count) in state.oldest_first(steps) {
                over = over.saturating_sub(count);
                dropped = age + 1;
                if over == 0 {
                    break;
                }
            }
            let retry_at = state.newest.saturating_add(dropped).saturating_mul(length);
            return StepResult::Deny {
                info: state.info(limit, steps, length),
                retry_at,
            };
        }
        state.counts[(state.newest % (steps + 1)) as usize] += cost;
        StepResult::Admit(state, state.info(limit, steps, length))
    }

    fn charged_in(self) -> u64 {
        self.newest
    }

    fn give_back(mut self, limit: &WindowLimit, _: u64, refund: &Refund) -> Self {
        let Refund {
            charged_in, unused, ..
        } = *refund;
        let steps = steps_of(limit);
        if charged_in <= self.newest && self.newest - charged_in <= steps {
            let count = &mut self.counts[(charged_in % (steps + 1)) as usize];
            *count = count.saturating_sub(unused);
        }
        self
    }

    fn charge_more(self, limit: &WindowLimit, now: u64, extra: u64) -> Self {
        let (mut state, steps, _) = self.roll(limit, now);
        let free = limit.max.saturating_sub(state.total());
        let count = &mut state.counts[(state.newest % (steps + 1)) as usize];
        *count = count.saturating_add(extra.min(free));
        state
    }

    fn join(self, limit: &WindowLimit, other: Self) -> Self {
        let newest = self.newest.max(other.newest);
        let at = newest.saturating_mul(limit.window / steps_of(limit));
        let (mut joined, other) = (self.roll(limit, at).0, other.roll(limit, at).0);
        for (count, other) in joined.counts.iter_mut().zip(other.counts) {
            *count = (*count).max(other);
        }
        joined
    }
}
