//! The size of replies: a stream that ends before it hands on a reply longer than what was asked
//! can need.
//!
//! The parser of the client keeps whatever a server sends until a reply is complete. So its length
//! is counted before that, by the same framing: a server gone wrong, or something that is not
//! Redis, cannot make this process take memory.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A reply to what is not a script: a number, a short text or an error.
pub(crate) const SHORT: usize = 64 * 1024;
/// A reply that lists what there is: slots and nodes of a Cluster, the limits of another node.
pub(crate) const LIST: usize = 4 * 1024 * 1024;
/// A reply with all notices of the board.
pub(crate) const BOARD: usize = 16 * 1024 * 1024;

/// A value takes so many bytes of a long reply on average, at least. In memory it takes more than
/// on the wire.
const BYTES_PER_VALUE: usize = 8;

/// The longest reply that a connection takes, and whether one was longer.
#[derive(Debug)]
pub(crate) struct ReplyLimit {
    max_bytes: AtomicUsize,
    is_exceeded: AtomicBool,
}

impl Default for ReplyLimit {
    fn default() -> Self {
        Self {
            max_bytes: AtomicUsize::new(SHORT),
            is_exceeded: AtomicBool::new(false),
        }
    }
}

impl ReplyLimit {
    /// Takes replies of so many bytes from now on. It never takes less again: what was asked before
    /// may be answered yet.
    pub(crate) fn at_least(&self, bytes: usize) {
        if self.max_bytes.load(Relaxed) < bytes {
            self.max_bytes.fetch_max(bytes, Relaxed);
        }
    }

    /// How many bytes were allowed, if a reply was longer.
    pub(crate) fn exceeded(&self) -> Option<usize> {
        self.is_exceeded
            .load(Relaxed)
            .then(|| self.max_bytes.load(Relaxed))
    }
}

/// Where in a reply the next byte is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ParsePosition {
    /// The first byte of a value, which says what it is.
    Kind,
    /// A line with a number: how long a text is, or how many values follow.
    Length {
        kind: Kind,
        number: usize,
        is_negative: bool,
        ends: bool,
    },
    /// A line. `ends`: its last byte so far begins the end of it.
    Line { ends: bool },
    /// Bytes that were announced, with the end of their line.
    Bytes(usize),
}

/// What a length counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Bytes { may_be_none: bool },
    Values { each: usize, more: usize },
}

/// The framing of replies (RESP 2 and 3), as far as it tells how long they are.
#[derive(Debug)]
struct Frames {
    at: ParsePosition,
    /// Bytes and values of the reply that is being read.
    bytes: usize,
    values: usize,
    /// Values that are missing until it is complete.
    missing: usize,
}

/// A reply that is longer than allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ReplyTooLong;

impl Default for Frames {
    fn default() -> Self {
        Self {
            at: ParsePosition::Kind,
            bytes: 0,
            values: 0,
            missing: 1,
        }
    }
}

impl Frames {
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
                    ends,
                } => {
                    let number = match first {
                        b'0'..=b'9' => number
                            .saturating_mul(10)
                            .saturating_add(usize::from(first - b'0')),
                        _ => number,
                    };
                    let is_negative = is_negative || first == b'-';
                    if ends && first == b'\n' {
                        self.announced(
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
                            ends: first == b'\r',
                        };
                    }
                    1
                }
                ParsePosition::Line { ends: true } if first == b'\n' => {
                    self.complete();
                    1
                }
                ParsePosition::Line { .. } => {
                    let end = read.iter().position(|byte| *byte == b'\r');
                    self.at = ParsePosition::Line {
                        ends: end.is_some(),
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

    /// A length was read to its end.
    fn announced(
        &mut self,
        kind: Kind,
        number: usize,
        is_none: bool,
        max_bytes: usize,
    ) -> Result<(), ReplyTooLong> {
        match kind {
            Kind::Bytes { may_be_none: true } if is_none => self.complete(),
            // What is less than nothing the client takes for more than there can be.
            Kind::Bytes { .. } if is_none || number > max_bytes => return Err(ReplyTooLong),
            Kind::Bytes { .. } => self.at = ParsePosition::Bytes(number + 2),
            Kind::Values { each, more } => {
                let values = number.saturating_mul(each).saturating_add(more);
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
            ends: false,
        };
        match kind {
            b'$' => length(Kind::Bytes { may_be_none: true }),
            b'!' | b'=' => length(Kind::Bytes { may_be_none: false }),
            b'*' | b'~' | b'>' => length(Kind::Values { each: 1, more: 0 }),
            b'%' => length(Kind::Values { each: 2, more: 0 }),
            // Attributes stand in front of the value they are about.
            b'|' => length(Kind::Values { each: 2, more: 1 }),
            _ => Self::Line { ends: false },
        }
    }
}

/// A connection whose replies are measured as they are read.
pub(crate) struct BoundedReplies<S> {
    stream: S,
    frames: Frames,
    limit: Arc<ReplyLimit>,
}

impl<S> BoundedReplies<S> {
    pub(crate) fn new(stream: S, limit: Arc<ReplyLimit>) -> Self {
        Self {
            stream,
            frames: Frames::default(),
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
            frames,
            limit,
        } = &mut *self;
        let read = Pin::new(stream).poll_read(cx, buffer);
        if matches!(read, Poll::Ready(Ok(())))
            && frames
                .read(&buffer.filled()[before..], limit.max_bytes.load(Relaxed))
                .is_err()
        {
            limit.is_exceeded.store(true, Relaxed);
            buffer.set_filled(before);
            // A kind of error by which the client gives the connection up.
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

    /// Reads it in pieces of every size; whether all of it is allowed, and where the framing stands
    /// then.
    fn read(bytes: &[u8], max_bytes: usize) -> Result<(ParsePosition, usize), ReplyTooLong> {
        let in_pieces = |size: usize| {
            let mut frames = Frames::default();
            bytes
                .chunks(size)
                .try_for_each(|piece| frames.read(piece, max_bytes))?;
            Ok((frames.at, frames.bytes))
        };
        let results: Vec<_> = (1..=bytes.len()).map(in_pieces).collect();
        assert!(
            results.windows(2).all(|two| two[0] == two[1]),
            "{results:?}"
        );
        results[0]
    }

    #[test]
    fn every_kind_of_reply_ends_where_it_does() {
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
    fn what_is_too_long_is_found_before_it_is_there() {
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
        // And what never ends, when it is that long.
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
