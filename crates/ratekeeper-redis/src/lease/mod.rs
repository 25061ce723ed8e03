//! Leases: tokens that a node may spend by itself for a while, so that most decisions need no round
//! trip.
//!
//! `central` models what Redis does and [`node`] what a node does; both are pure, and their tests
//! check what must hold. [`table`] holds the leases of all keys, [`request`] asks for more,
//! [`eligibility`] decides which limits can be leased.

#[cfg(test)]
mod central;
pub(crate) mod eligibility;
pub(crate) mod node;
pub(crate) mod request;
pub(crate) mod table;

#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "test-time"))]
mod trace_tests;
