//! Many subjects under one limit, each held against a model that remembers everything: exactly as
//! if it were alone while there is room for all, and never more than its bound where there is not.

mod bounded;
mod charge;
#[path = "../common/mod.rs"]
mod common;
mod eviction;
mod exact;
mod flood;
mod gcra;
mod in_flight;
mod kinds;
mod threads;
mod waiting;
