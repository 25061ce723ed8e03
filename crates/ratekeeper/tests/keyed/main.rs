//! Keyed limiters, each key compared with a model that remembers everything: equal to a limiter of
//! its own while there is a slot for every key, and never above its bound where there is not.

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
