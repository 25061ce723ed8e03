//! The groups: what is measured and printed together. A new one is a file here and a line below.

pub(crate) mod envoy;
mod gateway;
pub(crate) mod keyed;
mod leased;
pub(crate) mod middleware;
mod one_limiter;
mod policies;
mod redis;
pub(crate) mod resp;
mod sometimes;

use crate::report::Findings;

pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Measures, prints its tables, and returns its rows and goals; the argument is the group's
    /// name.
    pub(crate) run: fn(&'static str) -> Findings,
}

pub(crate) const GROUPS: [Group; 10] = [
    one_limiter::GROUP,
    keyed::GROUP,
    policies::GROUP,
    sometimes::GROUP,
    middleware::GROUP,
    redis::GROUP,
    leased::GROUP,
    envoy::GROUP,
    resp::GROUP,
    gateway::GROUP,
];
