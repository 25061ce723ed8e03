//! What parts of the server need of its sockets.

#[allow(dead_code, reason = "a part of the server")]
#[path = "../../crates/ratekeeper-server/src/net/stream/read_turns.rs"]
mod read_turns;

pub(crate) mod stream {
    pub(crate) use super::read_turns::{MAX_FRAMES_PER_TURN, yield_to_others};
}
