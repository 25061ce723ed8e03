//! What tells callsites apart.

use std::hash::{Hash, Hasher};
use tracing_core::Metadata;

/// Whether this is an event that will be shown or not: no span, and no mere question whether one
/// would be.
pub(crate) fn is_event(metadata: &Metadata<'_>) -> bool {
    // `event_enabled!` asks as an event of its own. Only its name tells: "enabled src/main.rs:7".
    metadata.is_event() && !metadata.name().starts_with("enabled ")
}

/// The address of the callsite. Addresses of a user's program have no top bit, which
/// [`log_record`](crate::log_record) sets in its keys.
#[inline]
pub(crate) fn key(metadata: &Metadata<'_>) -> u64 {
    // tracing shows the address to hashers only.
    let mut address = Address(0);
    metadata.callsite().hash(&mut address);
    address.finish()
}

/// Keeps the first word it is given: of a pointer, the address.
struct Address(u64);

impl Hasher for Address {
    #[inline]
    fn write_usize(&mut self, word: usize) {
        if self.0 == 0 {
            self.0 = word as u64;
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
