//! Shared by the property tests: generators of limits and traces, and the flood simulation.
#![allow(
    dead_code,
    reason = "each test file is a crate of its own and uses a part"
)]

pub(crate) mod flood;
pub(crate) mod traces;
