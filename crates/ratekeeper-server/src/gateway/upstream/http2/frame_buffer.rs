//! Bytes that were received and not taken yet. Small pieces are merged: a frame of one byte costs
//! one byte here.

use axum::body::Bytes;
use bytes::BytesMut;
use std::collections::VecDeque;

/// A shorter piece is copied. A longer one is passed on in its own memory.
const SMALL: usize = 1024;

/// The longest piece: how soon the next one is asked for shows whether the client takes any.
const MAX_PIECE: usize = 16 * 1024;

/// A queue of bytes.
#[derive(Default)]
pub(super) struct FrameBuffer {
    pieces: VecDeque<Bytes>,
    /// The bytes after them.
    tail: BytesMut,
}

impl FrameBuffer {
    pub(super) fn push(&mut self, piece: Bytes) {
        if piece.len() < SMALL {
            self.tail.extend_from_slice(&piece);
            return;
        }
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
        self.pieces.push_back(piece);
    }

    /// The next bytes, at most [`MAX_PIECE`] of them.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let Some(first) = self.pieces.front_mut() else {
            let length = self.tail.len().min(MAX_PIECE);
            return (length > 0).then(|| self.tail.split_to(length).freeze());
        };
        if first.len() > MAX_PIECE {
            return Some(first.split_to(MAX_PIECE));
        }
        self.pieces.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.tail.is_empty()
    }

    /// Takes everything, if it is one piece of at most [`MAX_PIECE`].
    pub(super) fn take_single(&mut self) -> Option<Bytes> {
        match (self.pieces.len(), self.tail.len()) {
            (0, length) if length <= MAX_PIECE => Some(self.tail.split().freeze()),
            (1, 0) if self.pieces[0].len() <= MAX_PIECE => self.pieces.pop_front(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_pieces_are_merged_and_large_ones_split() {
        let mut buffer = FrameBuffer::default();
        (0..100u8).for_each(|byte| buffer.push(Bytes::copy_from_slice(&[byte])));
        buffer.push(Bytes::from(vec![7; MAX_PIECE + 1]));
        let lengths: Vec<usize> = std::iter::from_fn(|| buffer.pop())
            .map(|piece| piece.len())
            .collect();
        assert_eq!(lengths, [100, MAX_PIECE, 1]);
        assert!(buffer.is_empty());
    }

    proptest! {
        #[test]
        fn bytes_come_out_in_order(sizes in prop::collection::vec((0usize..40_000, any::<bool>()), 0..40)) {
            let (mut buffer, mut put, mut got) = (FrameBuffer::default(), Vec::new(), Vec::new());
            for (at, (size, takes)) in sizes.into_iter().enumerate() {
                let piece: Vec<u8> = (0..size).map(|byte| (byte * 7 + at) as u8).collect();
                put.extend_from_slice(&piece);
                buffer.push(Bytes::from(piece));
                if takes && let Some(piece) = buffer.pop() {
                    prop_assert!((1..=MAX_PIECE).contains(&piece.len()));
                    got.extend_from_slice(&piece);
                }
            }
            while let Some(piece) = buffer.pop() {
                got.extend_from_slice(&piece);
            }
            prop_assert_eq!(put, got);
            prop_assert!(buffer.is_empty());
        }
    }
}
