//! What it takes to speak HTTP/1, with clients as with upstreams.

mod buffer;
mod chunks;
mod outgoing;

pub(super) use buffer::{fill, take};
pub(super) use chunks::{Chunks, Piece};
pub(super) use outgoing::Outgoing;
