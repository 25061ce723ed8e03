//! Operations on a [`StateMachine`] of any kind: charge, refund, extra charge and grant, on a state
//! that is packed into one word or spread over several.

#[cfg(feature = "std")]
use super::refundable_bucket::RefundableBucket;
use super::{Refund, StateMachine, StepResult};
use crate::decision::Decision;
use crate::limit::TickLimit;

/// The most words that a state may have, other than a log.
pub(crate) const MAX_STATE_WORDS: usize = 12;

/// A call's decision, and the identifier of the window it was charged in.
pub(crate) struct WindowDecision {
    pub(crate) decision: Decision,
    pub(crate) charged_in: u64,
}

/// An operation on a state: returns the new state (none: unchanged) and a result.
pub(crate) trait StateOp {
    type Out;
    fn apply<M: StateMachine>(&self, limit: &M::Limit, state: M) -> (Option<M>, Self::Out);
}

/// A call of `cost`; with `write`, the new state is stored if the call is allowed.
pub(crate) struct ChargeOp<'a> {
    pub(crate) limit: &'a TickLimit,
    pub(crate) now: u64,
    pub(crate) cost: u64,
    pub(crate) write: bool,
    /// Whether the charge is final; otherwise it is settled later.
    pub(crate) is_final: bool,
}

impl StateOp for ChargeOp<'_> {
    type Out = WindowDecision;

    // Always: out of line, the state and the reported numbers go through memory, which costs more
    // than the decision.
    #[inline(always)]
    fn apply<M: StateMachine>(&self, limit: &M::Limit, state: M) -> (Option<M>, WindowDecision) {
        let result = state.step(limit, self.now, self.cost);
        // A call that only peeks reports the state as it is now.
        let info = if self.write {
            result
        } else {
            result.unwritten(|| state.step(limit, self.now, 0))
        };
        let decision = M::decision(self.limit, &info, self.now);
        match result {
            StepResult::Admit(after, _) => {
                let after = if self.is_final {
                    after.finalize(limit, self.cost)
                } else {
                    after
                };
                let written = (self.write && self.cost > 0).then_some(after);
                (
                    written,
                    WindowDecision {
                        decision,
                        charged_in: after.charged_in(),
                    },
                )
            }
            // A peek of cost 0 reports which window it is, also if the window is more than full.
            _ if self.cost == 0 => {
                let here = state.charge_more(limit, self.now, 0);
                (
                    None,
                    WindowDecision {
                        decision,
                        charged_in: here.charged_in(),
                    },
                )
            }
            _ => (
                None,
                WindowDecision {
                    decision,
                    charged_in: 0,
                },
            ),
        }
    }
}

/// Settles a charge: the unused part comes back if it is still counted.
pub(crate) struct RefundOp {
    pub(crate) now: u64,
    pub(crate) refund: Refund,
}

impl StateOp for RefundOp {
    type Out = ();

    fn apply<M: StateMachine>(&self, limit: &M::Limit, state: M) -> (Option<M>, ()) {
        (Some(state.give_back(limit, self.now, &self.refund)), ())
    }
}

/// Charges `extra` now without a check; the window becomes full at most.
pub(crate) struct SurchargeOp {
    pub(crate) now: u64,
    pub(crate) extra: u64,
}

impl StateOp for SurchargeOp {
    type Out = ();

    fn apply<M: StateMachine>(&self, limit: &M::Limit, state: M) -> (Option<M>, ()) {
        (Some(state.charge_more(limit, self.now, self.extra)), ())
    }
}

/// Takes up to `tokens` back out of the state. Returns how many.
pub(crate) struct GrantOp {
    pub(crate) now: u64,
    pub(crate) tokens: u64,
}

impl StateOp for GrantOp {
    type Out = u64;

    fn apply<M: StateMachine>(&self, limit: &M::Limit, state: M) -> (Option<M>, u64) {
        let (after, granted) = state.grant(limit, self.now, self.tokens);
        (Some(after), granted)
    }
}

/// Runs `$body` with `$machine` as the [`StateMachine`] of the kind.
macro_rules! with_machine {
    ($kind:expr, $machine:ident => $body:expr) => {
        match $kind {
            $crate::limit::Kind::FixedWindow => {
                type $machine = $crate::algorithm::fixed_window::FixedWindow<false>;
                $body
            }
            $crate::limit::Kind::FirstHit => {
                type $machine = $crate::algorithm::fixed_window::FixedWindow<true>;
                $body
            }
            $crate::limit::Kind::SlidingWindow => {
                type $machine = $crate::algorithm::sliding_window::SlidingWindow;
                $body
            }
            $crate::limit::Kind::Refundable => {
                type $machine = $crate::algorithm::refundable_bucket::RefundableBucket;
                $body
            }
            _ => {
                type $machine = $crate::algorithm::sliding_window_strict::SlidingWindowStrict;
                $body
            }
        }
    };
}
pub(crate) use with_machine;

/// Applies `op` to a state that is packed into a word: returns the new word (none: unchanged) and
/// the result of the operation.
#[cfg(feature = "std")]
#[inline]
pub(crate) fn apply_to_word<A: StateOp>(
    limit: &TickLimit,
    word: u64,
    op: &A,
) -> (Option<u64>, A::Out) {
    with_machine!(limit.kind, M => {
        let limit = M::limit(limit);
        let (after, out) = op.apply(&limit, M::unpack(&limit, word));
        (after.map(|after| after.pack(&limit)), out)
    })
}

/// Applies `op` to a state of [`MAX_STATE_WORDS`] words or fewer.
#[cfg(feature = "std")]
pub(crate) fn apply_to_words<A: StateOp>(limit: &TickLimit, words: &mut [u64], op: &A) -> A::Out {
    with_machine!(limit.kind, M => {
        let (after, out) = op.apply(&M::limit(limit), M::from_words(|at| words[at]));
        if let Some(after) = after {
            after.to_words(|at, word| words[at] = word);
        }
        out
    })
}

/// A packed state that is as strict as both.
#[cfg(feature = "std")]
pub(crate) fn join_word(limit: &TickLimit, a: u64, b: u64) -> u64 {
    with_machine!(limit.kind, M => {
        let limit = M::limit(limit);
        M::unpack(&limit, a).join(&limit, M::unpack(&limit, b)).pack(&limit)
    })
}

/// When a refundable bucket is full again, in ticks since the Unix epoch.
#[cfg(feature = "std")]
pub(crate) fn refundable_tat(words: &[u64]) -> u128 {
    RefundableBucket::from_words(|at| words[at]).tat()
}

/// Stores in `words` a state that is as strict as both.
#[cfg(feature = "std")]
pub(crate) fn join_words(limit: &TickLimit, words: &mut [u64], other: &[u64]) {
    let load = |from: &[u64]| -> [u64; MAX_STATE_WORDS] {
        core::array::from_fn(|at| from.get(at).copied().unwrap_or(0))
    };
    let (a, b) = (load(words), load(other));
    with_machine!(limit.kind, M => {
        let joined = M::from_words(|at| a[at]).join(&M::limit(limit), M::from_words(|at| b[at]));
        joined.to_words(|at, word| words[at] = word);
    });
}
