//! Keys hashed ahead of time, for callers that use the same key again and again.

use super::KeyedState;
use crate::clock::Clock;

/// A key hashed for one table; see [`Keyed::hash`](super::Keyed::hash).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HashedKey {
    table: u64,
    hash: u64,
}

impl HashedKey {
    #[inline]
    pub(super) fn new<C: Clock>(inner: &KeyedState<C>, hash: u64) -> Self {
        Self {
            table: inner.table.id,
            hash,
        }
    }

    /// Returns the hash, or `None` if it was hashed for another table.
    #[inline]
    pub(super) fn hash_for<C: Clock>(self, inner: &KeyedState<C>) -> Option<u64> {
        (self.table == inner.table.id).then_some(self.hash)
    }
}
