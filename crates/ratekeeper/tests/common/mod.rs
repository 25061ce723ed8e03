//! Shared by the property tests: oracles with the whole history, and generators of limits and
//! traces.
#![allow(
    dead_code,
    reason = "each test file is a crate of its own and uses a part"
)]

pub(crate) mod bounds;
pub(crate) mod flood;
pub(crate) mod model;
pub(crate) mod oracle;
pub(crate) mod traces;
