//! Read buffer helpers for HTTP/1.

use axum::body::Bytes;
use bytes::{Buf, BytesMut};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use tokio::io::AsyncReadExt;

/// Slices up to this size are copied, so that the memory they were read into can be reused.
const SMALL: usize = 4 * 1024;

/// Takes up to `max` bytes, at least one if there is any.
pub(crate) fn take(read: &mut BytesMut, max: u64) -> Bytes {
    let length = usize::try_from(max).unwrap_or(usize::MAX).min(read.len());
    if length > SMALL {
        return read.split_to(length).freeze();
    }
    let taken = Bytes::copy_from_slice(&read[..length]);
    read.advance(length);
    taken
}

/// Where the first empty line ends, which ends a head or trailers. None ends before `scanned`.
pub(crate) fn empty_line_end(bytes: &[u8], scanned: usize) -> Option<usize> {
    let is_empty_line = |end: usize| {
        matches!(
            &bytes[..end],
            [] | [.., b'\n'] | [b'\r'] | [.., b'\n', b'\r']
        )
    };
    let new = bytes.get(scanned..)?.iter().enumerate();
    let mut ends = new
        .filter(|(_, byte)| **byte == b'\n')
        .map(|(at, _)| scanned + at);
    ends.find(|end| is_empty_line(*end)).map(|end| end + 1)
}

/// Reads the available bytes, up to `capacity`. Ready with false at the end of the stream.
pub(crate) fn fill<S>(
    stream: &mut S,
    read: &mut BytesMut,
    capacity: usize,
    cx: &mut Context<'_>,
) -> Poll<io::Result<bool>>
where
    S: tokio::io::AsyncRead + Unpin,
{
    if read.capacity() - read.len() < capacity / 2 {
        read.reserve(capacity);
    }
    Pin::new(&mut pin!(stream.read_buf(read)))
        .poll(cx)
        .map_ok(|length| length > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_empty_line_is_found_wherever_the_bytes_are_split() {
        let cases: [(&[u8], Option<usize>); 8] = [
            (b"", None),
            (b"\r", None),
            (b"\r\nrest", Some(2)),
            (b"\nrest", Some(1)),
            (b"a: 1\r\n\r\nrest", Some(8)),
            (b"a: 1\n\nrest", Some(6)),
            (b"a: 1\r\nb\r\n", None),
            (b"a\r\n\rb\n", None),
        ];
        for (bytes, end) in cases {
            for scanned in 0..=end.map_or(bytes.len(), |end| end - 1) {
                assert_eq!(
                    empty_line_end(bytes, scanned),
                    end,
                    "{} from {scanned}",
                    bytes.escape_ascii()
                );
            }
        }
    }
}
