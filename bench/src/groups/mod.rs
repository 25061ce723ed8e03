//! The groups: what is measured and printed together. A new one is a file here and a line below.

mod algorithms;
pub(crate) mod check;
pub(crate) mod envoy;
mod gateway;
pub(crate) mod keyed;
mod leased;
pub(crate) mod middleware;
mod one_limiter;
mod policies;
mod redis;
pub(crate) mod resp;
mod sampler;
mod sometimes;

use crate::report::Findings;

pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Measures, prints its tables, and returns its rows and goals; the argument is the group's
    /// name.
    pub(crate) run: fn(&'static str) -> Findings,
}

pub(crate) const GROUPS: [Group; 13] = [
    one_limiter::GROUP,
    keyed::GROUP,
    policies::GROUP,
    algorithms::GROUP,
    sometimes::GROUP,
    sampler::GROUP,
    middleware::GROUP,
    redis::GROUP,
    leased::GROUP,
    check::GROUP,
    envoy::GROUP,
    resp::GROUP,
    gateway::GROUP,
];
