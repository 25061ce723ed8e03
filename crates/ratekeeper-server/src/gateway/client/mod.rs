//! Client connections of the gateway: protocol detection, HTTP/1 and HTTP/2, timeouts.

mod abandoned;
mod connection;
mod forwarded_headers;
mod frame_reader;
mod http1;
mod informational;
mod io;
mod request_body;
mod service;
mod state;
mod streams;
mod timeouts;

pub(super) use abandoned::BrokenByClient;
pub(crate) use connection::serve;
pub(crate) use request_body::Http1Body;
pub(crate) use state::{Client, now};
pub(crate) use streams::{StreamExecutor, StreamProgress};
