//! Envoy's rate limit service, in place of envoyproxy/ratelimit: its configuration files, its
//! protocol, its answers.
//!
//!     config    the files, read strictly       matching  which limit a descriptor has: pure
//!     judge     a request asked of the store   answer    what is told: statuses, headers, metadata
//!     service   gRPC: ShouldRateLimit, health, reflection       json      the same as `POST /json`

pub(crate) mod config;
mod decide;
mod health;
mod json;
mod matching;
mod request_body;
mod response;
mod rules;
mod service;

pub(crate) use decide::Envoy;
pub(crate) use json::handle as json;
pub(crate) use rules::Settings;
pub(crate) use service::{Grpc, connection};

#[cfg(test)]
mod fuzz_corpus;
/// What the fuzz target runs, on the modules here.
#[cfg(test)]
#[allow(unreachable_pub, reason = "part of a library of its own elsewhere")]
#[path = "../../../../fuzz/src/envoy/target.rs"]
mod target;
