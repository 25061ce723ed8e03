//! What a client sent, repeated in an error.

use std::fmt;

/// As much as an error repeats.
const LONGEST: usize = 128;

/// The beginning of some bytes, readable whatever they are.
pub(crate) struct QuotedBytes<'a>(pub(crate) &'a [u8]);

impl fmt::Display for QuotedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0[..self.0.len().min(LONGEST)].escape_ascii())
    }
}
