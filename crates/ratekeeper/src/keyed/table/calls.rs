//! Calls on one key: found, absent, or in other terms than it is to be judged by.

use super::{EntryView, LANES, RefundTotals, SlotRefunds, Table, tag};
use crate::algorithm::tat_word::{FastDecision, REACH, Reach, reach};
use crate::clock::{Clock, Timestamp};
use crate::decision::Decision;
use crate::keyed::terms::{CallRequest, CallResult, EntryState, LimitVersion};
use crate::keyed::wide::{ByteBudget, LargeState};
use crate::limit::Kind;
use crate::sync::{Ordering, back_off, relax};

impl<C: Clock> Table<C> {
    /// A check that wants nothing but a decision. The common case in a straight line: the key is at
    /// home, its limit a bucket, nobody comes in between.
    ///
    /// The clock is read once the line is on its way: the two waits are one.
    #[inline(always)]
    pub(crate) fn check(
        &self,
        first: &LimitVersion,
        hash: u64,
        now: impl FnOnce() -> Timestamp,
        cost: u64,
    ) -> Decision {
        let terms = self.current(first);
        let seen = self.glance(hash, terms.id, 0);
        let now = now();
        match seen.and_then(|seen| self.decide_fast(terms, &seen, now, cost)) {
            Some(quick) => quick.decision(),
            None => self.check_slow(first, hash, now, cost),
        }
    }

    #[inline(never)]
    fn check_slow(&self, first: &LimitVersion, hash: u64, now: Timestamp, cost: u64) -> Decision {
        let terms = self.current(first);
        for lane in 1..LANES {
            if let Some(seen) = self.glance(hash, terms.id, lane)
                && let Some(quick) = self.decide_fast(terms, &seen, now, cost)
            {
                return quick.decision();
            }
        }
        let asked = CallRequest {
            now,
            cost,
            longest: None,
            reserve: 0,
            write: true,
            kept: true,
        };
        self.decide(first, hash, &asked).0.decision
    }

    /// The same for a call that keeps what it takes, with the terms it was judged by and how the
    /// key's account stood before; none where it is not the common case.
    #[inline(always)]
    pub(crate) fn take_fast<'a>(
        &'a self,
        first: &'a LimitVersion,
        hash: u64,
        now: Timestamp,
        cost: u64,
    ) -> Option<(FastDecision, &'a LimitVersion, RefundTotals)> {
        self.touch_accounts(hash);
        let terms = self.current(first);
        let seen = self.glance(hash, terms.id, 0)?;
        let standing = self.standing(hash, seen.place);
        Some((self.decide_fast(terms, &seen, now, cost)?, terms, standing))
    }

    /// One call of a bucket without patience, where nothing is out of the ordinary. As
    /// [`Cell::quick`] does it.
    ///
    /// [`Cell::quick`]: crate::limiter::cell::Cell
    #[inline(always)]
    fn decide_fast(
        &self,
        terms: &LimitVersion,
        seen: &EntryView,
        now: Timestamp,
        cost: u64,
    ) -> Option<FastDecision> {
        let (limit, tat) = (terms.normal, seen.word());
        let charge = cost.checked_mul(limit.token)?;
        let room = limit.capacity.checked_sub(charge)?;
        let elapsed = now.as_unix_nanos().checked_sub(terms.origin)?;
        if elapsed > REACH || limit.kind != Kind::Bucket {
            return None;
        }
        let clock = elapsed * limit.ticks;
        let ahead = tat.saturating_sub(clock);
        if ahead > room {
            return Some(FastDecision {
                limit,
                clock,
                ahead,
                wait: ahead - room,
            });
        }
        let passed = cost == 0 || self.swap(seen, tat.max(clock) + charge);
        passed.then_some(FastDecision {
            limit,
            clock,
            ahead: ahead + charge,
            wait: 0,
        })
    }

    /// One call on one key, the terms it was judged by, and how the key's account stood before.
    pub(crate) fn decide<'a>(
        &'a self,
        first: &'a LimitVersion,
        hash: u64,
        asked: &CallRequest,
    ) -> (CallResult, &'a LimitVersion, RefundTotals) {
        for round in 0.. {
            let terms = self.current(first);
            if terms.normal.kind == Kind::Unlimited {
                return (terms.judge_word(0, asked), terms, RefundTotals::default());
            }
            let call = match self.find(hash) {
                Some(seen) if seen.terms() != terms.id => {
                    self.call_other(terms, hash, &seen, asked)
                }
                Some(seen) if terms.fits_a_word() => self.call_word(terms, hash, &seen, asked),
                Some(seen) => self.call_wide(terms, hash, &seen, asked),
                None => self.call_absent(terms, hash, asked),
            };
            match call {
                Some((call, _)) if call.late => {
                    if !self.rebase(&terms.registered, asked.now) {
                        return (terms.no_room(), terms, RefundTotals::default());
                    }
                }
                Some((call, standing)) => return (call, terms, standing),
                // Another thread came in between.
                None => relax(round),
            }
        }
        unreachable!("a loop without an end")
    }

    /// A call on an entry that is counted by other terms. One that charges brings it to these; who
    /// only asks, or is turned away, by another plan than the key's leaves it to that.
    #[cold]
    fn call_other(
        &self,
        terms: &LimitVersion,
        hash: u64,
        seen: &EntryView,
        asked: &CallRequest,
    ) -> Option<(CallResult, RefundTotals)> {
        let from = self.terms(seen.terms());
        if from.registered.number != terms.registered.number {
            let state = match from.fits_a_word() {
                true => EntryState::Word(seen.word()),
                false => {
                    let state = self.wides.lock(seen.word());
                    self.is_still(seen)
                        .then(|| EntryState::Wide(state.clone()))?
                }
            };
            let state = self.bring(state, from.id, terms, self.present(asked.now))?;
            let (call, _) = terms.judge(state, asked, &self.wides.budget.of_one());
            if call.late || call.decision.is_denied() || !asked.write || asked.cost == 0 {
                return Some((call, RefundTotals::default()));
            }
        }
        self.convert(seen, hash, terms, asked.now);
        None
    }

    fn call_word(
        &self,
        terms: &LimitVersion,
        hash: u64,
        seen: &EntryView,
        asked: &CallRequest,
    ) -> Option<(CallResult, RefundTotals)> {
        let standing = self.standing(hash, seen.place);
        let call = terms.judge_word(seen.word(), asked);
        match call.after {
            Some(after) if !self.swap(seen, after) => {
                // As a single limiter does: it pays on a hot key.
                back_off();
                None
            }
            _ => Some((call, standing)),
        }
    }

    fn call_wide(
        &self,
        terms: &LimitVersion,
        hash: u64,
        seen: &EntryView,
        asked: &CallRequest,
    ) -> Option<(CallResult, RefundTotals)> {
        let mut state = self.wides.lock(seen.word());
        // A claimer that comes now waits for this lock.
        self.is_still(seen).then(|| {
            let standing = self.standing(hash, seen.place);
            (
                terms.judge_large(&mut state, asked, &self.wides.budget),
                standing,
            )
        })
    }

    fn call_absent(
        &self,
        terms: &LimitVersion,
        hash: u64,
        asked: &CallRequest,
    ) -> Option<(CallResult, RefundTotals)> {
        if let Some(denied) = terms.denied_by_floor(hash, asked) {
            return Some((denied, RefundTotals::default()));
        }
        let one = self.wides.budget.of_one();
        let (call, _) = terms.judge(self.start(hash, terms)?, asked, &one);
        if !call.decision.is_allowed() || asked.cost == 0 || !asked.write || call.late {
            return Some((call, RefundTotals::default()));
        }
        let _held = self.stripe(hash).inserting.lock();
        if self.find(hash).is_some() {
            return None;
        }
        // Again: the key may have come and gone meanwhile.
        let (call, state) = terms.judge(self.start(hash, terms)?, asked, &one);
        if call.decision.is_denied() {
            return Some((call, RefundTotals::default()));
        }
        if terms.normal.kind == Kind::InFlight {
            return Some((
                self.put_in_flight(terms, hash, asked, call),
                RefundTotals::default(),
            ));
        }
        let room = self.make_room(hash, asked.now);
        let standing = room
            .map(|place| self.standing(hash, place))
            .unwrap_or_default();
        self.put(room, hash, terms, asked.now, state);
        Some((call, standing))
    }

    /// What is in flight has no floor to go to: without room it is turned away.
    fn put_in_flight(
        &self,
        terms: &LimitVersion,
        hash: u64,
        asked: &CallRequest,
        call: CallResult,
    ) -> CallResult {
        match self.make_room(hash, asked.now) {
            Some(place) => {
                self.release_to(place, tag(hash, terms.id), call.after.unwrap_or(0));
                call
            }
            None => terms.no_room(),
        }
    }

    /// One call on a line whose states are words that `judge` alone understands: what it says of a
    /// state, and the state it leaves if it writes one. A key that is not in the table starts from
    /// the floor.
    #[inline]
    pub(crate) fn decide_gcra<T>(
        &self,
        terms: &LimitVersion,
        hash: u64,
        now: Timestamp,
        judge: impl Fn(u64) -> (T, Option<u64>),
    ) -> T {
        if let Some(seen) = self.glance(hash, terms.id, 0)
            && let (told, after) = judge(seen.word())
            && after.is_none_or(|after| self.swap(&seen, after))
        {
            return told;
        }
        self.decide_gcra_slow(terms, hash, now, judge)
    }

    #[inline(never)]
    fn decide_gcra_slow<T>(
        &self,
        terms: &LimitVersion,
        hash: u64,
        now: Timestamp,
        judge: impl Fn(u64) -> (T, Option<u64>),
    ) -> T {
        let start = || match terms.start(hash) {
            EntryState::Word(word) => word,
            EntryState::Wide(_) => unreachable!("its states are words"),
        };
        loop {
            if let Some(seen) = self.find(hash) {
                let (told, after) = judge(seen.word());
                if after.is_none_or(|after| self.swap(&seen, after)) {
                    return told;
                }
                // Another thread came in between.
                back_off();
                continue;
            }
            let (told, after) = judge(start());
            if after.is_none() {
                return told;
            }
            let _held = self.stripe(hash).inserting.lock();
            if self.find(hash).is_some() {
                continue;
            }
            // Again: the key may have come and gone meanwhile.
            let (told, after) = judge(start());
            if let Some(after) = after {
                self.put(
                    self.make_room(hash, now),
                    hash,
                    terms,
                    now,
                    EntryState::Word(after),
                );
            }
            return told;
        }
    }

    pub(super) fn is_still(&self, seen: &EntryView) -> bool {
        self.state_at(seen.place).load(Ordering::Acquire) == seen.stored
            && self.tag_at(seen.place).load(Ordering::Acquire) == seen.tag
    }

    /// How many of a key are in flight.
    pub(crate) fn in_flight(&self, hash: u64) -> u64 {
        self.find(hash).map_or(0, |seen| seen.word())
    }

    /// Takes back permits that are in flight: their entry cannot have gone.
    pub(crate) fn land(&self, hash: u64, cost: u64) {
        while let Some(seen) = self.find(hash) {
            if self.swap(&seen, seen.word().saturating_sub(cost)) {
                return;
            }
            back_off();
        }
    }

    /// Runs `change` on the state of a key, alone, with its account unless it has no place.
    /// `absent` says what of a key that is not in the table. A key that is judged by another plan
    /// by now stays with that. False if it was displaced and stays so.
    pub(crate) fn update(
        &self,
        first: &LimitVersion,
        hash: u64,
        now: Timestamp,
        absent: AbsentKey,
        change: impl FnOnce(&LimitVersion, StateMut<'_>, Option<SlotRefunds<'_>>),
    ) -> bool {
        let mut round = 0;
        loop {
            if round > 0 {
                relax(round);
            }
            round += 1;
            let found = self.find(hash);
            let terms = match found {
                Some(seen) => self.current(self.terms(seen.terms())),
                None => self.current(first),
            };
            if terms.normal.kind == Kind::Unlimited {
                return true;
            }
            if let (Reach::Late, false) = (
                reach(&terms.normal, terms.origin, now),
                terms.normal.is_machine(),
            ) {
                if !self.rebase(&terms.registered, now) {
                    return true;
                }
                continue;
            }
            match found {
                Some(seen) if seen.terms() != terms.id => self.convert(&seen, hash, terms, now),
                Some(seen) if !self.claim(&seen) => back_off(),
                Some(seen) if terms.fits_a_word() => {
                    let mut word = seen.word();
                    change(
                        terms,
                        StateMut::Word(&mut word),
                        Some(self.account(hash, seen.place)),
                    );
                    self.release_as(&seen, word);
                    return true;
                }
                Some(seen) => {
                    let mut state = self.wides.lock(seen.word());
                    change(
                        terms,
                        StateMut::Wide(&mut state, &self.wides.budget),
                        Some(self.account(hash, seen.place)),
                    );
                    drop(state);
                    self.release(&seen);
                    return true;
                }
                None => {
                    let Some(start) = self.start(hash, terms) else {
                        continue;
                    };
                    if absent != AbsentKey::Comes && terms.is_fresh(&start, now) {
                        return true;
                    }
                    if absent == AbsentKey::StaysOut {
                        return false;
                    }
                    let _held = self.stripe(hash).inserting.lock();
                    if self.find(hash).is_some() {
                        continue;
                    }
                    let Some(mut start) = self.start(hash, terms) else {
                        continue;
                    };
                    let (room, budget) = (self.make_room(hash, now), self.wides.budget.of_one());
                    let state = match &mut start {
                        EntryState::Word(word) => StateMut::Word(word),
                        EntryState::Wide(state) => StateMut::Wide(state, &budget),
                    };
                    change(terms, state, room.map(|place| self.account(hash, place)));
                    self.put(room, hash, terms, now, start);
                    return true;
                }
            }
        }
    }
}

/// What becomes of a key that is not in the table when its state is to be altered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AbsentKey {
    /// One that would start from fresh stays so: there is nothing to alter.
    StaysFresh,
    /// The same, and one that was displaced stays so.
    StaysOut,
    /// It is put in.
    Comes,
}

/// The state of a key that is one's own for the moment.
pub(crate) enum StateMut<'a> {
    Word(&'a mut u64),
    Wide(&'a mut LargeState, &'a ByteBudget),
}
