//! One key of a keyed limiter, with the verbs of a limiter.

use super::judge::CallRequest;
use super::limit_version::LimitVersion;
use super::table::{
    AbsentKey, ChargeOrigin, RefundTotals, SlotRefunds, StateMut, Table, TableDecision,
};
use super::{HashedKey, KeyedState};
use crate::algorithm::Refund;
use crate::algorithm::state_op::{GrantOp, RefundOp, SurchargeOp, apply_to_word};
use crate::algorithm::token_bucket::{self, ChargeRecord};
use crate::charge::{Admission, Charge};
use crate::clock::{Clock, Timestamp, nanos};
use crate::decision::{Decision, DeniedError, ReserveError};
use crate::generation::ReservationClaim;
use crate::limit::Kind;
use crate::reservation::Reservation;
use crate::sync::Ordering;
use crate::wait::Wait;
use core::fmt;
use core::time::Duration;
use std::sync::Arc;

/// One key of a [`Keyed`](super::Keyed), with the verbs of a [`Limiter`](crate::Limiter); see
/// [`Keyed::key`](super::Keyed::key).
pub struct Key<'a, C: Clock> {
    inner: &'a Arc<KeyedState<C>>,
    first_version: &'a LimitVersion,
    hash: u64,
    now: Option<Timestamp>,
}

/// A charge on a key, to be settled once the true cost is known, with
/// [`Keyed::settle`](super::Keyed::settle). Dropping it keeps the charge.
///
/// A [`Charge`] holds its table and keeps it alive; a token does not, and so costs nothing to keep.
/// The default token charged nothing.
#[must_use = "settle it when the true cost is known, or drop it with `drop(token)` to keep the charge"]
#[derive(Debug, Default)]
pub struct ChargeToken {
    table: u64,
    hash: u64,
    /// Of no version if nothing was charged, because there is no limit or the call was denied.
    charge_origin: ChargeOrigin,
    cost: u64,
    charged: ChargeRecord,
}

impl ChargeToken {
    /// Returns what was charged, if the call was allowed.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    pub(super) fn settle<C: Clock>(
        self,
        inner: &KeyedState<C>,
        actual: u64,
        now: impl Fn() -> Timestamp,
    ) {
        let table = &inner.table;
        // A charge of another table is ignored.
        if inner.table.id != self.table || self.charge_origin.version() == 0 {
            return;
        }
        let Self {
            hash,
            charge_origin,
            ref charged,
            cost,
            ..
        } = self;
        if actual < cost || is_refundable(table, charge_origin) {
            refund(
                table,
                hash,
                charge_origin,
                charged,
                cost,
                cost.saturating_sub(actual),
                false,
                &now,
            );
        }
        if actual > cost {
            charge_more(table, charge_origin.version(), hash, actual - cost, now);
        }
    }
}

/// A key that outlives the call: owned by a charge or a reservation.
pub(crate) struct OwnedKey<C: Clock> {
    pub(crate) inner: Arc<KeyedState<C>>,
    pub(crate) hash: u64,
    pub(crate) charge_origin: ChargeOrigin,
}

impl<'a, C: Clock> Key<'a, C> {
    #[inline]
    pub(super) fn new(
        inner: &'a Arc<KeyedState<C>>,
        first_version: &'a LimitVersion,
        hash: u64,
    ) -> Self {
        Self {
            inner,
            first_version,
            hash,
            now: None,
        }
    }

    /// Returns the key as [`Keyed::hash`](super::Keyed::hash) hashes it.
    #[inline]
    pub fn hashed(&self) -> HashedKey {
        HashedKey::new(self.inner, self.hash)
    }

    /// Returns the same verbs at an instant of your choice; see
    /// [`Limiter::at`](crate::Limiter::at). A charge more than three years ahead moves the limit of
    /// all keys there: calls more than five years older are denied from then on.
    #[must_use]
    pub fn at(&self, now: Timestamp) -> Self {
        Self {
            now: Some(now),
            ..*self
        }
    }

    #[inline]
    fn now(&self) -> Timestamp {
        self.now.unwrap_or_else(|| self.inner.table.clock().now())
    }

    /// See [`Limiter::check`](crate::Limiter::check).
    #[inline]
    pub fn check(&self) -> Decision {
        self.check_n(1)
    }

    /// See [`Limiter::check_n`](crate::Limiter::check_n).
    #[inline]
    pub fn check_n(&self, cost: u64) -> Decision {
        let check = || CallRequest::check(self.now(), cost);
        let decision = |decided: TableDecision<'_>| decided.call.decision;
        self.inner
            .table
            .decide(self.first_version, self.hash, check, decision)
    }

    /// See [`Limiter::peek`](crate::Limiter::peek).
    pub fn peek(&self) -> Decision {
        self.peek_n(1)
    }

    /// See [`Limiter::peek_n`](crate::Limiter::peek_n).
    pub fn peek_n(&self, cost: u64) -> Decision {
        self.peek_with(self.now(), cost, None)
    }

    fn peek_with(&self, now: Timestamp, cost: u64, max_wait: Option<u64>) -> Decision {
        let request = CallRequest {
            max_wait,
            ..CallRequest::peek(now, cost)
        };
        let decision = |decided: TableDecision<'_>| decided.call.decision;
        self.inner
            .table
            .decide(self.first_version, self.hash, || request, decision)
    }

    /// See [`Limiter::take`](crate::Limiter::take).
    pub fn take(&self, cost: u64) -> Result<Charge<C>, DeniedError> {
        let (admission, charge_origin) = self
            .charge(self.now(), cost, None, TableDecision::admission)
            .map_err(DeniedError)?;
        let key = self.owned_key(charge_origin);
        Ok(Charge::of_key(key, &admission, cost))
    }

    /// Charges `cost` as [`take`](Self::take) does, and also returns the decision. The token is
    /// settled with [`Keyed::settle`](super::Keyed::settle) and does not hold the table. A denied
    /// call charges nothing.
    ///
    /// ```
    /// use ratekeeper::{Keyed, Limit};
    ///
    /// let per_user = Keyed::<str>::new(Limit::per_hour(1_000));
    /// let (decision, token) = per_user.key("u1").take_token(500); // an estimate
    /// assert!(decision.is_allowed());
    /// assert_eq!(decision.remaining(), 500);
    /// // … the work turns out to cost 120 …
    /// per_user.settle(token, 120);
    /// assert_eq!(per_user.key("u1").peek().remaining(), 880);
    /// ```
    // Always inlined, and no `Result`: what it returns is slow to move, and slower with a tag that
    // says which of two it is.
    #[inline(always)]
    pub fn take_token(&self, cost: u64) -> (Decision, ChargeToken) {
        self.charge(self.now(), cost, None, |decided| self.token(cost, &decided))
    }

    #[inline(always)]
    fn token(&self, cost: u64, decided: &TableDecision<'_>) -> (Decision, ChargeToken) {
        let TableDecision {
            ref call,
            version,
            refund_totals,
        } = *decided;
        let charged = ChargeRecord::new(
            &version.normal,
            call.charged,
            call.clock,
            cost,
            refund_totals.refunded,
            refund_totals.given,
        );
        let is_charged = call.decision.is_allowed() && version.normal.kind != Kind::Unlimited;
        let charge_origin = if is_charged {
            refund_totals.charge_origin(version.id)
        } else {
            ChargeOrigin::default()
        };
        let token = ChargeToken {
            table: self.inner.table.id,
            hash: self.hash,
            charge_origin,
            cost,
            charged,
        };
        (call.decision, token)
    }

    /// See [`Limiter::reserve`](crate::Limiter::reserve).
    pub fn reserve(&self, cost: u64) -> Result<Reservation<C>, ReserveError> {
        self.reserve_within(cost, Duration::MAX)
    }

    /// See [`Limiter::reserve_within`](crate::Limiter::reserve_within).
    pub fn reserve_within(
        &self,
        cost: u64,
        max_wait: Duration,
    ) -> Result<Reservation<C>, ReserveError> {
        self.slot(self.now(), cost, nanos(max_wait))
    }

    pub(crate) fn slot(
        &self,
        now: Timestamp,
        cost: u64,
        max_wait: u64,
    ) -> Result<Reservation<C>, ReserveError> {
        let version = self.inner.table.current(self.first_version);
        if version.normal.is_machine()
            && let Some(limit) = version.rule.limit()
        {
            return Err(ReserveError::NoSlots(limit.algorithm_kind()));
        }
        let (admission, charge_origin) = self
            .charge(now, cost, Some(max_wait), TableDecision::admission)
            .map_err(|denied| ReserveError::Denied(DeniedError(denied)))?;
        let key = self.owned_key(charge_origin);
        Ok(Reservation::of_key(key, &admission, cost, now))
    }

    /// Refunds what no later reservation has been promised; see [`Reservation::cancel`].
    pub fn cancel(&self, reservation: Reservation<C>) {
        reservation.cancel_at(|| self.now());
    }

    /// Settles a charge at its true cost; see [`Charge::settle`].
    pub fn settle(&self, charge: Charge<C>, actual: u64) {
        charge.settle_at(actual, || self.now());
    }

    /// See [`Limiter::tokens`](crate::Limiter::tokens).
    pub fn tokens(&self) -> f64 {
        self.peek_n(0).level()
    }

    /// Waits until one unit fits; see [`Limiter::wait`](crate::Limiter::wait).
    pub fn wait(&self) -> Wait<'a, C> {
        self.wait_n(1)
    }

    /// Waits until `cost` units fit; see [`Limiter::wait_n`](crate::Limiter::wait_n). Waits on one
    /// key are served in the order they came; those on different keys are independent.
    pub fn wait_n(&self, cost: u64) -> Wait<'a, C> {
        Wait::of_key(Key { now: None, ..*self }, cost)
    }

    /// Makes this key fresh. Earlier charges and reservations give nothing back.
    pub fn reset(&self) {
        reset(&self.inner.table, self.first_version, self.hash, || {
            self.now()
        });
    }

    /// See [`Limiter::grant`](crate::Limiter::grant).
    pub fn grant(&self, tokens: u64) {
        grant(
            &self.inner.table,
            self.first_version,
            self.hash,
            tokens,
            || self.now(),
        );
    }

    fn owned_key(&self, charge_origin: ChargeOrigin) -> OwnedKey<C> {
        OwnedKey {
            inner: Arc::clone(self.inner),
            hash: self.hash,
            charge_origin,
        }
    }

    /// Charges `cost`, for every verb that settles later.
    #[inline(always)]
    fn charge<T>(
        &self,
        now: Timestamp,
        cost: u64,
        max_wait: Option<u64>,
        result: impl FnOnce(TableDecision<'a>) -> T,
    ) -> T {
        let table = &self.inner.table;
        table.prefetch_refunds(self.hash);
        let request = || CallRequest {
            max_wait,
            is_final: false,
            ..CallRequest::check(now, cost)
        };
        table.decide(self.first_version, self.hash, request, result)
    }
}

impl TableDecision<'_> {
    /// What a charge or a reservation is made from, and where it is recorded; or the denial.
    #[inline]
    fn admission(self) -> Result<(Admission, ChargeOrigin), Decision> {
        if self.call.decision.is_denied() {
            return Err(self.call.decision);
        }
        let admission = Admission {
            limit: self.version.normal,
            generation_id: self.version.id,
            clock: self.call.clock,
            tat: self.call.charged,
            wait: self.call.wait,
            given: self.refund_totals.given,
            refunded: self.refund_totals.refunded,
        };
        Ok((admission, self.refund_totals.charge_origin(self.version.id)))
    }
}

/// # For waits
impl<C: Clock> Key<'_, C> {
    pub(crate) fn inner(&self) -> &KeyedState<C> {
        self.inner
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn version(&self) -> &LimitVersion {
        self.inner.table.current(self.first_version)
    }

    /// Returns how long until the next slot for `cost`, with no limit on the wait.
    pub(crate) fn peek_slot(&self, now: Timestamp, cost: u64) -> Duration {
        let decision = self.peek_with(now, cost, Some(u64::MAX));
        if self.version().normal.kind == Kind::Pacing {
            decision.reset_after()
        } else {
            decision.delay()
        }
    }
}

/// # After the call was allowed
impl<C: Clock> OwnedKey<C> {
    pub(crate) fn clock(&self) -> &C {
        self.inner.table.clock()
    }

    /// Whether a charge is settled even if all of it was used.
    pub(crate) fn is_refundable(&self) -> bool {
        is_refundable(&self.inner.table, self.charge_origin)
    }

    /// Refunds `unused` units of a charge of `cost`.
    pub(crate) fn refund(
        &self,
        charged: &ChargeRecord,
        cost: u64,
        unused: u64,
        now: impl Fn() -> Timestamp,
    ) {
        let table = &self.inner.table;
        refund(
            table,
            self.hash,
            self.charge_origin,
            charged,
            cost,
            unused,
            false,
            now,
        );
    }

    /// Charges `extra` units, at most a full bucket of them.
    pub(crate) fn charge_more(&self, extra: u64, now: impl Fn() -> Timestamp) {
        charge_more(
            &self.inner.table,
            self.charge_origin.version(),
            self.hash,
            extra,
            now,
        );
    }

    /// Cancels a reservation, unless its time has come.
    pub(crate) fn cancel(
        &self,
        claim: ReservationClaim,
        act: Timestamp,
        now: impl Fn() -> Timestamp,
    ) {
        let table = &self.inner.table;
        let first_version = table.version(self.charge_origin.version());
        table.update(
            first_version,
            self.hash,
            now(),
            AbsentKey::NeverInsert,
            |version, state, slot_refunds| {
                let (StateMut::Word(word), Some(slot_refunds)) = (state, slot_refunds) else {
                    return;
                };
                let Some(refund_totals) =
                    slot_refunds.totals_if_current(self.charge_origin, version.id)
                else {
                    return;
                };
                let now = now();
                if act < now {
                    return;
                }
                let clock = version.clock_at(now);
                if version.normal.kind == Kind::Pacing {
                    // Only the last slot of a queue can be cancelled, and only before it begins.
                    if word.wrapping_add(refund_totals.given) == claim.mark && now < act {
                        *word -= claim.worth.min(word.saturating_sub(clock));
                    }
                    return;
                }
                let back = token_bucket::cancel(
                    &version.normal,
                    *word,
                    clock,
                    refund_totals.given,
                    claim.worth,
                    claim.mark,
                );
                *word = word.saturating_sub(back.give);
                slot_refunds.refund(&back);
            },
        );
    }
}

/// Whether a charge of this origin is settled even if all of it was used.
pub(crate) fn is_refundable<C: Clock>(table: &Table<C>, charge_origin: ChargeOrigin) -> bool {
    charge_origin.version() != 0
        && table.version(charge_origin.version()).normal.kind == Kind::Refundable
}

/// Refunds `unused` units of a charge of `cost` to a key; `is_all`: whether those are all of it.
#[allow(clippy::too_many_arguments)]
pub(crate) fn refund<C: Clock>(
    table: &Table<C>,
    hash: u64,
    charge_origin: ChargeOrigin,
    charged: &ChargeRecord,
    cost: u64,
    unused: u64,
    is_all: bool,
    now: impl Fn() -> Timestamp,
) {
    let mut too_late = false;
    let first_version = table.version(charge_origin.version());
    let is_in = table.update(
        first_version,
        hash,
        now(),
        AbsentKey::NeverInsert,
        |version, state, slot_refunds| {
            let slot_refunds = slot_refunds.and_then(|slot_refunds| {
                Some((
                    slot_refunds,
                    slot_refunds.totals_if_current(charge_origin, version.id)?,
                ))
            });
            let Some((slot_refunds, refund_totals)) = slot_refunds else {
                too_late = true;
                return;
            };
            let normal = &version.normal;
            let now = now();
            let refund = Refund {
                charged_in: charged.tat,
                cost,
                unused,
            };
            match state {
                StateMut::Large(state, _) => state.refund(normal, now.as_unix_nanos(), refund),
                StateMut::Word(word) if normal.is_windowed() => {
                    let back = RefundOp {
                        now: now.as_unix_nanos(),
                        refund,
                    };
                    *word = apply_to_word(normal, *word, &back).0.unwrap_or(*word);
                }
                StateMut::Word(word) if normal.kind == Kind::Pacing => {
                    // What is at the end of the queue and has not begun can be cancelled, unless
                    // grants have moved the end since.
                    if *word == charged.tat && refund_totals.given == charged.given {
                        let ahead = word.saturating_sub(version.clock_at(now));
                        *word -= ahead.min(unused.saturating_mul(normal.token));
                    }
                }
                StateMut::Word(word) => {
                    let clock = version.clock_at(now);
                    let RefundTotals {
                        given, refunded, ..
                    } = refund_totals;
                    let back = token_bucket::refund(
                        normal, *word, clock, unused, is_all, charged, refunded, given,
                    );
                    *word = word.saturating_sub(back.give);
                    slot_refunds.refund(&back);
                }
            }
        },
    );
    // What has refilled by itself in the meantime is not lost.
    let is_repaid =
        || !first_version.normal.is_machine() && charged.tat <= first_version.clock_at(now());
    if (too_late || !is_in) && !is_repaid() {
        first_version
            .registered
            .not_returned
            .fetch_add(unused, Ordering::Relaxed);
    }
}

/// Charges `extra` units more to a key, at most a full bucket of them.
pub(crate) fn charge_more<C: Clock>(
    table: &Table<C>,
    id: u32,
    hash: u64,
    extra: u64,
    now: impl Fn() -> Timestamp,
) {
    let charge = |version: &LimitVersion, state: StateMut<'_>, _: Option<SlotRefunds<'_>>| {
        let normal = &version.normal;
        let now = now();
        let extra = extra.min(normal.burst());
        match state {
            StateMut::Large(state, budget) => {
                state.charge_more(normal, now.as_unix_nanos(), extra, budget);
            }
            StateMut::Word(word) if normal.is_windowed() => {
                let more = SurchargeOp {
                    now: now.as_unix_nanos(),
                    extra,
                };
                *word = apply_to_word(normal, *word, &more).0.unwrap_or(*word);
            }
            StateMut::Word(word) => {
                let charged = (*word)
                    .max(version.clock_at(now))
                    .saturating_add(extra * normal.token);
                *word = charged.min(u64::MAX - 1);
            }
        }
        version
            .registered
            .settled_up
            .fetch_add(extra, Ordering::Relaxed);
    };
    table.update(table.version(id), hash, now(), AbsentKey::Insert, charge);
}

/// Makes a key of a rate fresh. Earlier charges and reservations give nothing back.
pub(crate) fn reset<C: Clock>(
    table: &Table<C>,
    first_version: &LimitVersion,
    hash: u64,
    now: impl Fn() -> Timestamp,
) {
    table.update(
        first_version,
        hash,
        now(),
        AbsentKey::InsertUnlessFresh,
        |version, state, slot_refunds| {
            if let Some(slot_refunds) = slot_refunds {
                slot_refunds.invalidate_charges();
            }
            match state {
                StateMut::Word(word) => {
                    let fresh = if version.normal.is_windowed() {
                        0
                    } else {
                        version.clock_at(now())
                    };
                    *word = (*word).min(fresh);
                }
                StateMut::Large(state, _) => state.clear(),
            }
        },
    );
    table
        .current(first_version)
        .registered
        .changes
        .fetch_add(1, Ordering::Relaxed);
}

/// Grants a key of a rate up to `tokens` of what it has used, and counts them.
pub(crate) fn grant<C: Clock>(
    table: &Table<C>,
    first_version: &LimitVersion,
    hash: u64,
    tokens: u64,
    now: impl Fn() -> Timestamp,
) {
    table.update(
        first_version,
        hash,
        now(),
        AbsentKey::InsertUnlessFresh,
        |version, state, slot_refunds| {
            let normal = &version.normal;
            let now = now();
            let given = match state {
                StateMut::Large(state, _) => state.grant(normal, now.as_unix_nanos(), tokens),
                StateMut::Word(word) if normal.is_windowed() => {
                    let (after, granted) = apply_to_word(
                        normal,
                        *word,
                        &GrantOp {
                            now: now.as_unix_nanos(),
                            tokens,
                        },
                    );
                    *word = after.unwrap_or(*word);
                    granted
                }
                StateMut::Word(word) => {
                    let ahead = word.saturating_sub(version.clock_at(now));
                    let granted = ahead.min(tokens.saturating_mul(normal.token));
                    *word -= granted;
                    // An earlier charge's settle or cancel must not mistake the grant for its own
                    // refund.
                    if let Some(slot_refunds) = slot_refunds {
                        slot_refunds.add_given(granted);
                    }
                    granted.div_ceil(normal.token)
                }
            };
            version
                .registered
                .granted
                .fetch_add(given, Ordering::Relaxed);
        },
    );
}

impl<C: Clock> Clone for OwnedKey<C> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            hash: self.hash,
            charge_origin: self.charge_origin,
        }
    }
}

impl<C: Clock> fmt::Debug for Key<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("limit", &self.version().rule.limit())
            .field("tokens", &self.tokens())
            .finish()
    }
}
