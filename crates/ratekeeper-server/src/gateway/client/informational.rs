//! Informational responses on their way to an HTTP/1 client.

use crate::gateway::headers::put_header;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, StatusCode};
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many bytes may wait.
const MAX_BYTES: usize = 16 * 1024;

/// Informational responses to be written before the next response.
#[derive(Default)]
pub(crate) struct InformationalQueue(Mutex<Vec<u8>>);

impl InformationalQueue {
    /// Adds a response, unless too many bytes wait already.
    pub(crate) fn push(&self, status: StatusCode, headers: &HeaderMap) {
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

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
