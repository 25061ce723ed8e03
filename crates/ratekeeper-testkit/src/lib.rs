//! Test support for ratekeeper on Redis. It depends neither on ratekeeper nor on a Redis client, so
//! that a mistake in those cannot hide itself here.
//!
//! - [`server`]: real `redis-server` processes, to be killed, stopped, restarted and given another
//!   clock; Clusters and sentinels of them.
//! - [`fault_proxy`]: a network between client and server that loses, delays, corrupts and cuts on
//!   demand.
//! - [`auditor`]: checks a trace of all allowed calls against a bound.
//! - [`naive`]: a limiter with a race condition, to show that a test for races can fail.
//! - [`resp`]: a minimal client that can send any command.
//! - [`tools`]: programs that a test needs and a machine may lack.

pub mod auditor;
pub mod fault_proxy;
pub mod naive;
mod ports;
pub mod resp;
pub mod server;
pub mod tools;

pub use fault_proxy::{Fault, FaultProxy};
pub use ports::free_port;
pub use resp::{Connection, Reply};
pub use server::{RedisCluster, RedisSentinels, RedisServer};
