//! Leases: tokens that this node may spend by itself for a while, so that most decisions ask
//! nobody.
//!
//! `central` is what Redis does, [`held`] what a node does; both are pure, and what must hold of
//! them is in their tests. [`table`] holds the keys, [`flight`] asks for more, [`terms`] says which
//! limits can be leased at all.

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
