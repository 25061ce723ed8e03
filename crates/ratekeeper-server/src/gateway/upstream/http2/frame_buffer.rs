//! Bytes that were received and not read yet. Small chunks are merged: a frame of one byte takes
//! one byte here.

use axum::body::Bytes;
use bytes::BytesMut;
use std::collections::VecDeque;

/// A shorter chunk is copied. A longer one is passed on in its own memory.
const SMALL: usize = 1024;

/// The longest chunk: how soon the next one is polled shows whether the client takes data.
const MAX_CHUNK: usize = 16 * 1024;

/// A queue of bytes.
#[derive(Default)]
pub(super) struct FrameBuffer {
    chunks: VecDeque<Bytes>,
    /// The bytes after them.
    tail: BytesMut,
}

impl FrameBuffer {
    pub(super) fn push(&mut self, chunk: Bytes) {
        if chunk.len() < SMALL {
            self.tail.extend_from_slice(&chunk);
            return;
        }
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
        self.chunks.push_back(chunk);
    }

    /// The next bytes, at most [`MAX_CHUNK`] of them.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let Some(first) = self.chunks.front_mut() else {
            let length = self.tail.len().min(MAX_CHUNK);
            return (length > 0).then(|| self.tail.split_to(length).freeze());
        };
        if first.len() > MAX_CHUNK {
            return Some(first.split_to(MAX_CHUNK));
        }
        self.chunks.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.tail.is_empty()
    }

    /// Takes everything, if it is one chunk of at most [`MAX_CHUNK`].
    pub(super) fn take_single(&mut self) -> Option<Bytes> {
        match (self.chunks.len(), self.tail.len()) {
            (0, length) if length <= MAX_CHUNK => Some(self.tail.split().freeze()),
            (1, 0) if self.chunks[0].len() <= MAX_CHUNK => self.chunks.pop_front(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_chunks_are_merged_and_large_ones_split() {
        let mut buffer = FrameBuffer::default();
        (0..100u8).for_each(|byte| buffer.push(Bytes::copy_from_slice(&[byte])));
        buffer.push(Bytes::from(vec![7; MAX_CHUNK + 1]));
        let lengths: Vec<usize> = std::iter::from_fn(|| buffer.pop())
            .map(|chunk| chunk.len())
            .collect();
        assert_eq!(lengths, [100, MAX_CHUNK, 1]);
        assert!(buffer.is_empty());
    }

    proptest! {
        #[test]
        fn bytes_come_out_in_order(sizes in prop::collection::vec((0usize..40_000, any::<bool>()), 0..40)) {
            let (mut buffer, mut put, mut got) = (FrameBuffer::default(), Vec::new(), Vec::new());
            for (at, (size, takes)) in sizes.into_iter().enumerate() {
                let chunk: Vec<u8> = (0..size).map(|byte| (byte * 7 + at) as u8).collect();
                put.extend_from_slice(&chunk);
                buffer.push(Bytes::from(chunk));
                if takes && let Some(chunk) = buffer.pop() {
                    prop_assert!((1..=MAX_CHUNK).contains(&chunk.len()));
                    got.extend_from_slice(&chunk);
                }
            }
            while let Some(chunk) = buffer.pop() {
                got.extend_from_slice(&chunk);
            }
            prop_assert_eq!(put, got);
            prop_assert!(buffer.is_empty());
        }
    }
}
