//! The messages, the service and the client of Envoy's rate limit protocol.
//!
//! The .proto files hold what the protocol needs of Envoy's API; `make proto` generates the code
//! from them. tests and benchmarks include this file too.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    unused_imports,
    clippy::all,
    reason = "generated, and used in parts"
)]

/// File descriptors of rls.proto and its imports, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");

mod generated {
    include!("generated/mod.rs");
}

pub use generated::envoy::config::core::v3::HeaderValue;
pub use generated::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor,
    rate_limit_descriptor::{Entry, RateLimitOverride},
};
pub use generated::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
    rate_limit_service_client::RateLimitServiceClient,
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer, SERVICE_NAME},
};
