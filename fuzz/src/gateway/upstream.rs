//! The response reader for HTTP/1 upstreams, without a connection.

#[allow(dead_code, reason = "a part of the server")]
#[path = "../../../crates/ratekeeper-server/src/gateway/upstream/http1/buffer.rs"]
mod buffer;
#[path = "../../../crates/ratekeeper-server/src/gateway/upstream/http1/chunked_decoder.rs"]
mod chunked_decoder;
#[allow(dead_code, reason = "a part of the server")]
#[path = "../../../crates/ratekeeper-server/src/gateway/upstream/http1/head.rs"]
mod head;
#[allow(dead_code, reason = "a part of the server")]
#[path = "../../../crates/ratekeeper-server/src/gateway/upstream/http1/response_reader.rs"]
mod response_reader;

use axum::body::Bytes;
use axum::http::Method;
use http_body::{Frame, SizeHint};

/// Why there is no response, or no more of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum H1Error {
    Closed,
    InvalidResponse(#[allow(dead_code, reason = "for debugging")] &'static str),
}

pub(super) use head::Head;

/// The reader.
pub(super) struct Reader(response_reader::ResponseReader);

/// The next part of a body.
pub(super) enum Next {
    Frame(Frame<Bytes>),
    More,
    Finished,
}

impl Reader {
    pub(super) fn new(method: &Method, max_chunk: u64) -> Self {
        let mut reader = response_reader::ResponseReader::default();
        reader.begin(method, max_chunk);
        Self(reader)
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.read.extend_from_slice(bytes);
    }

    /// The bytes that were read and not consumed.
    pub(super) fn rest(&self) -> &[u8] {
        &self.0.read
    }

    pub(super) fn head(&mut self) -> Result<Option<Head>, H1Error> {
        self.0.head()
    }

    pub(super) fn whole_body(&mut self) -> Option<Bytes> {
        self.0.whole_body()
    }

    pub(super) fn next(&mut self) -> Result<Next, H1Error> {
        Ok(match self.0.next()? {
            response_reader::Next::Frame(frame) => Next::Frame(frame),
            response_reader::Next::More(expected) => {
                assert!(expected > 0, "more is needed, but no bytes are expected");
                Next::More
            }
            response_reader::Next::Finished => Next::Finished,
        })
    }

    pub(super) fn end(&mut self) -> Result<(), H1Error> {
        self.0.end()
    }

    pub(super) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
