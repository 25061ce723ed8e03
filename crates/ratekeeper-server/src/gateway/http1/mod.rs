//! HTTP/1 parts that the client side and the upstream side share.

mod buffer;
mod chunked_decoder;
mod message_writer;
mod poll_budget;
mod write_buffer;

pub(super) use buffer::{empty_line_end, fill, take};
pub(super) use chunked_decoder::{ChunkEvent, ChunkedDecoder};
pub(super) use message_writer::{Framing, MessageSink, MessageWriter, Trailers, WriteError};
pub(super) use poll_budget::PollBudget;
pub(super) use write_buffer::{WriteBuffer, put_header};
