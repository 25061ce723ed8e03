//! One screen each: `cargo run --example first_limiter`, `worker_pool`, `paid_api`,
//! `reserve_and_decide`, `plans`, `policies`, `follow_load`; a fleet on one Redis: `three_nodes`; a
//! client that behaves: `client`; in a web service: `axum_routes`, `login`, `global_then_ip`,
//! `hyper_plain`, `tonic_service`.

/// The code in docs/clients.md is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../docs/clients.md")]
mod clients {}

#[cfg(doctest)]
#[doc = include_str!("../docs/keys.md")]
mod keys {}
