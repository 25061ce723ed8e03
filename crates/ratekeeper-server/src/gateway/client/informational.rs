//! Informational responses on their way to an HTTP/1 client.

use crate::gateway::headers::put_header;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, StatusCode};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many bytes may wait.
const MAX_BYTES: usize = 16 * 1024;

/// Informational responses to be written before the next response.
#[derive(Default)]
pub(crate) struct InformationalQueue {
    bytes: Mutex<Vec<u8>>,
    /// Whether hyper may have more bytes of a message to write: no other bytes may come between.
    is_in_message: AtomicBool,
}

impl InformationalQueue {
    /// Adds a response. It is dropped if too many bytes wait already, or while the client does not
    /// take the response before: it would come too late.
    pub(crate) fn push(&self, status: StatusCode, headers: &HeaderMap) {
        if self.is_in_message() {
            return;
        }
        let mut bytes = self.lock();
        let before = bytes.len();
        let reason = status.canonical_reason().unwrap_or_default();
        // Writing into memory cannot fail.
        drop(write!(bytes, "HTTP/1.1 {} {reason}\r\n", status.as_u16()));
        // It has no body, so no length either.
        for (name, value) in headers.iter().filter(|(name, _)| *name != CONTENT_LENGTH) {
            put_header(&mut bytes, name, value.as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        if bytes.len() > MAX_BYTES {
            bytes.truncate(before);
        }
    }

    /// Takes all of them.
    pub(super) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.lock())
    }

    pub(super) fn is_in_message(&self) -> bool {
        self.is_in_message.load(Relaxed)
    }

    pub(super) fn set_in_message(&self, is_in_message: bool) {
        self.is_in_message.store(is_in_message, Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
