//! Leases: tokens that this node may spend by itself for a while, so that most decisions ask nobody.
//!
//! [`central`] is what Redis does, [`held`] what a node does; both are pure, and the proofs are in their tests.

pub(crate) mod central;
pub(crate) mod held;

#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "test-time"))]
mod trace_tests;
