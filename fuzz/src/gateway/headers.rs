//! The server's hop-by-hop headers.

#[allow(dead_code, reason = "a part of the server")]
#[path = "../../../crates/ratekeeper-server/src/gateway/headers/hop_by_hop.rs"]
mod hop_by_hop;

#[cfg(test)]
pub(crate) use hop_by_hop::upgrade;
pub(crate) use hop_by_hop::{is_hop_by_hop, may_trail, strip};
