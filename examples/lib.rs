//! Examples, one screen each. Run one with `cargo run --example first_limiter`:
//!
//! - the library: `first_limiter`, `worker_pool`, `paid_api`, `reserve_and_decide`, `plans`,
//!   `policies`, `follow_load`;
//! - several processes with one Redis: `three_nodes`;
//! - a client that respects rate limits: `client`;
//! - web services: `axum_routes`, `login`, `global_then_ip`, `hyper_plain`, `tonic_service`.

/// Compiles and runs the code in docs/clients.md.
#[cfg(doctest)]
#[doc = include_str!("../docs/clients.md")]
mod clients {}
