//! HTTP/1 parts that the client side and the upstream side share.

mod buffer;
mod chunks;
mod message_writer;
mod outgoing;
mod poll_budget;

pub(super) use buffer::{empty_line_end, fill, take};
pub(super) use chunks::{ChunkEvent, Chunks};
pub(super) use message_writer::{Framing, MessageSink, MessageWriter, Trailers, WriteError};
pub(super) use outgoing::{ResponseWriter, put_header};
pub(super) use poll_budget::PollBudget;
