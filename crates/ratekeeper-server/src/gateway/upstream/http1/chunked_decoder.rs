//! Decoder of the chunked transfer coding.

use super::buffer::{empty_line_end, take};
use crate::gateway::headers;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::{Buf, BytesMut};

/// The most bytes of chunk extensions in a body, and of trailers.
const MAX_OVERHEAD_BYTES: usize = 16 * 1024;

/// The most spaces that pad the size of a chunk; more count as extensions.
const MAX_PADDING: usize = 64;

/// The most trailers.
const MAX_TRAILERS: usize = 64;

/// Available chunks are merged up to this size.
const MAX_MERGED: usize = 4 * 1024;

/// The error of a malformed body: a phrase to follow the name of its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MalformedError(pub(crate) &'static str);

const CHUNK: MalformedError = MalformedError("malformed chunk");

/// The state of the decoder.
#[derive(Debug)]
pub(crate) struct ChunkedDecoder {
    state: State,
    /// Bytes of extensions so far, without padding.
    overhead: usize,
    /// Spaces after the size of the current chunk.
    padding: usize,
}

/// The position of the decoder in the body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// A chunk size, with the number of digits so far.
    Size(u64, u32),
    /// The extension after a size, up to the end of the line.
    Extension(u64),
    SizeEnd(u64),
    Data(u64),
    DataCr,
    DataLf,
    /// How many bytes of the trailers were scanned for their end.
    Trailers(usize),
    Finished,
}

/// The next part of a body.
#[derive(PartialEq, Debug)]
pub(crate) enum ChunkEvent {
    Data(Bytes),
    Trailers(HeaderMap),
    /// More bytes must be read.
    More,
    Finished,
}

impl ChunkedDecoder {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Size(0, 0),
            overhead: 0,
            padding: 0,
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.state == State::Finished
    }

    /// Decodes the next part of the buffer, with at most `max` bytes of data. Small chunks that are
    /// available together are merged: each would be an HTTP/2 frame, and a client may treat many
    /// small frames as an attack.
    pub(crate) fn next(
        &mut self,
        read: &mut BytesMut,
        max: u64,
    ) -> Result<ChunkEvent, MalformedError> {
        let mut merged = MergedChunks::default();
        loop {
            match self.state {
                State::Data(left) if !read.is_empty() => {
                    let length = left.min(max).min(read.len() as u64);
                    if merged.has_space(length, max) {
                        self.state = if length == left {
                            State::DataCr
                        } else {
                            State::Data(left - length)
                        };
                        merged.add(read, length);
                        continue;
                    }
                }
                State::Finished if merged.is_empty() => return Ok(ChunkEvent::Finished),
                State::Trailers(scanned) if merged.is_empty() => {
                    let Some(trailers) = trailers(read, scanned)? else {
                        self.state = State::Trailers(read.len());
                        return Ok(ChunkEvent::More);
                    };
                    self.state = State::Finished;
                    return Ok(if trailers.is_empty() {
                        ChunkEvent::Finished
                    } else {
                        ChunkEvent::Trailers(trailers)
                    });
                }
                State::Data(_) | State::Finished | State::Trailers(_) => {}
                _ => {
                    if let Some(&byte) = read.first() {
                        match self.after(byte) {
                            Ok(state) => self.state = state,
                            Err(malformed) if merged.is_empty() => return Err(malformed),
                            // The data before it is good, and the byte is still in the buffer.
                            Err(_) => return Ok(ChunkEvent::Data(merged.into_bytes())),
                        }
                        read.advance(1);
                        continue;
                    }
                }
            }
            return Ok(if merged.is_empty() {
                ChunkEvent::More
            } else {
                ChunkEvent::Data(merged.into_bytes())
            });
        }
    }

    /// The state after a framing byte.
    fn after(&mut self, byte: u8) -> Result<State, MalformedError> {
        Ok(match (self.state, byte) {
            (State::Size(size, digits), _)
                if byte.is_ascii_hexdigit() && digits < u64::BITS / 4 =>
            {
                State::Size(
                    size << 4 | char::from(byte).to_digit(16).map_or(0, u64::from),
                    digits + 1,
                )
            }
            (State::Size(size, 1..), b'\r') => State::SizeEnd(size),
            (State::Size(size, 1..), b';' | b' ' | b'\t') => {
                self.padding = usize::from(byte == b' ');
                State::Extension(size)
            }
            (State::Extension(size), b'\r') => State::SizeEnd(size),
            // A lone LF may hide bytes that other parsers take for a chunk.
            (State::Extension(size), _) if byte != b'\n' && self.overhead < MAX_OVERHEAD_BYTES => {
                // Some servers pad sizes with spaces.
                if byte == b' ' && self.padding < MAX_PADDING {
                    self.padding += 1;
                } else {
                    self.overhead += 1;
                }
                State::Extension(size)
            }
            (State::SizeEnd(0), b'\n') => State::Trailers(0),
            (State::SizeEnd(size), b'\n') => State::Data(size),
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::Size(0, 0),
            _ => return Err(CHUNK),
        })
    }
}

/// Parses the trailers, of which `scanned` bytes were scanned before, or returns `None` if more
/// must be read.
fn trailers(read: &mut BytesMut, scanned: usize) -> Result<Option<HeaderMap>, MalformedError> {
    const MALFORMED: MalformedError = MalformedError("malformed trailers, or too many");
    let end = match empty_line_end(read, scanned) {
        Some(end) if end <= MAX_OVERHEAD_BYTES => end,
        None if read.len() <= MAX_OVERHEAD_BYTES => return Ok(None),
        _ => return Err(MALFORMED),
    };
    // A lone LF may hide bytes that other parsers take for a line.
    let has_lone_lf = |line: &[u8]| !line.ends_with(b"\r\n");
    if read[..end]
        .split_inclusive(|byte| *byte == b'\n')
        .any(has_lone_lf)
    {
        return Err(MALFORMED);
    }
    let mut storage = [httparse::EMPTY_HEADER; MAX_TRAILERS];
    let Ok(httparse::Status::Complete((length, found))) =
        httparse::parse_headers(&read[..end], &mut storage)
    else {
        return Err(MALFORMED);
    };
    let mut trailers = HeaderMap::new();
    for header in found {
        let (name, value) = (
            HeaderName::from_bytes(header.name.as_bytes()),
            HeaderValue::from_bytes(header.value),
        );
        if let (Ok(name), Ok(value)) = (name, value)
            && headers::may_trail(&name)
        {
            trailers.append(name, value);
        }
    }
    read.advance(length);
    Ok(Some(trailers))
}

/// The data of chunks that are merged. A single chunk is not copied again.
#[derive(Default)]
struct MergedChunks {
    first: Bytes,
    /// All of the data, if there is more than one chunk.
    all: BytesMut,
}

impl MergedChunks {
    fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Whether `length` bytes may be added. Nothing is too long for an empty buffer.
    fn has_space(&self, length: u64, max: u64) -> bool {
        let length = self.first.len().max(self.all.len()) as u64 + length;
        self.is_empty() || length <= max.min(MAX_MERGED as u64)
    }

    /// Takes up to `length` bytes from `read`.
    fn add(&mut self, read: &mut BytesMut, length: u64) {
        if self.is_empty() {
            self.first = take(read, length);
            return;
        }
        if self.all.is_empty() {
            self.all
                .reserve((self.first.len() + read.len()).min(MAX_MERGED));
            self.all.extend_from_slice(&self.first);
        }
        let length = usize::try_from(length)
            .unwrap_or(usize::MAX)
            .min(read.len());
        self.all.extend_from_slice(&read[..length]);
        read.advance(length);
    }

    fn into_bytes(self) -> Bytes {
        if self.all.is_empty() {
            self.first
        } else {
            self.all.freeze()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The data and the trailers of a body that arrives in parts of this size. Nothing may be left
    /// over.
    fn decode(text: &[u8], size: usize) -> Result<(Vec<u8>, HeaderMap), Option<MalformedError>> {
        let (mut decoder, mut read) = (ChunkedDecoder::new(), BytesMut::new());
        let (mut data, mut trailers) = (Vec::new(), HeaderMap::new());
        let mut parts = text.chunks(size);
        loop {
            match decoder.next(&mut read, u64::MAX).map_err(Some)? {
                ChunkEvent::Data(more) => data.extend_from_slice(&more),
                ChunkEvent::Trailers(found) => trailers = found,
                ChunkEvent::More => read.extend_from_slice(parts.next().ok_or(None)?),
                ChunkEvent::Finished => {
                    assert!(decoder.is_finished() && read.is_empty() && parts.next().is_none());
                    return Ok((data, trailers));
                }
            }
        }
    }

    #[test]
    fn data_extensions_and_trailers() {
        let text = b"5\r\nhello\r\n00006;name=\"a;b\"\r\n world\r\n1 \r\n!\r\n0\r\nX-Sum: 12\r\nx-sum: 13\r\n\r\n";
        for size in 1..text.len() {
            let (data, trailers) = decode(text, size).unwrap();
            assert_eq!(data, b"hello world!");
            assert_eq!(
                trailers.get_all("x-sum").iter().collect::<Vec<_>>(),
                ["12", "13"]
            );
        }
        assert_eq!(
            decode(b"0\r\n\r\n", 1).unwrap(),
            (Vec::new(), HeaderMap::new())
        );
    }

    #[test]
    fn available_small_chunks_are_merged() {
        let of = |size: usize| format!("{size:x}\r\n{}\r\n", "x".repeat(size));
        for (sizes, parts) in [
            (&[1; 1_000][..], &[1_000][..]),
            (&[1_000; 10], &[4_000, 4_000, 2_000]),
            (&[4_096, 1, 4_095, 1], &[4_096, 4_096, 1]),
            (&[10, 5_000, 10, 20], &[10, 5_000, 30]),
        ] {
            let text: String = sizes.iter().map(|size| of(*size)).collect();
            let (mut decoder, mut read, mut found) = (
                ChunkedDecoder::new(),
                BytesMut::from(text.as_bytes()),
                Vec::new(),
            );
            while let ChunkEvent::Data(data) = decoder.next(&mut read, u64::MAX).unwrap() {
                found.push(data.len());
            }
            assert_eq!(found, parts, "{sizes:?}");
            let mut read = BytesMut::from(text.as_bytes());
            let Ok(ChunkEvent::Data(data)) = ChunkedDecoder::new().next(&mut read, 7) else {
                panic!("no data")
            };
            assert_eq!(data.len(), 7.min(sizes.iter().sum()));
        }
    }

    #[test]
    fn data_before_a_malformed_chunk_is_not_lost() {
        let (mut decoder, mut read) = (
            ChunkedDecoder::new(),
            BytesMut::from(&b"1\r\na\r\n2\r\nbc\r\nx"[..]),
        );
        assert_eq!(
            decoder.next(&mut read, u64::MAX),
            Ok(ChunkEvent::Data(Bytes::from("abc")))
        );
        assert_eq!(decoder.next(&mut read, u64::MAX), Err(CHUNK));
    }

    #[test]
    fn malformed_chunks_are_rejected() {
        for text in [
            &b"\r\n"[..],
            b";\r\n",
            b"-1\r\n",
            b"+1\r\n",
            b" 1\r\n",
            b"0x1\r\n",
            b"g\r\n",
            b"1\n",
            b"1;a\nx\r\n",
            b"1\r\r\n",
            b"1\r\nab\r\n",
            b"1\r\na\n0\r\n\r\n",
            b"1\r\na\r0\r\n\r\n",
            b"10000000000000000\r\n",
            b"0\r\nno header\r\n\r\n",
            b"0\r\n: 1\r\n\r\n",
            b"0\r\na: 1\n\r\n",
            b"0\r\na: 1\r\n\n",
            b"0\r\n\n",
        ] {
            for size in [1, text.len()] {
                let fault = decode(text, size).unwrap_err();
                assert!(fault.is_some(), "{}", String::from_utf8_lossy(text));
            }
        }
    }

    #[test]
    fn extensions_and_trailers_are_bounded() {
        let extension = format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(MAX_OVERHEAD_BYTES + 1));
        assert!(decode(extension.as_bytes(), 1_000).is_err());
        let again = format!("{}0\r\n\r\n", "1;xx\r\na\r\n".repeat(MAX_OVERHEAD_BYTES));
        assert!(decode(again.as_bytes(), 1_000).is_err());
        for (spaces, is_ok) in [(MAX_PADDING, true), (MAX_PADDING + 1, false)] {
            let chunk = format!("1{}\r\na\r\n", " ".repeat(spaces));
            let padded = format!("{}0\r\n\r\n", chunk.repeat(MAX_OVERHEAD_BYTES + 1));
            assert_eq!(decode(padded.as_bytes(), 1_000).is_ok(), is_ok);
        }
        let trailers = format!("0\r\na: {}\r\n\r\n", "x".repeat(MAX_OVERHEAD_BYTES * 2));
        assert!(decode(trailers.as_bytes(), 1_000).is_err());
        let too_many = format!("0\r\n{}\r\n", "a: 1\r\n".repeat(MAX_TRAILERS + 1));
        assert!(decode(too_many.as_bytes(), 1_000).is_err());
    }

    #[test]
    fn nothing_is_read_after_an_error() {
        for text in [
            "1\r\nab5\r\nhello\r\n0\r\n\r\n",
            "x5\r\nhello\r\n0\r\n\r\n",
            "0\r\nno header\r\n\r\n0\r\n\r\n",
        ] {
            let (mut decoder, mut read) = (ChunkedDecoder::new(), BytesMut::from(text));
            let fault = loop {
                match decoder.next(&mut read, u64::MAX) {
                    Ok(ChunkEvent::Data(_)) => {}
                    Ok(other) => panic!("{other:?} of {text:?}"),
                    Err(fault) => break fault,
                }
            };
            assert_eq!(decoder.next(&mut read, u64::MAX), Err(fault), "{text:?}");
            assert!(!decoder.is_finished());
        }
    }

    /// Each byte of trailers is scanned once, however they are split, as each attempt records how
    /// far it got.
    #[test]
    fn trailers_that_come_byte_by_byte_are_scanned_once() {
        let text = format!("0\r\n{}\r\n", "x-sum: 1\r\n".repeat(MAX_TRAILERS));
        let (mut decoder, mut read) = (ChunkedDecoder::new(), BytesMut::new());
        for (at, byte) in text.bytes().enumerate() {
            assert!(at < 4 || decoder.state == State::Trailers(at - 3));
            read.extend_from_slice(&[byte]);
            match decoder.next(&mut read, u64::MAX).unwrap() {
                ChunkEvent::More => assert!(at + 1 < text.len()),
                ChunkEvent::Trailers(trailers) => {
                    assert_eq!((trailers.len(), at + 1), (MAX_TRAILERS, text.len()));
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(decoder.is_finished() && read.is_empty());
    }

    proptest! {
        #[test]
        fn bodies_survive_any_split(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8),
            size in 1usize..64,
        ) {
            let mut text = Vec::new();
            for part in &parts {
                text.extend_from_slice(format!("{:X}\r\n", part.len()).as_bytes());
                text.extend_from_slice(part);
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(b"0\r\n\r\n");
            prop_assert_eq!(decode(&text, size).unwrap().0, parts.concat());
        }

        #[test]
        fn no_input_panics(text in "[0-9a-f;\r\n :]{0,60}") {
            let (mut decoder, mut read) = (ChunkedDecoder::new(), BytesMut::from(text.as_bytes()));
            while let Ok(ChunkEvent::Data(_) | ChunkEvent::Trailers(_)) = decoder.next(&mut read, u64::MAX) {}
        }
    }
}
