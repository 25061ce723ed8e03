//! Fixed windows: at most N events in each window, aligned to the Unix epoch or starting with the
//! first call.
//!
//! Simple and cheap; at the boundary of two windows twice the limit can be allowed in an instant.

use super::{DecisionInfo, Refund, StateMachine, StepResult, WindowLimit, is_windowed};
use crate::decision::Decision;
use crate::limit::TickLimit;

/// A fixed window and the count of events in it. With `FIRST_HIT` a window starts with its first
/// call instead of on the grid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct FixedWindow<const FIRST_HIT: bool> {
    /// The window's number on the grid, which a check finds with one division; with `FIRST_HIT`,
    /// its start.
    at: u64,
    count: u64,
}

impl<const FIRST_HIT: bool> FixedWindow<FIRST_HIT> {
    /// The state rolled forward to the window that contains `now`. An instant before the stored
    /// window is judged at that window's start.
    fn roll(self, limit: &WindowLimit, now: u64) -> Self {
        if FIRST_HIT {
            let over = self.count == 0 || now.saturating_sub(self.at) >= limit.window;
            return if over {
                Self {
                    at: now.max(self.at),
                    count: 0,
                }
            } else {
                self
            };
        }
        let at = now / limit.window;
        if at > self.at {
            Self { at, count: 0 }
        } else {
            self
        }
    }

    fn ends(self, limit: &WindowLimit) -> u64 {
        let start = if FIRST_HIT {
            self.at
        } else {
            self.at.saturating_mul(limit.window)
        };
        start.saturating_add(limit.window)
    }

    fn info(self, limit: &WindowLimit) -> DecisionInfo {
        let reset_at = if self.count == 0 { 0 } else { self.ends(limit) };
        DecisionInfo {
            remaining: limit.max.saturating_sub(self.count),
            reset_at,
        }
    }
}

impl<const FIRST_HIT: bool> StateMachine for FixedWindow<FIRST_HIT> {
    is_windowed!();

    fn from_words(word: impl Fn(usize) -> u64) -> Self {
        Self {
            at: word(0),
            count: word(1),
        }
    }

    fn to_words(self, mut word: impl FnMut(usize, u64)) {
        word(0, self.at);
        word(1, self.count);
    }

    fn pack(self, limit: &WindowLimit) -> u64 {
        self.at << limit.shift | self.count
    }

    fn clip(self, limit: &WindowLimit) -> Self {
        Self {
            count: self.count.min((1 << limit.shift) - 1),
            ..self
        }
    }

    fn unpack(limit: &WindowLimit, word: u64) -> Self {
        Self {
            at: word >> limit.shift,
            count: word & ((1 << limit.shift) - 1),
        }
    }

    #[inline(always)]
    fn step(self, limit: &WindowLimit, now: u64, cost: u64) -> StepResult<Self> {
        let state = self.roll(limit, now);
        if cost > limit.max {
            return StepResult::Never(state.info(limit));
        }
        if cost > limit.max.saturating_sub(state.count) {
            return StepResult::Deny {
                info: state.info(limit),
                retry_at: state.ends(limit),
            };
        }
        let after = Self {
            count: state.count + cost,
            ..state
        };
        StepResult::Admit(after, after.info(limit))
    }

    fn charged_in(self) -> u64 {
        self.at
    }

    fn give_back(self, _: &WindowLimit, _: u64, refund: &Refund) -> Self {
        if self.at == refund.charged_in {
            Self {
                count: self.count.saturating_sub(refund.unused),
                ..self
            }
        } else {
            self
        }
    }

    fn charge_more(self, limit: &WindowLimit, now: u64, extra: u64) -> Self {
        let state = self.roll(limit, now);
        Self {
            count: state
                .count
                .saturating_add(extra)
                .min(limit.max)
                .max(state.count),
            ..state
        }
    }

    fn join(self, limit: &WindowLimit, other: Self) -> Self {
        let (late, early) = if self.at >= other.at {
            (self, other)
        } else {
            (other, self)
        };
        let apart = if FIRST_HIT {
            late.at - early.at >= limit.window
        } else {
            late.at > early.at
        };
        if apart {
            late
        } else {
            Self {
                at: late.at,
                count: late.count.max(early.count),
            }
        }
    }
}
