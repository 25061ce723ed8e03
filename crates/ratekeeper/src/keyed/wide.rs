//! States of more than a word: the table's entry holds a handle, the state is here, and its bytes
//! are counted.

use crate::algorithm::sliding_log::judge;
use crate::algorithm::state_op::{
    ChargeOp, GrantOp, MAX_STATE_WORDS, RefundOp, SurchargeOp, WindowDecision, apply_to_words,
    join_words, refundable_tat,
};
use crate::algorithm::{DecisionInfo, Refund, StepResult};
use crate::append_vec::AppendVec;
use crate::decision::Decision;
use crate::limit::{Kind, TickLimit};
use crate::limiter::generation::Generation;
use core::time::Duration;
use std::boxed::Box;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// The words of a refundable bucket.
pub(super) const REFUNDABLE_WORDS: usize = 11;

#[derive(Clone)]
pub(crate) enum LargeState {
    /// A window of a few counters, or a refundable bucket.
    Words(Box<[u64]>),
    /// The times of a log, oldest first.
    Log(VecDeque<u64>),
    /// A log that is taken to be full until then, because there are no bytes for its times.
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

    /// One call; with `write` an admission is written, as a final charge if it is `kept`. A log
    /// that may not grow is as strict as the room it has.
    pub(super) fn call(
        &mut self,
        normal: &TickLimit,
        now: u64,
        cost: u64,
        (write, kept): (bool, bool),
        budget: &ByteBudget,
    ) -> WindowDecision {
        self.empty_if_over(now);
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
                        is_final: kept,
                    },
                );
            }
            Self::FullUntil(end) => return full_until(normal, *end, now, cost),
            Self::Log(times) => times,
        };
        let windowed = normal.windowed();
        let at = |age: u64| times[age as usize];
        let (mut judged, at_instant) = judge(&windowed, times.len() as u64, at, now, cost);
        if let (StepResult::Admit(expired, _), true) = (judged, write && cost > 0) {
            let live = times.len() as u64 - expired;
            if budget.grow(times, live + cost) {
                times.drain(..expired as usize);
                times.extend(std::iter::repeat_n(at_instant, cost as usize));
            } else {
                // So many must have left before there is room; all of them, if even that is not
                // enough.
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
                let told = DecisionInfo {
                    remaining: 0,
                    reset_at,
                };
                judged = StepResult::Deny {
                    info: told,
                    retry_at: last.saturating_add(windowed.window),
                };
            }
        } else if !write {
            let at = |age: u64| times[age as usize];
            judged = judged.unwritten(|| judge(&windowed, times.len() as u64, at, now, 0).0);
        }
        WindowDecision {
            decision: Decision::windowed(normal, &judged, now),
            charged_in: at_instant,
        }
    }

    /// A log that was full is empty once that is over.
    fn empty_if_over(&mut self, now: u64) {
        if matches!(self, Self::FullUntil(end) if *end <= now) {
            *self = Self::Log(VecDeque::new());
        }
    }

    /// The same log without its times: full until the last of them has left.
    pub(super) fn without_times(&self, normal: &TickLimit) -> Self {
        match self {
            Self::Log(times) => Self::FullUntil(end_of(times, normal)),
            other => other.clone(),
        }
    }

    /// The log with times again, which count as long: as many as fit it.
    fn with_times(&mut self, normal: &TickLimit) {
        if let Self::FullUntil(end) = self {
            let time = end.saturating_sub(normal.windowed().window);
            *self = Self::Log(std::iter::repeat_n(time, normal.capacity as usize).collect());
        }
    }

    /// How long until it is fresh.
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

    /// Settles a charge: gives back what is unused, if it is still counted.
    pub(super) fn give_back(&mut self, normal: &TickLimit, now: u64, refund: Refund) {
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
            // It is not known what of it was charged then.
            Self::FullUntil(_) => {}
        }
    }

    /// Charges `extra` now; it is full at most.
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

    /// Makes up to `gift` units less count. Returns how many.
    pub(super) fn grant(&mut self, normal: &TickLimit, now: u64, gift: u64) -> u64 {
        if let Self::Words(words) = self {
            return apply_to_words(normal, words, &GrantOp { now, tokens: gift });
        }
        self.empty_if_over(now);
        self.with_times(normal);
        let decision = self
            .call(normal, now, 0, (false, false), &ByteBudget::unlimited())
            .decision;
        let gift = gift.min(normal.capacity - decision.remaining().min(normal.capacity));
        match self {
            // The oldest that still count; none while there are more than the limit knows of.
            Self::Log(times) => {
                let judged = judge(
                    &normal.windowed(),
                    times.len() as u64,
                    |age| times[age as usize],
                    now,
                    0,
                )
                .0;
                if let StepResult::Admit(expired, _) = judged {
                    times.drain(..(expired + gift) as usize);
                }
            }
            Self::Words(_) | Self::FullUntil(_) => {}
        }
        gift
    }

    /// Makes it fresh.
    pub(super) fn clear(&mut self) {
        match self {
            Self::Words(words) => words.fill(0),
            Self::Log(times) => times.clear(),
            Self::FullUntil(_) => *self = Self::Log(VecDeque::new()),
        }
    }

    /// Leaves a state as strict as both.
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

    /// Sets the state of a cell that nobody else knows.
    pub(super) fn pour_into(&self, cell: &Generation, normal: &TickLimit) {
        let wide = cell.large();
        match self {
            Self::Words(words) => words
                .iter()
                .enumerate()
                .for_each(|(at, word)| wide.set_word(at, *word)),
            Self::Log(times) => wide.set_log(times.iter().copied()),
            Self::FullUntil(_) => {
                let mut log = self.clone();
                log.with_times(normal);
                if let Self::Log(times) = log {
                    wide.set_log(times.into_iter());
                }
            }
        }
    }

    /// The state of a cell that nobody else knows.
    pub(super) fn drawn_from(cell: &Generation, normal: &TickLimit) -> Self {
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

/// When the last time of a log leaves it.
fn end_of(times: &VecDeque<u64>, normal: &TickLimit) -> u64 {
    times
        .back()
        .map_or(0, |newest| newest.saturating_add(normal.windowed().window))
}

/// What a call is told by a log that is full until `end`.
fn full_until(normal: &TickLimit, end: u64, now: u64, cost: u64) -> WindowDecision {
    let told = DecisionInfo {
        remaining: 0,
        reset_at: end,
    };
    let judged: StepResult<u64> = match cost > normal.capacity {
        true => StepResult::Never(told),
        false => StepResult::Deny {
            info: told,
            retry_at: end,
        },
    };
    WindowDecision {
        decision: Decision::windowed(normal, &judged, now),
        charged_in: now,
    }
}

/// How many bytes wide states may take, and do.
pub(crate) struct ByteBudget {
    most: u64,
    taken: AtomicU64,
    /// Bytes that floors of logs may grow to, of all limits together.
    floors: AtomicU64,
}

impl ByteBudget {
    pub(super) fn new(most: u64) -> Self {
        Self {
            most,
            taken: AtomicU64::new(0),
            floors: AtomicU64::new(0),
        }
    }

    /// For a state outside the table.
    pub(super) fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// For a state that is not in the table yet: it may take a quarter of all, so that what is
    /// displaced does not take more.
    pub(super) fn of_one(&self) -> Self {
        Self::new(self.most / 4)
    }

    /// Reserves bytes for the floors of one limit: for how many parts of so many bytes, up to
    /// `wanted`. It is half of what all limits before it have left of a quarter of all bytes, so
    /// that there is some for the next.
    pub(super) fn reserve_floors(&self, bytes: u64, wanted: u64) -> u64 {
        let all = self.most / 3;
        let parts = |reserved: u64| {
            let left = all.saturating_sub(reserved);
            (left / 2 / bytes).max(u64::from(bytes <= left)).min(wanted)
        };
        let more = |reserved: u64| Some(reserved + parts(reserved) * bytes);
        self.floors
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_or(0, parts)
    }

    fn take(&self, bytes: u64) -> bool {
        let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= self.most);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .is_ok()
    }

    /// Counts what grew or shrank without asking.
    pub(super) fn count(&self, before: u64, after: u64) {
        self.taken.fetch_add(after, Ordering::Relaxed);
        self.taken.fetch_sub(before, Ordering::Relaxed);
    }

    fn give_back(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Makes room for `needed` times in all; false, and nothing changes, if the budget does not
    /// allow it.
    fn grow(&self, times: &mut VecDeque<u64>, needed: u64) -> bool {
        let capacity = times.capacity() as u64;
        if needed <= capacity {
            return true;
        }
        // By half, so that growing stays cheap and little is left unused.
        let wanted = needed.max(capacity + capacity / 2).max(4);
        let Some(wanted) = [wanted, needed]
            .into_iter()
            .find(|wanted| self.take((wanted - capacity) * 8))
        else {
            return false;
        };
        times.reserve_exact((wanted as usize).saturating_sub(times.len()));
        true
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}

/// Every wide state of a table, by handle.
pub(super) struct LargeStates {
    states: AppendVec<Mutex<LargeState>>,
    free: Mutex<FreeHandles>,
    pub(super) budget: ByteBudget,
}

#[derive(Default)]
struct FreeHandles {
    handles: Vec<u64>,
    next: u64,
}

/// What a state costs beside its words: its place, twice because places are made by doubling, and
/// what the allocator adds.
pub(super) const OVERHEAD: usize = PLACE as usize + ALLOCATED as usize;
const PLACE: u64 = 2 * size_of::<Mutex<LargeState>>() as u64;
const ALLOCATED: u64 = 16;

impl LargeStates {
    pub(super) fn new(most_bytes: u64) -> Self {
        Self {
            states: AppendVec::new(),
            free: Mutex::default(),
            // A quarter is for floors.
            budget: ByteBudget::new(most_bytes - most_bytes / 4),
        }
    }

    /// Keeps a state, or gives it back if there are no bytes for it.
    pub(super) fn keep(&self, state: LargeState) -> Result<u64, LargeState> {
        let handle = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            // Places stay: they are paid for once.
            let place = if free.handles.is_empty() { PLACE } else { 0 };
            if !self.budget.take(place + ALLOCATED + state.bytes()) {
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

    /// Forgets the state of a handle that nobody knows any more.
    pub(super) fn forget(&self, handle: u64) -> LargeState {
        let state = core::mem::replace(&mut *self.lock(handle), nothing());
        self.budget.give_back(ALLOCATED + state.bytes());
        self.free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .handles
            .push(handle);
        state
    }

    pub(super) fn lock(&self, handle: u64) -> MutexGuard<'_, LargeState> {
        self.states
            .get_or_make(handle, || Mutex::new(nothing()))
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn nothing() -> LargeState {
    LargeState::Words(Box::default())
}

#[cfg(all(test, not(ratekeeper_loom)))]
mod tests {
    use super::*;
    use crate::{Algorithm, Limit};

    /// Whatever is asked of it, and whatever is joined into it.
    #[test]
    fn a_log_without_its_times_is_as_strict_as_with_them() {
        let limit = Limit::per_minute(4).algorithm(Algorithm::SlidingLog);
        let (normal, budget, second) = (limit.tick_limit(), ByteBudget::unlimited(), 1_000_000_000);
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
        // What an operator gives is there at once.
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

    /// Half of what is left for each limit, so that there is some for the next; and never more than
    /// a third of what states have.
    #[test]
    fn floors_share_what_there_is_for_all_of_them() {
        let budget = ByteBudget::new(3_000);
        let parts: Vec<u64> = (0..8).map(|_| budget.reserve_floors(100, 64)).collect();
        assert_eq!(parts, [5, 2, 1, 1, 1, 0, 0, 0]);
        assert_eq!(ByteBudget::new(3_000_000).reserve_floors(100, 64), 64);
        assert_eq!(ByteBudget::new(3_000).reserve_floors(1_001, 64), 0);
    }

    /// An instant from before may still come, and finds what was logged.
    #[test]
    fn a_log_that_may_not_grow_forgets_nothing() {
        let limit = Limit::per_minute(10).algorithm(Algorithm::SlidingLog);
        let (normal, budget, minute) = (limit.tick_limit(), ByteBudget::new(9 * 8), 60_000_000_000);
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
