//! Follows the HTTP/2 frames of a client just far enough to know whether a head has begun and not
//! ended. h2 reports malformed frames.

/// The length of the preface, before the first frame.
const PREFACE_BYTES: usize = super::connection::PREFACE.len();

/// The length of a frame's header (RFC 9113, 4.1).
const HEADER_BYTES: usize = 9;

const HEADERS: u8 = 0x1;
const CONTINUATION: u8 = 0x9;
const END_HEADERS: u8 = 0x4;

/// The position in the stream of frames.
pub(super) struct FrameReader {
    /// How many bytes of the preface are still to come.
    preface: usize,
    /// The header of the current frame, as far as it has come.
    header: [u8; HEADER_BYTES],
    have: usize,
    /// How many bytes of its payload are still to come.
    payload: usize,
    /// Whether a head has begun whose last frame has not.
    in_header_block: bool,
    /// Whether the current frame belongs to a head.
    is_header_frame: bool,
}

impl FrameReader {
    pub(super) fn new() -> Self {
        Self {
            preface: PREFACE_BYTES,
            header: [0; HEADER_BYTES],
            have: 0,
            payload: 0,
            in_header_block: false,
            is_header_frame: false,
        }
    }

    /// Reads the next bytes.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        let skipped = self.preface.min(bytes.len());
        self.preface -= skipped;
        bytes = &bytes[skipped..];
        while !bytes.is_empty() {
            let passed = self.payload.min(bytes.len());
            self.payload -= passed;
            bytes = &bytes[passed..];
            let read = (HEADER_BYTES - self.have).min(bytes.len());
            if read == 0 {
                break;
            }
            self.header[self.have..self.have + read].copy_from_slice(&bytes[..read]);
            self.have += read;
            bytes = &bytes[read..];
            if self.have == HEADER_BYTES {
                self.begin_payload();
            }
        }
    }

    fn begin_payload(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.header;
        self.payload = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        self.have = 0;
        self.is_header_frame = matches!(kind, HEADERS | CONTINUATION);
        if self.is_header_frame {
            self.in_header_block = flags & END_HEADERS == 0;
        }
    }

    /// Whether the preface is still to come, or a head has begun and not ended.
    pub(super) fn is_in_head(&self) -> bool {
        self.preface > 0 || self.in_header_block || self.is_header_frame && self.payload > 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::PREFACE;
    use super::*;
    use proptest::prelude::*;

    const DATA: u8 = 0x0;
    const SETTINGS: u8 = 0x4;

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let mut frame = vec![
            (length >> 16) as u8,
            (length >> 8) as u8,
            length as u8,
            kind,
            flags,
            0,
            0,
            0,
            1,
        ];
        frame.resize(HEADER_BYTES + length, b'x');
        frame
    }

    /// Whether the reader is in a head after each frame header, and after each byte that follows.
    fn head_states(frames: &[Vec<u8>]) -> Vec<bool> {
        let mut reader = FrameReader::new();
        reader.feed(PREFACE);
        let mut found = Vec::new();
        for frame in frames {
            reader.feed(&frame[..4]);
            reader.feed(&frame[4..HEADER_BYTES]);
            for byte in &frame[HEADER_BYTES..] {
                found.push(reader.is_in_head());
                reader.feed(&[*byte]);
            }
            found.push(reader.is_in_head());
        }
        found
    }

    #[test]
    fn a_head_lasts_from_its_first_byte_to_the_last_of_its_last_frame() {
        let mut reader = FrameReader::new();
        assert!(reader.is_in_head(), "the preface is to come");
        reader.feed(&PREFACE[..PREFACE.len() - 1]);
        assert!(reader.is_in_head());
        reader.feed(&PREFACE[PREFACE.len() - 1..]);
        assert!(!reader.is_in_head());
        assert_eq!(
            head_states(&[frame(SETTINGS, 0, 0), frame(DATA, 1, 2)]),
            [false, false, false, false]
        );
        assert_eq!(
            head_states(&[frame(HEADERS, END_HEADERS, 2), frame(DATA, 0, 1)]),
            [true, true, false, false, false]
        );
        let continued = [
            frame(HEADERS, 1, 1),
            frame(CONTINUATION, 0, 0),
            frame(CONTINUATION, END_HEADERS, 1),
        ];
        assert_eq!(head_states(&continued), [true, true, true, true, false]);
    }

    proptest! {
        /// However the bytes are split.
        #[test]
        fn the_state_does_not_depend_on_how_the_bytes_are_split(
            frames in prop::collection::vec((0u8..12, any::<u8>(), 0usize..300), 0..8),
            cuts in prop::collection::vec(1usize..40, 1..20),
        ) {
            let mut bytes = PREFACE.to_vec();
            frames.iter().for_each(|(kind, flags, length)| bytes.extend(frame(*kind, *flags, *length)));
            let mut complete = FrameReader::new();
            complete.feed(&bytes);
            let (mut cut, mut rest, mut next) = (FrameReader::new(), &bytes[..], cuts.iter().cycle());
            while let Some(length) = next.next().map(|length| (*length).min(rest.len())).filter(|length| *length > 0) {
                cut.feed(&rest[..length]);
                rest = &rest[length..];
            }
            prop_assert_eq!(cut.is_in_head(), complete.is_in_head());
            let mut heads = frames.iter().filter(|(kind, ..)| matches!(*kind, HEADERS | CONTINUATION));
            prop_assert_eq!(complete.is_in_head(), heads.next_back().is_some_and(|(_, flags, _)| flags & END_HEADERS == 0));
        }

        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            FrameReader::new().feed(&bytes);
        }
    }
}
