//! What was read and not yet taken.

use axum::body::Bytes;
use bytes::{Buf, BytesMut};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use tokio::io::AsyncReadExt;

/// Pieces up to this size are copied, so that the room they were read into is there for the next.
const SMALL: usize = 4 * 1024;

/// Takes up to so many bytes, at least one if there is any.
pub(crate) fn take(read: &mut BytesMut, most: u64) -> Bytes {
    let length = usize::try_from(most).unwrap_or(usize::MAX).min(read.len());
    if length > SMALL {
        return read.split_to(length).freeze();
    }
    let taken = Bytes::copy_from_slice(&read[..length]);
    read.advance(length);
    taken
}

/// Reads as much as comes at once, up to `room`. Ready with false at the end of the stream.
pub(crate) fn fill<S>(stream: &mut S, read: &mut BytesMut, room: usize, cx: &mut Context<'_>) -> Poll<io::Result<bool>>
where
    S: tokio::io::AsyncRead + Unpin,
{
    if read.capacity() - read.len() < room / 2 {
        read.reserve(room);
    }
    Pin::new(&mut pin!(stream.read_buf(read))).poll(cx).map_ok(|length| length > 0)
}
