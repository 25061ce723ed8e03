//! What a word in the table is counted by.
//!
//! A table entry names the numbers it is counted by: its *terms*. A line is one limit over time; a
//! live change gives it new terms, and an entry is converted when it is next touched, as of the
//! instant of the change. Terms never move and stay until the table is dropped.

use super::line::{RegisteredLimit, Rule};
use super::wide::{ByteBudget, LargeState};
use crate::algorithm::state_op::{
    ChargeOp, MAX_STATE_WORDS, WindowDecision, apply_to_word, join_word,
};
use crate::algorithm::tat_word::{REACH, Reach, ahead, decision, origin_for, peek, reach, step};
use crate::algorithm::token_bucket::Step as Stepped;
use crate::algorithm::{DecisionInfo, StepResult};
use crate::clock::Timestamp;
use crate::decision::{Decision, Outcome};
use crate::limit::{Kind, Limit, TickLimit};
use crate::limiter::Carry;
use crate::limiter::at::max_wait_of_check;
use crate::limiter::change::NextGeneration;
use crate::limiter::generation::Generation;
use crate::sync::{AtomicU32, AtomicU64, OnceBox, Ordering};
use std::boxed::Box;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Parts that a limit's floor is divided into, by the hash of the key: a key that was displaced is
/// looked for in its own part only, so the others start from less.
#[cfg(not(ratekeeper_loom))]
const FLOORS: usize = 64;
#[cfg(ratekeeper_loom)]
const FLOORS: usize = 1;

// In this order, so that what every call needs is in one cache line.
#[repr(C)]
#[cfg_attr(not(ratekeeper_loom), repr(align(64)))]
pub(crate) struct LimitVersion {
    /// What names them in a tag: at least 1.
    pub(crate) id: u32,
    /// The terms that came after them; 0 while there are none.
    pub(super) next: AtomicU32,
    pub(crate) normal: TickLimit,
    pub(crate) origin: u64,
    pub(crate) registered: Arc<RegisteredLimit>,
    pub(crate) rule: Rule,
    /// Since when they are in force, and what became of the level then.
    since: Timestamp,
    carry: Carry,
    floor: OnceBox<EvictionFloor>,
}

/// What displaced keys had used, at most, by part.
enum EvictionFloor {
    Words(Box<[AtomicU64]>),
    Wide(Box<[Mutex<Option<LargeState>>]>),
    /// The same without the times of logs, for which there are no bytes.
    WithoutTimes(Box<[Mutex<Option<LargeState>>]>),
}

impl EvictionFloor {
    fn wide(&self) -> Option<&[Mutex<Option<LargeState>>]> {
        match self {
            Self::Words(_) => None,
            Self::Wide(states) | Self::WithoutTimes(states) => Some(states),
        }
    }
}

/// The state of one key.
#[derive(Clone)]
pub(crate) enum EntryState {
    Word(u64),
    Wide(LargeState),
}

/// How near a state is to fresh, in nanoseconds: the greater, the less is lost by forgetting it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Freshness {
    /// It will be.
    In(u64),
    /// It has been, at least.
    For(u64),
}

impl Freshness {
    pub(crate) fn of(until: u64) -> Self {
        if until == 0 {
            Self::For(0)
        } else {
            Self::In(until)
        }
    }

    pub(crate) fn is_fresh(self) -> bool {
        matches!(self, Self::For(_))
    }
}

impl Ord for Freshness {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        match (self, other) {
            (Self::In(a), Self::In(b)) => b.cmp(a),
            (Self::For(a), Self::For(b)) => a.cmp(b),
            (a, b) => a.is_fresh().cmp(&b.is_fresh()),
        }
    }
}

impl PartialOrd for Freshness {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl EntryState {
    pub(crate) const FRESH: Self = Self::Word(0);
}

/// What a call came to.
pub(crate) struct CallResult {
    pub(crate) decision: Decision,
    /// The state it leaves, if it was admitted and takes something.
    pub(crate) after: Option<u64>,
    /// TAT, or what names the window it was charged in.
    pub(crate) charged: u64,
    pub(crate) clock: u64,
    /// Ticks until its tokens are there.
    pub(crate) wait: u64,
    /// It fits, but its instant is beyond what these terms count: they must be succeeded first.
    pub(crate) late: bool,
}

impl CallResult {
    pub(crate) fn without_charge(decision: Decision) -> Self {
        Self {
            decision,
            after: None,
            charged: 0,
            clock: 0,
            wait: 0,
            late: false,
        }
    }
}

/// How a call is to be judged.
#[derive(Clone, Copy)]
pub(crate) struct CallRequest {
    pub(crate) now: Timestamp,
    pub(crate) cost: u64,
    /// How long the caller would wait for a slot, in nanoseconds; none: as a check does.
    pub(crate) longest: Option<u64>,
    /// What the caller's class may not touch.
    pub(crate) reserve: u64,
    /// Whether an admission is written.
    pub(crate) write: bool,
    /// Whether what it charges is final; otherwise it is settled later.
    pub(crate) kept: bool,
}

impl LimitVersion {
    /// The first terms of a line.
    pub(super) fn first(id: u32, line: Arc<RegisteredLimit>, rule: Rule, now: Timestamp) -> Self {
        let origin = match rule.normal().kind {
            Kind::Unlimited => now.as_unix_nanos(),
            _ => origin_for(now),
        };
        Self::new(id, line, rule, origin, now, Carry::Keep)
    }

    /// The terms after `before`, from `now` on.
    pub(super) fn after(id: u32, before: &Self, rule: Rule, carry: Carry, now: Timestamp) -> Self {
        let origin = match (before.rule, rule) {
            (Rule::Rate(_), Rule::Rate(limit)) => {
                before.hand_over(&EntryState::FRESH, &limit, carry, now).1
            }
            _ => before.origin,
        };
        Self::new(id, before.registered.clone(), rule, origin, now, carry)
    }

    fn new(
        id: u32,
        line: Arc<RegisteredLimit>,
        rule: Rule,
        origin: u64,
        since: Timestamp,
        carry: Carry,
    ) -> Self {
        let normal = rule.normal();
        Self {
            id,
            registered: line,
            rule,
            normal,
            origin,
            since,
            carry,
            next: AtomicU32::new(0),
            floor: OnceBox::new(),
        }
    }

    /// Whether a state fits the word of an entry.
    #[inline]
    pub(crate) fn fits_a_word(&self) -> bool {
        self.normal.fits_a_word()
    }

    /// The state of a key that nobody has asked about.
    pub(crate) fn fresh(&self) -> EntryState {
        if self.fits_a_word() {
            EntryState::FRESH
        } else {
            EntryState::Wide(LargeState::fresh(&self.normal))
        }
    }

    /// The numbers as a class sees them that may not touch `reserve`; none if nothing is left for
    /// it.
    fn reduced(&self, reserve: u64) -> Option<TickLimit> {
        let mut normal = self.normal;
        if reserve == 0 || normal.kind == Kind::Unlimited {
            return Some(normal);
        }
        let kept = match normal.kind {
            Kind::Bucket | Kind::Refundable | Kind::Frozen | Kind::Pacing => {
                reserve.saturating_mul(normal.token)
            }
            _ => reserve,
        };
        if reserve >= normal.burst() {
            return None;
        }
        normal.capacity = normal.capacity.saturating_sub(kept);
        Some(normal)
    }

    /// A class for which nothing is left is told so.
    pub(crate) fn nothing_left(&self) -> CallResult {
        let told = DecisionInfo {
            remaining: 0,
            reset_at: 0,
        };
        let none = TickLimit {
            ticks: 1,
            token: 1,
            capacity: 0,
            kind: Kind::InFlight,
        };
        CallResult::without_charge(Decision::windowed(&none, &StepResult::<()>::Never(told), 0))
    }

    /// One call on a state that is a word.
    #[inline]
    pub(crate) fn judge_word(&self, word: u64, asked: &CallRequest) -> CallResult {
        let Some(normal) = self.reduced(asked.reserve) else {
            return self.nothing_left();
        };
        let CallRequest {
            now,
            cost,
            write,
            kept,
            ..
        } = *asked;
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
                    is_final: kept,
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
        let patience = match asked.longest {
            // A class with a reserve may not go into debt.
            Some(longest) if asked.reserve == 0 || normal.kind == Kind::Pacing => {
                longest.saturating_mul(normal.ticks)
            }
            _ => max_wait_of_check(&normal),
        };
        let Reach::Clock(clock) = reach(&normal, self.origin, now) else {
            let decision = peek(&normal, self.origin, word, now, cost, patience);
            return CallResult {
                late: decision.is_allowed() && cost > 0 && write,
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
                patience,
            ));
        }
        match step(&normal, word, clock, cost, patience) {
            stepped @ Stepped::Admit { tat, wait } => {
                let after = if cost > 0 { tat } else { word };
                CallResult {
                    decision: decision(&normal, stepped, after.saturating_sub(clock)),
                    after: (cost > 0).then_some(tat),
                    charged: tat,
                    clock,
                    wait,
                    late: false,
                }
            }
            refused => CallResult {
                clock,
                ..CallResult::without_charge(decision(&normal, refused, word.saturating_sub(clock)))
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
        let judged = match fits {
            Some(after) if write => StepResult::Admit(after, left(after)),
            Some(after) => StepResult::Admit(after, left(in_flight)),
            None if cost > normal.capacity => StepResult::Never(left(in_flight)),
            None => StepResult::Deny {
                info: left(in_flight),
                retry_at: 0,
            },
        };
        let decision = Decision::windowed(normal, &judged, 0);
        CallResult {
            after: fits.filter(|_| write && cost > 0),
            ..CallResult::without_charge(decision)
        }
    }

    /// One call on a state that is more than a word; an admission is written into it.
    pub(crate) fn judge_large(
        &self,
        state: &mut LargeState,
        asked: &CallRequest,
        budget: &ByteBudget,
    ) -> CallResult {
        let Some(normal) = self.reduced(asked.reserve) else {
            return self.nothing_left();
        };
        let book = (asked.write, asked.kept);
        let called = state.call(&normal, asked.now.as_unix_nanos(), asked.cost, book, budget);
        CallResult {
            charged: called.charged_in,
            ..CallResult::without_charge(called.decision)
        }
    }

    /// One call on a state that is not in the table, and the state it leaves.
    pub(crate) fn judge(
        &self,
        state: EntryState,
        asked: &CallRequest,
        budget: &ByteBudget,
    ) -> (CallResult, EntryState) {
        match state {
            EntryState::Word(word) => {
                let call = self.judge_word(word, asked);
                let after = EntryState::Word(call.after.unwrap_or(word));
                (call, after)
            }
            EntryState::Wide(mut state) => {
                let call = self.judge_large(&mut state, asked, budget);
                (call, EntryState::Wide(state))
            }
        }
    }

    /// What a call is told for which there is no room in the table.
    pub(crate) fn no_room(&self) -> CallResult {
        let told = DecisionInfo {
            remaining: 0,
            reset_at: 0,
        };
        CallResult::without_charge(Decision::windowed(
            &self.normal,
            &StepResult::<()>::Deny {
                info: told,
                retry_at: 0,
            },
            0,
        ))
    }

    pub(crate) fn is_fresh(&self, state: &EntryState, now: Timestamp) -> bool {
        match state {
            EntryState::Word(word) => self.freshness(*word, now).is_some_and(Freshness::is_fresh),
            EntryState::Wide(state) => self.large_until_fresh(state, now) == 0,
        }
    }

    pub(crate) fn large_until_fresh(&self, state: &LargeState, now: Timestamp) -> u64 {
        crate::clock::nanos(state.reset_after(&self.normal, now.as_unix_nanos()))
    }

    /// The clock in ticks; what is out of reach stands at the end it is beyond.
    pub(crate) fn clock_at(&self, now: Timestamp) -> u64 {
        match reach(&self.normal, self.origin, now) {
            Reach::Clock(clock) => clock,
            Reach::Early { .. } => 0,
            Reach::Late => REACH * self.normal.ticks,
        }
    }

    /// Since when a state has been fresh; none if it is not, or does not change with time.
    pub(crate) fn fresh_since(&self, state: &EntryState, now: Timestamp) -> Option<Timestamp> {
        let TickLimit { ticks, kind, .. } = self.normal;
        let since = match (state, kind) {
            (_, Kind::InFlight | Kind::Frozen | Kind::Unlimited) => return None,
            (EntryState::Word(word), Kind::Bucket | Kind::Pacing) => {
                self.origin.saturating_add(word.div_ceil(ticks))
            }
            // Before all time they tell how long until they are fresh, and count from their own
            // beginning.
            (EntryState::Word(word), _) => {
                let asked = CallRequest {
                    now: Timestamp::from_unix_nanos(0),
                    cost: 0,
                    longest: None,
                    reserve: 0,
                    write: false,
                    kept: false,
                };
                crate::clock::nanos(self.judge_word(*word, &asked).decision.reset_after())
            }
            (EntryState::Wide(state), _) => crate::clock::nanos(state.reset_after(&self.normal, 0)),
        };
        // Not before there were these terms: what they clipped off is gone.
        Some(Timestamp::from_unix_nanos(since).max(self.since)).filter(|since| *since <= now)
    }

    /// How fresh a state is that is a word; none if its entry may not go.
    #[inline]
    pub(crate) fn freshness(&self, word: u64, now: Timestamp) -> Option<Freshness> {
        let TickLimit { ticks, kind, .. } = self.normal;
        match kind {
            Kind::InFlight if word > 0 => None,
            Kind::Frozen if word > 0 => Some(Freshness::In(u64::MAX)),
            Kind::InFlight | Kind::Frozen | Kind::Unlimited => Some(Freshness::For(0)),
            Kind::Bucket | Kind::Pacing => match reach(&self.normal, self.origin, now) {
                Reach::Clock(clock) if word > clock => {
                    Some(Freshness::In((word - clock).div_ceil(ticks)))
                }
                Reach::Clock(clock) => Some(Freshness::For((clock - word) / ticks)),
                _ => Some(Freshness::of(
                    ahead(&self.normal, self.origin, word, now).div_ceil(ticks),
                )),
            },
            _ => {
                let asked = CallRequest {
                    now,
                    cost: 0,
                    longest: None,
                    reserve: 0,
                    write: false,
                    kept: false,
                };
                Some(Freshness::of(crate::clock::nanos(
                    self.judge_word(word, &asked).decision.reset_after(),
                )))
            }
        }
    }

    /// The same state, looking as recent as one that was used now.
    pub(super) fn used_now(&self, state: EntryState, now: Timestamp) -> EntryState {
        match (
            state,
            self.normal.kind,
            reach(&self.normal, self.origin, now),
        ) {
            (EntryState::Word(word), Kind::Bucket | Kind::Pacing, Reach::Clock(clock)) => {
                EntryState::Word(word.max(clock))
            }
            (state, ..) => state,
        }
    }

    /// The state that is `state` of the terms before these, as of the change.
    pub(super) fn convert_from_previous(&self, before: &Self, state: &EntryState) -> EntryState {
        self.convert_from(before, state, self.carry, self.since)
    }

    /// The same level under these terms, of a key that comes from another line. What has been full
    /// there since some time has come on since then as it does here.
    pub(super) fn convert_from_other_limit(
        &self,
        before: &Self,
        state: &EntryState,
        now: Timestamp,
    ) -> EntryState {
        let at = before.fresh_since(state, now).unwrap_or(now);
        // Full at that instant, not before: what was clipped off is gone, also for whoever asks
        // since when it is full.
        self.used_now(self.convert_from(before, state, Carry::Keep, at), at)
    }

    pub(super) fn convert_from(
        &self,
        before: &Self,
        state: &EntryState,
        carry: Carry,
        at: Timestamp,
    ) -> EntryState {
        match (&before.rule, &self.rule) {
            (Rule::Rate(_), Rule::Rate(limit)) => {
                let (state, origin) = before.hand_over(state, limit, carry, at);
                self.counted_from_here(state, origin)
            }
            (Rule::InFlight(_), Rule::InFlight(_)) => state.clone(),
            _ => self.fresh(),
        }
    }

    /// A state that is counted from another origin, counted from this one.
    fn counted_from_here(&self, state: EntryState, origin: u64) -> EntryState {
        match state {
            EntryState::Word(word)
                if origin != self.origin && !self.normal.is_windowed() && word > 0 =>
            {
                let ticks =
                    (i128::from(origin) - i128::from(self.origin)) * i128::from(self.normal.ticks);
                EntryState::Word(
                    (i128::from(word) + ticks).clamp(0, i128::from(u64::MAX - 1)) as u64,
                )
            }
            state => state,
        }
    }

    /// The state under `limit` from `at` on, and the origin it is counted from.
    fn hand_over(
        &self,
        state: &EntryState,
        limit: &Limit,
        carry: Carry,
        at: Timestamp,
    ) -> (EntryState, u64) {
        let cell = Generation::empty();
        let own = self.rule.limit().unwrap_or_else(Limit::unlimited);
        match state {
            EntryState::Word(word) => cell.fill(&own, self.origin, *word),
            EntryState::Wide(state) => {
                cell.fill(&own, self.origin, 0);
                state.pour_into(&cell, &self.normal);
            }
        }
        let later = NextGeneration::empty();
        cell.hand_over(&later, limit, carry, || at);
        let origin = later.generation.origin.load(Ordering::Relaxed);
        let normal = limit.tick_limit();
        let state = match normal.fits_a_word() {
            true => EntryState::Word(later.generation.word.load(Ordering::Relaxed)),
            false => EntryState::Wide(LargeState::drawn_from(&later.generation, normal)),
        };
        (state, origin)
    }

    /// What a key starts from that is not in the table: the floor of its part.
    pub(crate) fn start(&self, hash: u64) -> EntryState {
        match self.floor.get() {
            None => self.fresh(),
            Some(EvictionFloor::Words(words)) => {
                EntryState::Word(part(words, hash).load(Ordering::Acquire))
            }
            Some(EvictionFloor::Wide(states) | EvictionFloor::WithoutTimes(states)) => {
                lock(part(states, hash))
                    .clone()
                    .map_or_else(|| self.fresh(), EntryState::Wide)
            }
        }
    }

    /// What turns away a key that is not in the table, if the floor alone does: a long log need not
    /// be copied for that.
    pub(crate) fn denied_by_floor(&self, hash: u64, asked: &CallRequest) -> Option<CallResult> {
        let states = self.floor.get()?.wide()?;
        let mut floor = lock(part(states, hash));
        let asked = CallRequest {
            write: false,
            ..*asked
        };
        let call = self.judge_large(floor.as_mut()?, &asked, &ByteBudget::unlimited());
        Some(call).filter(|call| call.decision.is_denied())
    }

    /// A floor of states that are more than a word. A part of a log's floor is as long as the log.
    fn wide_floor(&self, budget: &ByteBudget) -> EvictionFloor {
        let parts = |many: u64| (0..many).map(|_| Mutex::new(None)).collect();
        let words = if self.normal.kind == Kind::Log {
            self.normal.capacity
        } else {
            MAX_STATE_WORDS as u64
        };
        match budget.reserve_floors(words.max(1).saturating_mul(8), FLOORS as u64) {
            0 if self.normal.kind == Kind::Log => EvictionFloor::WithoutTimes(parts(FLOORS as u64)),
            many => EvictionFloor::Wide(parts(many.max(1))),
        }
    }

    /// Joins the state of a displaced key into the floor of its part.
    pub(super) fn sink(&self, hash: u64, state: &EntryState, budget: &ByteBudget) {
        let floor = self.floor.get_or_init(|| {
            Box::new(match self.fits_a_word() {
                true => EvictionFloor::Words((0..FLOORS).map(|_| AtomicU64::new(0)).collect()),
                false => self.wide_floor(budget),
            })
        });
        match (floor, state) {
            (EvictionFloor::Words(words), EntryState::Word(word)) => {
                self.sink_word(part(words, hash), *word)
            }
            (EvictionFloor::Wide(states), EntryState::Wide(state)) => {
                let mut floor = lock(part(states, hash));
                let before = floor.as_ref().map_or(0, LargeState::bytes);
                match &mut *floor {
                    Some(floor) => floor.join(&self.normal, state),
                    none => *none = Some(state.clone()),
                }
                budget.count(before, floor.as_ref().map_or(0, LargeState::bytes));
            }
            (EvictionFloor::WithoutTimes(states), EntryState::Wide(state)) => {
                let mut floor = lock(part(states, hash));
                match &mut *floor {
                    Some(floor) => floor.join(&self.normal, state),
                    none => *none = Some(state.without_times(&self.normal)),
                }
            }
            _ => {}
        }
    }

    fn sink_word(&self, floor: &AtomicU64, word: u64) {
        let mut seen = floor.load(Ordering::Acquire);
        loop {
            let joined = if self.normal.is_windowed() {
                join_word(&self.normal, seen, word)
            } else {
                seen.max(word)
            };
            if joined == seen {
                return;
            }
            match floor.compare_exchange_weak(seen, joined, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Takes over the floor of the terms before these.
    pub(super) fn inherit(&self, before: &Self, budget: &ByteBudget) {
        let Some(floor) = before.floor.get() else {
            return;
        };
        if self.carry == Carry::Reset {
            return;
        }
        // A part of the one floor may be several of the other: whoever looks in either finds it.
        for at in 0..FLOORS as u64 {
            let state = match floor {
                EvictionFloor::Words(words) => match part(words, at).load(Ordering::Acquire) {
                    0 => continue,
                    word => EntryState::Word(word),
                },
                EvictionFloor::Wide(states) | EvictionFloor::WithoutTimes(states) => {
                    match &*lock(part(states, at)) {
                        None => continue,
                        Some(state) => EntryState::Wide(state.clone()),
                    }
                }
            };
            self.sink(at, &self.convert_from_previous(before, &state), budget);
        }
    }
}

/// The part of a floor that a key looks in.
fn part<T>(floor: &[T], hash: u64) -> &T {
    &floor[hash as usize % FLOORS % floor.len()]
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
