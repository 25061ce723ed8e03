//! Limits on the size of replies: a stream that fails before it passes on a reply longer than the
//! command can need.
//!
//! The client's parser buffers whatever a server sends until a reply is complete. So the length is
//! counted before that, with the same framing: a faulty server, or something that is not Redis,
//! cannot make this process allocate memory.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// For commands that are not scripts: a number, a short text or an error.
pub(crate) const MAX_SHORT_REPLY: usize = 64 * 1024;
/// For lists: slots and nodes of a Cluster, the output of `INFO`.
pub(crate) const MAX_LIST_REPLY: usize = 4 * 1024 * 1024;
/// For all notices of the board.
pub(crate) const MAX_BOARD_REPLY: usize = 16 * 1024 * 1024;

/// The least average size of a value in a long reply. A value takes more in memory than on the
/// wire, so the number of values is limited too.
const BYTES_PER_VALUE: usize = 8;

/// The longest reply that a connection accepts, and whether one was longer.
#[derive(Debug)]
pub(crate) struct ReplyLimit {
    max_bytes: AtomicUsize,
    is_exceeded: AtomicBool,
}

impl Default for ReplyLimit {
    fn default() -> Self {
        Self {
            max_bytes: AtomicUsize::new(MAX_SHORT_REPLY),
            is_exceeded: AtomicBool::new(false),
        }
    }
}

impl ReplyLimit {
    /// Accepts replies of this many bytes from now on. The limit is never lowered: earlier commands
    /// may not be answered yet.
    pub(crate) fn at_least(&self, bytes: usize) {
        if self.max_bytes.load(Relaxed) < bytes {
            self.max_bytes.fetch_max(bytes, Relaxed);
        }
    }

    /// The limit in bytes, if a reply exceeded it.
    pub(crate) fn exceeded(&self) -> Option<usize> {
        self.is_exceeded
            .load(Relaxed)
            .then(|| self.max_bytes.load(Relaxed))
    }
}

/// The parser's position in a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ParsePosition {
    /// At the first byte of a value, which gives its type.
    Kind,
    /// In a line with a length: the bytes of a text, or the number of values that follow.
    Length {
        kind: Kind,
        number: usize,
        is_negative: bool,
        saw_cr: bool,
    },
    /// In a line. `saw_cr`: its last byte so far was a carriage return.
    Line { saw_cr: bool },
    /// In a text with this many bytes left, its line end included.
    Bytes(usize),
}

/// What a length counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Bytes { may_be_none: bool },
    Values { each: usize, extra: usize },
}

/// The framing of replies (RESP 2 and 3), as far as their length depends on it.
#[derive(Debug)]
struct ReplyFraming {
    at: ParsePosition,
    /// Bytes and values of the current reply.
    bytes: usize,
    values: usize,
    /// Values missing until the reply is complete.
    missing: usize,
}

/// The error of a reply that is longer than allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ReplyTooLong;

impl Default for ReplyFraming {
    fn default() -> Self {
        Self {
            at: ParsePosition::Kind,
            bytes: 0,
            values: 0,
            missing: 1,
        }
    }
}

impl ReplyFraming {
    fn read(&mut self, mut read: &[u8], max_bytes: usize) -> Result<(), ReplyTooLong> {
        while let Some(first) = read.first().copied() {
            let used = match self.at {
                ParsePosition::Kind => {
                    self.at = ParsePosition::of(first);
                    1
                }
                ParsePosition::Length {
                    kind,
                    number,
                    is_negative,
                    saw_cr,
                } => {
                    let number = match first {
                        b'0'..=b'9' => number
                            .saturating_mul(10)
                            .saturating_add(usize::from(first - b'0')),
                        _ => number,
                    };
                    let is_negative = is_negative || first == b'-';
                    if saw_cr && first == b'\n' {
                        self.start_body(
                            kind,
                            if is_negative { 0 } else { number },
                            is_negative,
                            max_bytes,
                        )?;
                    } else {
                        self.at = ParsePosition::Length {
                            kind,
                            number,
                            is_negative,
                            saw_cr: first == b'\r',
                        };
                    }
                    1
                }
                ParsePosition::Line { saw_cr: true } if first == b'\n' => {
                    self.complete();
                    1
                }
                ParsePosition::Line { .. } => {
                    let end = read.iter().position(|byte| *byte == b'\r');
                    self.at = ParsePosition::Line {
                        saw_cr: end.is_some(),
                    };
                    end.map_or(read.len(), |end| end + 1)
                }
                ParsePosition::Bytes(left) => {
                    let used = left.min(read.len());
                    self.at = ParsePosition::Bytes(left - used);
                    if left == used {
                        self.complete();
                    }
                    used
                }
            };
            read = &read[used..];
            if self.missing == 0 {
                *self = Self::default();
                continue;
            }
            self.bytes += used;
            if self.bytes > max_bytes {
                return Err(ReplyTooLong);
            }
        }
        Ok(())
    }

    /// The length of a text or list was read.
    fn start_body(
        &mut self,
        kind: Kind,
        number: usize,
        is_none: bool,
        max_bytes: usize,
    ) -> Result<(), ReplyTooLong> {
        match kind {
            Kind::Bytes { may_be_none: true } if is_none => self.complete(),
            // The client reads a negative length as a huge one.
            Kind::Bytes { .. } if is_none || number > max_bytes => return Err(ReplyTooLong),
            Kind::Bytes { .. } => self.at = ParsePosition::Bytes(number + 2),
            Kind::Values { each, extra } => {
                let values = number.saturating_mul(each).saturating_add(extra);
                self.values = self.values.saturating_add(values);
                if self.values > (max_bytes / BYTES_PER_VALUE).max(64) {
                    return Err(ReplyTooLong);
                }
                self.missing += values;
                self.complete();
            }
        }
        Ok(())
    }

    /// A value was read to its end.
    fn complete(&mut self) {
        self.missing -= 1;
        self.at = ParsePosition::Kind;
    }
}

impl ParsePosition {
    fn of(kind: u8) -> Self {
        let length = |kind| Self::Length {
            kind,
            number: 0,
            is_negative: false,
            saw_cr: false,
        };
        match kind {
            b'$' => length(Kind::Bytes { may_be_none: true }),
            b'!' | b'=' => length(Kind::Bytes { may_be_none: false }),
            b'*' | b'~' | b'>' => length(Kind::Values { each: 1, extra: 0 }),
            b'%' => length(Kind::Values { each: 2, extra: 0 }),
            // Attributes precede the value they belong to.
            b'|' => length(Kind::Values { each: 2, extra: 1 }),
            _ => Self::Line { saw_cr: false },
        }
    }
}

/// A stream whose replies are measured as they are read.
pub(crate) struct BoundedReplies<S> {
    stream: S,
    framing: ReplyFraming,
    limit: Arc<ReplyLimit>,
}

impl<S> BoundedReplies<S> {
    pub(crate) fn new(stream: S, limit: Arc<ReplyLimit>) -> Self {
        Self {
            stream,
            framing: ReplyFraming::default(),
            limit,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedReplies<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let Self {
            stream,
            framing,
            limit,
        } = &mut *self;
        let read = Pin::new(stream).poll_read(cx, buffer);
        if matches!(read, Poll::Ready(Ok(())))
            && framing
                .read(&buffer.filled()[before..], limit.max_bytes.load(Relaxed))
                .is_err()
        {
            limit.is_exceeded.store(true, Relaxed);
            buffer.set_filled(before);
            // The client closes the connection on this kind of error.
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedReplies<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the bytes in chunks of every size; the final position and bytes of the open reply, or
    /// the error.
    fn read(bytes: &[u8], max_bytes: usize) -> Result<(ParsePosition, usize), ReplyTooLong> {
        let in_chunks = |size: usize| {
            let mut framing = ReplyFraming::default();
            bytes
                .chunks(size)
                .try_for_each(|chunk| framing.read(chunk, max_bytes))?;
            Ok((framing.at, framing.bytes))
        };
        let results: Vec<_> = (1..=bytes.len()).map(in_chunks).collect();
        assert!(
            results.windows(2).all(|two| two[0] == two[1]),
            "{results:?}"
        );
        results[0]
    }

    #[test]
    fn the_end_of_every_kind_of_reply_is_found() {
        let replies: [&[u8]; 20] = [
            b"+OK\r\n",
            b"+a\nb\rc\r\r\n",
            b"$\n1\r\nx\r\n",
            b"-ERR no\r\n",
            b":-12\r\n",
            b"$5\r\na\r\nbc\r\n",
            b"$0\r\n\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"*3\r\n:1\r\n$1\r\n*\r\n*2\r\n+a\r\n-b\r\n",
            b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n",
            b"|1\r\n+ttl\r\n:1\r\n$1\r\nx\r\n",
            b"~2\r\n:1\r\n:2\r\n",
            b">2\r\n+message\r\n+x\r\n",
            b"_\r\n",
            b",1.5\r\n",
            b"#t\r\n",
            b"=5\r\ntxt:x\r\n",
            b"!3\r\nERR\r\n",
        ];
        for reply in replies {
            let text = String::from_utf8_lossy(reply);
            assert_eq!(read(reply, 1_000), Ok((ParsePosition::Kind, 0)), "{text}");
            assert_eq!(
                read(&reply.repeat(50), 100),
                Ok((ParsePosition::Kind, 0)),
                "each of many is measured by itself: {text}"
            );
            let (_, begun) = read(&reply[..reply.len() - 1], 1_000).unwrap();
            assert_eq!(begun, reply.len() - 1, "{text}");
        }
    }

    #[test]
    fn a_reply_that_is_too_long_is_found_early() {
        for reply in [
            &b"*100000\r\n"[..],
            b"*18446744073709551616\r\n",
            b"%9223372036854775807\r\n",
            b"|9223372036854775807\r\n",
            b"$1001\r\n",
            b"$99999999999999999999999\r\n",
            b"!-1\r\n",
            b"=-1\r\n",
            b"*1\r\n*1\r\n*1\r\n*100\r\n*100\r\n",
        ] {
            assert_eq!(
                read(reply, 1_000),
                Err(ReplyTooLong),
                "{}",
                String::from_utf8_lossy(reply)
            );
        }
        // A reply that never ends is cut off at the limit.
        let line = [&b"-ERR "[..], &[b'x'; 996]].concat();
        assert_eq!(read(&line, 1_000), Err(ReplyTooLong));
        assert!(read(&line[..1_000], 1_000).is_ok());
        let list = [
            &b"*50\r\n"[..],
            &b"$30\r\n012345678901234567890123456789\r\n".repeat(40),
        ]
        .concat();
        assert_eq!(read(&list, 1_000), Err(ReplyTooLong));
        assert!(read(&list, 2_000).is_ok());
    }
}
