//! Request smuggling guard: checks the bytes of a client before the HTTP/1 parser does, and rejects
//! everything that two parsers could understand differently. A pure function of the bytes.
//!
//! Rejected beside what the parser rejects itself: Content-Length together with chunks, a repeated
//! Content-Length, lines that end without CR, a CR elsewhere, folded lines, spaces before a colon,
//! chunk sizes that are not plain hexadecimal, framing headers in trailers.

/// Why bytes are rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RejectReason {
    /// A line that does not end in CR LF, or has a CR or another control character in it.
    Line,
    /// A folded header line.
    Folded,
    /// Something other than a token before a colon, or no colon.
    Name,
    /// A Content-Length that is not a number, or a second one.
    Length,
    /// A Transfer-Encoding whose last coding is not chunked, a second one, or one in HTTP/1.0.
    Coding,
    /// Both Content-Length and Transfer-Encoding.
    Both,
    /// A malformed chunk size, or malformed bytes after a chunk.
    Chunk,
    /// A trailer that would change the length or the destination of the message.
    Trailer,
    /// A line that is too long, or one empty line too many.
    Long,
}

impl RejectReason {
    /// The reason in a few words, for the log and the client.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Line => "a line contains a control character or does not end with CR LF",
            Self::Folded => "a header line is folded",
            Self::Name => "a header has an invalid name",
            Self::Length => "Content-Length is not a number or is repeated",
            Self::Coding => "Transfer-Encoding does not end in chunked or is repeated",
            Self::Both => "both Content-Length and Transfer-Encoding are present",
            Self::Chunk => "a chunk is malformed",
            Self::Trailer => "a forbidden trailer field",
            Self::Long => "a line is too long",
        }
    }
}

/// The parser state: where in the stream the next byte is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Position {
    /// Between requests.
    Start,
    /// In the lines of a head; the first one has the version.
    Head {
        first: bool,
    },
    /// In a body of known length.
    Body(u64),
    /// In a chunk size, with the number of digits so far.
    Size {
        size: u64,
        digits: u8,
    },
    /// In a chunk extension.
    Extension,
    /// Between the CR and the LF of the chunk size line.
    SizeEnd,
    Data,
    /// Before the CR, then before the LF, after the data.
    DataCr,
    DataLf,
    Trailers,
}

/// The framing of a request body, by its head.
#[derive(Clone, Copy, Default)]
struct RequestFraming {
    length: Option<u64>,
    chunked: bool,
    is_http10: bool,
}

/// The smuggling guard of one connection.
pub(super) struct SmugglingGuard {
    position: Position,
    framing: RequestFraming,
    /// The size of the current chunk.
    chunk: u64,
    /// A line that has not ended yet.
    partial_line: Vec<u8>,
    /// Whether one request ended and another began in the bytes fed last.
    has_next_request: bool,
    /// How many bytes of lines there may be until the head, the trailers or the extensions end.
    left: usize,
    max_bytes: usize,
}

/// The most digits of a chunk size.
const MAX_DIGITS: u8 = 15;

impl SmugglingGuard {
    /// `max_bytes`: how many bytes a head or the trailers may have.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            position: Position::Start,
            framing: RequestFraming::default(),
            chunk: 0,
            partial_line: Vec::new(),
            has_next_request: false,
            left: max_bytes,
            max_bytes,
        }
    }

    /// Whether a head has begun and not ended.
    pub(super) fn is_in_head(&self) -> bool {
        matches!(self.position, Position::Head { .. })
            || !self.partial_line.is_empty() && self.position == Position::Start
    }

    /// Whether the bytes fed last end with the end of a request, and contain nothing of another
    /// one.
    pub(super) fn is_at_end(&self) -> bool {
        self.is_between() && !self.has_next_request
    }

    fn is_between(&self) -> bool {
        self.position == Position::Start && self.partial_line.is_empty()
    }

    /// Checks the next bytes. An error names the index of the first byte that must not be passed
    /// on.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<(), (usize, RejectReason)> {
        let mut next = 0;
        self.has_next_request = false;
        while next < bytes.len() {
            self.has_next_request |= next > 0 && self.is_between();
            let rest = &bytes[next..];
            let used = self
                .step(rest)
                .map_err(|(position, reason)| (next + position, reason))?;
            next += used;
        }
        Ok(())
    }

    /// Consumes some bytes, at least one.
    fn step(&mut self, rest: &[u8]) -> Result<usize, (usize, RejectReason)> {
        let byte = rest[0];
        match self.position {
            Position::Start | Position::Head { .. } | Position::Trailers => return self.line(rest),
            Position::Body(left) => {
                let used = left.min(rest.len() as u64);
                self.position = if used == left {
                    Position::Start
                } else {
                    Position::Body(left - used)
                };
                return Ok(used as usize);
            }
            Position::Data => {
                let used = self.chunk.min(rest.len() as u64);
                self.chunk -= used;
                if self.chunk == 0 {
                    self.position = Position::DataCr;
                }
                return Ok(used as usize);
            }
            Position::Size { size, digits } => {
                self.position = self
                    .size(byte, size, digits)
                    .ok_or((0, RejectReason::Chunk))?;
            }
            Position::Extension => {
                self.left = self.left.checked_sub(1).ok_or((0, RejectReason::Long))?;
                match byte {
                    b'\r' => self.position = Position::SizeEnd,
                    byte if is_text(byte) => {}
                    _ => return Err((0, RejectReason::Chunk)),
                }
            }
            Position::SizeEnd if byte == b'\n' => {
                self.position = if self.chunk == 0 {
                    Position::Trailers
                } else {
                    Position::Data
                }
            }
            Position::DataCr if byte == b'\r' => self.position = Position::DataLf,
            Position::DataLf if byte == b'\n' => {
                self.position = Position::Size { size: 0, digits: 0 }
            }
            Position::SizeEnd | Position::DataCr | Position::DataLf => {
                return Err((0, RejectReason::Chunk));
            }
        }
        Ok(1)
    }

    fn size(&mut self, byte: u8, size: u64, digits: u8) -> Option<Position> {
        if let Some(digit) = (byte as char).to_digit(16) {
            return (digits < MAX_DIGITS).then(|| Position::Size {
                size: size << 4 | u64::from(digit),
                digits: digits + 1,
            });
        }
        if digits == 0 {
            return None;
        }
        self.chunk = size;
        match byte {
            b'\r' => Some(Position::SizeEnd),
            b';' => Some(Position::Extension),
            _ => None,
        }
    }

    /// Consumes a line, or the available part of one.
    fn line(&mut self, rest: &[u8]) -> Result<usize, (usize, RejectReason)> {
        // The line ends at the first byte that is not text, which must be CR, then LF.
        let end = rest
            .iter()
            .position(|byte| !is_text(*byte))
            .unwrap_or(rest.len());
        let before = if self.partial_line.last() == Some(&b'\r') {
            0
        } else {
            end
        };
        self.left = self
            .left
            .checked_sub(before + 1)
            .ok_or((0, RejectReason::Long))?;
        if before == 0 && self.partial_line.last() == Some(&b'\r') {
            // Only the LF may follow.
            if rest[0] != b'\n' {
                return Err((0, RejectReason::Line));
            }
            let mut line = std::mem::take(&mut self.partial_line);
            line.pop();
            let result = self.finish_line(&line).map_err(|reason| (0, reason));
            line.clear();
            self.partial_line = line;
            return result.map(|()| 1);
        }
        match &rest[end..] {
            [b'\r', b'\n', ..] if self.partial_line.is_empty() => {
                self.finish_line(&rest[..end])
                    .map_err(|reason| (end, reason))?;
                Ok(end + 2)
            }
            [] | [b'\r', ..] => {
                // Rejected at once, not when the line ends: a folded line may never end.
                if self.partial_line.is_empty() && !self.may_begin(rest[0]) {
                    return Err((0, RejectReason::Folded));
                }
                let used = rest.len().min(end + 1);
                self.partial_line.extend_from_slice(&rest[..used]);
                if self.position == Position::Start && end > 0 {
                    self.position = Position::Head { first: true };
                }
                Ok(used)
            }
            _ => Err((end, RejectReason::Line)),
        }
    }

    /// Whether a line may begin with this byte.
    fn may_begin(&self, byte: u8) -> bool {
        let first = matches!(
            self.position,
            Position::Start | Position::Head { first: true }
        );
        first || !matches!(byte, b' ' | b'\t')
    }

    /// Checks a finished line, without its CR and LF.
    fn finish_line(&mut self, line: &[u8]) -> Result<(), RejectReason> {
        match (self.position, line) {
            // Some clients send an empty line after a body.
            (Position::Start, []) => {}
            (Position::Start | Position::Head { first: true }, line) => {
                self.framing = RequestFraming {
                    is_http10: !line.ends_with(b" HTTP/1.1"),
                    ..RequestFraming::default()
                };
                self.position = Position::Head { first: false };
            }
            (Position::Head { .. }, []) => {
                self.left = self.max_bytes;
                self.position = match self.framing {
                    RequestFraming { chunked: true, .. } => Position::Size { size: 0, digits: 0 },
                    RequestFraming {
                        length: Some(length),
                        ..
                    } if length > 0 => Position::Body(length),
                    _ => Position::Start,
                };
            }
            (Position::Trailers, []) => {
                self.left = self.max_bytes;
                self.position = Position::Start;
            }
            (position, line) => {
                if matches!(line[0], b' ' | b'\t') {
                    return Err(RejectReason::Folded);
                }
                let colon = line
                    .iter()
                    .position(|byte| *byte == b':')
                    .ok_or(RejectReason::Name)?;
                let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
                if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
                    return Err(RejectReason::Name);
                }
                self.header(position == Position::Trailers, name, value)?;
            }
        }
        Ok(())
    }

    fn header(&mut self, is_trailer: bool, name: &[u8], value: &[u8]) -> Result<(), RejectReason> {
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        // The length rules out most names.
        match name.len() {
            14 if is(b"content-length") => {
                let RequestFraming {
                    length, chunked, ..
                } = &mut self.framing;
                match (is_trailer, *chunked, &*length) {
                    (true, ..) => return Err(RejectReason::Trailer),
                    (_, true, _) => return Err(RejectReason::Both),
                    (_, _, Some(_)) => return Err(RejectReason::Length),
                    _ => {}
                }
                // 18 digits always fit.
                if !(1..=18).contains(&value.len()) || !value.iter().all(u8::is_ascii_digit) {
                    return Err(RejectReason::Length);
                }
                *length = Some(
                    value
                        .iter()
                        .fold(0, |number, digit| number * 10 + u64::from(digit - b'0')),
                );
                Ok(())
            }
            17 if is(b"transfer-encoding") => {
                let RequestFraming {
                    length,
                    chunked,
                    is_http10,
                } = &mut self.framing;
                let last = value
                    .rsplit(|byte| *byte == b',')
                    .next()
                    .unwrap_or_default()
                    .trim_ascii();
                match (is_trailer, *length) {
                    (true, _) => Err(RejectReason::Trailer),
                    (_, Some(_)) => Err(RejectReason::Both),
                    _ if *chunked || *is_http10 || !last.eq_ignore_ascii_case(b"chunked") => {
                        Err(RejectReason::Coding)
                    }
                    _ => {
                        *chunked = true;
                        Ok(())
                    }
                }
            }
            4 if is_trailer && is(b"host") => Err(RejectReason::Trailer),
            _ => Ok(()),
        }
    }
}

/// Whether a byte may be in a line: visible ASCII, spaces, tabs, and bytes beyond ASCII.
fn is_text(byte: u8) -> bool {
    byte >= 0x20 && byte != 0x7f || byte == b'\t'
}

/// Whether a byte may be in a token (RFC 9110).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds the bytes in parts of several sizes; the result must be the same.
    fn check(bytes: &[u8]) -> Result<(), (usize, RejectReason)> {
        let whole = SmugglingGuard::new(1024).feed(bytes);
        for part in [1, 2, 3, 7] {
            let (mut guard, mut before) = (SmugglingGuard::new(1024), 0);
            let mut result = Ok(());
            for part in bytes.chunks(part) {
                result = guard
                    .feed(part)
                    .map_err(|(position, reason)| (before + position, reason));
                if result.is_err() {
                    break;
                }
                before += part.len();
            }
            assert_eq!(
                result.map_err(|(_, reason)| reason),
                whole.map_err(|(_, reason)| reason),
                "{:?}",
                bytes.escape_ascii().to_string()
            );
        }
        whole
    }

    #[test]
    fn unambiguous_requests_pass() {
        for good in [
            "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na\nbGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding:\tchunked \r\n\r\n3;a=\"b\"\r\na\r\n\r\n0\r\nX-Sum: 1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, Chunked\r\n\r\nfF\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\nGET / HTTP/1.1\r\nX-Empty:\r\n\r\n",
        ] {
            assert_eq!(check(good.as_bytes()), Ok(()), "{good:?}");
        }
    }

    #[test]
    fn ambiguous_requests_are_rejected() {
        let head = |lines: &str| format!("POST / HTTP/1.1\r\nHost: x\r\n{lines}\r\n\r\n");
        for (bad, reason) in [
            (
                head("Content-Length: 3\r\nTransfer-Encoding: chunked"),
                RejectReason::Both,
            ),
            (
                head("Transfer-Encoding: chunked\r\ncontent-length: 3"),
                RejectReason::Both,
            ),
            (
                head("Content-Length: 3\r\nContent-Length: 3"),
                RejectReason::Length,
            ),
            (
                head("Content-Length: 3\r\nContent-Length: 4"),
                RejectReason::Length,
            ),
            (head("Content-Length: 3, 3"), RejectReason::Length),
            (head("Content-Length: +3"), RejectReason::Length),
            (head("Content-Length: -1"), RejectReason::Length),
            (head("Content-Length: 0x3"), RejectReason::Length),
            (head("Content-Length:"), RejectReason::Length),
            (
                head("Content-Length: 99999999999999999999"),
                RejectReason::Length,
            ),
            (
                head("Transfer-Encoding: chunked, identity"),
                RejectReason::Coding,
            ),
            (head("Transfer-Encoding: xchunked"), RejectReason::Coding),
            (
                head("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
                RejectReason::Coding,
            ),
            (head("Transfer-Encoding: \u{b}chunked"), RejectReason::Line),
            (head("Transfer-Encoding : chunked"), RejectReason::Name),
            (
                head("X: 1\r\n Transfer-Encoding: chunked"),
                RejectReason::Folded,
            ),
            (head("X: 1\r\n\tb"), RejectReason::Folded),
            (head(" X: 1"), RejectReason::Folded),
            (head("no colon"), RejectReason::Name),
            (head(": empty"), RejectReason::Name),
            (head("X: a\nY: b"), RejectReason::Line),
            (head("X: a\rY: b"), RejectReason::Line),
            (head("X: a\0b"), RejectReason::Line),
            (
                "GET / HTTP/1.1\nHost: x\r\n\r\n".to_owned(),
                RejectReason::Line,
            ),
            (
                "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
                RejectReason::Coding,
            ),
            (
                head("Transfer-Encoding: chunked") + "\r\n",
                RejectReason::Chunk,
            ),
            (
                head("Transfer-Encoding: chunked") + "+3\r\n",
                RejectReason::Chunk,
            ),
            (
                head("Transfer-Encoding: chunked") + "0x3\r\n",
                RejectReason::Chunk,
            ),
            (
                head("Transfer-Encoding: chunked") + "3 \r\nabc\r\n",
                RejectReason::Chunk,
            ),
            (
                head("Transfer-Encoding: chunked") + "3\nabc\r\n",
                RejectReason::Chunk,
            ),
            (
                head("Transfer-Encoding: chunked") + "3;a\nabc\r\n",
                RejectReason::Chunk,
            ),
            (
                head("Transfer-Encoding: chunked") + "3\r\nabcd\r\n",
                RejectReason::Chunk,
            ),
            (
                head("Transfer-Encoding: chunked") + "3\r\nabc\n",
                RejectReason::Chunk,
            ),
            (
                head("Transfer-Encoding: chunked") + "ffffffffffffffff0\r\n",
                RejectReason::Chunk,
            ),
            (
                head("Transfer-Encoding: chunked") + "0\r\nContent-Length: 3\r\n\r\n",
                RejectReason::Trailer,
            ),
            (
                head("Transfer-Encoding: chunked") + "0\r\nHost: y\r\n\r\n",
                RejectReason::Trailer,
            ),
            (
                head("Transfer-Encoding: chunked") + "0\r\n X: y\r\n\r\n",
                RejectReason::Folded,
            ),
            (
                head(&format!("X: {}", "a".repeat(2000))),
                RejectReason::Long,
            ),
            (
                head("Transfer-Encoding: chunked") + "3;" + &"a".repeat(2000),
                RejectReason::Long,
            ),
        ] {
            assert_eq!(
                check(bad.as_bytes()).map_err(|(_, reason)| reason),
                Err(reason),
                "{bad:?}"
            );
        }
    }
}
