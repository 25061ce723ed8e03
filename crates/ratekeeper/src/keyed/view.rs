//! One key of many, with the verbs of a limiter.

use super::table::{AbsentKey, ChargeOrigin, RefundTotals, SlotRefunds, StateMut, Table};
use super::terms::{CallRequest, LimitVersion};
use super::{HashedKey, KeyedState};
use crate::algorithm::Refund;
use crate::algorithm::state_op::{GrantOp, RefundOp, SurchargeOp, apply_to_word};
use crate::algorithm::tat_word::FastDecision;
use crate::algorithm::token_bucket::{self, ChargeRecord};
use crate::clock::{Clock, Timestamp, nanos};
use crate::decision::{Decision, DeniedError, ReserveError};
use crate::limit::Kind;
use crate::limiter::at::Admission;
use crate::limiter::change::ReservationClaim;
use crate::limiter::{Charge, Reservation, Wait};
use crate::sync::Ordering;
use core::fmt;
use core::time::Duration;
use std::sync::Arc;

/// One key of a [`Keyed`](super::Keyed), with the verbs of a [`Limiter`](crate::Limiter); what
/// [`Keyed::key`](super::Keyed::key) returns.
pub struct Key<'a, C: Clock> {
    inner: &'a Arc<KeyedState<C>>,
    first: &'a LimitVersion,
    hash: u64,
    now: Option<Timestamp>,
}

/// What a call took of a key, to be settled once the true cost is known:
/// [`Keyed::settle`](super::Keyed::settle). Dropping it keeps the charge.
///
/// A [`Charge`] knows its table and keeps it alive; this does neither, and so costs nothing to
/// keep. The default is to have taken nothing.
#[must_use = "settle it when the true cost is known, or drop it with `drop(taken)` to keep the charge"]
#[derive(Debug, Default)]
pub struct ChargeToken {
    table: u64,
    hash: u64,
    /// By no terms if nothing was charged, because there is no limit or it was met.
    booking: ChargeOrigin,
    cost: u64,
    charged: ChargeRecord,
}

impl ChargeToken {
    /// What was charged, if the call passed.
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
        // What another table charged is none of this one's business.
        if inner.table.id != self.table || self.booking.terms() == 0 {
            return;
        }
        let Self {
            hash,
            booking,
            ref charged,
            cost,
            ..
        } = self;
        if actual < cost || is_refundable(table, booking) {
            give_back(
                table,
                hash,
                booking,
                charged,
                cost,
                cost.saturating_sub(actual),
                false,
                &now,
            );
        }
        if actual > cost {
            charge_more(table, booking.terms(), hash, actual - cost, now);
        }
    }
}

/// A key that outlives the call: what a charge or a reservation owns.
pub(crate) struct OwnedKey<C: Clock> {
    pub(crate) inner: Arc<KeyedState<C>>,
    pub(crate) hash: u64,
    pub(crate) booking: ChargeOrigin,
}

impl<'a, C: Clock> Key<'a, C> {
    #[inline]
    pub(super) fn new(inner: &'a Arc<KeyedState<C>>, first: &'a LimitVersion, hash: u64) -> Self {
        Self {
            inner,
            first,
            hash,
            now: None,
        }
    }

    /// The key as [`Keyed::hash`](super::Keyed::hash) hashes it.
    #[inline]
    pub fn hashed(&self) -> HashedKey {
        HashedKey::new(self.inner, self.hash)
    }

    /// The same verbs at an instant of your choice; see [`Limiter::at`](crate::Limiter::at). A
    /// charge more than three years ahead moves the limit of all keys there: what is five years
    /// older is turned away from then on.
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
        self.inner
            .table
            .check(self.first, self.hash, || self.now(), cost)
    }

    /// See [`Limiter::peek`](crate::Limiter::peek).
    pub fn peek(&self) -> Decision {
        self.peek_n(1)
    }

    /// See [`Limiter::peek_n`](crate::Limiter::peek_n).
    pub fn peek_n(&self, cost: u64) -> Decision {
        self.look(self.now(), cost, None)
    }

    fn look(&self, now: Timestamp, cost: u64, longest: Option<u64>) -> Decision {
        let asked = CallRequest {
            now,
            cost,
            longest,
            reserve: 0,
            write: false,
            kept: false,
        };
        self.inner
            .table
            .decide(self.first, self.hash, &asked)
            .0
            .decision
    }

    /// See [`Limiter::take`](crate::Limiter::take).
    pub fn take(&self, cost: u64) -> Result<Charge<C>, DeniedError> {
        let (admitted, booking, _) = self.admit(self.now(), cost, None).map_err(DeniedError)?;
        Ok(Charge::of_key(self.spot(booking), &admitted, cost))
    }

    /// As [`take`](Self::take), for those who keep the table anyway: what it took is settled by
    /// [`Keyed::settle`](super::Keyed::settle), and the figures come with it. A call that is denied
    /// takes nothing.
    ///
    /// ```
    /// use ratekeeper::{Keyed, Limit};
    ///
    /// let per_user = Keyed::<str>::new(Limit::per_hour(1_000));
    /// let (decision, taken) = per_user.key("u1").charge(500); // an estimate
    /// assert!(decision.is_allowed());
    /// assert_eq!(decision.remaining(), 500);
    /// // … the work turns out to cost 120 …
    /// per_user.settle(taken, 120);
    /// assert_eq!(per_user.key("u1").peek().remaining(), 880);
    /// ```
    // Always, and no Result: what it returns is slow to move, and slower where its bytes say which
    // of two it is.
    #[inline(always)]
    pub fn take_token(&self, cost: u64) -> (Decision, ChargeToken) {
        match self.try_take_token(cost) {
            Some(charged) => charged,
            None => self.take_token_slow(cost),
        }
    }

    /// The same where it takes one step: the limit is a bucket, its key is at hand, and nobody
    /// comes in between. None where it takes more; then nothing was charged, and
    /// [`charge`](Self::charge) does it.
    #[inline(always)]
    pub fn try_take_token(&self, cost: u64) -> Option<(Decision, ChargeToken)> {
        let (quick, terms, standing) =
            self.inner
                .table
                .take_fast(self.first, self.hash, self.now(), cost)?;
        let (
            decision,
            FastDecision {
                limit,
                clock,
                ahead,
                ..
            },
        ) = (quick.decision(), quick);
        let charged = ChargeRecord::new(
            &limit,
            clock + ahead,
            clock,
            cost,
            standing.refunded,
            standing.given,
        );
        let booking = if decision.is_denied() {
            ChargeOrigin::default()
        } else {
            standing.booked_by(terms.id)
        };
        Some((
            decision,
            ChargeToken {
                table: self.inner.table.id,
                hash: self.hash,
                booking,
                cost,
                charged,
            },
        ))
    }

    #[inline(never)]
    fn take_token_slow(&self, cost: u64) -> (Decision, ChargeToken) {
        let (table, hash) = (self.inner.table.id, self.hash);
        match self.admit_slow(self.now(), cost, None) {
            Ok((
                Admission {
                    limit,
                    clock,
                    tat,
                    given,
                    refunded,
                    ..
                },
                booking,
                decision,
            )) => {
                let charged = ChargeRecord::new(&limit, tat, clock, cost, refunded, given);
                let booking = if limit.kind == Kind::Unlimited {
                    ChargeOrigin::default()
                } else {
                    booking
                };
                (
                    decision,
                    ChargeToken {
                        table,
                        hash,
                        booking,
                        cost,
                        charged,
                    },
                )
            }
            Err(decision) => (decision, ChargeToken::default()),
        }
    }

    /// See [`Limiter::reserve`](crate::Limiter::reserve).
    pub fn reserve(&self, cost: u64) -> Result<Reservation<C>, ReserveError> {
        self.reserve_within(cost, Duration::MAX)
    }

    /// See [`Limiter::reserve_within`](crate::Limiter::reserve_within).
    pub fn reserve_within(
        &self,
        cost: u64,
        longest: Duration,
    ) -> Result<Reservation<C>, ReserveError> {
        self.slot(self.now(), cost, nanos(longest))
    }

    pub(crate) fn slot(
        &self,
        now: Timestamp,
        cost: u64,
        longest: u64,
    ) -> Result<Reservation<C>, ReserveError> {
        let terms = self.inner.table.current(self.first);
        if let (true, Some(limit)) = (terms.normal.is_machine(), terms.rule.limit()) {
            return Err(ReserveError::NoSlots(limit.algorithm_kind()));
        }
        match self.admit(now, cost, Some(longest)) {
            Ok((admitted, booking, _)) => Ok(Reservation::of_key(
                self.spot(booking),
                &admitted,
                cost,
                now,
            )),
            Err(decision) => Err(ReserveError::Denied(DeniedError(decision))),
        }
    }

    /// Gives back what no later reservation has been promised; see [`Reservation::cancel`].
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

    /// Waits until `cost` units fit; see [`Limiter::wait_n`](crate::Limiter::wait_n). Waits of one
    /// key are served in the order they came; those of different keys do not know of each other.
    pub fn wait_n(&self, cost: u64) -> Wait<'a, C> {
        Wait::of_key(Key { now: None, ..*self }, cost)
    }

    /// Makes this key fresh. Older charges and reservations give nothing back.
    pub fn reset(&self) {
        reset(&self.inner.table, self.first, self.hash, || self.now());
    }

    /// See [`Limiter::grant`](crate::Limiter::grant).
    pub fn grant(&self, tokens: u64) {
        grant(&self.inner.table, self.first, self.hash, tokens, || {
            self.now()
        });
    }

    fn spot(&self, booking: ChargeOrigin) -> OwnedKey<C> {
        OwnedKey {
            inner: Arc::clone(self.inner),
            hash: self.hash,
            booking,
        }
    }

    /// Takes `cost`: the way of every verb that keeps something. With where it is booked.
    #[inline(always)]
    fn admit(
        &self,
        now: Timestamp,
        cost: u64,
        longest: Option<u64>,
    ) -> Result<(Admission, ChargeOrigin, Decision), Decision> {
        let table = &self.inner.table;
        let straight = if longest.is_none() {
            table.take_fast(self.first, self.hash, now, cost)
        } else {
            None
        };
        let Some((quick, terms, standing)) = straight else {
            return self.admit_slow(now, cost, longest);
        };
        let (
            decision,
            FastDecision {
                limit,
                clock,
                ahead,
                ..
            },
        ) = (quick.decision(), quick);
        if decision.is_denied() {
            return Err(decision);
        }
        let (
            generation,
            tat,
            RefundTotals {
                given, refunded, ..
            },
        ) = (terms.id, clock + ahead, standing);
        let admitted = Admission {
            limit,
            generation_id: generation,
            clock,
            tat,
            wait: 0,
            given,
            refunded,
        };
        Ok((admitted, standing.booked_by(generation), decision))
    }

    #[inline(never)]
    fn admit_slow(
        &self,
        now: Timestamp,
        cost: u64,
        longest: Option<u64>,
    ) -> Result<(Admission, ChargeOrigin, Decision), Decision> {
        let asked = CallRequest {
            now,
            cost,
            longest,
            reserve: 0,
            write: true,
            kept: false,
        };
        let (call, terms, standing) = self.inner.table.decide(self.first, self.hash, &asked);
        if call.decision.is_denied() {
            return Err(call.decision);
        }
        let RefundTotals {
            given, refunded, ..
        } = standing;
        let admitted = Admission {
            limit: terms.normal,
            generation_id: terms.id,
            clock: call.clock,
            tat: call.charged,
            wait: call.wait,
            given,
            refunded,
        };
        Ok((admitted, standing.booked_by(terms.id), call.decision))
    }
}

/// For waits.
impl<C: Clock> Key<'_, C> {
    pub(crate) fn inner(&self) -> &KeyedState<C> {
        self.inner
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn terms(&self) -> &LimitVersion {
        self.inner.table.current(self.first)
    }

    /// How long a slot for `cost` would be away, were there patience for it.
    pub(crate) fn peek_slot(&self, now: Timestamp, cost: u64) -> Duration {
        let decision = self.look(now, cost, Some(u64::MAX));
        if self.terms().normal.kind == Kind::Pacing {
            decision.reset_after()
        } else {
            decision.delay()
        }
    }
}

/// What comes after an admission.
impl<C: Clock> OwnedKey<C> {
    pub(crate) fn clock(&self) -> &C {
        self.inner.table.clock()
    }

    /// Whether a charge is settled even if all of it was used.
    pub(crate) fn is_refundable(&self) -> bool {
        is_refundable(&self.inner.table, self.booking)
    }

    /// Gives back `unused` units of a charge of `cost`.
    pub(crate) fn give_back(
        &self,
        charged: &ChargeRecord,
        cost: u64,
        unused: u64,
        now: impl Fn() -> Timestamp,
    ) {
        let table = &self.inner.table;
        give_back(
            table,
            self.hash,
            self.booking,
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
            self.booking.terms(),
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
        let first = table.terms(self.booking.terms());
        table.update(
            first,
            self.hash,
            now(),
            AbsentKey::StaysOut,
            |terms, state, account| {
                let (StateMut::Word(word), Some(account)) = (state, account) else {
                    return;
                };
                let (Some(standing), now) = (account.of(self.booking, terms.id), now()) else {
                    return;
                };
                if act < now {
                    return;
                }
                let clock = terms.clock_at(now);
                if terms.normal.kind == Kind::Pacing {
                    // Only the last slot of a queue can be taken back, and only before it begins.
                    if word.wrapping_add(standing.given) == claim.mark && now < act {
                        *word -= claim.worth.min(word.saturating_sub(clock));
                    }
                    return;
                }
                let back = token_bucket::cancel(
                    &terms.normal,
                    *word,
                    clock,
                    standing.given,
                    claim.worth,
                    claim.mark,
                );
                *word = word.saturating_sub(back.give);
                account.refund(&back);
            },
        );
    }
}

/// Whether what was booked so is settled even if all of it was used.
pub(crate) fn is_refundable<C: Clock>(table: &Table<C>, booking: ChargeOrigin) -> bool {
    booking.terms() != 0 && table.terms(booking.terms()).normal.kind == Kind::Refundable
}

/// Gives back `unused` units of a charge of `cost` to `hash`; `is_all`: whether those are all of
/// it.
#[allow(clippy::too_many_arguments)]
pub(crate) fn give_back<C: Clock>(
    table: &Table<C>,
    hash: u64,
    booking: ChargeOrigin,
    charged: &ChargeRecord,
    cost: u64,
    unused: u64,
    is_all: bool,
    now: impl Fn() -> Timestamp,
) {
    let mut too_late = false;
    let first = table.terms(booking.terms());
    let is_in = table.update(
        first,
        hash,
        now(),
        AbsentKey::StaysOut,
        |terms, state, account| {
            let account =
                account.and_then(|account| Some((account, account.of(booking, terms.id)?)));
            let Some((account, standing)) = account else {
                too_late = true;
                return;
            };
            let (normal, now) = (&terms.normal, now());
            let refund = Refund {
                charged_in: charged.tat,
                cost,
                unused,
            };
            match state {
                StateMut::Wide(state, _) => state.give_back(normal, now.as_unix_nanos(), refund),
                StateMut::Word(word) if normal.is_windowed() => {
                    let back = RefundOp {
                        now: now.as_unix_nanos(),
                        refund,
                    };
                    *word = apply_to_word(normal, *word, &back).0.unwrap_or(*word);
                }
                StateMut::Word(word) if normal.kind == Kind::Pacing => {
                    // What is at the end of the queue and has not begun can be taken back; where
                    // that is, gifts have moved.
                    if *word == charged.tat && standing.given == charged.given {
                        let ahead = word.saturating_sub(terms.clock_at(now));
                        *word -= ahead.min(unused.saturating_mul(normal.token));
                    }
                }
                StateMut::Word(word) => {
                    let (
                        clock,
                        RefundTotals {
                            given, refunded, ..
                        },
                    ) = (terms.clock_at(now), standing);
                    let back = token_bucket::refund(
                        normal, *word, clock, unused, is_all, charged, refunded, given,
                    );
                    *word = word.saturating_sub(back.give);
                    account.refund(&back);
                }
            }
        },
    );
    // What time has brought back by itself is nobody's loss.
    let is_repaid = || !first.normal.is_machine() && charged.tat <= first.clock_at(now());
    if (too_late || !is_in) && !is_repaid() {
        first
            .registered
            .not_returned
            .fetch_add(unused, Ordering::Relaxed);
    }
}

/// Charges `extra` units more to `hash`, at most a full bucket of them.
pub(crate) fn charge_more<C: Clock>(
    table: &Table<C>,
    id: u32,
    hash: u64,
    extra: u64,
    now: impl Fn() -> Timestamp,
) {
    let charge = |terms: &LimitVersion, state: StateMut<'_>, _: Option<SlotRefunds<'_>>| {
        let (normal, now) = (&terms.normal, now());
        let extra = extra.min(normal.burst());
        match state {
            StateMut::Wide(state, budget) => {
                state.charge_more(normal, now.as_unix_nanos(), extra, budget)
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
                    .max(terms.clock_at(now))
                    .saturating_add(extra * normal.token);
                *word = charged.min(u64::MAX - 1);
            }
        }
        terms
            .registered
            .settled_up
            .fetch_add(extra, Ordering::Relaxed);
    };
    table.update(table.terms(id), hash, now(), AbsentKey::Comes, charge);
}

/// Makes a key of a rate fresh. Older charges and reservations give nothing back.
pub(crate) fn reset<C: Clock>(
    table: &Table<C>,
    first: &LimitVersion,
    hash: u64,
    now: impl Fn() -> Timestamp,
) {
    table.update(
        first,
        hash,
        now(),
        AbsentKey::StaysFresh,
        |terms, state, account| {
            if let Some(account) = account {
                account.void();
            }
            match state {
                StateMut::Word(word) => {
                    let fresh = if terms.normal.is_windowed() {
                        0
                    } else {
                        terms.clock_at(now())
                    };
                    *word = (*word).min(fresh);
                }
                StateMut::Wide(state, _) => state.clear(),
            }
        },
    );
    table
        .current(first)
        .registered
        .changes
        .fetch_add(1, Ordering::Relaxed);
}

/// Gives a key of a rate up to `tokens` of what it has used, and counts them.
pub(crate) fn grant<C: Clock>(
    table: &Table<C>,
    first: &LimitVersion,
    hash: u64,
    tokens: u64,
    now: impl Fn() -> Timestamp,
) {
    table.update(
        first,
        hash,
        now(),
        AbsentKey::StaysFresh,
        |terms, state, account| {
            let (normal, now) = (&terms.normal, now());
            let given = match state {
                StateMut::Wide(state, _) => state.grant(normal, now.as_unix_nanos(), tokens),
                StateMut::Word(word) if normal.is_windowed() => {
                    let (after, gift) = apply_to_word(
                        normal,
                        *word,
                        &GrantOp {
                            now: now.as_unix_nanos(),
                            tokens,
                        },
                    );
                    *word = after.unwrap_or(*word);
                    gift
                }
                StateMut::Word(word) => {
                    let ahead = word.saturating_sub(terms.clock_at(now));
                    let gift = ahead.min(tokens.saturating_mul(normal.token));
                    *word -= gift;
                    // A settle or a cancel of before is not to take the gift for its own.
                    if let Some(account) = account {
                        account.give(gift);
                    }
                    gift.div_ceil(normal.token)
                }
            };
            terms.registered.granted.fetch_add(given, Ordering::Relaxed);
        },
    );
}

impl<C: Clock> Clone for OwnedKey<C> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            hash: self.hash,
            booking: self.booking,
        }
    }
}

impl<C: Clock> fmt::Debug for Key<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("limit", &self.terms().rule.limit())
            .field("tokens", &self.tokens())
            .finish()
    }
}
