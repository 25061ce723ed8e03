//! Listeners, connections, TLS and the worker threads that serve them.

pub(crate) mod certificates;
pub(crate) mod connections;
pub(crate) mod listen;
pub(crate) mod stream;
pub(crate) mod tls;
pub(crate) mod worker;
pub(crate) mod worker_health;
pub(crate) mod workers;
pub(crate) mod write_timeout;
