//! What the tests of ratekeeper over Redis need. It knows neither ratekeeper nor any Redis client,
//! so that a mistake in those cannot hide itself here.
//!
//! - [`server`]: real `redis-server` processes, to be killed, stopped, restarted and given another
//!   clock; Clusters and sentinels of them.
//! - [`fault_proxy`]: a network between client and server that loses, delays, garbles and cuts on
//!   demand.
//! - [`auditor`]: given all that was admitted, was the bound kept?
//! - [`naive`]: a limiter with a race, to show that a test for races can fail.
//! - [`resp`]: the least client that can send any command.
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
