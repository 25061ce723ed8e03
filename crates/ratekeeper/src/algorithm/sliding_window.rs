//! The sliding window as a weighted counter: the previous window counts by the share of it that is
//! still inside.
//!
//! It has two counters. It allows at most N in each aligned window, and at most N + prev·e/W, below
//! 2N, in any window: an estimate that is exact only if the previous window was evenly filled.

use super::{DecisionInfo, Refund, StateMachine, StepResult, WindowLimit, is_windowed};
use crate::decision::Decision;
use crate::limit::TickLimit;

/// The number of the current window on the grid, and the counts of it and of the window before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SlidingWindow {
    at: u64,
    current: u64,
    before: u64,
}

impl SlidingWindow {
    fn roll(self, limit: &WindowLimit, now: u64) -> Self {
        let at = now / limit.window;
        if at <= self.at {
            // An instant before the stored window is judged at that window's start.
            self
        } else if at - self.at == 1 {
            Self {
                at,
                current: 0,
                before: self.current,
            }
        } else {
            Self {
                at,
                current: 0,
                before: 0,
            }
        }
    }

    fn start(self, limit: &WindowLimit) -> u64 {
        self.at.saturating_mul(limit.window)
    }

    fn info(self, limit: &WindowLimit, now: u64) -> DecisionInfo {
        let inside = limit.window - now.saturating_sub(self.start(limit));
        // Most products fit 64 bits, where a division costs a fraction of a 128-bit one.
        let weighted = match self.before.checked_mul(inside) {
            Some(product) => u128::from(product.div_ceil(limit.window)),
            None => {
                (u128::from(self.before) * u128::from(inside)).div_ceil(u128::from(limit.window))
            }
        };
        let counted = u128::from(self.current) + weighted;
        let windows = if self.current > 0 {
            2
        } else {
            u64::from(self.before > 0)
        };
        let reset_at = if windows == 0 {
            0
        } else {
            self.start(limit)
                .saturating_add(limit.window.saturating_mul(windows))
        };
        DecisionInfo {
            remaining: u128::from(limit.max).saturating_sub(counted) as u64,
            reset_at,
        }
    }

    /// When a call of `cost`, at most N, fits if there are no other calls.
    fn retry_at(self, limit: &WindowLimit, cost: u64) -> u64 {
        let (max, window) = (limit.max, u128::from(limit.window));
        let share = |free: u64, of: u64| {
            (u128::from(free) * window / u128::from(of.max(1))).min(window) as u64
        };
        let (windows, share) = if self.current <= max - cost {
            (1, share(max - cost - self.current, self.before))
        } else {
            (2, share(max - cost, self.current))
        };
        self.start(limit)
            .saturating_add(limit.window.saturating_mul(windows))
            .saturating_sub(share)
    }
}

impl StateMachine for SlidingWindow {
    is_windowed!();

    fn from_words(word: impl Fn(usize) -> u64) -> Self {
        Self {
            at: word(0),
            current: word(1),
            before: word(2),
        }
    }

    fn to_words(self, mut word: impl FnMut(usize, u64)) {
        word(0, self.at);
        word(1, self.current);
        word(2, self.before);
    }

    fn pack(self, limit: &WindowLimit) -> u64 {
        self.at << (2 * limit.shift) | self.current << limit.shift | self.before
    }

    fn clip(self, limit: &WindowLimit) -> Self {
        let max = (1 << limit.shift) - 1;
        Self {
            current: self.current.min(max),
            before: self.before.min(max),
            ..self
        }
    }

    fn unpack(limit: &WindowLimit, word: u64) -> Self {
        let mask = (1 << limit.shift) - 1;
        let at = word >> (2 * limit.shift);
        Self {
            at,
            current: word >> limit.shift & mask,
            before: word & mask,
        }
    }

    #[inline(always)]
    fn step(self, limit: &WindowLimit, now: u64, cost: u64) -> StepResult<Self> {
        let state = self.roll(limit, now);
        if cost > limit.max {
            return StepResult::Never(state.info(limit, now));
        }
        let window = u128::from(limit.window);
        let inside = u128::from(limit.window - now.saturating_sub(state.start(limit)));
        let here = (u128::from(state.current) + u128::from(cost)).saturating_mul(window);
        let counted = (u128::from(state.before) * inside).saturating_add(here);
        if counted > u128::from(limit.max) * window {
            return StepResult::Deny {
                info: state.info(limit, now),
                retry_at: state.retry_at(limit, cost),
            };
        }
        let after = Self {
            current: state.current + cost,
            ..state
        };
        StepResult::Admit(after, after.info(limit, now))
    }

    fn charged_in(self) -> u64 {
        self.at
    }

    fn give_back(self, _: &WindowLimit, _: u64, refund: &Refund) -> Self {
        let Refund {
            charged_in, unused, ..
        } = *refund;
        if self.at == charged_in {
            Self {
                current: self.current.saturating_sub(unused),
                ..self
            }
        } else if self.at.wrapping_sub(charged_in) == 1 {
            Self {
                before: self.before.saturating_sub(unused),
                ..self
            }
        } else {
            self
        }
    }

    fn charge_more(self, limit: &WindowLimit, now: u64, extra: u64) -> Self {
        let state = self.roll(limit, now);
        Self {
            current: state
                .current
                .saturating_add(extra)
                .min(limit.max)
                .max(state.current),
            ..state
        }
    }

    fn join(self, _: &WindowLimit, other: Self) -> Self {
        let (late, early) = if self.at >= other.at {
            (self, other)
        } else {
            (other, self)
        };
        // What the earlier state counts, seen from the later window.
        let (current, before) = match late.at - early.at {
            0 => (early.current, early.before),
            1 => (0, early.current),
            _ => (0, 0),
        };
        Self {
            at: late.at,
            current: late.current.max(current),
            before: late.before.max(before),
        }
    }
}
