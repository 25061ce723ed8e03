//! Keyed concurrency limit: how many requests of each key may be in flight.

use super::KeyedState;
use super::judge::CallRequest;
use super::registered_limit::Rule;
use super::table::{KeyedStats, TableSize};
use crate::clock::{Clock, SystemClock};
use crate::concurrency::BusyError;
use crate::generation::Carry;
use core::borrow::Borrow;
use core::fmt;
use core::hash::Hash;
use core::marker::PhantomData;
use std::sync::Arc;

/// A limit on how many are in flight at once for each key. A key is dropped when nothing of it is
/// in flight.
///
/// ```
/// use ratekeeper::keyed::KeyedConcurrency;
///
/// let per_tenant = KeyedConcurrency::<str>::new(2);
/// let first = per_tenant.try_acquire("acme")?;
/// let second = per_tenant.try_acquire("acme")?;
/// assert!(per_tenant.try_acquire("acme").is_err());
/// assert!(per_tenant.try_acquire("emca").is_ok());
/// drop(first);
/// assert_eq!(per_tenant.in_flight("acme"), 1);
/// # Ok::<_, ratekeeper::concurrency::BusyError>(())
/// ```
///
/// Its memory is fixed as that of a [`Keyed`](crate::Keyed) is. A key with something in flight is
/// never evicted: when there is no slot for another key, that key is denied.
///
/// This is a handle: clones share the permits.
pub struct KeyedConcurrency<K: ?Sized, C: Clock = SystemClock> {
    inner: Arc<KeyedState<C>>,
    keys: PhantomData<fn(&K)>,
}

/// Builder of a [`KeyedConcurrency`]; see [`KeyedConcurrency::builder`].
pub struct KeyedConcurrencyBuilder<K: ?Sized> {
    limit: u64,
    size: TableSize,
    keys: PhantomData<fn(&K)>,
}

impl<K: ?Sized> KeyedConcurrencyBuilder<K> {
    /// Sets how many keys may have something in flight at once; a million by default.
    #[must_use]
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.size.keys = keys;
        self
    }

    /// Sets how many bytes it may use in all: if the table of [`max_keys`](Self::max_keys) would
    /// take more, it is made for fewer keys.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.size.bytes = Some(bytes);
        self
    }

    /// Builds it. Memory is reserved now and used as keys arrive.
    ///
    /// # Panics
    ///
    /// If the memory cannot be reserved, because it is more than the system can hand out.
    pub fn build(self) -> KeyedConcurrency<K> {
        let inner = KeyedState::new(self.size, SystemClock, Rule::InFlight(self.limit));
        KeyedConcurrency {
            inner: Arc::new(inner),
            keys: PhantomData,
        }
    }
}

impl<K: ?Sized> KeyedConcurrency<K> {
    /// Allows at most `limit` in flight for each key, for up to a million keys at once.
    pub fn new(limit: u64) -> Self {
        Self::builder(limit).build()
    }

    /// Returns a builder, to choose the number of keys or the memory.
    pub fn builder(limit: u64) -> KeyedConcurrencyBuilder<K> {
        KeyedConcurrencyBuilder {
            limit,
            size: TableSize::default(),
            keys: PhantomData,
        }
    }
}

impl<K: ?Sized, C: Clock> KeyedConcurrency<K, C> {
    /// Takes one permit of a key if it is free.
    pub fn try_acquire<Q: Hash + ?Sized>(&self, key: &Q) -> Result<KeyPermit<C>, BusyError>
    where
        K: Borrow<Q>,
    {
        self.try_acquire_n(key, 1)
    }

    /// Takes `cost` permits of a key if all of them are free.
    pub fn try_acquire_n<Q: Hash + ?Sized>(
        &self,
        key: &Q,
        cost: u64,
    ) -> Result<KeyPermit<C>, BusyError>
    where
        K: Borrow<Q>,
    {
        let hash = self.inner.table.hash(key);
        let KeyedState {
            table,
            first_version,
            ..
        } = &*self.inner;
        let request = || CallRequest {
            is_final: false,
            ..CallRequest::check(table.clock().now(), cost)
        };
        let decision = table.decide(first_version, hash, request, |decided| {
            decided.call.decision
        });
        if !decision.is_allowed() {
            return Err(BusyError::new(
                table.in_flight(hash),
                decision.capacity(),
                cost,
            ));
        }
        Ok(KeyPermit {
            inner: Arc::clone(&self.inner),
            hash,
            cost,
        })
    }

    /// Returns how many of a key are in flight.
    pub fn in_flight<Q: Hash + ?Sized>(&self, key: &Q) -> u64
    where
        K: Borrow<Q>,
    {
        self.inner.table.in_flight(self.inner.table.hash(key))
    }

    /// Returns how many of each key may be in flight.
    pub fn limit(&self) -> u64 {
        self.inner
            .table
            .current(&self.inner.first_version)
            .normal
            .capacity
    }

    /// Changes how many may be in flight. Permits already taken stay valid.
    pub fn set_limit(&self, limit: u64) {
        let KeyedState {
            table,
            first_version,
            ..
        } = &*self.inner;
        table.change_limit(
            &first_version.registered,
            Rule::InFlight(limit),
            Carry::Keep,
            || table.clock().now(),
        );
    }

    /// Returns how many keys the table holds: live are those with something in flight. Reads the
    /// whole table.
    pub fn stats(&self) -> KeyedStats {
        let table = &self.inner.table;
        table.stats(table.clock().now())
    }
}

impl<K: ?Sized, C: Clock> Clone for KeyedConcurrency<K, C> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            keys: PhantomData,
        }
    }
}

impl<K: ?Sized, C: Clock> fmt::Debug for KeyedConcurrency<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedConcurrency")
            .field("limit", &self.limit())
            .finish_non_exhaustive()
    }
}

impl<K: ?Sized> fmt::Debug for KeyedConcurrencyBuilder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedConcurrencyBuilder")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// A permit for units in flight of a key; dropping it releases them.
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct KeyPermit<C: Clock = SystemClock> {
    inner: Arc<KeyedState<C>>,
    hash: u64,
    cost: u64,
}

impl<C: Clock> KeyPermit<C> {
    /// Returns how many units it holds.
    pub fn cost(&self) -> u64 {
        self.cost
    }
}

impl<C: Clock> Drop for KeyPermit<C> {
    fn drop(&mut self) {
        if self.cost > 0 {
            self.inner.table.release_permits(self.hash, self.cost);
        }
    }
}

impl<C: Clock> fmt::Debug for KeyPermit<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPermit")
            .field("cost", &self.cost)
            .finish()
    }
}
