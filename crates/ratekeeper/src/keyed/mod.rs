//! Many subjects in bounded memory: the table, and limiters by key on it.

mod arrivals;
mod hash;
mod hashed_key;
mod in_flight;
pub(crate) mod line;
pub(crate) mod table;
pub(crate) mod terms;
mod view;
mod wide;

pub use arrivals::{GcraParams, GcraParamsError, KeyedGcra, KeyedGcraBuilder};
pub use hashed_key::HashedKey;
pub use in_flight::{KeyPermit, KeyedConcurrency, KeyedConcurrencyBuilder};
pub use table::KeyedStats;
pub use view::{ChargeToken, Key};
pub(crate) use view::{OwnedKey, charge_more, give_back, grant, is_refundable, reset};

use crate::clock::{Clock, DefaultClock, SystemClock};
use crate::decision::Decision;
use crate::limit::Limit;
use crate::limiter::{Adjustments, Carry, Waiters};
use core::borrow::Borrow;
use core::fmt;
use core::hash::Hash;
use core::marker::PhantomData;
use line::Rule;
use std::sync::Arc;
use table::{Table, TableSize};
use terms::LimitVersion;

/// A limiter for each of many subjects: users, addresses, API keys.
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
/// [`key`](Self::key) is one of them with all the verbs of a [`Limiter`](crate::Limiter):
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
/// Its memory is fixed when it is made, by default for a million keys (32 bytes each, used as keys
/// come, and up to 72 where charges are settled), and never grows: there is nothing to sweep and no
/// background task. The key itself is not stored and nothing is allocated for it. A decision on a
/// key that is known reads one cache line, nearly always. States that do not fit a word
/// ([`SlidingLog`](crate::Algorithm::SlidingLog) and the like) are kept beside the table, by
/// default in at most 512 bytes for each key it was made for; see
/// [`max_bytes`](KeyedBuilder::max_bytes).
///
/// # When there are more keys than that
///
/// A key that is back to fresh is forgotten when its room is needed, which changes no decision. If
/// a newcomer finds only keys that are not, the one nearest to fresh is displaced, and what it had
/// used goes into the limit's *floor*: keys that are not in the table start from there, not from
/// fresh. So a flood of keys can cause false denials, never a false admission: nobody gets a new
/// allowance by having its key forgotten. [`figures`](Self::figures) counts both.
///
/// # Two keys, one bucket
///
/// Keys are told apart by a hash (AES rounds where the processor has them, else SipHash-1-3) with a
/// secret of its own for each table, so nobody outside can aim at a collision. With a table full of
/// keys the odds that a given key shares its bucket with any other are about 1 in 90 billion.
///
/// A handle: clones share the table.
pub struct Keyed<K: ?Sized, C: Clock = DefaultClock> {
    inner: Arc<KeyedState<C>>,
    keys: PhantomData<fn(&K)>,
}

// As the table: what every call needs is in two cache lines, the secret in the second.
#[repr(C)]
#[cfg_attr(not(ratekeeper_loom), repr(align(64)))]
pub(crate) struct KeyedState<C> {
    pub(crate) first: Arc<LimitVersion>,
    pub(crate) table: Table<C>,
    pub(crate) waiters: Waiters,
}

impl<K: ?Sized> Keyed<K> {
    /// The same limit for each key, for up to a million of them, on the operating system's
    /// monotonic clock.
    pub fn new(limit: Limit) -> Self {
        Self::builder(limit).build()
    }

    /// To choose how many keys, how much memory, or another clock.
    ///
    /// ```
    /// use ratekeeper::{clock::FastClock, Keyed, Limit};
    ///
    /// let per_user = Keyed::<str>::builder(Limit::per_minute(100)).max_keys(50_000).clock(FastClock).build();
    /// ```
    pub fn builder(limit: Limit) -> KeyedBuilder<K> {
        KeyedBuilder {
            limit,
            cap: TableSize::default(),
            clock: SystemClock,
            keys: PhantomData,
        }
    }
}

/// Makes a [`Keyed`]; what [`Keyed::builder`] returns.
pub struct KeyedBuilder<K: ?Sized, C: Clock = DefaultClock> {
    limit: Limit,
    cap: TableSize,
    clock: C,
    keys: PhantomData<fn(&K)>,
}

impl<K: ?Sized, C: Clock> KeyedBuilder<K, C> {
    /// How many keys may be live at once before some are displaced; a million if not said. Each
    /// takes 32 bytes once it is used, twice 16 because a table that is half full finds room for
    /// everyone, and up to 72 where charges are settled.
    #[must_use]
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.cap.keys = keys;
        self
    }

    /// How many bytes it may use in all, but for what a call has in hand: a log, and another while
    /// that grows. What the table of [`max_keys`](Self::max_keys) leaves of them is for states that
    /// do not fit it; if the table alone would take more, it is made for fewer keys.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.cap.bytes = Some(bytes);
        self
    }

    /// Another clock.
    #[must_use]
    pub fn clock<D: Clock>(self, clock: D) -> KeyedBuilder<K, D> {
        KeyedBuilder {
            limit: self.limit,
            cap: self.cap,
            clock,
            keys: PhantomData,
        }
    }

    /// Makes it. Memory is reserved now and used as keys come.
    ///
    /// # Panics
    ///
    /// If the memory cannot even be reserved: more than the system would ever hand out was asked
    /// for.
    pub fn build(self) -> Keyed<K, C> {
        Keyed {
            inner: Arc::new(KeyedState::new(
                self.cap,
                self.clock,
                Rule::Rate(self.limit),
            )),
            keys: PhantomData,
        }
    }
}

impl<C: Clock> KeyedState<C> {
    fn new(cap: TableSize, clock: C, rule: Rule) -> Self {
        let table = Table::new(cap, clock, rule.large_state_bytes());
        let first = table
            .new_line(0, "", rule)
            .expect("the first line of a table");
        Self {
            table,
            first,
            waiters: Waiters::default(),
        }
    }
}

impl<K: ?Sized, C: Clock> Keyed<K, C> {
    /// The same on a clock of your choice.
    pub fn with_clock(limit: Limit, clock: C) -> Self {
        KeyedBuilder {
            limit,
            cap: TableSize::default(),
            clock,
            keys: PhantomData,
        }
        .build()
    }

    /// The clock it runs on.
    pub fn clock(&self) -> &C {
        self.inner.table.clock()
    }

    /// Charges one unit to a key if it fits, and forgets.
    // Always: see `Limiter::check_n`.
    #[inline(always)]
    pub fn check<Q: Hash + ?Sized>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
    {
        self.check_n(key, 1)
    }

    /// Charges `cost` units to a key if all of them fit, and forgets.
    #[inline(always)]
    pub fn check_n<Q: Hash + ?Sized>(&self, key: &Q, cost: u64) -> Decision
    where
        K: Borrow<Q>,
    {
        let KeyedState { table, first, .. } = &*self.inner;
        let hash = table.hash(key);
        table.check(first, hash, || table.clock().now(), cost)
    }

    /// One key, with the verbs of a [`Limiter`](crate::Limiter).
    #[inline]
    pub fn key<Q: Hash + ?Sized>(&self, key: &Q) -> Key<'_, C>
    where
        K: Borrow<Q>,
    {
        Key::new(&self.inner, &self.inner.first, self.inner.table.hash(key))
    }

    /// Hashes a key, for those who ask about it again and again, as a connection does about its
    /// peer: [`hashed`](Self::hashed) then need not.
    #[inline]
    pub fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> HashedKey
    where
        K: Borrow<Q>,
    {
        self.key(key).hashed()
    }

    /// A key that was hashed before; none if it was for another table.
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
        key.of(&self.inner)
            .map(|hash| Key::new(&self.inner, &self.inner.first, hash))
    }

    /// Settles what [`Key::charge`] took, at its true cost, as
    /// [`Charge::settle`](crate::Charge::settle) does. What another table took is left as it is.
    pub fn settle(&self, taken: ChargeToken, actual: u64) {
        taken.settle(&self.inner, actual, || self.clock().now());
    }
}

/// # Live changes
impl<K: ?Sized, C: Clock> Keyed<K, C> {
    /// The limit in force.
    pub fn limit(&self) -> Limit {
        let KeyedState { table, first, .. } = &*self.inner;
        table
            .current(first)
            .rule
            .limit()
            .unwrap_or_else(Limit::unlimited)
    }

    /// The burst in force: how much may come at once. [`u64::MAX`] when unlimited.
    pub fn burst(&self) -> u64 {
        self.limit().capacity()
    }

    /// Changes the limit for every key, at once, each keeping the tokens it has. Each change keeps
    /// some hundred bytes, and a copy of the floor once keys have been displaced, until the last
    /// handle is dropped. Charges and reservations of before give nothing back.
    pub fn set_limit(&self, limit: Limit) {
        self.set_limit_with(limit, Carry::Keep);
    }

    /// Changes the limit and says what becomes of the tokens.
    pub fn set_limit_with(&self, limit: Limit, carry: Carry) {
        let KeyedState { table, first, .. } = &*self.inner;
        table.change(&first.registered, Rule::Rate(limit), carry, || {
            table.clock().now()
        });
    }

    /// Changes the burst only.
    pub fn set_burst(&self, burst: u64) {
        self.set_limit(self.limit().burst(burst));
    }

    /// Makes every key fresh and forgets the eviction floor.
    pub fn reset(&self) {
        let KeyedState { table, first, .. } = &*self.inner;
        let rule = table.current(first).rule;
        table.change(&first.registered, rule, Carry::Reset, || {
            table.clock().now()
        });
    }

    /// Ends every wait, now and later, with [`WaitError::Closed`](crate::limiter::WaitError::Closed). The
    /// other verbs go on.
    pub fn close(&self) {
        self.inner.waiters.close();
    }

    /// Whether [`close`](Self::close) was called.
    pub fn is_closed(&self) -> bool {
        self.inner.waiters.is_closed()
    }

    /// Counters, over all keys, of what came on top of the limit's promise and of refunds that were
    /// lost.
    pub fn adjustments(&self) -> Adjustments {
        self.inner.first.registered.counts()
    }

    /// How many keys there are, and what became of others. Counting them reads the whole table.
    pub fn stats(&self) -> KeyedStats {
        let table = &self.inner.table;
        table.figures(table.clock().now())
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
            .field("max_keys", &self.cap.keys)
            .finish()
    }
}

/// More different limits than a table can tell apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyLimitsError(pub(crate) ());

impl TooManyLimitsError {
    /// The error itself, for stores of your own.
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
