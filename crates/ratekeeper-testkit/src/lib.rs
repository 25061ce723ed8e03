//! Test support for ratekeeper: what a limit means, by its definition, and what a fleet runs on. Of
//! ratekeeper it uses only the types that say what a limit is and what was decided, and it has a
//! Redis client of its own, so that a mistake in those cannot hide itself here.
//!
//! - [`server`]: real `redis-server` processes, to be killed, stopped, restarted and given another
//!   clock; Clusters and sentinels of them.
//! - [`fault_proxy`]: a network between client and server that loses, delays, corrupts and cuts on
//!   demand.
//! - [`auditor`]: checks a trace of all allowed calls against a bound.
//! - [`bounds`]: the bound of a `Limit`, and allowed calls at the times at which they count.
//! - [`bucket_rule`]: a token bucket in exact rationals, computed from its whole history.
//! - [`changing_bucket`]: the bound of a token bucket whose limit changes.
//! - [`model`]: one key under any limit, decided from its whole history.
//! - [`poll`]: polling futures without a runtime.
//! - [`naive`]: a limiter with a race condition, to show that a test for races can fail.
//! - [`resp`]: a minimal client that can send any command.
//! - [`tools`]: programs that a test needs and a machine may lack.

pub mod auditor;
pub mod bounds;
pub mod bucket_rule;
pub mod changing_bucket;
pub mod fault_proxy;
pub mod model;
pub mod naive;
pub mod poll;
mod ports;
pub mod resp;
pub mod server;
pub mod tools;

pub use bucket_rule::{BucketRule, Event};
pub use fault_proxy::{Fault, FaultProxy};
pub use model::{DecisionInfo, Model};
pub use ports::free_port;
pub use resp::{Connection, Reply};
pub use server::{RedisCluster, RedisSentinels, RedisServer};
