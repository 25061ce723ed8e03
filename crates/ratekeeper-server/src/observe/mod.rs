//! Metrics, traces and the load of this machine.

pub(crate) mod load;
pub(crate) mod metrics;
pub(crate) mod traces;
