//! Configuration files of envoyproxy/ratelimit.

#[allow(dead_code, unreachable_pub, reason = "a part of the server")]
#[path = "../../../crates/ratekeeper-server/src/envoy/config.rs"]
mod config;
#[allow(dead_code, unreachable_pub, reason = "a part of the server")]
#[path = "../../../crates/ratekeeper-server/src/envoy/matching/mod.rs"]
mod matching;
mod target;

pub use target::envoy;
