//! The algorithms as pure state machines, one a file: state in, state out, time is an argument,
//! integers only.
//!
//! The token bucket and pacing count in ticks of the limit's normal form. The others count events
//! in windows of nanoseconds since the Unix epoch; what they have in common is here.

use crate::decision::Decision;
use crate::limit::TickLimit;

pub(crate) mod fixed_window;
pub(crate) mod pacing;
pub(crate) mod refundable_bucket;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
pub(crate) mod sliding_window_strict;
pub(crate) mod state_op;
pub(crate) mod tat_word;
pub(crate) mod token_bucket;

/// So many in each window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WindowLimit {
    /// N.
    pub(crate) max: u64,
    /// W, in nanoseconds, more than zero.
    pub(crate) window: u64,
    /// Bits that a packed state gives to each of its counts; 0 if the numbers do not fit one word.
    pub(crate) shift: u32,
}

impl WindowLimit {
    /// The bits for each of so many counts beside the number of a window, in 63 bits; 0 if they do
    /// not fit.
    pub(crate) const fn shift_for(&self, counts: u32) -> u32 {
        // Windows are numbered until the year 2262.
        let index = match (i64::MAX as u64 / self.window).checked_ilog2() {
            Some(bits) => bits + 1,
            None => 1,
        };
        let count = match self.max.checked_ilog2() {
            Some(bits) => bits + 1,
            None => 1,
        };
        let room = (63 - index) / counts;
        if count <= room { room } else { 0 }
    }
}

/// What became of a call, and the figures its caller may ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StepResult<S, T = DecisionInfo> {
    /// Admitted: the state that it leaves.
    Admit(S, T),
    /// Not admitted, nothing changes: it would be at `retry_at`.
    Deny { info: T, retry_at: u64 },
    /// No time will admit it.
    Never(T),
}

impl<S, T> StepResult<S, T> {
    /// The same judgement with the figures of the state before it, which `asking` for nothing
    /// tells.
    pub(crate) fn unwritten(self, asking: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Admit(..) => asking(),
            other => other,
        }
    }
}

/// The figures after a call, times as instants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DecisionInfo {
    pub(crate) remaining: u64,
    pub(crate) reset_at: u64,
}

/// A charge that is settled: when it was made, how much it was, and how much of that was not used.
#[derive(Clone, Copy)]
pub(crate) struct Refund {
    /// What [`Machine::charged_in`] said after the charge.
    pub(crate) charged_in: u64,
    pub(crate) cost: u64,
    pub(crate) unused: u64,
}

/// A machine whose state is a few words.
pub(crate) trait StateMachine: Copy + Default {
    /// The numbers it decides by.
    type Limit: Copy;
    /// The figures after a call.
    type Info: Copy;

    fn limit(limit: &TickLimit) -> Self::Limit;

    /// Whether a state fits one word.
    fn fits_a_word(limit: &Self::Limit) -> bool;

    /// The decision on a call at `now`.
    fn decision(limit: &TickLimit, result: &StepResult<Self, Self::Info>, now: u64) -> Decision;

    /// The state as up to twelve words.
    fn from_words(word: impl Fn(usize) -> u64) -> Self;
    fn to_words(self, word: impl FnMut(usize, u64));

    /// The whole state in one word below `u64::MAX`, where it fits.
    fn pack(self, limit: &Self::Limit) -> u64;

    /// The same with counts that [`pack`](Self::pack) has bits for: a state that comes from a
    /// larger limit is full at most.
    fn clip(self, limit: &Self::Limit) -> Self;

    fn unpack(limit: &Self::Limit, word: u64) -> Self;

    /// One call of `cost` at `now`.
    fn step(self, limit: &Self::Limit, now: u64, cost: u64) -> StepResult<Self, Self::Info>;

    /// The state after a call of `cost` that is not settled later. Windows need not know.
    #[inline(always)]
    fn finalize(self, _: &Self::Limit, _: u64) -> Self {
        self
    }

    /// What a charge is settled by: the window it was charged in, or the instant.
    fn charged_in(self) -> u64;

    /// Settles a charge. Windows give back what is unused, if its window is still counted.
    fn give_back(self, limit: &Self::Limit, now: u64, refund: &Refund) -> Self;

    /// Charges `extra` now; a window is full at most.
    fn charge_more(self, limit: &Self::Limit, now: u64, extra: u64) -> Self;

    /// Makes up to `tokens` less count. Returns how many.
    fn grant(self, limit: &Self::Limit, now: u64, tokens: u64) -> (Self, u64);

    /// A state that is as strict as both, at every instant.
    #[cfg_attr(not(feature = "std"), expect(dead_code))]
    fn join(self, limit: &Self::Limit, other: Self) -> Self;
}

/// What windows have in common as machines.
macro_rules! is_windowed {
    () => {
        type Limit = WindowLimit;
        type Info = DecisionInfo;

        #[inline(always)]
        fn limit(limit: &TickLimit) -> WindowLimit {
            limit.windowed()
        }

        #[inline(always)]
        fn fits_a_word(limit: &WindowLimit) -> bool {
            limit.shift > 0
        }

        #[inline(always)]
        fn decision(limit: &TickLimit, result: &StepResult<Self>, now: u64) -> Decision {
            Decision::windowed(limit, result, now)
        }

        fn grant(self, limit: &WindowLimit, now: u64, tokens: u64) -> (Self, u64) {
            let (StepResult::Admit(_, info)
            | StepResult::Deny { info, .. }
            | StepResult::Never(info)) = self.step(limit, now, 0);
            let granted = tokens.min(limit.max - info.remaining.min(limit.max));
            // Which window it is, also of one that is more than full.
            let charged_in = self.charge_more(limit, now, 0).charged_in();
            (
                self.give_back(
                    limit,
                    now,
                    &Refund {
                        charged_in,
                        cost: granted,
                        unused: granted,
                    },
                ),
                granted,
            )
        }
    };
}
use is_windowed;
