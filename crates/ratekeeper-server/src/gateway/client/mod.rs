//! The clients of the gateway: their connections, what they may do on them and for how long.

mod abandoned;
mod connection;
mod forwarded_headers;
mod frame_reader;
mod http1;
mod io;
mod service;
mod state;
mod streams;

pub(super) use abandoned::BrokenByClient;
pub(super) use connection::serve;
pub(crate) use http1::{ClientBody, ProtocolSwitch, UpgradedSocket};
pub(crate) use state::{Client, now};
pub(crate) use streams::{StreamProgress, Streams};
