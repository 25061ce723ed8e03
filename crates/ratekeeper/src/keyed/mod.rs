//! Keyed limiters: one limit applied to each of many keys, in a table of fixed size.

mod byte_budget;
mod eviction_floor;
mod freshness;
mod gcra;
mod hash;
mod hashed_key;
mod in_flight;
pub(crate) mod judge;
mod key;
mod large_state;
pub(crate) mod limit_version;
pub(crate) mod registered_limit;
pub(crate) mod table;

pub use gcra::{GcraParams, GcraParamsError, KeyedGcra, KeyedGcraBuilder};
pub use hashed_key::HashedKey;
pub use in_flight::{KeyPermit, KeyedConcurrency, KeyedConcurrencyBuilder};
pub use key::{ChargeToken, Key};
pub(crate) use key::{OwnedKey, charge_more, grant, is_refundable, refund, reset};
pub use table::KeyedStats;

use crate::adjustments::Adjustments;
use crate::clock::{Clock, SystemClock};
use crate::decision::Decision;
use crate::generation::Carry;
use crate::limit::{Algorithm, Limit};
use crate::waiters::Waiters;
use core::borrow::Borrow;
use core::fmt;
use core::hash::Hash;
use core::marker::PhantomData;
use judge::CallRequest;
use limit_version::LimitVersion;
use registered_limit::Rule;
use std::sync::Arc;
use table::{Table, TableSize};

/// A limiter for each of many keys: users, addresses, API keys.
///
/// ```
/// use ratekeeper::{Keyed, Limit};
///
/// let per_user = Keyed::<str>::new(Limit::per_minute(100).burst(20));
/// if per_user.check("user-42").is_allowed() {
///     // do it
/// }
/// ```
///
/// [`key`](Self::key) returns one key with all the verbs of a [`Limiter`](crate::Limiter):
///
/// ```
/// use std::net::{IpAddr, Ipv4Addr};
/// use ratekeeper::{Keyed, Limit};
///
/// let per_address = Keyed::<IpAddr>::new(Limit::per_second(10));
/// let address = IpAddr::from(Ipv4Addr::LOCALHOST);
/// let slot = per_address.key(&address).reserve(1)?;
/// assert_eq!(per_address.key(&address).peek().remaining(), 9);
/// # Ok::<_, ratekeeper::decision::ReserveError>(())
/// ```
///
/// # What it costs
///
/// Memory is fixed at construction, by default for a million keys (32 bytes each, used as keys
/// arrive, and up to 72 where charges are settled), and never grows: there is nothing to sweep and
/// no background task. The key itself is not stored and nothing is allocated for it. A decision on
/// a known key nearly always reads one cache line. States that do not fit a word
/// ([`SlidingLog`](crate::Algorithm::SlidingLog) and the like) are stored beside the table, by
/// default in at most 512 bytes for each key of the table's capacity; see
/// [`max_bytes`](KeyedBuilder::max_bytes).
///
/// # When there are more keys than that
///
/// A key that is back to its full allowance is evicted when its slot is needed, which changes no
/// decision. If all the slots a new key may use hold keys that are not, the one nearest to its full
/// allowance is evicted, and what it had used goes into the limit's *eviction floor*: keys that are
/// not in the table start from the floor, not from a full allowance. So a flood of keys can cause
/// false denials, but never lets more through than the limit: no key gets a new allowance by being
/// evicted. [`stats`](Self::stats) counts both kinds of eviction.
///
/// # Two keys, one bucket
///
/// Keys are identified by a hash (AES rounds where the processor has them, else SipHash-1-3) with a
/// secret per table, so that an attacker cannot aim at a collision. With a full table the odds that
/// a given key shares its bucket with any other are about 1 in 90 billion.
///
/// This is a handle: clones share the table.
pub struct Keyed<K: ?Sized, C: Clock = SystemClock> {
    inner: Arc<KeyedState<C>>,
    keys: PhantomData<fn(&K)>,
}

/// What all clones of a keyed limiter share.
// Laid out as the table is: what every call needs is in two cache lines, the secret in the second.
#[repr(C)]
#[cfg_attr(not(ratekeeper_loom), repr(align(64)))]
pub(crate) struct KeyedState<C> {
    pub(crate) first_version: Arc<LimitVersion>,
    pub(crate) table: Table<C>,
    pub(crate) waiters: Waiters,
}

impl<K: ?Sized> Keyed<K> {
    /// Creates a limiter with the same limit for each key, for up to a million keys, on the
    /// operating system's monotonic clock.
    pub fn new(limit: Limit) -> Self {
        Self::builder(limit).build()
    }

    /// Returns a builder, to choose the number of keys, the memory, or another clock.
    ///
    /// ```
    /// use ratekeeper::{clock::FastClock, Keyed, Limit};
    ///
    /// let per_user = Keyed::<str>::builder(Limit::per_minute(100)).max_keys(50_000).clock(FastClock).build();
    /// ```
    pub fn builder(limit: Limit) -> KeyedBuilder<K> {
        KeyedBuilder {
            limit,
            size: TableSize::default(),
            clock: SystemClock,
            keys: PhantomData,
        }
    }
}

/// Builder of a [`Keyed`]; see [`Keyed::builder`].
pub struct KeyedBuilder<K: ?Sized, C: Clock = SystemClock> {
    limit: Limit,
    size: TableSize,
    clock: C,
    keys: PhantomData<fn(&K)>,
}

impl<K: ?Sized, C: Clock> KeyedBuilder<K, C> {
    /// Sets how many keys may be in use at once before live ones are evicted; a million by default.
    /// Each takes 32 bytes once it is used (twice 16, because a half-full table has a slot for
    /// every key), and up to 72 where charges are settled.
    #[must_use]
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.size.keys = keys;
        self
    }

    /// Sets how many bytes it may use in all, except for what a call holds temporarily: a log, and
    /// another copy while that grows. What the table of [`max_keys`](Self::max_keys) leaves of them
    /// is for states that do not fit it; if the table alone would take more, it is made for fewer
    /// keys.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.size.bytes = Some(bytes);
        self
    }

    /// Sets the clock.
    #[must_use]
    pub fn clock<D: Clock>(self, clock: D) -> KeyedBuilder<K, D> {
        KeyedBuilder {
            limit: self.limit,
            size: self.size,
            clock,
            keys: PhantomData,
        }
    }

    /// Builds it. Memory is reserved now and used as keys arrive.
    ///
    /// # Panics
    ///
    /// If the memory cannot be reserved, because it is more than the system can hand out.
    pub fn build(self) -> Keyed<K, C> {
        Keyed {
            inner: Arc::new(KeyedState::new(
                self.size,
                self.clock,
                Rule::Rate(self.limit),
            )),
            keys: PhantomData,
        }
    }
}

impl<C: Clock> KeyedState<C> {
    fn new(size: TableSize, clock: C, rule: Rule) -> Self {
        let table = Table::new(size, clock, rule.large_state_bytes());
        let first_version = table
            .register_limit(0, "", rule)
            .expect("the first limit of a table");
        Self {
            table,
            first_version,
            waiters: Waiters::default(),
        }
    }
}

impl<K: ?Sized, C: Clock> Keyed<K, C> {
    /// Creates a limiter as [`new`](Self::new) does, on a clock of your choice.
    pub fn with_clock(limit: Limit, clock: C) -> Self {
        KeyedBuilder {
            limit,
            size: TableSize::default(),
            clock,
            keys: PhantomData,
        }
        .build()
    }

    /// Returns the clock it runs on.
    pub fn clock(&self) -> &C {
        self.inner.table.clock()
    }

    /// Charges one unit to a key if it fits. The charge is final.
    // Always: see `Limiter::check_n`.
    #[inline(always)]
    pub fn check<Q: Hash + ?Sized>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
    {
        self.check_n(key, 1)
    }

    /// Charges `cost` units to a key if all of them fit. The charge is final.
    #[inline(always)]
    pub fn check_n<Q: Hash + ?Sized>(&self, key: &Q, cost: u64) -> Decision
    where
        K: Borrow<Q>,
    {
        let KeyedState {
            table,
            first_version,
            ..
        } = &*self.inner;
        let hash = table.hash(key);
        let check = || CallRequest::check(table.clock().now(), cost);
        table.decide(first_version, hash, check, |decided| decided.call.decision)
    }

    /// Returns one key, with the verbs of a [`Limiter`](crate::Limiter).
    #[inline]
    pub fn key<Q: Hash + ?Sized>(&self, key: &Q) -> Key<'_, C>
    where
        K: Borrow<Q>,
    {
        Key::new(
            &self.inner,
            &self.inner.first_version,
            self.inner.table.hash(key),
        )
    }

    /// Hashes a key for repeated use, as a connection does with its peer's address:
    /// [`hashed`](Self::hashed) then does not hash it again.
    #[inline]
    pub fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> HashedKey
    where
        K: Borrow<Q>,
    {
        self.key(key).hashed()
    }

    /// Returns a key that was hashed before; `None` if it was hashed for another table.
    ///
    /// ```
    /// use ratekeeper::{Keyed, Limit};
    ///
    /// let per_user = Keyed::<str>::new(Limit::per_minute(2));
    /// let ann = per_user.hash("ann");
    /// assert!(per_user.hashed(ann).is_some_and(|ann| ann.check().is_allowed()));
    /// assert_eq!(per_user.key("ann").peek().remaining(), 1);
    /// assert!(Keyed::<str>::new(Limit::per_minute(2)).hashed(ann).is_none());
    /// ```
    #[inline]
    pub fn hashed(&self, key: HashedKey) -> Option<Key<'_, C>> {
        key.hash_for(&self.inner)
            .map(|hash| Key::new(&self.inner, &self.inner.first_version, hash))
    }

    /// Settles what [`Key::take_token`] charged at its true cost, as
    /// [`Charge::settle`](crate::Charge::settle) does. Tokens of another table are ignored.
    pub fn settle(&self, token: ChargeToken, actual: u64) {
        token.settle(&self.inner, actual, || self.clock().now());
    }
}

/// # Live changes
impl<K: ?Sized, C: Clock> Keyed<K, C> {
    /// Returns the kind of algorithm of the limit in force; cheaper than [`limit`](Self::limit).
    #[inline]
    pub fn algorithm_kind(&self) -> Algorithm {
        let version = self.inner.table.current(&self.inner.first_version);
        match &version.rule {
            Rule::Rate(limit) => limit.algorithm_kind(),
            Rule::InFlight(_) => Algorithm::default(),
        }
    }

    /// Returns the limit in force.
    pub fn limit(&self) -> Limit {
        let KeyedState {
            table,
            first_version,
            ..
        } = &*self.inner;
        table
            .current(first_version)
            .rule
            .limit()
            .unwrap_or_else(Limit::unlimited)
    }

    /// Returns the burst in force: how much may be used at once. [`u64::MAX`] when unlimited.
    pub fn burst(&self) -> u64 {
        self.limit().capacity()
    }

    /// Changes the limit for every key at once; each keeps its tokens. Each change uses some
    /// hundred bytes, and a copy of the eviction floor once keys have been evicted, until the last
    /// handle is dropped. Earlier charges and reservations give nothing back.
    pub fn set_limit(&self, limit: Limit) {
        self.set_limit_with(limit, Carry::Keep);
    }

    /// Changes the limit, with a choice of what happens to the tokens.
    pub fn set_limit_with(&self, limit: Limit, carry: Carry) {
        let KeyedState {
            table,
            first_version,
            ..
        } = &*self.inner;
        table.change_limit(&first_version.registered, Rule::Rate(limit), carry, || {
            table.clock().now()
        });
    }

    /// Changes the burst only.
    pub fn set_burst(&self, burst: u64) {
        self.set_limit(self.limit().burst(burst));
    }

    /// Makes every key fresh and clears the eviction floor.
    pub fn reset(&self) {
        let KeyedState {
            table,
            first_version,
            ..
        } = &*self.inner;
        let rule = table.current(first_version).rule;
        table.change_limit(&first_version.registered, rule, Carry::Reset, || {
            table.clock().now()
        });
    }

    /// Ends every wait, now and later, with
    /// [`WaitError::Closed`](crate::limiter::WaitError::Closed). The other verbs keep working.
    pub fn close(&self) {
        self.inner.waiters.close();
    }

    /// Whether [`close`](Self::close) was called.
    pub fn is_closed(&self) -> bool {
        self.inner.waiters.is_closed()
    }

    /// Returns counters, over all keys, of what was allowed on top of the limit and of refunds that
    /// were lost.
    pub fn adjustments(&self) -> Adjustments {
        self.inner.first_version.registered.adjustments()
    }

    /// Returns how many keys the table holds and how many it evicted. Reads the whole table.
    pub fn stats(&self) -> KeyedStats {
        let table = &self.inner.table;
        table.stats(table.clock().now())
    }
}

impl<K: ?Sized, C: Clock> Clone for Keyed<K, C> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            keys: PhantomData,
        }
    }
}

impl<K: ?Sized, C: Clock> fmt::Debug for Keyed<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed")
            .field("limit", &self.limit())
            .finish_non_exhaustive()
    }
}

impl<K: ?Sized, C: Clock> fmt::Debug for KeyedBuilder<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedBuilder")
            .field("limit", &self.limit)
            .field("max_keys", &self.size.keys)
            .finish()
    }
}

/// Error: too many limits, or changes of limits, for one table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyLimitsError(pub(crate) ());

impl TooManyLimitsError {
    /// Creates the error, for stores of your own.
    #[expect(clippy::new_without_default, reason = "an error has no default")]
    pub const fn new() -> Self {
        Self(())
    }
}

impl fmt::Display for TooManyLimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "too many different limits have been used on one table; use fewer, or another table for some of them",
        )
    }
}

impl core::error::Error for TooManyLimitsError {}
