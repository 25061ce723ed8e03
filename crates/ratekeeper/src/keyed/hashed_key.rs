//! A key of which nothing but its hash is left, for those who ask about it again and again.

use super::KeyedState;
use crate::clock::Clock;

/// A key that was hashed for its table; what [`Keyed::hash`](super::Keyed::hash) returns.
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

    /// None if it was hashed for another table.
    #[inline]
    pub(super) fn hash_for<C: Clock>(self, inner: &KeyedState<C>) -> Option<u64> {
        (self.table == inner.table.id).then_some(self.hash)
    }
}
