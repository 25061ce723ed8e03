//! Bytes of a client in error messages.

use std::fmt;

/// Bytes that an error repeats.
const MAX_QUOTED_BYTES: usize = 128;

/// Displays the beginning of some bytes, escaped.
pub(crate) struct QuotedBytes<'a>(pub(crate) &'a [u8]);

impl fmt::Display for QuotedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}",
            self.0[..self.0.len().min(MAX_QUOTED_BYTES)].escape_ascii()
        )
    }
}
