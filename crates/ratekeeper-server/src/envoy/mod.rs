//! Envoy's rate limit service: the configuration files, protocol and responses of
//! envoyproxy/ratelimit.
//!
//!     config    strict parsing of the files    matching  finds the limit of a descriptor; pure
//!     rules     rules with registered limits   decide    decides a request with the store
//!     response  statuses, headers, metadata    service   gRPC: ShouldRateLimit, health, reflection
//!     json      `POST /json`                   proto     the messages, generated

pub(crate) mod config;
mod decide;
mod health;
mod json;
mod matching;
#[path = "../../proto/mod.rs"]
mod proto;
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
/// The fuzz target, compiled with these modules.
#[cfg(test)]
#[allow(unreachable_pub, reason = "part of a library in the fuzz crate")]
#[path = "../../../../fuzz/src/envoy/target.rs"]
mod target;
