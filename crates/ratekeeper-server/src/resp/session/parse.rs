//! Incremental parser of commands: arrays of bulk strings, and inline commands. Arguments are not
//! copied.

use std::fmt;
use std::ops::Range;

/// Size limit of an argument. Redis accepts 512 MB, which keys do not need.
pub(crate) const MAX_ARGUMENT_BYTES: usize = 64 * 1024;

/// Number of arguments of a command, with its name.
pub(crate) const MAX_ARGUMENTS: usize = 1024;

/// Size limit of a command, which bounds the memory of a connection.
pub(crate) const MAX_COMMAND_BYTES: usize = 128 * 1024;

/// Length limit of a header such as `*3` or `$5`, without its line break.
const MAX_HEAD_BYTES: usize = 32;

/// Parses one command at a time. The state of an incomplete one stays for the next call.
#[derive(Default)]
pub(crate) struct Parser {
    /// Spans of the arguments, in the input from the start of the command, or in `unquoted`.
    arguments: Vec<Range<u32>>,
    /// Arguments of an inline command, without their quotes.
    unquoted: Vec<u8>,
    is_inline: bool,
    /// Number of missing arguments; `None` before the header of a command was parsed.
    missing: Option<usize>,
    /// Length of the parsed part of the command.
    at: usize,
}

/// A violation of the protocol, which closes the connection. The messages are those of Redis where
/// it has one.
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
            Self::TooBig => write!(f, "a command may have at most {MAX_COMMAND_BYTES} bytes"),
            Self::LineTooBig => f.write_str("too big inline request"),
            Self::Quotes => f.write_str("unbalanced quotes in request"),
        }
    }
}

/// The arguments of a command, its name first.
#[derive(Clone, Copy)]
pub(crate) struct Arguments<'a> {
    bytes: &'a [u8],
    spans: &'a [Range<u32>],
}

impl<'a> Arguments<'a> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<&'a [u8]> {
        let span = self.spans.get(at)?;
        self.bytes.get(span.start as usize..span.end as usize)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a [u8]> {
        let this = *self;
        (0..this.len()).filter_map(move |at| this.get(at))
    }
}

impl Parser {
    /// Whether nothing of the next command was parsed yet.
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        self.missing.is_none() && self.at == 0
    }

    /// The length of the command at the start of `input`, or `None` while it is incomplete. Until
    /// it is consumed, each call must have the same bytes, and maybe more. A command without
    /// arguments must be ignored.
    #[inline]
    pub(crate) fn read(&mut self, input: &[u8]) -> Result<Option<usize>, ProtocolError> {
        if self.missing.is_none() {
            match input.first() {
                None => return Ok(None),
                Some(b'*') => {
                    self.begin(false);
                    let Some((count, after)) = head(input, 1, ProtocolError::MultibulkLength)?
                    else {
                        return Ok(None);
                    };
                    // Redis ignores empty arrays and null.
                    let count = usize::try_from(count).unwrap_or(0);
                    if count > MAX_ARGUMENTS {
                        return Err(ProtocolError::MultibulkLength);
                    }
                    self.missing = Some(count);
                    self.at = after;
                }
                Some(_) => return self.read_inline(input),
            }
        }
        while let Some(missing @ 1..) = self.missing {
            match input.get(self.at) {
                None => return incomplete(input),
                Some(b'$') => {}
                Some(other) => return Err(ProtocolError::NoDollar(*other)),
            }
            let Some((length, start)) = head(input, self.at + 1, ProtocolError::BulkLength)? else {
                return incomplete(input);
            };
            let length = usize::try_from(length)
                .ok()
                .filter(|length| *length <= MAX_ARGUMENT_BYTES);
            let end = start + length.ok_or(ProtocolError::BulkLength)?;
            if end > MAX_COMMAND_BYTES {
                return Err(ProtocolError::TooBig);
            }
            match input.get(end..end + 2) {
                None => {
                    let is_invalid = input.get(end).is_some_and(|byte| *byte != b'\r');
                    return if is_invalid {
                        Err(ProtocolError::NoEndOfBulk)
                    } else {
                        Ok(None)
                    };
                }
                Some(b"\r\n") => {}
                Some(_) => return Err(ProtocolError::NoEndOfBulk),
            }
            self.arguments.push(start as u32..end as u32);
            self.missing = Some(missing - 1);
            self.at = end + 2;
        }
        self.missing = None;
        Ok(Some(self.at))
    }

    /// The arguments of the last command, from the same bytes.
    #[inline]
    pub(crate) fn arguments<'a>(&'a self, input: &'a [u8]) -> Arguments<'a> {
        let bytes = if self.is_inline {
            &self.unquoted
        } else {
            input
        };
        Arguments {
            bytes,
            spans: &self.arguments,
        }
    }

    /// Whether the last command is a request line such as `GET / HTTP/1.1`.
    pub(crate) fn is_http_request(&self, input: &[u8]) -> bool {
        let arguments = self.arguments(input);
        let is_target = |target: &[u8]| {
            matches!(target, b"*" | [b'/', ..]) || target.windows(3).any(|three| three == b"://")
        };
        match (self.is_inline, arguments.get(1), arguments.get(2)) {
            (true, Some(target), Some(version)) => {
                arguments.len() == 3 && version.starts_with(b"HTTP/") && is_target(target)
            }
            _ => false,
        }
    }

    /// The length of the last command.
    pub(crate) fn length(&self) -> usize {
        self.at
    }

    /// Clears the state of the last command, and frees unusually large buffers.
    #[inline]
    pub(crate) fn consumed(&mut self) {
        self.at = 0;
        self.arguments.clear();
        self.arguments.shrink_to(16);
    }

    #[inline]
    fn begin(&mut self, is_inline: bool) {
        self.is_inline = is_inline;
        self.arguments.clear();
    }

    /// Parses an inline command, as a person types it.
    #[cold]
    fn read_inline(&mut self, input: &[u8]) -> Result<Option<usize>, ProtocolError> {
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
            return if input.len() > MAX_ARGUMENT_BYTES {
                Err(ProtocolError::LineTooBig)
            } else {
                Ok(None)
            };
        };
        if end > MAX_ARGUMENT_BYTES {
            return Err(ProtocolError::LineTooBig);
        }
        let line = &input[..end];
        self.split(line.strip_suffix(b"\r").unwrap_or(line))?;
        self.at = end + 1;
        Ok(Some(end + 1))
    }

    /// Splits a line into words and quoted words as in redis-cli: `"a\n\x01"` and `'b'`.
    fn split(&mut self, line: &[u8]) -> Result<(), ProtocolError> {
        let mut rest = line;
        loop {
            rest = rest.trim_ascii_start();
            let Some(first) = rest.first().copied() else {
                return Ok(());
            };
            if self.arguments.len() == MAX_ARGUMENTS {
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

    /// Parses a quoted word, and returns the input after the closing quote, which must end the word.
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

/// The result for an incomplete command, whose size is limited.
fn incomplete(input: &[u8]) -> Result<Option<usize>, ProtocolError> {
    if input.len() > MAX_COMMAND_BYTES {
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

/// Parses the number in a header line at `at`; returns it and the offset of the next line.
#[inline]
fn head(
    input: &[u8],
    at: usize,
    error: ProtocolError,
) -> Result<Option<(i64, usize)>, ProtocolError> {
    let rest = input.get(at..).unwrap_or_default();
    // The fast path: most numbers have one digit.
    if let [digit @ b'0'..=b'9', b'\r', b'\n', ..] = rest {
        return Ok(Some((i64::from(digit - b'0'), at + 3)));
    }
    long_head(rest, at, error)
}

fn long_head(
    rest: &[u8],
    at: usize,
    error: ProtocolError,
) -> Result<Option<(i64, usize)>, ProtocolError> {
    let digits = usize::from(rest.first() == Some(&b'-'));
    let end = rest
        .iter()
        .take(MAX_HEAD_BYTES + 2)
        .skip(digits)
        .take_while(|byte| byte.is_ascii_digit())
        .count()
        + digits;
    match rest.get(end..) {
        _ if end > MAX_HEAD_BYTES => Err(error),
        None | Some([] | [b'\r']) if end > digits || rest.len() == digits => Ok(None),
        Some([b'\r', b'\n', ..]) => match integer(&rest[..end]) {
            Some(number) => Ok(Some((number, at + end + 2))),
            None => Err(error),
        },
        _ => Err(error),
    }
}

/// Parses a whole number. As in redis-cell it may have a sign and leading zeros.
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
        // Negative, since `i64::MIN` has no positive counterpart.
        number = number.checked_mul(10)?.checked_sub(i64::from(digit))?;
    }
    if negative {
        Some(number)
    } else {
        number.checked_neg()
    }
}
