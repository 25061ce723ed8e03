//! The algorithms as pure state machines, one per file: state in, state out, time as an argument,
//! integers only.
//!
//! The token bucket and pacing count in ticks of the limit's [`TickLimit`]. The others count events
//! in windows of nanoseconds since the Unix epoch; what these have in common is here.

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

/// The numbers of a window algorithm: at most `max` events in each `window`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WindowLimit {
    /// The count N.
    pub(crate) max: u64,
    /// The window W in nanoseconds, more than zero.
    pub(crate) window: u64,
    /// Bits that a packed state uses for each count; 0 if the state does not fit one word.
    pub(crate) shift: u32,
}

impl WindowLimit {
    /// Bits available for each of `counts` counters beside a window number, in 63 bits; 0 if the
    /// counters do not fit.
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
        let bits = (63 - index) / counts;
        if count <= bits { bits } else { 0 }
    }
}

/// The result of one call on a state, with the numbers reported to the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StepResult<S, T = DecisionInfo> {
    /// Allowed: the new state.
    Admit(S, T),
    /// Denied, the state is unchanged: the same call is allowed at `retry_at`.
    Deny { info: T, retry_at: u64 },
    /// Never allowed, however long the caller waits.
    Never(T),
}

impl<S, T> StepResult<S, T> {
    /// The same result with the numbers of the state before the call, computed by `peek` (a call of
    /// cost 0).
    pub(crate) fn unwritten(self, peek: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Admit(..) => peek(),
            other => other,
        }
    }
}

/// The numbers of a state after a call; times are instants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DecisionInfo {
    pub(crate) remaining: u64,
    pub(crate) reset_at: u64,
}

/// The refund of a settled charge: when it was charged, its cost, and how much of it was not used.
#[derive(Clone, Copy)]
pub(crate) struct Refund {
    /// What [`StateMachine::charged_in`] returned after the charge.
    pub(crate) charged_in: u64,
    pub(crate) cost: u64,
    pub(crate) unused: u64,
}

/// An algorithm whose state is a few words.
pub(crate) trait StateMachine: Copy + Default {
    /// The numbers of the limit.
    type Limit: Copy;
    /// The numbers reported after a call.
    type Info: Copy;

    fn limit(limit: &TickLimit) -> Self::Limit;

    /// Whether a state fits one word.
    fn fits_a_word(limit: &Self::Limit) -> bool;

    /// Converts the result of a call at `now` into a decision.
    fn decision(limit: &TickLimit, result: &StepResult<Self, Self::Info>, now: u64) -> Decision;

    /// Reads the state from up to [`MAX_STATE_WORDS`](state_op::MAX_STATE_WORDS) words.
    fn from_words(word: impl Fn(usize) -> u64) -> Self;
    fn to_words(self, word: impl FnMut(usize, u64));

    /// Packs the whole state into one word below `u64::MAX`, where it fits.
    fn pack(self, limit: &Self::Limit) -> u64;

    /// Reduces the counts to what [`pack`](Self::pack) has bits for: a state that comes from a
    /// larger limit becomes a full one.
    fn clip(self, limit: &Self::Limit) -> Self;

    fn unpack(limit: &Self::Limit, word: u64) -> Self;

    /// One call of `cost` at `now`.
    fn step(self, limit: &Self::Limit, now: u64, cost: u64) -> StepResult<Self, Self::Info>;

    /// Marks the last charge of `cost` as final: it will not be settled later. Windows need not
    /// distinguish.
    #[inline(always)]
    fn finalize(self, _: &Self::Limit, _: u64) -> Self {
        self
    }

    /// Identifies the last charge for a later settle: the window it was charged in, or its instant.
    fn charged_in(self) -> u64;

    /// Settles a charge. Windows give back the unused part if the charge's window is still counted.
    fn give_back(self, limit: &Self::Limit, now: u64, refund: &Refund) -> Self;

    /// Charges `extra` now without a check; a window becomes full at most.
    fn charge_more(self, limit: &Self::Limit, now: u64, extra: u64) -> Self;

    /// Takes up to `tokens` back out of the state. Returns how many.
    fn grant(self, limit: &Self::Limit, now: u64, tokens: u64) -> (Self, u64);

    /// A state that is as strict as both, at every instant.
    #[cfg_attr(not(feature = "std"), expect(dead_code))]
    fn join(self, limit: &Self::Limit, other: Self) -> Self;
}

/// The part of [`StateMachine`] that all window algorithms implement alike.
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
            // The current window's number, also if the window is more than full.
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
