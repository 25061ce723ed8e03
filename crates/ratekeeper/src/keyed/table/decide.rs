//! Decisions on one key: found, absent, or counted by another version.

use super::{EntryView, RefundTotals, Table, tag};
use crate::algorithm::tat_word::{Reach, decision, reach};
use crate::algorithm::token_bucket::{self, Step};
use crate::clock::Clock;
use crate::keyed::judge::{CallRequest, CallResult};
use crate::keyed::limit_version::{EntryState, LimitVersion};
use crate::limit::Kind;
use crate::sync::{Ordering, back_off, relax};

/// What the table decided about a call.
pub(crate) struct TableDecision<'a> {
    pub(crate) call: CallResult,
    /// The version it was judged by.
    pub(crate) version: &'a LimitVersion,
    /// The refund totals of the key's slot before the call, if it is to be settled later.
    pub(crate) refund_totals: RefundTotals,
}

impl<C: Clock> Table<C> {
    /// Decides one call on one key.
    ///
    /// The fast path, without a loop: the key is in its home cache line, its limit is a token
    /// bucket, the caller neither waits nor peeks, and no other thread interferes. `request` reads
    /// the clock; it is called once the cache line is on its way, so that the two waits overlap.
    ///
    /// `result` takes what the caller needs of the decision. Always inlined: the rest is then never
    /// built.
    #[inline(always)]
    pub(crate) fn decide<'a, T>(
        &'a self,
        first_version: &'a LimitVersion,
        hash: u64,
        request: impl FnOnce() -> CallRequest,
        result: impl FnOnce(TableDecision<'a>) -> T,
    ) -> T {
        let version = self.current(first_version);
        let entry = self.try_find_in(hash, version.id, 0);
        let request = request();
        let limit = request.limit.as_ref().unwrap_or(&version.normal);
        if let Some(entry) = entry
            && limit.kind == Kind::Bucket
            && request.is_plain()
            && let Reach::Clock(clock) = reach(limit, version.origin, request.now)
        {
            let refund_totals = if request.is_final {
                RefundTotals::default()
            } else {
                self.refund_totals(hash, entry.slot)
            };
            let word = entry.word();
            let step = token_bucket::step(limit, word, clock, request.cost, 0);
            let after = match step {
                Step::Admit { tat, .. } if request.cost == 0 || self.swap(&entry, tat) => Some(tat),
                Step::Deny { .. } => Some(word),
                _ => None,
            };
            if let Some(after) = after {
                let decision = decision(limit, step, after.saturating_sub(clock));
                let call = CallResult {
                    decision,
                    after: (decision.is_allowed() && request.cost > 0).then_some(after),
                    charged: after,
                    clock,
                    wait: 0,
                    needs_rebase: false,
                };
                return result(TableDecision {
                    call,
                    version,
                    refund_totals,
                });
            }
        }
        // By value: on the fast path the request then need not be in memory.
        self.decide_slow(first_version, hash, request, result)
    }

    /// Decides one call on one key, for any limit, state and instant.
    #[inline(never)]
    fn decide_slow<'a, T>(
        &'a self,
        first_version: &'a LimitVersion,
        hash: u64,
        request: CallRequest,
        result: impl FnOnce(TableDecision<'a>) -> T,
    ) -> T {
        result(self.decide_any(first_version, hash, &request))
    }

    fn decide_any<'a>(
        &'a self,
        first_version: &'a LimitVersion,
        hash: u64,
        request: &CallRequest,
    ) -> TableDecision<'a> {
        for round in 0.. {
            let version = self.current(first_version);
            let no_slot = |call| TableDecision {
                call,
                version,
                refund_totals: RefundTotals::default(),
            };
            if version.normal.kind == Kind::Unlimited {
                return no_slot(version.judge_word(0, request));
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
                        return no_slot(version.table_full());
                    }
                }
                Some((call, refund_totals)) => {
                    return TableDecision {
                        call,
                        version,
                        refund_totals,
                    };
                }
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

    pub(super) fn is_unchanged(&self, entry: &EntryView) -> bool {
        self.state_at(entry.slot).load(Ordering::Acquire) == entry.stored
            && self.tag_at(entry.slot).load(Ordering::Acquire) == entry.tag
    }
}
