//! Keys of callsites.

use std::hash::{Hash, Hasher};
use tracing_core::Metadata;

/// Whether this is an event, rather than a span or a query whether an event would be shown.
pub(crate) fn is_event(metadata: &Metadata<'_>) -> bool {
    // `event_enabled!` queries with an event of its own. Only its name differs: "enabled
    // src/main.rs:7".
    metadata.is_event() && !metadata.name().starts_with("enabled ")
}

/// The address of the callsite. User-space addresses have no top bit, which
/// [`log_record`](crate::log_record) sets in its keys.
#[inline]
pub(crate) fn key(metadata: &Metadata<'_>) -> u64 {
    // tracing exposes the address to hashers only.
    let mut address = Address(0);
    metadata.callsite().hash(&mut address);
    address.finish()
}

/// A hasher that returns the first word written: of a pointer, the address.
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
