//! [`AppendVec`]: an append-only vector that grows without moving its entries, in chunks that
//! double in size, each allocated once.

use crate::sync::OnceBox;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Chunk k holds 4 · 2^k entries; together they hold 2^33.
const CHUNKS: usize = 31;
const FIRST_CHUNK: u64 = 4;

/// An append-only vector. An entry exists once it was requested with
/// [`get_or_make`](Self::get_or_make).
pub(crate) struct AppendVec<T: 'static> {
    chunks: [OnceBox<Vec<T>>; CHUNKS],
}

impl<T> AppendVec<T> {
    pub(crate) fn new() -> Self {
        Self {
            chunks: core::array::from_fn(|_| OnceBox::new()),
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: u64) -> Option<&T> {
        let (chunk, at) = slot(index);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    /// The entry; its chunk is first filled with `empty` entries if it does not exist. The index
    /// must be below 2^33.
    pub(crate) fn get_or_make(&self, index: u64, empty: impl Fn() -> T) -> &T {
        let (chunk, at) = slot(index);
        let entries = self.chunks[chunk].get_or_init(|| {
            let many = (FIRST_CHUNK as usize) << chunk;
            Box::new((0..many).map(|_| empty()).collect())
        });
        &entries[at]
    }
}

/// The chunk of an index, and the position in it.
#[inline]
fn slot(index: u64) -> (usize, usize) {
    // Chunk k begins at 4 · (2^k − 1), so 4 is added to read k off the highest bit.
    let position = index + FIRST_CHUNK;
    let chunk = position.ilog2() - FIRST_CHUNK.ilog2();
    (chunk as usize, (position - (FIRST_CHUNK << chunk)) as usize)
}

#[cfg(all(test, not(ratekeeper_loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_a_slot_of_its_own() {
        let mut next = (0, 0);
        for index in 0..10_000 {
            assert_eq!(slot(index), next);
            next = if next.1 + 1 == 4 << next.0 {
                (next.0 + 1, 0)
            } else {
                (next.0, next.1 + 1)
            };
        }
        assert!(slot(u64::from(u32::MAX)).0 < CHUNKS);
    }

    #[test]
    fn entries_keep_their_first_value() {
        let chunks = AppendVec::new();
        assert_eq!(chunks.get(70), None);
        assert_eq!(*chunks.get_or_make(70, || 7), 7);
        assert_eq!(*chunks.get_or_make(71, || 8), 7);
        assert_eq!(chunks.get(70), Some(&7));
    }
}
