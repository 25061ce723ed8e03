//! The fuzz targets without the fuzzer: the corpus replay of `make test` runs them on stable, the
//! limits from crates/ratekeeper/tests, the patterns from crates/ratekeeper-policy/tests, the
//! identity from crates/ratekeeper-tower/tests, the configuration, RESP and the gateway from
//! crates/ratekeeper-server/tests, Envoy's limits from crates/ratekeeper-server/src/envoy.

mod config;
mod envoy;
mod gateway;
mod identity;
mod limits;
mod net;
mod policies;
mod resp;

pub use config::config;
pub use envoy::envoy;
pub use gateway::{gateway, response};
pub use identity::identity;
pub use limits::{decide, parse};
pub use policies::path;
pub use resp::resp;
