//! Bytes into commands: arrays of bulk strings, and lines as a person types them. In place,
//! wherever the bytes end.

use std::fmt;
use std::ops::Range;

/// The longest argument. Redis takes 512 MB; a name of a limit has no use for that.
pub(crate) const LONGEST_ARGUMENT: usize = 64 * 1024;

/// The most arguments of a command, its name among them.
pub(crate) const MOST_ARGUMENTS: usize = 1024;

/// The longest command, all in all: what a connection may make us keep.
pub(crate) const LONGEST_COMMAND: usize = 128 * 1024;

/// The longest `*3` or `$5` before its end of line.
const LONGEST_HEAD: usize = 32;

/// Reads one command after the other. What it knows of one that has not come whole stays for the
/// next call.
#[derive(Default)]
pub(crate) struct Parser {
    /// Where the arguments are: in the input, from the start of the command on, or in `unquoted`.
    arguments: Vec<Range<u32>>,
    /// Arguments of a line, without their quotes.
    unquoted: Vec<u8>,
    is_line: bool,
    /// How many arguments are still to come; none before the head of a command was read.
    missing: Option<usize>,
    /// How far the command was read.
    at: usize,
}

/// Why a connection is closed: its bytes are no commands. The words are Redis's where it has some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProtocolError {
    MultibulkLength,
    BulkLength,
    NoDollar(u8),
    NoEndOfBulk,
    TooBig,
    LineTooBig,
    Quotes,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ERR Protocol error: ")?;
        match self {
            Self::MultibulkLength => f.write_str("invalid multibulk length"),
            Self::BulkLength => f.write_str("invalid bulk length"),
            Self::NoDollar(byte) => write!(f, "expected '$', got '{}'", byte.escape_ascii()),
            Self::NoEndOfBulk => f.write_str("a bulk string must end with CRLF"),
            Self::TooBig => write!(f, "a command may have {LONGEST_COMMAND} bytes at most"),
            Self::LineTooBig => f.write_str("too big inline request"),
            Self::Quotes => f.write_str("unbalanced quotes in request"),
        }
    }
}

/// The arguments of a command, its name first.
#[derive(Clone, Copy)]
pub(crate) struct Arguments<'a> {
    bytes: &'a [u8],
    places: &'a [Range<u32>],
}

impl<'a> Arguments<'a> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<&'a [u8]> {
        let place = self.places.get(at)?;
        self.bytes.get(place.start as usize..place.end as usize)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a [u8]> {
        let this = *self;
        (0..this.len()).filter_map(move |at| this.get(at))
    }
}

impl Parser {
    /// Whether nothing is known of the next command.
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        self.missing.is_none() && self.at == 0
    }

    /// How many bytes the command at the start of `input` has, once all of them are there. Until it
    /// is consumed, each call must be with the same bytes, and perhaps more. A command without
    /// arguments is to be passed over.
    #[inline]
    pub(crate) fn read(&mut self, input: &[u8]) -> Result<Option<usize>, ProtocolError> {
        if self.missing.is_none() {
            match input.first() {
                None => return Ok(None),
                Some(b'*') => {
                    self.begin(false);
                    let Some((many, after)) = head(input, 1, ProtocolError::MultibulkLength)?
                    else {
                        return Ok(None);
                    };
                    // Redis passes over empty ones and null.
                    let many = usize::try_from(many).unwrap_or(0);
                    if many > MOST_ARGUMENTS {
                        return Err(ProtocolError::MultibulkLength);
                    }
                    (self.missing, self.at) = (Some(many), after);
                }
                Some(_) => return self.read_line(input),
            }
        }
        while let Some(missing @ 1..) = self.missing {
            match input.get(self.at) {
                None => return within_bounds(input),
                Some(b'$') => {}
                Some(other) => return Err(ProtocolError::NoDollar(*other)),
            }
            let Some((length, start)) = head(input, self.at + 1, ProtocolError::BulkLength)? else {
                return within_bounds(input);
            };
            let length = usize::try_from(length)
                .ok()
                .filter(|length| *length <= LONGEST_ARGUMENT);
            let end = start + length.ok_or(ProtocolError::BulkLength)?;
            if end > LONGEST_COMMAND {
                return Err(ProtocolError::TooBig);
            }
            match input.get(end..end + 2) {
                None => {
                    let wrong = input.get(end).is_some_and(|byte| *byte != b'\r');
                    return if wrong {
                        Err(ProtocolError::NoEndOfBulk)
                    } else {
                        Ok(None)
                    };
                }
                Some(b"\r\n") => {}
                Some(_) => return Err(ProtocolError::NoEndOfBulk),
            }
            self.arguments.push(start as u32..end as u32);
            (self.missing, self.at) = (Some(missing - 1), end + 2);
        }
        self.missing = None;
        Ok(Some(self.at))
    }

    /// The arguments of the command that was read last, from the same bytes.
    #[inline]
    pub(crate) fn arguments<'a>(&'a self, input: &'a [u8]) -> Arguments<'a> {
        let bytes = if self.is_line { &self.unquoted } else { input };
        Arguments {
            bytes,
            places: &self.arguments,
        }
    }

    /// Whether the command that was read last is a line as `GET / HTTP/1.1`.
    pub(crate) fn is_http_request(&self, input: &[u8]) -> bool {
        let arguments = self.arguments(input);
        let is = |target: &[u8]| {
            matches!(target, b"*" | [b'/', ..]) || target.windows(3).any(|three| three == b"://")
        };
        match (self.is_line, arguments.get(1), arguments.get(2)) {
            (true, Some(target), Some(version)) => {
                arguments.len() == 3 && version.starts_with(b"HTTP/") && is(target)
            }
            _ => false,
        }
    }

    /// How many bytes the command has that was read last.
    pub(crate) fn length(&self) -> usize {
        self.at
    }

    /// Forgets the command that was read, and what room it needed beyond the usual.
    #[inline]
    pub(crate) fn consumed(&mut self) {
        self.at = 0;
        self.arguments.clear();
        self.arguments.shrink_to(16);
    }

    #[inline]
    fn begin(&mut self, is_line: bool) {
        self.is_line = is_line;
        self.arguments.clear();
    }

    /// A command as a person types it.
    #[cold]
    fn read_line(&mut self, input: &[u8]) -> Result<Option<usize>, ProtocolError> {
        self.begin(true);
        self.unquoted.clear();
        self.unquoted.shrink_to(1024);
        let rest = input.get(self.at..).unwrap_or_default();
        let Some(end) = rest
            .iter()
            .position(|byte| *byte == b'\n')
            .map(|end| self.at + end)
        else {
            self.at = input.len();
            return if input.len() > LONGEST_ARGUMENT {
                Err(ProtocolError::LineTooBig)
            } else {
                Ok(None)
            };
        };
        if end > LONGEST_ARGUMENT {
            return Err(ProtocolError::LineTooBig);
        }
        let line = &input[..end];
        self.split(line.strip_suffix(b"\r").unwrap_or(line))?;
        self.at = end + 1;
        Ok(Some(end + 1))
    }

    /// Words and quoted words, as redis-cli has them: `"a\n\x01"` and `'b'`.
    fn split(&mut self, line: &[u8]) -> Result<(), ProtocolError> {
        let mut rest = line;
        loop {
            rest = rest.trim_ascii_start();
            let Some(first) = rest.first().copied() else {
                return Ok(());
            };
            if self.arguments.len() == MOST_ARGUMENTS {
                return Err(ProtocolError::MultibulkLength);
            }
            let start = self.unquoted.len() as u32;
            rest = match first {
                b'"' | b'\'' => self.quoted(first, &rest[1..])?,
                _ => {
                    let end = rest
                        .iter()
                        .position(|byte| is_end(*byte))
                        .unwrap_or(rest.len());
                    if rest[..end].iter().any(|byte| matches!(byte, b'"' | b'\'')) {
                        return Err(ProtocolError::Quotes);
                    }
                    self.unquoted.extend_from_slice(&rest[..end]);
                    &rest[end..]
                }
            };
            self.arguments.push(start..self.unquoted.len() as u32);
        }
    }

    /// What is after the quote that ends it, which must be the end of a word.
    fn quoted<'a>(&mut self, quote: u8, mut rest: &'a [u8]) -> Result<&'a [u8], ProtocolError> {
        loop {
            let (byte, after) = match *rest {
                [byte, ref after @ ..] if byte == quote => {
                    let ends = after.first().is_none_or(|byte| is_end(*byte));
                    return if ends {
                        Ok(after)
                    } else {
                        Err(ProtocolError::Quotes)
                    };
                }
                [b'\\', b'\'', ref after @ ..] if quote == b'\'' => (b'\'', after),
                [b'\\', b'x', high, low, ref after @ ..]
                    if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
                {
                    (hex(high) << 4 | hex(low), after)
                }
                [b'\\', byte, ref after @ ..] if quote == b'"' => (escaped(byte), after),
                [byte, ref after @ ..] => (byte, after),
                [] => return Err(ProtocolError::Quotes),
            };
            self.unquoted.push(byte);
            rest = after;
        }
    }
}

/// A command that is not whole may have so many bytes.
fn within_bounds(input: &[u8]) -> Result<Option<usize>, ProtocolError> {
    if input.len() > LONGEST_COMMAND {
        Err(ProtocolError::TooBig)
    } else {
        Ok(None)
    }
}

fn is_end(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0
}

fn hex(digit: u8) -> u8 {
    (digit as char).to_digit(16).unwrap_or_default() as u8
}

fn escaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}

/// The number that a line from `at` on consists of, and where the next begins.
#[inline]
fn head(
    input: &[u8],
    at: usize,
    wrong: ProtocolError,
) -> Result<Option<(i64, usize)>, ProtocolError> {
    let rest = input.get(at..).unwrap_or_default();
    // One digit and the end: nearly all of them.
    if let [digit @ b'0'..=b'9', b'\r', b'\n', ..] = rest {
        return Ok(Some((i64::from(digit - b'0'), at + 3)));
    }
    long_head(rest, at, wrong)
}

fn long_head(
    rest: &[u8],
    at: usize,
    wrong: ProtocolError,
) -> Result<Option<(i64, usize)>, ProtocolError> {
    let digits = usize::from(rest.first() == Some(&b'-'));
    let end = rest
        .iter()
        .take(LONGEST_HEAD + 2)
        .skip(digits)
        .take_while(|byte| byte.is_ascii_digit())
        .count()
        + digits;
    match rest.get(end..) {
        _ if end > LONGEST_HEAD => Err(wrong),
        None | Some([] | [b'\r']) if end > digits || rest.len() == digits => Ok(None),
        Some([b'\r', b'\n', ..]) => match integer(&rest[..end]) {
            Some(number) => Ok(Some((number, at + end + 2))),
            None => Err(wrong),
        },
        _ => Err(wrong),
    }
}

/// A whole number as programs write it. A sign may stand before it, zeros too: redis-cell takes
/// both.
#[inline]
pub(crate) fn integer(digits: &[u8]) -> Option<i64> {
    let (negative, digits) = match digits {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    // 18 digits always fit.
    if digits.len() <= 18 {
        let mut number = 0;
        for digit in digits {
            let digit = digit.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            number = number * 10 + i64::from(digit);
        }
        return Some(if negative { -number } else { number });
    }
    let mut number = 0_i64;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // Counted downwards: the lowest number has no counterpart above.
        number = number.checked_mul(10)?.checked_sub(i64::from(digit))?;
    }
    if negative {
        Some(number)
    } else {
        number.checked_neg()
    }
}
