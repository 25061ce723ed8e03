//! The store in this process: one table for all its limits.
//!
//! One ask is one compare-and-swap. Several are read first; if one denies, nothing is written.
//! Otherwise their entries are claimed in the order of their addresses, judged again, and written:
//! whoever meets a claimed entry waits for those few instructions, and nobody ever sees a charge
//! that is then taken back.

mod detached;
mod grouped;
mod straight;

use super::{
    Ask, DetachError, LimitHandle, LimitKeyStats, Permits, Receipt, SettleError, Source, Store,
    Verdict,
};
use crate::algorithm::token_bucket::ChargeRecord;
use crate::clock::{Clock, DefaultClock, SystemClock, Timestamp};
use crate::decision::Decision;
use crate::keyed::line::Rule;
use crate::keyed::table::{BYTES_A_KEY, ChargeOrigin, KeyedStats, RefundTotals, Table, TableSize};
use crate::keyed::terms::{CallResult, LimitVersion};
use crate::keyed::{TooManyLimitsError, charge_more, give_back, grant, is_refundable, reset};
use crate::limit::{Kind, Limit};
use crate::limiter::{Adjustments, Carry};
use crate::sync::Ordering;
use core::fmt;
use detached::Detached;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::vec::Vec;

/// Many limits and all their keys in one table of fixed size: several of them are decided at once,
/// all or nothing.
///
/// ```
/// use ratekeeper::{Ask, Clock, Limit, MemoryStore, clock::SystemClock};
///
/// let store = MemoryStore::new();
/// let per_user = store.limit("user", Limit::per_minute(60))?;
/// let everyone = store.limit("everyone", Limit::per_second(1_000))?;
///
/// let verdict = store.decide_now(&[Ask::new(&per_user, "u1"), Ask::new(&everyone, "")], SystemClock.now());
/// assert!(verdict.is_allowed());
/// # Ok::<_, ratekeeper::keyed::TooManyLimitsError>(())
/// ```
///
/// Memory, eviction and hashing are those of [`Keyed`](crate::Keyed). A handle: clones share it.
pub struct MemoryStore<C: Clock = DefaultClock> {
    inner: Arc<Inner<C>>,
}

struct Inner<C> {
    table: Table<C>,
    lines: AtomicU64,
    detached: Detached,
}

/// Makes a [`MemoryStore`]; what [`MemoryStore::builder`] returns.
pub struct MemoryStoreBuilder<C: Clock = DefaultClock> {
    cap: TableSize,
    clock: C,
}

impl MemoryStore {
    /// A store for up to a million keys, on the operating system's monotonic clock.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// To choose how many keys, how much memory, or another clock.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder {
            cap: TableSize::default(),
            clock: SystemClock,
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clock> MemoryStoreBuilder<C> {
    /// See [`KeyedBuilder::max_keys`](crate::keyed::KeyedBuilder::max_keys).
    #[must_use]
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.cap.keys = keys;
        self
    }

    /// See [`KeyedBuilder::max_bytes`](crate::keyed::KeyedBuilder::max_bytes).
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.cap.bytes = Some(bytes);
        self
    }

    /// Another clock.
    #[must_use]
    pub fn clock<D: Clock>(self, clock: D) -> MemoryStoreBuilder<D> {
        MemoryStoreBuilder {
            cap: self.cap,
            clock,
        }
    }

    /// Makes it. Memory is reserved now and used as keys come.
    ///
    /// # Panics
    ///
    /// If the memory cannot even be reserved: more than the system would ever hand out was asked
    /// for.
    pub fn build(self) -> MemoryStore<C> {
        self.try_build()
            .expect("memory for as many keys as were asked for")
    }

    /// Makes it, if the memory can be reserved: for a cap that comes from a configuration.
    pub fn try_build(self) -> Result<MemoryStore<C>, TooManyKeysError> {
        // Half of a cap in bytes is for states that do not fit the table.
        let table =
            Table::try_new(self.cap, self.clock, BYTES_A_KEY).ok_or(TooManyKeysError(()))?;
        Ok(MemoryStore {
            inner: Arc::new(Inner {
                table,
                lines: AtomicU64::new(0),
                detached: Detached::new(),
            }),
        })
    }
}

/// More keys than the system has memory for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyKeysError(());

impl fmt::Display for TooManyKeysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the system has no memory for a store of as many keys; lower max_keys")
    }
}

impl core::error::Error for TooManyKeysError {}

/// # Limits
impl<C: Clock> MemoryStore<C> {
    /// Registers a limit. Its keys have nothing to do with those of any other limit, one of the
    /// same name included.
    ///
    /// It is an error once there have been 16 million limits and changes of limits.
    pub fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimitsError> {
        self.register(name, Rule::Rate(limit))
    }

    /// Registers a limit on how many are in flight.
    pub fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimitsError> {
        self.register(name, Rule::InFlight(limit))
    }

    fn register(&self, name: &str, rule: Rule) -> Result<LimitHandle, TooManyLimitsError> {
        let number = self.inner.lines.fetch_add(1, Ordering::Relaxed);
        let first = self
            .inner
            .table
            .new_line(number, name, rule)
            .ok_or(TooManyLimitsError(()))?;
        Ok(LimitHandle { first })
    }

    /// Changes a limit for every key, at once, each keeping the tokens it has.
    pub fn set_limit(&self, handle: &LimitHandle, limit: Limit) {
        self.set_limit_with(handle, limit, Carry::Keep);
    }

    /// Changes a limit and says what becomes of the tokens.
    pub fn set_limit_with(&self, handle: &LimitHandle, limit: Limit, carry: Carry) {
        self.change(handle, Rule::Rate(limit), carry);
    }

    /// Changes how many may be in flight. Permits that are out stay out.
    pub fn set_concurrency(&self, handle: &LimitHandle, limit: u64) {
        self.change(handle, Rule::InFlight(limit), Carry::Keep);
    }

    fn change(&self, handle: &LimitHandle, rule: Rule, carry: Carry) {
        let table = &self.inner.table;
        let same_sort = matches!(handle.first.rule, Rule::Rate(_)) == matches!(rule, Rule::Rate(_));
        if same_sort && table.knows(&handle.first) {
            table.change(&handle.first.registered, rule, carry, || {
                table.clock().now()
            });
        }
    }

    /// Whether a limit is registered with this store.
    pub fn knows(&self, handle: &LimitHandle) -> bool {
        self.inner.table.knows(&handle.first)
    }

    /// What came on top of a limit's promise, or was not given back.
    pub fn counts(&self, handle: &LimitHandle) -> Adjustments {
        handle.first.registered.counts()
    }

    /// How many keys of a limit have used something that has not come back yet. Reads the whole
    /// table.
    pub fn live(&self, handle: &LimitHandle) -> u64 {
        let table = &self.inner.table;
        match table.knows(&handle.first) {
            true => table.live(&handle.first.registered, table.clock().now()),
            false => 0,
        }
    }

    /// How many keys of each of these limits are live, and how many were evicted, in their order.
    /// Reads the whole table, once.
    pub fn key_stats(&self, limits: &[LimitHandle]) -> Vec<LimitKeyStats> {
        let table = &self.inner.table;
        table.census(
            limits.iter().map(|handle| &*handle.first),
            table.clock().now(),
        )
    }

    /// How many keys there are, and what became of others. Counting them reads the whole table.
    pub fn figures(&self) -> KeyedStats {
        let table = &self.inner.table;
        table.figures(table.clock().now())
    }

    /// The clock it runs on.
    pub fn clock(&self) -> &C {
        self.inner.table.clock()
    }
}

/// # One key
impl<C: Clock> MemoryStore<C> {
    /// Gives a key up to `tokens` of what it has used; see
    /// [`Limiter::grant`](crate::Limiter::grant). Permits are not given.
    pub fn grant(&self, handle: &LimitHandle, key: &[u8], tokens: u64) {
        if let Some(hash) = self.key_of_a_rate(handle, key) {
            let table = &self.inner.table;
            grant(table, &handle.first, hash, tokens, || table.clock().now());
        }
    }

    /// Makes a key fresh. Older verdicts give nothing back to it; permits that are out stay out.
    pub fn reset(&self, handle: &LimitHandle, key: &[u8]) {
        if let Some(hash) = self.key_of_a_rate(handle, key) {
            let table = &self.inner.table;
            reset(table, &handle.first, hash, || table.clock().now());
        }
    }

    /// Where a key is. None if the limit is not of this store, or counts permits: only who holds
    /// one gives it back.
    fn key_of_a_rate(&self, handle: &LimitHandle, key: &[u8]) -> Option<u64> {
        let (table, first) = (&self.inner.table, &*handle.first);
        let is_rate = matches!(first.rule, Rule::Rate(_));
        (is_rate && table.knows(first)).then(|| table.hash_in(first.registered.number, key))
    }
}

/// # Decisions
impl<C: Clock> MemoryStore<C> {
    /// Charges every ask, or none of them, at an instant of your choice.
    pub fn decide_now(&self, asks: &[Ask<'_>], now: Timestamp) -> Verdict {
        let mut verdict = Verdict::new(Source::Memory);
        self.decide_in_place(asks, now, &mut verdict);
        verdict
    }

    fn decide_in_place(&self, asks: &[Ask<'_>], now: Timestamp, verdict: &mut Verdict) {
        verdict.table = Some(self.inner.table.id);
        if self.inner.detached.is_overdue(now) {
            self.end_overdue(now);
        }
        if self.decide_straight(asks, now, verdict).is_none() {
            self.decide_anyhow(asks, now, verdict);
        }
    }

    /// Lets a verdict that took permits know where they go back to.
    fn keep_permits(&self, verdict: &mut Verdict) {
        let permits = verdict
            .statuses()
            .any(|status| status.charged.is_some_and(|receipt| receipt.permit));
        if permits {
            verdict.permits = Some(Arc::clone(&self.inner) as Arc<dyn Permits>);
        }
    }

    /// Corrects what a verdict charged, at an instant of your choice; see [`Store::settle`].
    pub fn settle_now(&self, verdict: Verdict, actual: &[u64], now: Timestamp) {
        self.settle_at(verdict, actual, || now);
    }

    fn settle_at(&self, verdict: Verdict, actual: &[u64], now: impl Fn() -> Timestamp) {
        // What another store charged is none of this one's business.
        if verdict.table == Some(self.inner.table.id) {
            self.settle_charges(verdict.statuses().map(|status| status.charged), actual, now);
        }
    }

    fn settle_charges(
        &self,
        charges: impl Iterator<Item = Option<Receipt>>,
        actual: &[u64],
        now: impl Fn() -> Timestamp,
    ) {
        let table = &self.inner.table;
        for (charged, actual) in charges.zip(actual.iter().copied()) {
            match charged {
                Some(receipt) if receipt.permit || receipt.booking == ChargeOrigin::ELSEWHERE => {}
                Some(Receipt {
                    hash,
                    booking,
                    cost,
                    charged,
                    ..
                }) => {
                    if actual < cost || is_refundable(table, booking) {
                        let unused = cost.saturating_sub(actual);
                        give_back(
                            table,
                            hash,
                            booking,
                            &charged,
                            cost,
                            unused,
                            actual == 0,
                            &now,
                        );
                    }
                    if actual > cost {
                        charge_more(table, booking.terms(), hash, actual - cost, &now);
                    }
                }
                None => {}
            }
        }
    }
}

/// What is told to a caller that would wait so long. A class with a reserve may not go into debt,
/// so waiting is no use to it.
fn patient(decision: Decision, longest: Option<u64>, reserve: u64) -> Decision {
    match longest {
        Some(longest) if reserve == 0 => decision.with_max_wait(longest),
        _ => decision,
    }
}

/// What an ask for `cost` charged, before `later` more that were charged with it as one.
fn receipt(
    terms: &LimitVersion,
    hash: u64,
    cost: u64,
    later: u64,
    call: &CallResult,
    standing: &RefundTotals,
) -> Receipt {
    let RefundTotals {
        given, refunded, ..
    } = *standing;
    let normal = &terms.normal;
    // One after the other, so that each gives back what is its own. Windows and logs tell them
    // apart by nothing.
    let later = if normal.is_machine() {
        0
    } else {
        later.saturating_mul(normal.token)
    };
    let charged = ChargeRecord::new(
        normal,
        call.charged.saturating_sub(later),
        call.clock,
        cost,
        refunded,
        given,
    );
    let permit = normal.kind == Kind::InFlight;
    Receipt {
        hash,
        booking: standing.booked_by(terms.id),
        cost,
        charged,
        permit,
    }
}

impl<C: Clock> Store for MemoryStore<C> {
    fn limit(&self, name: &str, limit: Limit) -> Result<LimitHandle, TooManyLimitsError> {
        self.limit(name, limit)
    }

    fn concurrency(&self, name: &str, limit: u64) -> Result<LimitHandle, TooManyLimitsError> {
        self.concurrency(name, limit)
    }

    fn set_limit(&self, handle: &LimitHandle, limit: Limit) {
        self.set_limit(handle, limit);
    }

    fn set_concurrency(&self, handle: &LimitHandle, limit: u64) {
        self.set_concurrency(handle, limit);
    }

    fn now(&self) -> Timestamp {
        self.clock().now()
    }

    async fn decide(&self, asks: &[Ask<'_>]) -> Verdict {
        self.decide_now(asks, self.clock().now())
    }

    async fn decide_at(&self, asks: &[Ask<'_>], now: Timestamp) -> Verdict {
        self.decide_now(asks, now)
    }

    fn try_decide(&self, asks: &[Ask<'_>], now: Timestamp) -> Option<Verdict> {
        Some(self.decide_now(asks, now))
    }

    fn decide_into(&self, asks: &[Ask<'_>], now: Timestamp, verdict: &mut Verdict) -> bool {
        verdict.clear(Source::Memory);
        self.decide_in_place(asks, now, verdict);
        true
    }

    fn is_local(&self) -> bool {
        true
    }

    #[cfg(feature = "tokio")]
    fn sleep_until(&self, at: Timestamp) -> crate::clock::Sleep {
        self.clock().sleep_until(at)
    }

    async fn settle(&self, verdict: Verdict, actual: &[u64]) {
        self.settle_at(verdict, actual, || self.clock().now());
    }

    async fn detach(&self, verdict: Verdict, until: Timestamp) -> Result<Vec<u8>, DetachError> {
        self.detach_now(verdict, until, self.clock().now())
    }

    async fn settle_detached(&self, receipt: &[u8], actual: &[u64]) -> Result<(), SettleError> {
        self.settle_detached_now(receipt, actual, self.clock().now())
    }

    async fn grant(&self, handle: &LimitHandle, key: &[u8], tokens: u64) {
        self.grant(handle, key, tokens);
    }

    async fn reset(&self, handle: &LimitHandle, key: &[u8]) {
        self.reset(handle, key);
    }

    fn key_stats(&self, limits: &[LimitHandle]) -> Option<Vec<LimitKeyStats>> {
        Some(self.key_stats(limits))
    }
}

impl<C: Clock> Permits for Inner<C> {
    fn land(&self, hash: u64, cost: u64) {
        self.table.land(hash, cost);
    }
}

impl<C: Clock> Clone for MemoryStore<C> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<C: Clock> fmt::Debug for MemoryStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

impl<C: Clock> fmt::Debug for MemoryStoreBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStoreBuilder")
            .field("max_keys", &self.cap.keys)
            .finish_non_exhaustive()
    }
}
