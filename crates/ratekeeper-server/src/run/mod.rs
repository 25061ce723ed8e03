//! Starting, reloading and stopping the server.

pub(crate) mod log;
pub(crate) mod reload;
pub(crate) mod serve;
pub(crate) mod signals;
pub(crate) mod start_error;
pub(crate) mod systemd;
pub(crate) mod welcome;

pub(crate) use start_error::StartError;
