//! Request smuggling guard: checks the bytes of a client before the HTTP/1 parser does, and rejects
//! whatever two parsers could understand differently. Pure: bytes in, yes or no out.
//!
//! Rejected beside what the parser rejects itself: Content-Length together with chunks, a repeated
//! Content-Length, lines that end without CR, a CR elsewhere, folded lines, spaces before a colon,
//! chunk sizes that are not plain hexadecimal, framing headers in trailers.

/// Why bytes are rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
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

impl Refusal {
    /// The reason in a few words, for the log and the client.
    pub(super) fn words(self) -> &'static str {
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
enum At {
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

/// What a head says about the length of its body.
#[derive(Clone, Copy, Default)]
struct Framing {
    length: Option<u64>,
    chunked: bool,
    old: bool,
}

/// The smuggling guard of one connection.
pub(super) struct Guard {
    at: At,
    framing: Framing,
    /// The size of the current chunk.
    chunk: u64,
    /// A line that has not ended yet.
    begun: Vec<u8>,
    /// Whether one request ended and another began in the bytes fed last.
    several: bool,
    /// How many bytes of lines there may be until the head, the trailers or the extensions end.
    left: usize,
    most: usize,
}

/// The most digits of a chunk size.
const MOST_DIGITS: u8 = 15;

impl Guard {
    /// `max_bytes`: how many bytes a head or the trailers may have.
    pub(super) fn new(most: usize) -> Self {
        Self {
            at: At::Start,
            framing: Framing::default(),
            chunk: 0,
            begun: Vec::new(),
            several: false,
            left: most,
            most,
        }
    }

    /// Whether a head has begun and not ended.
    pub(super) fn is_in_head(&self) -> bool {
        matches!(self.at, At::Head { .. }) || !self.begun.is_empty() && self.at == At::Start
    }

    /// Whether the bytes fed last end with the end of a request, and contain nothing of another
    /// one.
    pub(super) fn is_at_end(&self) -> bool {
        self.is_between() && !self.several
    }

    fn is_between(&self) -> bool {
        self.at == At::Start && self.begun.is_empty()
    }

    /// Checks the next bytes. An error names the index of the first byte that must not be passed
    /// on.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<(), (usize, Refusal)> {
        let mut next = 0;
        self.several = false;
        while next < bytes.len() {
            self.several |= next > 0 && self.is_between();
            let rest = &bytes[next..];
            let taken = self
                .step(rest)
                .map_err(|(at, refusal)| (next + at, refusal))?;
            next += taken;
        }
        Ok(())
    }

    /// Consumes some bytes, at least one.
    fn step(&mut self, rest: &[u8]) -> Result<usize, (usize, Refusal)> {
        let byte = rest[0];
        match self.at {
            At::Start | At::Head { .. } | At::Trailers => return self.line(rest),
            At::Body(left) => {
                let taken = left.min(rest.len() as u64);
                self.at = if taken == left {
                    At::Start
                } else {
                    At::Body(left - taken)
                };
                return Ok(taken as usize);
            }
            At::Data => {
                let taken = self.chunk.min(rest.len() as u64);
                self.chunk -= taken;
                if self.chunk == 0 {
                    self.at = At::DataCr;
                }
                return Ok(taken as usize);
            }
            At::Size { size, digits } => {
                self.at = self.size(byte, size, digits).ok_or((0, Refusal::Chunk))?
            }
            At::Extension => {
                self.left = self.left.checked_sub(1).ok_or((0, Refusal::Long))?;
                match byte {
                    b'\r' => self.at = At::SizeEnd,
                    byte if is_text(byte) => {}
                    _ => return Err((0, Refusal::Chunk)),
                }
            }
            At::SizeEnd if byte == b'\n' => {
                self.at = if self.chunk == 0 {
                    At::Trailers
                } else {
                    At::Data
                }
            }
            At::DataCr if byte == b'\r' => self.at = At::DataLf,
            At::DataLf if byte == b'\n' => self.at = At::Size { size: 0, digits: 0 },
            At::SizeEnd | At::DataCr | At::DataLf => return Err((0, Refusal::Chunk)),
        }
        Ok(1)
    }

    fn size(&mut self, byte: u8, size: u64, digits: u8) -> Option<At> {
        if let Some(digit) = (byte as char).to_digit(16) {
            return (digits < MOST_DIGITS).then(|| At::Size {
                size: size << 4 | u64::from(digit),
                digits: digits + 1,
            });
        }
        if digits == 0 {
            return None;
        }
        self.chunk = size;
        match byte {
            b'\r' => Some(At::SizeEnd),
            b';' => Some(At::Extension),
            _ => None,
        }
    }

    /// Consumes a line, or the available part of one.
    fn line(&mut self, rest: &[u8]) -> Result<usize, (usize, Refusal)> {
        // The line ends at the first byte that is not text, which must be CR, then LF.
        let end = rest
            .iter()
            .position(|byte| !is_text(*byte))
            .unwrap_or(rest.len());
        let before = if self.begun.last() == Some(&b'\r') {
            0
        } else {
            end
        };
        self.left = self
            .left
            .checked_sub(before + 1)
            .ok_or((0, Refusal::Long))?;
        if before == 0 && self.begun.last() == Some(&b'\r') {
            // Only the LF may follow.
            if rest[0] != b'\n' {
                return Err((0, Refusal::Line));
            }
            let mut line = std::mem::take(&mut self.begun);
            line.pop();
            let ended = self.ended(&line).map_err(|refusal| (0, refusal));
            line.clear();
            self.begun = line;
            return ended.map(|()| 1);
        }
        match &rest[end..] {
            [b'\r', b'\n', ..] if self.begun.is_empty() => {
                self.ended(&rest[..end]).map_err(|refusal| (end, refusal))?;
                Ok(end + 2)
            }
            [] | [b'\r', ..] => {
                // Rejected at once, not when the line ends: a folded line may never end.
                if self.begun.is_empty() && !self.may_begin(rest[0]) {
                    return Err((0, Refusal::Folded));
                }
                let taken = rest.len().min(end + 1);
                self.begun.extend_from_slice(&rest[..taken]);
                if self.at == At::Start && end > 0 {
                    self.at = At::Head { first: true };
                }
                Ok(taken)
            }
            _ => Err((end, Refusal::Line)),
        }
    }

    /// Whether a line may begin with this byte.
    fn may_begin(&self, byte: u8) -> bool {
        let first = matches!(self.at, At::Start | At::Head { first: true });
        first || !matches!(byte, b' ' | b'\t')
    }

    /// Checks a finished line, without its CR and LF.
    fn ended(&mut self, line: &[u8]) -> Result<(), Refusal> {
        match (self.at, line) {
            // Some clients send an empty line after a body.
            (At::Start, []) => {}
            (At::Start | At::Head { first: true }, line) => {
                self.framing = Framing {
                    old: !line.ends_with(b" HTTP/1.1"),
                    ..Framing::default()
                };
                self.at = At::Head { first: false };
            }
            (At::Head { .. }, []) => {
                self.left = self.most;
                self.at = match self.framing {
                    Framing { chunked: true, .. } => At::Size { size: 0, digits: 0 },
                    Framing {
                        length: Some(length),
                        ..
                    } if length > 0 => At::Body(length),
                    _ => At::Start,
                };
            }
            (At::Trailers, []) => {
                self.left = self.most;
                self.at = At::Start;
            }
            (at, line) => {
                if matches!(line[0], b' ' | b'\t') {
                    return Err(Refusal::Folded);
                }
                let colon = line
                    .iter()
                    .position(|byte| *byte == b':')
                    .ok_or(Refusal::Name)?;
                let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
                if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
                    return Err(Refusal::Name);
                }
                self.header(at == At::Trailers, name, value)?;
            }
        }
        Ok(())
    }

    fn header(&mut self, is_trailer: bool, name: &[u8], value: &[u8]) -> Result<(), Refusal> {
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        // The length rules out most names.
        match name.len() {
            14 if is(b"content-length") => {
                let Framing {
                    length, chunked, ..
                } = &mut self.framing;
                match (is_trailer, *chunked, &*length) {
                    (true, ..) => return Err(Refusal::Trailer),
                    (_, true, _) => return Err(Refusal::Both),
                    (_, _, Some(_)) => return Err(Refusal::Length),
                    _ => {}
                }
                // 18 digits always fit.
                if !(1..=18).contains(&value.len()) || !value.iter().all(u8::is_ascii_digit) {
                    return Err(Refusal::Length);
                }
                *length = Some(
                    value
                        .iter()
                        .fold(0, |number, digit| number * 10 + u64::from(digit - b'0')),
                );
                Ok(())
            }
            17 if is(b"transfer-encoding") => {
                let Framing {
                    length,
                    chunked,
                    old,
                } = &mut self.framing;
                let last = value
                    .rsplit(|byte| *byte == b',')
                    .next()
                    .unwrap_or_default()
                    .trim_ascii();
                match (is_trailer, *length) {
                    (true, _) => Err(Refusal::Trailer),
                    (_, Some(_)) => Err(Refusal::Both),
                    _ if *chunked || *old || !last.eq_ignore_ascii_case(b"chunked") => {
                        Err(Refusal::Coding)
                    }
                    _ => {
                        *chunked = true;
                        Ok(())
                    }
                }
            }
            4 if is_trailer && is(b"host") => Err(Refusal::Trailer),
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

    /// Feeds the bytes in pieces of every size; the result must be the same.
    fn judged(bytes: &[u8]) -> Result<(), (usize, Refusal)> {
        let whole = Guard::new(1024).feed(bytes);
        for piece in [1, 2, 3, 7] {
            let (mut guard, mut before) = (Guard::new(1024), 0);
            let mut result = Ok(());
            for piece in bytes.chunks(piece) {
                result = guard
                    .feed(piece)
                    .map_err(|(at, refusal)| (before + at, refusal));
                if result.is_err() {
                    break;
                }
                before += piece.len();
            }
            assert_eq!(
                result.map_err(|(_, why)| why),
                whole.map_err(|(_, why)| why),
                "{:?}",
                bytes.escape_ascii().to_string()
            );
        }
        whole
    }

    #[test]
    fn what_is_one_request_to_everybody_passes() {
        for good in [
            "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na\nbGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding:\tchunked \r\n\r\n3;a=\"b\"\r\na\r\n\r\n0\r\nX-Sum: 1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, Chunked\r\n\r\nfF\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\nGET / HTTP/1.1\r\nX-Empty:\r\n\r\n",
        ] {
            assert_eq!(judged(good.as_bytes()), Ok(()), "{good:?}");
        }
    }

    #[test]
    fn what_two_parsers_may_read_differently_does_not() {
        let head = |lines: &str| format!("POST / HTTP/1.1\r\nHost: x\r\n{lines}\r\n\r\n");
        for (bad, why) in [
            (
                head("Content-Length: 3\r\nTransfer-Encoding: chunked"),
                Refusal::Both,
            ),
            (
                head("Transfer-Encoding: chunked\r\ncontent-length: 3"),
                Refusal::Both,
            ),
            (
                head("Content-Length: 3\r\nContent-Length: 3"),
                Refusal::Length,
            ),
            (
                head("Content-Length: 3\r\nContent-Length: 4"),
                Refusal::Length,
            ),
            (head("Content-Length: 3, 3"), Refusal::Length),
            (head("Content-Length: +3"), Refusal::Length),
            (head("Content-Length: -1"), Refusal::Length),
            (head("Content-Length: 0x3"), Refusal::Length),
            (head("Content-Length:"), Refusal::Length),
            (
                head("Content-Length: 99999999999999999999"),
                Refusal::Length,
            ),
            (
                head("Transfer-Encoding: chunked, identity"),
                Refusal::Coding,
            ),
            (head("Transfer-Encoding: xchunked"), Refusal::Coding),
            (
                head("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
                Refusal::Coding,
            ),
            (head("Transfer-Encoding: \u{b}chunked"), Refusal::Line),
            (head("Transfer-Encoding : chunked"), Refusal::Name),
            (head("X: 1\r\n Transfer-Encoding: chunked"), Refusal::Folded),
            (head("X: 1\r\n\tb"), Refusal::Folded),
            (head(" X: 1"), Refusal::Folded),
            (head("no colon"), Refusal::Name),
            (head(": empty"), Refusal::Name),
            (head("X: a\nY: b"), Refusal::Line),
            (head("X: a\rY: b"), Refusal::Line),
            (head("X: a\0b"), Refusal::Line),
            ("GET / HTTP/1.1\nHost: x\r\n\r\n".to_owned(), Refusal::Line),
            (
                "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
                Refusal::Coding,
            ),
            (head("Transfer-Encoding: chunked") + "\r\n", Refusal::Chunk),
            (
                head("Transfer-Encoding: chunked") + "+3\r\n",
                Refusal::Chunk,
            ),
            (
                head("Transfer-Encoding: chunked") + "0x3\r\n",
                Refusal::Chunk,
            ),
            (
                head("Transfer-Encoding: chunked") + "3 \r\nabc\r\n",
                Refusal::Chunk,
            ),
            (
                head("Transfer-Encoding: chunked") + "3\nabc\r\n",
                Refusal::Chunk,
            ),
            (
                head("Transfer-Encoding: chunked") + "3;a\nabc\r\n",
                Refusal::Chunk,
            ),
            (
                head("Transfer-Encoding: chunked") + "3\r\nabcd\r\n",
                Refusal::Chunk,
            ),
            (
                head("Transfer-Encoding: chunked") + "3\r\nabc\n",
                Refusal::Chunk,
            ),
            (
                head("Transfer-Encoding: chunked") + "ffffffffffffffff0\r\n",
                Refusal::Chunk,
            ),
            (
                head("Transfer-Encoding: chunked") + "0\r\nContent-Length: 3\r\n\r\n",
                Refusal::Trailer,
            ),
            (
                head("Transfer-Encoding: chunked") + "0\r\nHost: y\r\n\r\n",
                Refusal::Trailer,
            ),
            (
                head("Transfer-Encoding: chunked") + "0\r\n X: y\r\n\r\n",
                Refusal::Folded,
            ),
            (head(&format!("X: {}", "a".repeat(2000))), Refusal::Long),
            (
                head("Transfer-Encoding: chunked") + "3;" + &"a".repeat(2000),
                Refusal::Long,
            ),
        ] {
            assert_eq!(
                judged(bad.as_bytes()).map_err(|(_, why)| why),
                Err(why),
                "{bad:?}"
            );
        }
    }
}
