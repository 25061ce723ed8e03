//! Large states: key states that do not fit the word of a table entry. The entry holds a handle,
//! the state is stored here, and its bytes are counted.

use super::byte_budget::ByteBudget;
use crate::algorithm::sliding_log::judge;
use crate::algorithm::state_op::{
    ChargeOp, GrantOp, MAX_STATE_WORDS, RefundOp, SurchargeOp, WindowDecision, apply_to_words,
    join_words, refundable_tat,
};
use crate::algorithm::{DecisionInfo, Refund, StepResult};
use crate::append_vec::AppendVec;
use crate::decision::Decision;
use crate::generation::Generation;
use crate::limit::{Kind, TickLimit};
use core::time::Duration;
use std::boxed::Box;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// Number of words of a refundable bucket.
pub(super) const REFUNDABLE_WORDS: usize = 11;

/// A key state that does not fit the word of a table entry.
#[derive(Clone)]
pub(crate) enum LargeState {
    /// A window of a few counters, or a refundable bucket.
    Words(Box<[u64]>),
    /// The times of a log, oldest first.
    Log(VecDeque<u64>),
    /// A log that counts as full until this time, because there are no bytes for its times.
    FullUntil(u64),
}

impl LargeState {
    pub(super) fn fresh(normal: &TickLimit) -> Self {
        match normal.kind {
            Kind::Log => Self::Log(VecDeque::new()),
            Kind::Strict => Self::Words([0; MAX_STATE_WORDS].into()),
            Kind::Refundable => Self::Words([0; REFUNDABLE_WORDS].into()),
            Kind::SlidingWindow => Self::Words([0; 3].into()),
            _ => Self::Words([0; 2].into()),
        }
    }

    /// Judges one call. With `write` an allowed call is written, as a final charge if `is_final`. A
    /// log that may not grow is as strict as the bytes it has.
    pub(super) fn call(
        &mut self,
        normal: &TickLimit,
        now: u64,
        cost: u64,
        (write, is_final): (bool, bool),
        budget: &ByteBudget,
    ) -> WindowDecision {
        self.clear_if_expired(now);
        let times = match self {
            Self::Words(words) => {
                return apply_to_words(
                    normal,
                    words,
                    &ChargeOp {
                        limit: normal,
                        now,
                        cost,
                        write,
                        is_final,
                    },
                );
            }
            Self::FullUntil(end) => return full_until(normal, *end, now, cost),
            Self::Log(times) => times,
        };
        let windowed = normal.windowed();
        let at = |age: u64| times[age as usize];
        let (mut step_result, at_instant) = judge(&windowed, times.len() as u64, at, now, cost);
        if let StepResult::Admit(expired, _) = step_result
            && write
            && cost > 0
        {
            let live = times.len() as u64 - expired;
            if budget.grow(times, live + cost) {
                times.drain(..expired as usize);
                times.extend(std::iter::repeat_n(at_instant, cost as usize));
            } else {
                // This many times must expire before there are enough bytes; all of them, if even
                // that is not enough.
                let over = (live + cost)
                    .saturating_sub(times.capacity() as u64)
                    .min(live);
                let last = if over > 0 {
                    times[(expired + over - 1) as usize]
                } else {
                    at_instant
                };
                let reset_at = times
                    .back()
                    .map_or(0, |newest| newest.saturating_add(windowed.window));
                let info = DecisionInfo {
                    remaining: 0,
                    reset_at,
                };
                step_result = StepResult::Deny {
                    info,
                    retry_at: last.saturating_add(windowed.window),
                };
            }
        } else if !write {
            let at = |age: u64| times[age as usize];
            step_result =
                step_result.unwritten(|| judge(&windowed, times.len() as u64, at, now, 0).0);
        }
        WindowDecision {
            decision: Decision::windowed(normal, &step_result, now),
            charged_in: at_instant,
        }
    }

    /// Empties a log that was full, once that time is over.
    fn clear_if_expired(&mut self, now: u64) {
        if matches!(self, Self::FullUntil(end) if *end <= now) {
            *self = Self::Log(VecDeque::new());
        }
    }

    /// Returns the same log without its times: full until the last of them has expired.
    pub(super) fn without_times(&self, normal: &TickLimit) -> Self {
        match self {
            Self::Log(times) => Self::FullUntil(end_of(times, normal)),
            other => other.clone(),
        }
    }

    /// Gives a full log times again: as many as fit, which expire at the same time.
    fn with_times(&mut self, normal: &TickLimit) {
        if let Self::FullUntil(end) = self {
            let time = end.saturating_sub(normal.windowed().window);
            *self = Self::Log(std::iter::repeat_n(time, normal.capacity as usize).collect());
        }
    }

    /// Returns how long until it is fresh.
    pub(super) fn reset_after(&self, normal: &TickLimit, now: u64) -> Duration {
        match self {
            Self::Words(words) if normal.kind == Kind::Refundable => {
                let until = refundable_tat(words).div_ceil(u128::from(normal.ticks));
                Duration::from_nanos(u64::try_from(until).unwrap_or(u64::MAX).saturating_sub(now))
            }
            Self::Words(words) => {
                let mut words: [u64; MAX_STATE_WORDS] =
                    core::array::from_fn(|at| words.get(at).copied().unwrap_or(0));
                let step = ChargeOp {
                    limit: normal,
                    now,
                    cost: 0,
                    write: false,
                    is_final: false,
                };
                apply_to_words(normal, &mut words, &step)
                    .decision
                    .reset_after()
            }
            Self::Log(times) => Duration::from_nanos(end_of(times, normal).saturating_sub(now)),
            Self::FullUntil(end) => Duration::from_nanos(end.saturating_sub(now)),
        }
    }

    /// Settles a charge: refunds what is unused, if it is still counted.
    pub(super) fn refund(&mut self, normal: &TickLimit, now: u64, refund: Refund) {
        let Refund {
            charged_in, unused, ..
        } = refund;
        match self {
            Self::Words(words) => apply_to_words(normal, words, &RefundOp { now, refund }),
            Self::Log(times) => {
                let mut left = unused;
                times.retain(|time| {
                    let goes = *time == charged_in && left > 0;
                    left -= u64::from(goes);
                    !goes
                });
            }
            // Which of its units were charged then is not known.
            Self::FullUntil(_) => {}
        }
    }

    /// Charges `extra` now, at most until it is full.
    pub(super) fn charge_more(
        &mut self,
        normal: &TickLimit,
        now: u64,
        extra: u64,
        budget: &ByteBudget,
    ) {
        match self {
            Self::Words(words) => apply_to_words(normal, words, &SurchargeOp { now, extra }),
            Self::Log(_) | Self::FullUntil(_) => {
                let room = self
                    .call(normal, now, 0, (false, false), budget)
                    .decision
                    .remaining();
                let _ = self.call(normal, now, extra.min(room), (true, true), budget);
            }
        }
    }

    /// Takes back up to `granted` units of what is counted. Returns how many.
    pub(super) fn grant(&mut self, normal: &TickLimit, now: u64, granted: u64) -> u64 {
        if let Self::Words(words) = self {
            return apply_to_words(
                normal,
                words,
                &GrantOp {
                    now,
                    tokens: granted,
                },
            );
        }
        self.clear_if_expired(now);
        self.with_times(normal);
        let decision = self
            .call(normal, now, 0, (false, false), &ByteBudget::unlimited())
            .decision;
        let granted = granted.min(normal.capacity - decision.remaining().min(normal.capacity));
        match self {
            // The oldest that still count; none while there are more than the limit allows.
            Self::Log(times) => {
                let step_result = judge(
                    &normal.windowed(),
                    times.len() as u64,
                    |age| times[age as usize],
                    now,
                    0,
                )
                .0;
                if let StepResult::Admit(expired, _) = step_result {
                    times.drain(..(expired + granted) as usize);
                }
            }
            Self::Words(_) | Self::FullUntil(_) => {}
        }
        granted
    }

    /// Makes it fresh.
    pub(super) fn clear(&mut self) {
        match self {
            Self::Words(words) => words.fill(0),
            Self::Log(times) => times.clear(),
            Self::FullUntil(_) => *self = Self::Log(VecDeque::new()),
        }
    }

    /// Merges `other` into this state: the result is as strict as both.
    pub(super) fn join(&mut self, normal: &TickLimit, other: &Self) {
        match (self, other) {
            (Self::Words(words), Self::Words(other)) => join_words(normal, words, other),
            (Self::Log(times), Self::Log(other)) => {
                // The i-th newest is the later of the two.
                times.reserve_exact(other.len().saturating_sub(times.len()));
                while times.len() < other.len() {
                    times.push_front(0);
                }
                for (time, other) in times.iter_mut().rev().zip(other.iter().rev()) {
                    *time = (*time).max(*other);
                }
            }
            (Self::FullUntil(end), Self::FullUntil(other)) => *end = (*end).max(*other),
            (Self::FullUntil(end), Self::Log(times)) => *end = (*end).max(end_of(times, normal)),
            (log @ Self::Log(_), Self::FullUntil(other)) => {
                let Self::FullUntil(end) = log.without_times(normal) else {
                    return;
                };
                *log = Self::FullUntil(end.max(*other));
            }
            _ => {}
        }
    }

    /// Writes this state to a generation that no other thread can see.
    pub(super) fn write_to(&self, cell: &Generation, normal: &TickLimit) {
        let target = cell.large();
        match self {
            Self::Words(words) => words
                .iter()
                .enumerate()
                .for_each(|(at, word)| target.set_word(at, *word)),
            Self::Log(times) => target.set_log(times.iter().copied()),
            Self::FullUntil(_) => {
                let mut log = self.clone();
                log.with_times(normal);
                if let Self::Log(times) = log {
                    target.set_log(times.into_iter());
                }
            }
        }
    }

    /// Reads the state of a generation that no other thread can see.
    pub(super) fn read_from(cell: &Generation, normal: &TickLimit) -> Self {
        let mut state = Self::fresh(normal);
        match &mut state {
            Self::Words(words) => words
                .iter_mut()
                .enumerate()
                .for_each(|(at, word)| *word = cell.large().word(at)),
            Self::Log(times) => times.extend(cell.large().log(&normal.windowed())),
            Self::FullUntil(_) => {}
        }
        state
    }

    pub(super) fn bytes(&self) -> u64 {
        let words = match self {
            Self::Words(words) => words.len(),
            Self::Log(times) => times.capacity(),
            Self::FullUntil(_) => 0,
        };
        words as u64 * 8
    }
}

/// Returns when the last time of a log expires.
fn end_of(times: &VecDeque<u64>, normal: &TickLimit) -> u64 {
    times
        .back()
        .map_or(0, |newest| newest.saturating_add(normal.windowed().window))
}

/// Denies a call on a log that is full until `end`.
fn full_until(normal: &TickLimit, end: u64, now: u64, cost: u64) -> WindowDecision {
    let info = DecisionInfo {
        remaining: 0,
        reset_at: end,
    };
    let step_result: StepResult<u64> = if cost > normal.capacity {
        StepResult::Never(info)
    } else {
        StepResult::Deny {
            info,
            retry_at: end,
        }
    };
    WindowDecision {
        decision: Decision::windowed(normal, &step_result, now),
        charged_in: now,
    }
}

/// All large states of a table, by handle.
pub(super) struct LargeStates {
    states: AppendVec<Mutex<LargeState>>,
    free: Mutex<FreeHandles>,
    pub(super) budget: ByteBudget,
}

/// Handles that were removed, and the next new one.
#[derive(Default)]
struct FreeHandles {
    handles: Vec<u64>,
    next: u64,
}

/// Bytes a large state takes beside its words: its slot, twice because slots are allocated by
/// doubling, and the allocator's overhead.
pub(super) const LARGE_STATE_OVERHEAD: usize = SLOT_BYTES as usize + ALLOCATOR_BYTES as usize;
const SLOT_BYTES: u64 = 2 * size_of::<Mutex<LargeState>>() as u64;
const ALLOCATOR_BYTES: u64 = 16;

impl LargeStates {
    pub(super) fn new(max_bytes: u64) -> Self {
        Self {
            states: AppendVec::new(),
            free: Mutex::default(),
            // A quarter is for floors.
            budget: ByteBudget::new(max_bytes - max_bytes / 4),
        }
    }

    /// Stores a state and returns its handle, or returns the state if there are no bytes for it.
    pub(super) fn insert(&self, state: LargeState) -> Result<u64, LargeState> {
        let handle = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            // Slots are never freed: they are counted once.
            let slot_bytes = if free.handles.is_empty() {
                SLOT_BYTES
            } else {
                0
            };
            if !self
                .budget
                .take(slot_bytes + ALLOCATOR_BYTES + state.bytes())
            {
                return Err(state);
            }
            free.handles.pop().unwrap_or_else(|| {
                free.next += 1;
                free.next - 1
            })
        };
        *self.lock(handle) = state;
        Ok(handle)
    }

    /// Removes the state of a handle that nothing refers to any more.
    pub(super) fn remove(&self, handle: u64) -> LargeState {
        let state = core::mem::replace(&mut *self.lock(handle), empty());
        self.budget.give_back(ALLOCATOR_BYTES + state.bytes());
        self.free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .handles
            .push(handle);
        state
    }

    pub(super) fn lock(&self, handle: u64) -> MutexGuard<'_, LargeState> {
        self.states
            .get_or_make(handle, || Mutex::new(empty()))
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn empty() -> LargeState {
    LargeState::Words(Box::default())
}

#[cfg(all(test, not(ratekeeper_loom)))]
mod tests {
    use super::*;
    use crate::{Algorithm, Limit};

    /// For any call, and whatever is joined into it.
    #[test]
    fn a_log_without_times_is_as_strict_as_with_them() {
        let limit = Limit::per_minute(4).algorithm(Algorithm::SlidingLog);
        let normal = limit.tick_limit();
        let budget = ByteBudget::unlimited();
        let second = 1_000_000_000;
        let minute = 60 * second;
        let log = |times: &[u64]| {
            let mut log = LargeState::fresh(normal);
            for time in times {
                let _ = log.call(normal, *time, 1, (true, false), &budget);
            }
            log
        };
        let some = [minute + second, minute + 5 * second, minute + 9 * second];
        let with = log(&some);
        let without = with.without_times(normal);
        let mut joined = [
            without.clone(),
            without.clone(),
            log(&[minute]),
            without.clone(),
        ];
        let others = [
            log(&[]),
            log(&[minute + 3 * second]),
            without.clone(),
            log(&some).without_times(normal),
        ];
        joined
            .iter_mut()
            .zip(&others)
            .for_each(|(state, other)| state.join(normal, other));
        for state in joined.iter().chain([&without]) {
            assert_eq!(state.bytes(), 0);
            for now in (0..=minute + 8 * second)
                .step_by(second as usize)
                .chain([2 * minute + 9 * second - 1])
            {
                let decision = state
                    .clone()
                    .call(normal, now, 1, (true, false), &budget)
                    .decision;
                assert!(decision.is_denied() && !decision.is_never(), "{now}");
                assert_eq!(
                    decision.retry_after(),
                    Some(Duration::from_nanos(2 * minute + 9 * second - now))
                );
                assert!(state.reset_after(normal, now) >= with.reset_after(normal, now));
            }
            let mut state = state.clone();
            assert!(
                state
                    .clone()
                    .call(normal, minute, 5, (true, false), &budget)
                    .decision
                    .is_never()
            );
            assert!(
                state
                    .call(normal, 2 * minute + 9 * second, 4, (true, false), &budget)
                    .decision
                    .is_allowed()
            );
            assert!(
                state
                    .call(normal, 2 * minute + 9 * second, 1, (true, false), &budget)
                    .decision
                    .is_denied()
            );
        }
        // What an operator grants is available at once.
        let mut given = without.clone();
        assert_eq!(given.grant(normal, minute + 10 * second, 3), 3);
        assert!(
            given
                .call(normal, minute + 10 * second, 3, (true, false), &budget)
                .decision
                .is_allowed()
        );
        assert!(
            given
                .call(normal, minute + 10 * second, 1, (true, false), &budget)
                .decision
                .is_denied()
        );
    }

    /// A call at an earlier instant may still come, and finds what was logged.
    #[test]
    fn a_log_that_may_not_grow_keeps_its_times() {
        let limit = Limit::per_minute(10).algorithm(Algorithm::SlidingLog);
        let normal = limit.tick_limit();
        let budget = ByteBudget::new(9 * 8);
        let minute = 60_000_000_000;
        let mut log = LargeState::fresh(normal);
        assert!(
            log.call(normal, minute, 9, (true, false), &budget)
                .decision
                .is_allowed()
        );
        let late = log
            .call(normal, 2 * minute, 10, (true, false), &budget)
            .decision;
        assert!(late.is_denied() && late.retry_after().is_some());
        assert!(
            log.call(normal, minute + 1, 9, (true, false), &budget)
                .decision
                .is_denied()
        );
        assert!(
            log.call(normal, 2 * minute, 9, (true, false), &budget)
                .decision
                .is_allowed()
        );
    }
}
