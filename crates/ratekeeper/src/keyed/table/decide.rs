//! Decisions on one key: found, absent, or counted by another version.

use super::{EntryView, PROBES, RefundTotals, Table, tag};
use crate::algorithm::tat_word::{FastDecision, REACH};
use crate::clock::{Clock, Timestamp};
use crate::decision::Decision;
use crate::keyed::judge::{CallRequest, CallResult};
use crate::keyed::limit_version::{EntryState, LimitVersion};
use crate::limit::Kind;
use crate::sync::{Ordering, back_off, relax};

impl<C: Clock> Table<C> {
    /// A check that returns nothing but a decision. The common case is the fast path, without a
    /// loop: the key is in its home cache line, its limit is a bucket, and no other thread
    /// interferes.
    ///
    /// The clock is read once the cache line is on its way: the two waits overlap.
    #[inline(always)]
    pub(crate) fn check(
        &self,
        first_version: &LimitVersion,
        hash: u64,
        now: impl FnOnce() -> Timestamp,
        cost: u64,
    ) -> Decision {
        let version = self.current(first_version);
        let entry = self.try_find_in(hash, version.id, 0);
        let now = now();
        match entry.and_then(|entry| self.decide_fast(version, &entry, now, cost)) {
            Some(fast) => fast.decision(),
            None => self.check_slow(first_version, hash, now, cost),
        }
    }

    #[inline(never)]
    fn check_slow(
        &self,
        first_version: &LimitVersion,
        hash: u64,
        now: Timestamp,
        cost: u64,
    ) -> Decision {
        let version = self.current(first_version);
        for probe in 1..PROBES {
            if let Some(entry) = self.try_find_in(hash, version.id, probe)
                && let Some(fast) = self.decide_fast(version, &entry, now, cost)
            {
                return fast.decision();
            }
        }
        let request = CallRequest {
            now,
            cost,
            max_wait: None,
            reserve: 0,
            write: true,
            is_final: true,
        };
        self.decide(first_version, hash, &request).0.decision
    }

    /// The fast path of a call that settles later; also returns the version it was judged by and
    /// the refund totals before it. `None` where it is not the common case.
    #[inline(always)]
    pub(crate) fn take_fast<'a>(
        &'a self,
        first_version: &'a LimitVersion,
        hash: u64,
        now: Timestamp,
        cost: u64,
    ) -> Option<(FastDecision, &'a LimitVersion, RefundTotals)> {
        self.prefetch_refunds(hash);
        let version = self.current(first_version);
        let entry = self.try_find_in(hash, version.id, 0)?;
        let refund_totals = self.refund_totals(hash, entry.slot);
        Some((
            self.decide_fast(version, &entry, now, cost)?,
            version,
            refund_totals,
        ))
    }

    /// Decides one call of a bucket with no wait and nothing unusual, as `Generation::decide_fast`
    /// does.
    #[inline(always)]
    fn decide_fast(
        &self,
        version: &LimitVersion,
        entry: &EntryView,
        now: Timestamp,
        cost: u64,
    ) -> Option<FastDecision> {
        let limit = version.normal;
        let tat = entry.word();
        let charge = cost.checked_mul(limit.token)?;
        let max_ahead = limit.capacity.checked_sub(charge)?;
        let elapsed = now.as_unix_nanos().checked_sub(version.origin)?;
        if elapsed > REACH || limit.kind != Kind::Bucket {
            return None;
        }
        let clock = elapsed * limit.ticks;
        let ahead = tat.saturating_sub(clock);
        if ahead > max_ahead {
            return Some(FastDecision {
                limit,
                clock,
                ahead,
                wait: ahead - max_ahead,
            });
        }
        let decided = cost == 0 || self.swap(entry, tat.max(clock) + charge);
        decided.then_some(FastDecision {
            limit,
            clock,
            ahead: ahead + charge,
            wait: 0,
        })
    }

    /// Decides one call on one key; also returns the version it was judged by and the refund totals
    /// of the key's slot before it.
    pub(crate) fn decide<'a>(
        &'a self,
        first_version: &'a LimitVersion,
        hash: u64,
        request: &CallRequest,
    ) -> (CallResult, &'a LimitVersion, RefundTotals) {
        for round in 0.. {
            let version = self.current(first_version);
            if version.normal.kind == Kind::Unlimited {
                return (
                    version.judge_word(0, request),
                    version,
                    RefundTotals::default(),
                );
            }
            let call = match self.find(hash) {
                Some(entry) if entry.version() != version.id => {
                    self.decide_other_version(version, hash, &entry, request)
                }
                Some(entry) if version.fits_a_word() => {
                    self.decide_word(version, hash, &entry, request)
                }
                Some(entry) => self.decide_large(version, hash, &entry, request),
                None => self.decide_absent(version, hash, request),
            };
            match call {
                Some((call, _)) if call.needs_rebase => {
                    if !self.rebase(&version.registered, request.now) {
                        return (version.table_full(), version, RefundTotals::default());
                    }
                }
                Some((call, refund_totals)) => return (call, version, refund_totals),
                // Another thread interfered.
                None => relax(round),
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// Decides a call on an entry that is counted by another version. A call that charges converts
    /// the entry; one of another limit that only peeks or is denied leaves it as it is.
    #[cold]
    fn decide_other_version(
        &self,
        version: &LimitVersion,
        hash: u64,
        entry: &EntryView,
        request: &CallRequest,
    ) -> Option<(CallResult, RefundTotals)> {
        let from = self.version(entry.version());
        if from.registered.number != version.registered.number {
            let state = if from.fits_a_word() {
                EntryState::Word(entry.word())
            } else {
                let state = self.large_states.lock(entry.word());
                self.is_unchanged(entry)
                    .then(|| EntryState::Large(state.clone()))?
            };
            let state = self.convert_to(state, from.id, version, self.present(request.now))?;
            let (call, _) =
                version.judge(state, request, &self.large_states.budget.for_new_state());
            if call.needs_rebase || call.decision.is_denied() || !request.write || request.cost == 0
            {
                return Some((call, RefundTotals::default()));
            }
        }
        self.convert(entry, hash, version, request.now);
        None
    }

    fn decide_word(
        &self,
        version: &LimitVersion,
        hash: u64,
        entry: &EntryView,
        request: &CallRequest,
    ) -> Option<(CallResult, RefundTotals)> {
        let refund_totals = self.refund_totals(hash, entry.slot);
        let call = version.judge_word(entry.word(), request);
        match call.after {
            Some(after) if !self.swap(entry, after) => {
                // As a single limiter does: it pays on a hot key.
                back_off();
                None
            }
            _ => Some((call, refund_totals)),
        }
    }

    fn decide_large(
        &self,
        version: &LimitVersion,
        hash: u64,
        entry: &EntryView,
        request: &CallRequest,
    ) -> Option<(CallResult, RefundTotals)> {
        let mut state = self.large_states.lock(entry.word());
        // A thread that claims the entry now waits for this lock.
        self.is_unchanged(entry).then(|| {
            let refund_totals = self.refund_totals(hash, entry.slot);
            (
                version.judge_large(&mut state, request, &self.large_states.budget),
                refund_totals,
            )
        })
    }

    fn decide_absent(
        &self,
        version: &LimitVersion,
        hash: u64,
        request: &CallRequest,
    ) -> Option<(CallResult, RefundTotals)> {
        if let Some(denied) = version.denied_by_floor(hash, request) {
            return Some((denied, RefundTotals::default()));
        }
        let one = self.large_states.budget.for_new_state();
        let (call, _) = version.judge(self.initial_state(hash, version)?, request, &one);
        if !call.decision.is_allowed() || request.cost == 0 || !request.write || call.needs_rebase {
            return Some((call, RefundTotals::default()));
        }
        let _held = self.stripe(hash).insert_lock.lock();
        if self.find(hash).is_some() {
            return None;
        }
        // Again: the key may have been inserted and evicted meanwhile.
        let (call, state) = version.judge(self.initial_state(hash, version)?, request, &one);
        if call.decision.is_denied() {
            return Some((call, RefundTotals::default()));
        }
        if version.normal.kind == Kind::InFlight {
            return Some((
                self.insert_in_flight(version, hash, request, call),
                RefundTotals::default(),
            ));
        }
        let slot = self.claim_slot(hash, request.now);
        let refund_totals = slot
            .map(|slot| self.refund_totals(hash, slot))
            .unwrap_or_default();
        self.insert(slot, hash, version, request.now, state);
        Some((call, refund_totals))
    }

    /// Inserts a key with units in flight. They cannot go into a floor: without a slot the call is
    /// denied.
    fn insert_in_flight(
        &self,
        version: &LimitVersion,
        hash: u64,
        request: &CallRequest,
        call: CallResult,
    ) -> CallResult {
        match self.claim_slot(hash, request.now) {
            Some(slot) => {
                self.release_to(slot, tag(hash, version.id), call.after.unwrap_or(0));
                call
            }
            None => version.table_full(),
        }
    }

    /// Decides one call on a limit whose states are words that only `judge` understands: it returns
    /// a result, and the new state if it writes one. A key that is not in the table starts from the
    /// floor.
    #[inline]
    pub(crate) fn decide_gcra<T>(
        &self,
        version: &LimitVersion,
        hash: u64,
        now: Timestamp,
        judge: impl Fn(u64) -> (T, Option<u64>),
    ) -> T {
        if let Some(entry) = self.try_find_in(hash, version.id, 0)
            && let (result, after) = judge(entry.word())
            && after.is_none_or(|after| self.swap(&entry, after))
        {
            return result;
        }
        self.decide_gcra_slow(version, hash, now, judge)
    }

    #[inline(never)]
    fn decide_gcra_slow<T>(
        &self,
        version: &LimitVersion,
        hash: u64,
        now: Timestamp,
        judge: impl Fn(u64) -> (T, Option<u64>),
    ) -> T {
        let start = || match version.initial_state(hash) {
            EntryState::Word(word) => word,
            EntryState::Large(_) => unreachable!("its states are words"),
        };
        loop {
            if let Some(entry) = self.find(hash) {
                let (result, after) = judge(entry.word());
                if after.is_none_or(|after| self.swap(&entry, after)) {
                    return result;
                }
                // Another thread interfered.
                back_off();
                continue;
            }
            let (result, after) = judge(start());
            if after.is_none() {
                return result;
            }
            let _held = self.stripe(hash).insert_lock.lock();
            if self.find(hash).is_some() {
                continue;
            }
            // Again: the key may have been inserted and evicted meanwhile.
            let (result, after) = judge(start());
            if let Some(after) = after {
                self.insert(
                    self.claim_slot(hash, now),
                    hash,
                    version,
                    now,
                    EntryState::Word(after),
                );
            }
            return result;
        }
    }

    pub(super) fn is_unchanged(&self, entry: &EntryView) -> bool {
        self.state_at(entry.slot).load(Ordering::Acquire) == entry.stored
            && self.tag_at(entry.slot).load(Ordering::Acquire) == entry.tag
    }
}
