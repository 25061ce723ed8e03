//! Replies in RESP2 and RESP3.

use std::fmt;
use std::io::Write;

/// The protocol version of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Protocol {
    #[default]
    Resp2,
    Resp3,
}

impl Protocol {
    pub(crate) fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// Appends replies to an output buffer.
pub(crate) struct Reply<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
}

impl<'a> Reply<'a> {
    #[inline]
    pub(crate) fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Self {
        Self { out, protocol }
    }

    pub(crate) fn ok(&mut self) {
        self.status("OK");
    }

    /// A simple string, which has no line breaks.
    pub(crate) fn status(&mut self, word: &str) {
        self.line(b'+', word.as_bytes());
    }

    pub(crate) fn error(&mut self, text: impl fmt::Display) {
        let start = self.out.len();
        // Writing to memory cannot fail.
        let _ = write!(self.out, "-{text}");
        // Text of a client in an error may have line breaks.
        for byte in &mut self.out[start..] {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }

    pub(crate) fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    #[inline]
    pub(crate) fn five(&mut self, numbers: [i64; 5]) {
        let mut line = StackBuffer::<128>::new();
        line.put(b"*5\r\n");
        for number in numbers {
            line.put(b":");
            line.digits(number);
            line.put(b"\r\n");
        }
        self.out.extend_from_slice(line.bytes());
    }

    pub(crate) fn bulk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.number(b'$', bytes.len() as i64);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Text for people: a verbatim string in RESP3.
    pub(crate) fn text(&mut self, text: &str) {
        if self.protocol == Protocol::Resp2 {
            return self.bulk(text);
        }
        self.number(b'=', text.len() as i64 + 4);
        self.out.extend_from_slice(b"txt:");
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    pub(crate) fn null(&mut self) {
        let null: &[u8] = match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        };
        self.out.extend_from_slice(null);
    }

    pub(crate) fn array(&mut self, count: usize) {
        self.number(b'*', count as i64);
    }

    /// Begins a map with a number of pairs.
    pub(crate) fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(2 * pairs),
            Protocol::Resp3 => self.number(b'%', pairs as i64),
        }
    }

    fn number(&mut self, kind: u8, number: i64) {
        let mut line = StackBuffer::<32>::new();
        line.put(&[kind]);
        line.digits(number);
        line.put(b"\r\n");
        self.out.extend_from_slice(line.bytes());
    }

    fn line(&mut self, kind: u8, bytes: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }
}

/// A small stack buffer. Bytes that do not fit are dropped: callers know how much they write.
struct StackBuffer<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> StackBuffer<N> {
    #[inline]
    fn new() -> Self {
        Self {
            bytes: [0; N],
            length: 0,
        }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if let Some(target) = self.bytes.get_mut(self.length..self.length + bytes.len()) {
            target.copy_from_slice(bytes);
            self.length += bytes.len();
        }
    }

    #[inline]
    fn digits(&mut self, number: i64) {
        // The fast path: most numbers are small.
        match u8::try_from(number) {
            Ok(digit @ 0..=9) => return self.put(&[b'0' + digit]),
            Ok(two @ 10..=99) => return self.put(&[b'0' + two / 10, b'0' + two % 10]),
            _ if number == -1 => return self.put(b"-1"),
            _ => {}
        }
        let mut digits = [0_u8; 20];
        let mut left = number.unsigned_abs();
        let mut at = digits.len();
        while left > 0 {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
        }
        if number < 0 {
            at -= 1;
            digits[at] = b'-';
        }
        self.put(&digits[at..]);
    }
}
