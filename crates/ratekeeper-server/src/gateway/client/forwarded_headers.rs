//! Cache of the forwarding headers for a client's requests, as lines of an HTTP/1 head: they seldom
//! change from one request to the next.

use axum::http::Version;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The cached lines of one client.
#[derive(Default)]
pub(crate) struct ForwardedHeaders(Mutex<CachedHeaders>);

/// The lines, with the host and the version that they are for.
#[derive(Default)]
struct CachedHeaders {
    /// `None` while the cache is empty.
    version: Option<Version>,
    has_host: bool,
    host: Vec<u8>,
    lines: Vec<u8>,
}

/// Longer lines are not cached, as there may be many clients.
const MAX_CACHED_BYTES: usize = 512;

impl ForwardedHeaders {
    /// Appends to `head` the lines that `write` produces for this host and version, or the cached
    /// ones.
    pub(crate) fn add(
        &self,
        host: Option<&[u8]>,
        version: Version,
        head: &mut Vec<u8>,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let cached = self.lock();
        if cached.version == Some(version)
            && cached.has_host == host.is_some()
            && cached.host == host.unwrap_or_default()
        {
            head.extend_from_slice(&cached.lines);
            return;
        }
        drop(cached);
        let start = head.len();
        write(head);
        let lines = &head[start..];
        if lines.len() <= MAX_CACHED_BYTES {
            let CachedHeaders {
                version: cached_version,
                has_host,
                host: cached_host,
                lines: cached_lines,
            } = &mut *self.lock();
            (*cached_version, *has_host) = (Some(version), host.is_some());
            cached_host.clear();
            cached_host.extend_from_slice(host.unwrap_or_default());
            cached_lines.clear();
            cached_lines.extend_from_slice(lines);
        }
    }

    fn lock(&self) -> MutexGuard<'_, CachedHeaders> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_holds_for_one_host_and_version() {
        let about = ForwardedHeaders::default();
        let lines_for = |host: Option<&str>, version: Version, text: &str| {
            let mut head = b"first\r\n".to_vec();
            about.add(host.map(str::as_bytes), version, &mut head, |head| {
                head.extend_from_slice(text.as_bytes());
            });
            String::from_utf8(head).unwrap()
        };
        let long = "x".repeat(MAX_CACHED_BYTES + 1);
        assert_eq!(
            lines_for(Some("a"), Version::HTTP_11, &long),
            format!("first\r\n{long}")
        );
        assert_eq!(
            lines_for(Some("a"), Version::HTTP_11, "1"),
            "first\r\n1",
            "long lines are not cached"
        );
        assert_eq!(lines_for(Some("a"), Version::HTTP_11, "2"), "first\r\n1");
        assert_eq!(lines_for(Some("b"), Version::HTTP_11, "3"), "first\r\n3");
        assert_eq!(lines_for(Some("b"), Version::HTTP_10, "4"), "first\r\n4");
        assert_eq!(lines_for(None, Version::HTTP_10, "5"), "first\r\n5");
        assert_eq!(lines_for(Some(""), Version::HTTP_10, "6"), "first\r\n6");
        assert_eq!(lines_for(Some("b"), Version::HTTP_10, "7"), "first\r\n7");
        assert_eq!(lines_for(Some("b"), Version::HTTP_10, "8"), "first\r\n7");
    }
}
