//! The part of the socket module that the included server modules use.

#[allow(dead_code, reason = "a part of the server")]
#[path = "../../crates/ratekeeper-server/src/net/stream/read_budget.rs"]
mod read_budget;

pub(crate) mod stream {
    pub(crate) use super::read_budget::{MAX_FRAMES_PER_POLL, yield_to_others};
}
