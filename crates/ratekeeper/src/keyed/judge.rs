//! Judging a call: what one version of a limit decides about one state.

use super::byte_budget::ByteBudget;
use super::large_state::LargeState;
use super::limit_version::{EntryState, LimitVersion};
use crate::algorithm::state_op::{ChargeOp, WindowDecision, apply_to_word};
use crate::algorithm::tat_word::{Reach, decision, max_wait_of_check, peek, reach, step};
use crate::algorithm::token_bucket::Step as Stepped;
use crate::algorithm::{DecisionInfo, StepResult};
use crate::clock::Timestamp;
use crate::decision::{Decision, Outcome};
use crate::limit::{Kind, TickLimit};

/// The result of judging one call.
pub(crate) struct CallResult {
    pub(crate) decision: Decision,
    /// The new state, if the call was allowed and charges something.
    pub(crate) after: Option<u64>,
    /// The theoretical arrival time (TAT), or what identifies the window it was charged in.
    pub(crate) charged: u64,
    pub(crate) clock: u64,
    /// Ticks until its tokens are available.
    pub(crate) wait: u64,
    /// The call fits, but its instant is beyond what this version can count: a new version with a
    /// later origin is needed first.
    pub(crate) needs_rebase: bool,
}

impl CallResult {
    pub(crate) fn without_charge(decision: Decision) -> Self {
        Self {
            decision,
            after: None,
            charged: 0,
            clock: 0,
            wait: 0,
            needs_rebase: false,
        }
    }
}

/// The parameters of one call.
#[derive(Clone, Copy)]
pub(crate) struct CallRequest {
    pub(crate) now: Timestamp,
    pub(crate) cost: u64,
    /// How long the caller would wait for a slot, in nanoseconds; `None` decides as a check does.
    pub(crate) max_wait: Option<u64>,
    /// Units that the caller's class may not use.
    pub(crate) reserve: u64,
    /// Whether an allowed call is written.
    pub(crate) write: bool,
    /// Whether the charge is final; otherwise it is settled later.
    pub(crate) is_final: bool,
    /// A token bucket that comes with the call, in place of the registered limit.
    pub(crate) limit: Option<TickLimit>,
}

impl CallRequest {
    /// A check of `cost`: no wait, and the charge is final.
    #[inline]
    pub(crate) fn check(now: Timestamp, cost: u64) -> Self {
        Self {
            now,
            cost,
            max_wait: None,
            reserve: 0,
            write: true,
            is_final: true,
            limit: None,
        }
    }

    /// Asks about `cost` without charging it.
    #[inline]
    pub(crate) fn peek(now: Timestamp, cost: u64) -> Self {
        Self {
            write: false,
            is_final: false,
            ..Self::check(now, cost)
        }
    }

    /// Whether it neither waits nor peeks, and may use all of the limit.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.max_wait.is_none() && self.reserve == 0 && self.write
    }
}

impl LimitVersion {
    /// Returns the limit of a call, for a class that may not use `reserve` units of it; `None` if
    /// nothing is left for it.
    #[inline]
    fn limit_of(&self, request: &CallRequest) -> Option<TickLimit> {
        let mut normal = request.limit.unwrap_or(self.normal);
        let reserve = request.reserve;
        if reserve == 0 || normal.kind == Kind::Unlimited {
            return Some(normal);
        }
        let reserved = match normal.kind {
            Kind::Bucket | Kind::Refundable | Kind::Frozen | Kind::Pacing => {
                reserve.saturating_mul(normal.token)
            }
            _ => reserve,
        };
        if reserve >= normal.burst() {
            return None;
        }
        normal.capacity = normal.capacity.saturating_sub(reserved);
        Some(normal)
    }

    /// Returns the result for a call that can never be allowed.
    pub(crate) fn never_allowed(&self) -> CallResult {
        let info = DecisionInfo {
            remaining: 0,
            reset_at: 0,
        };
        let none = TickLimit {
            ticks: 1,
            token: 1,
            capacity: 0,
            kind: Kind::InFlight,
        };
        CallResult::without_charge(Decision::windowed(&none, &StepResult::<()>::Never(info), 0))
    }

    /// Judges one call on a one-word state.
    #[inline]
    pub(crate) fn judge_word(&self, word: u64, request: &CallRequest) -> CallResult {
        let Some(normal) = self.limit_of(request) else {
            return self.never_allowed();
        };
        let CallRequest {
            now,
            cost,
            write,
            is_final,
            ..
        } = *request;
        match normal.kind {
            Kind::InFlight => return self.judge_in_flight(&normal, word, cost, write),
            Kind::Unlimited => {
                return CallResult::without_charge(Decision::new(&normal, Outcome::Allowed, 0, 0));
            }
            _ if normal.is_windowed() => {
                let step = ChargeOp {
                    limit: &normal,
                    now: now.as_unix_nanos(),
                    cost,
                    write,
                    is_final,
                };
                let (
                    after,
                    WindowDecision {
                        decision,
                        charged_in,
                    },
                ) = apply_to_word(&normal, word, &step);
                return CallResult {
                    after,
                    charged: charged_in,
                    ..CallResult::without_charge(decision)
                };
            }
            _ => {}
        }
        let max_wait_ticks = match request.max_wait {
            // A class with a reserve may not go into debt.
            Some(max_wait) if request.reserve == 0 || normal.kind == Kind::Pacing => {
                max_wait.saturating_mul(normal.ticks)
            }
            _ => max_wait_of_check(&normal),
        };
        let Reach::Clock(clock) = reach(&normal, self.origin, now) else {
            let decision = peek(&normal, self.origin, word, now, cost, max_wait_ticks);
            return CallResult {
                needs_rebase: decision.is_allowed() && cost > 0 && write,
                ..CallResult::without_charge(decision)
            };
        };
        if !write {
            return CallResult::without_charge(peek(
                &normal,
                self.origin,
                word,
                now,
                cost,
                max_wait_ticks,
            ));
        }
        match step(&normal, word, clock, cost, max_wait_ticks) {
            stepped @ Stepped::Admit { tat, wait } => {
                let after = if cost > 0 { tat } else { word };
                CallResult {
                    decision: decision(&normal, stepped, after.saturating_sub(clock)),
                    after: (cost > 0).then_some(tat),
                    charged: tat,
                    clock,
                    wait,
                    needs_rebase: false,
                }
            }
            denied => CallResult {
                clock,
                ..CallResult::without_charge(decision(&normal, denied, word.saturating_sub(clock)))
            },
        }
    }

    fn judge_in_flight(
        &self,
        normal: &TickLimit,
        in_flight: u64,
        cost: u64,
        write: bool,
    ) -> CallResult {
        let fits = in_flight
            .checked_add(cost)
            .filter(|sum| *sum <= normal.capacity);
        let left = |in_flight: u64| DecisionInfo {
            remaining: normal.capacity.saturating_sub(in_flight),
            reset_at: 0,
        };
        let step_result = match fits {
            Some(after) if write => StepResult::Admit(after, left(after)),
            Some(after) => StepResult::Admit(after, left(in_flight)),
            None if cost > normal.capacity => StepResult::Never(left(in_flight)),
            None => StepResult::Deny {
                info: left(in_flight),
                retry_at: 0,
            },
        };
        let decision = Decision::windowed(normal, &step_result, 0);
        CallResult {
            after: fits.filter(|_| write && cost > 0),
            ..CallResult::without_charge(decision)
        }
    }

    /// Judges one call on a large state; an allowed call is written into it.
    pub(crate) fn judge_large(
        &self,
        state: &mut LargeState,
        request: &CallRequest,
        budget: &ByteBudget,
    ) -> CallResult {
        let Some(normal) = self.limit_of(request) else {
            return self.never_allowed();
        };
        let booking_mode = (request.write, request.is_final);
        let called = state.call(
            &normal,
            request.now.as_unix_nanos(),
            request.cost,
            booking_mode,
            budget,
        );
        CallResult {
            charged: called.charged_in,
            ..CallResult::without_charge(called.decision)
        }
    }

    /// Judges one call on a state that is not in the table; also returns the new state.
    pub(crate) fn judge(
        &self,
        state: EntryState,
        request: &CallRequest,
        budget: &ByteBudget,
    ) -> (CallResult, EntryState) {
        match state {
            EntryState::Word(word) => {
                let call = self.judge_word(word, request);
                let after = EntryState::Word(call.after.unwrap_or(word));
                (call, after)
            }
            EntryState::Large(mut state) => {
                let call = self.judge_large(&mut state, request, budget);
                (call, EntryState::Large(state))
            }
        }
    }

    /// Returns the result for a call whose key has no slot in the table.
    pub(crate) fn table_full(&self) -> CallResult {
        let info = DecisionInfo {
            remaining: 0,
            reset_at: 0,
        };
        CallResult::without_charge(Decision::windowed(
            &self.normal,
            &StepResult::<()>::Deny { info, retry_at: 0 },
            0,
        ))
    }
}
