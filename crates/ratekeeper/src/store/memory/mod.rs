//! The memory store: many limits and their keys in one table of this process.
//!
//! One ask is one compare-and-swap. Several are read first; if one denies, nothing is written.
//! Otherwise their entries are claimed in the order of their addresses, judged again, and written:
//! a thread that meets a claimed entry waits for those few instructions, and no thread ever sees a
//! charge that is then taken back.

mod detached;
mod locked;
mod optimistic;

use super::{
    Ask, DetachError, LimitHandle, LimitKeyStats, Permits, Receipt, SettleError, Source, Store,
    Verdict,
};
use crate::adjustments::Adjustments;
use crate::algorithm::token_bucket::ChargeRecord;
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::decision::Decision;
use crate::generation::Carry;
use crate::keyed::judge::CallResult;
use crate::keyed::limit_version::LimitVersion;
use crate::keyed::registered_limit::Rule;
use crate::keyed::table::{
    BYTES_PER_KEY, ChargeOrigin, KeyedStats, RefundTotals, Table, TableSize,
};
use crate::keyed::{TooManyLimitsError, charge_more, grant, is_refundable, refund, reset};
use crate::limit::{Kind, Limit};
use crate::sync::Ordering;
use core::fmt;
use core::time::Duration;
use detached::DetachedCharges;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::vec::Vec;

/// Many limits and all their keys in one table of fixed size: several of them are decided together,
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
/// Memory, eviction and hashing are those of [`Keyed`](crate::Keyed). This is a handle: clones
/// share the store.
pub struct MemoryStore<C: Clock = SystemClock> {
    inner: Arc<StoreState<C>>,
}

/// What all clones of a store share.
struct StoreState<C> {
    table: Table<C>,
    next_number: AtomicU64,
    detached: DetachedCharges,
}

/// Builder of a [`MemoryStore`]; see [`MemoryStore::builder`].
pub struct MemoryStoreBuilder<C: Clock = SystemClock> {
    size: TableSize,
    clock: C,
}

impl MemoryStore {
    /// Creates a store for up to a million keys, on the operating system's monotonic clock.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder, to choose the number of keys, the memory, or another clock.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder {
            size: TableSize::default(),
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
    /// Sets how many keys may be in use at once; see
    /// [`KeyedBuilder::max_keys`](crate::keyed::KeyedBuilder::max_keys).
    #[must_use]
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.size.keys = keys;
        self
    }

    /// Sets how many bytes it may use in all; see
    /// [`KeyedBuilder::max_bytes`](crate::keyed::KeyedBuilder::max_bytes).
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.size.bytes = Some(bytes);
        self
    }

    /// Sets the clock.
    #[must_use]
    pub fn clock<D: Clock>(self, clock: D) -> MemoryStoreBuilder<D> {
        MemoryStoreBuilder {
            size: self.size,
            clock,
        }
    }

    /// Builds it. Memory is reserved now and used as keys arrive.
    ///
    /// # Panics
    ///
    /// If the memory cannot be reserved, because it is more than the system can hand out.
    pub fn build(self) -> MemoryStore<C> {
        self.try_build()
            .expect("not enough memory for this many keys")
    }

    /// Builds it, if the memory can be reserved: for a size that comes from a configuration.
    pub fn try_build(self) -> Result<MemoryStore<C>, TooManyKeysError> {
        // Half of `max_bytes` is for states that do not fit the table.
        let table =
            Table::try_new(self.size, self.clock, BYTES_PER_KEY).ok_or(TooManyKeysError(()))?;
        Ok(MemoryStore {
            inner: Arc::new(StoreState {
                table,
                next_number: AtomicU64::new(0),
                detached: DetachedCharges::new(),
            }),
        })
    }
}

/// Error: not enough memory for this many keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyKeysError(());

impl fmt::Display for TooManyKeysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not enough memory for a store of this many keys; lower max_keys")
    }
}

impl core::error::Error for TooManyKeysError {}

/// # Limits
impl<C: Clock> MemoryStore<C> {
    /// Registers a limit. Its keys are independent of those of any other limit, one of the same
    /// name included.
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
        let number = self.inner.next_number.fetch_add(1, Ordering::Relaxed);
        let first_version = self
            .inner
            .table
            .register_limit(number, name, rule)
            .ok_or(TooManyLimitsError(()))?;
        Ok(LimitHandle { first_version })
    }

    /// Changes a limit for every key at once; each keeps its tokens.
    pub fn set_limit(&self, handle: &LimitHandle, limit: Limit) {
        self.set_limit_with(handle, limit, Carry::Keep);
    }

    /// Changes a limit, with a choice of what happens to the tokens.
    pub fn set_limit_with(&self, handle: &LimitHandle, limit: Limit, carry: Carry) {
        self.change(handle, Rule::Rate(limit), carry);
    }

    /// Changes how many may be in flight. Permits already taken stay valid.
    pub fn set_concurrency(&self, handle: &LimitHandle, limit: u64) {
        self.change(handle, Rule::InFlight(limit), Carry::Keep);
    }

    fn change(&self, handle: &LimitHandle, rule: Rule, carry: Carry) {
        let table = &self.inner.table;
        let same_kind =
            matches!(handle.first_version.rule, Rule::Rate(_)) == matches!(rule, Rule::Rate(_));
        if same_kind && table.owns(&handle.first_version) {
            table.change_limit(&handle.first_version.registered, rule, carry, || {
                table.clock().now()
            });
        }
    }

    /// Whether a limit is registered with this store.
    pub fn knows(&self, handle: &LimitHandle) -> bool {
        self.inner.table.owns(&handle.first_version)
    }

    /// Returns counters of what was allowed on top of the limit and of refunds that were lost.
    pub fn adjustments(&self, handle: &LimitHandle) -> Adjustments {
        handle.first_version.registered.adjustments()
    }

    /// Returns how many keys of a limit have used something that has not been refilled yet. Reads
    /// the whole table.
    pub fn live_keys(&self, handle: &LimitHandle) -> u64 {
        let table = &self.inner.table;
        if table.owns(&handle.first_version) {
            table.live_keys(&handle.first_version.registered, table.clock().now())
        } else {
            0
        }
    }

    /// Returns how many keys of each of these limits are live, and how many were evicted, in their
    /// order. Reads the whole table, once.
    pub fn key_stats(&self, limits: &[LimitHandle]) -> Vec<LimitKeyStats> {
        let table = &self.inner.table;
        table.limit_stats(
            limits.iter().map(|handle| &*handle.first_version),
            table.clock().now(),
        )
    }

    /// Returns how many keys the table holds and how many it evicted. Reads the whole table.
    pub fn stats(&self) -> KeyedStats {
        let table = &self.inner.table;
        table.stats(table.clock().now())
    }

    /// Returns the clock it runs on.
    pub fn clock(&self) -> &C {
        self.inner.table.clock()
    }
}

/// # One key
impl<C: Clock> MemoryStore<C> {
    /// Grants a key up to `tokens` of what it has used; see
    /// [`Limiter::grant`](crate::Limiter::grant). Permits are not granted.
    pub fn grant(&self, handle: &LimitHandle, key: &[u8], tokens: u64) {
        if let Some(hash) = self.rate_key_hash(handle, key) {
            let table = &self.inner.table;
            grant(table, &handle.first_version, hash, tokens, || {
                table.clock().now()
            });
        }
    }

    /// Makes a key fresh. Earlier verdicts refund nothing to it. Permits already taken stay valid.
    pub fn reset(&self, handle: &LimitHandle, key: &[u8]) {
        if let Some(hash) = self.rate_key_hash(handle, key) {
            let table = &self.inner.table;
            reset(table, &handle.first_version, hash, || table.clock().now());
        }
    }

    /// Returns the hash of a key of a rate; `None` if the limit is not of this store, or counts
    /// permits: only their holder releases those.
    fn rate_key_hash(&self, handle: &LimitHandle, key: &[u8]) -> Option<u64> {
        let table = &self.inner.table;
        let first_version = &*handle.first_version;
        let is_rate = matches!(first_version.rule, Rule::Rate(_));
        (is_rate && table.owns(first_version))
            .then(|| table.hash_for_limit(first_version.registered.number, key))
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
        if self.inner.detached.has_expired(now) {
            self.expire(now);
        }
        if self.try_decide_optimistic(asks, now, verdict).is_none() {
            self.decide_slow(asks, now, verdict);
        }
    }

    /// Attaches to a verdict that took permits the store they are released to.
    fn attach_permits(&self, verdict: &mut Verdict) {
        let permits = verdict
            .results()
            .any(|result| result.charged.is_some_and(|receipt| receipt.permit));
        if permits {
            verdict.permits = Some(Arc::clone(&self.inner) as Arc<dyn Permits>);
        }
    }

    /// Corrects what a verdict charged, at an instant of your choice; see [`Store::settle`].
    pub fn settle_now(&self, verdict: Verdict, actual: &[u64], now: Timestamp) {
        self.settle_at(verdict, actual, || now);
    }

    fn settle_at(&self, verdict: Verdict, actual: &[u64], now: impl Fn() -> Timestamp) {
        // Charges of another store are ignored.
        if verdict.table == Some(self.inner.table.id) {
            self.settle_charges(verdict.results().map(|result| result.charged), actual, now);
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
                Some(receipt)
                    if receipt.permit || receipt.charge_origin == ChargeOrigin::EXTERNAL => {}
                Some(Receipt {
                    hash,
                    charge_origin,
                    cost,
                    charged,
                    ..
                }) => {
                    if actual < cost || is_refundable(table, charge_origin) {
                        let unused = cost.saturating_sub(actual);
                        refund(
                            table,
                            hash,
                            charge_origin,
                            &charged,
                            cost,
                            unused,
                            actual == 0,
                            &now,
                        );
                    }
                    if actual > cost {
                        charge_more(table, charge_origin.version(), hash, actual - cost, &now);
                    }
                }
                None => {}
            }
        }
    }
}

/// Applies the caller's maximum wait to a decision. A class with a reserve may not go into debt, so
/// waiting is no use to it.
fn with_max_wait(decision: Decision, max_wait: Option<u64>, reserve: u64) -> Decision {
    match max_wait {
        Some(max_wait) if reserve == 0 => decision.with_max_wait(max_wait),
        _ => decision,
    }
}

/// Returns the receipt of an ask for `cost`, charged together with `later` more units as one.
fn receipt(
    version: &LimitVersion,
    hash: u64,
    cost: u64,
    later: u64,
    call: &CallResult,
    refund_totals: &RefundTotals,
) -> Receipt {
    let RefundTotals {
        given, refunded, ..
    } = *refund_totals;
    let normal = &version.normal;
    // One after the other, so that each refunds its own units. Windows and logs do not tell them
    // apart.
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
        charge_origin: refund_totals.charge_origin(version.id),
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

    async fn decide_within(&self, asks: &[Ask<'_>], _within: Option<Duration>) -> Verdict {
        self.decide_now(asks, self.clock().now())
    }

    fn try_decide(&self, asks: &[Ask<'_>], now: Timestamp, verdict: &mut Verdict) -> bool {
        verdict.clear(Source::Memory);
        self.decide_in_place(asks, now, verdict);
        true
    }

    fn is_local(&self) -> bool {
        true
    }

    fn sleep_until(&self, at: Timestamp) -> crate::clock::Sleep {
        self.clock().sleep_until(at)
    }

    fn try_settle(&self, verdict: Verdict, actual: &[u64]) -> Option<Verdict> {
        self.settle_at(verdict, actual, || self.clock().now());
        None
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

impl<C: Clock> Permits for StoreState<C> {
    fn release(&self, hash: u64, cost: u64) {
        self.table.release_permits(hash, cost);
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
            .field("max_keys", &self.size.keys)
            .finish_non_exhaustive()
    }
}
